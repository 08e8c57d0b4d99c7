//go:build unix

package boot

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// briefly is how long the ranks below wait in Join.
const briefly = 2 * time.Second

func init() {
	// brief joins a job. It stops itself while it waits if its argument is "true".
	acts["brief"] = func(args []string) int {
		joinPatience, hostedPatience, pmiPatience, silencePatience = briefly, briefly, briefly, 0
		ctx := context.Background()
		if args[0] == "true" {
			ctx = WithLogger(ctx, slog.New(stopping{slog.DiscardHandler, new(sync.Once)}))
		}
		j, err := Join(ctx)
		if err != nil {
			fmt.Println("error:", err)
			return 3
		}
		fmt.Println("joined")
		j.Close()
		return 0
	}
}

// stopping stops this process at the first record that says that it waits.
type stopping struct {
	slog.Handler
	once *sync.Once
}

func (stopping) Enabled(context.Context, slog.Level) bool { return true }

func (s stopping) Handle(_ context.Context, r slog.Record) (err error) {
	if strings.Contains(r.Message, "waiting for the") {
		s.once.Do(func() { err = ranks.StopSelf() })
	}
	return err
}

// TestStoppedInJoin: of the time of Join only that counts in which the rank runs, and none in which the
// rendezvous, on the same host, has a connection.
func TestStoppedInJoin(t *testing.T) {
	need.Full(t)
	for _, c := range []struct {
		name, env string // $ADDRESS and $PORT are of the rendezvous
		job       string
		stops     bool // the rank; otherwise the rendezvous
	}{
		{"launched", "SLUICE_LAUNCHER=run SLUICE_SERVER=$ADDRESS", "", true},
		{"by hand", "SLUICE_SERVER=$ADDRESS", "", true},
		{"the rendezvous", "SLUICE_SERVER=$ADDRESS", "", false},
		{"the rendezvous, at one of two addresses", "SLURM_STEP_RESV_PORTS=$PORT " + strings.Join(slurmStepOf(1), " "), "slurm-12.3", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // it waits
			address, listen := reserved(t)
			var ln net.Listener
			if !c.stops { // else the rendezvous comes up later
				ln = listen()
			}
			_, port, err := net.SplitHostPort(address)
			require.NoError(t, err)
			cmd := ranks.Command(ranks.Within(t), "brief", fmt.Sprint(c.stops))
			env := strings.NewReplacer("$ADDRESS", address, "$PORT", port).Replace(c.env)
			if c.job == "" {
				env += " SLUICE_SIZE=3 SLUICE_RANK=1 SLUICE_SECRET=" + hexSecret
			}
			cmd.Env = append(WithoutLauncher(cmd.Env), strings.Fields(env)...)
			var out strings.Builder
			cmd.Stdout = &out
			if c.stops {
				require.NoError(t, cmd.Start())
				awaitStop(t, cmd)
			} else {
				require.NoError(t, cmd.Start())
				conn, err := ln.Accept()
				require.NoError(t, err)
				ln = &accepted{Listener: ln, conns: []net.Conn{conn}}
			}
			time.Sleep(briefly * 3 / 2)
			if c.stops {
				ln = listen()
			}
			secret, err := decodeSecret(hexSecret)
			require.NoError(t, err)
			s, err := Serve(ranks.Within(t), ln, ServerOptions{Size: 3, Job: c.job, Secret: secret})
			require.NoError(t, err)
			defer s.Close()
			require.NoError(t, cmd.Process.Signal(syscall.SIGCONT))
			require.NoError(t, cmd.Wait(), "%s", &out)
			require.Equal(t, "joined\n", out.String())
		})
	}
}

// reserved returns an address of this host at which nothing listens before listen is called.
func reserved(t *testing.T) (address string, listen func() net.Listener) {
	syscall.ForkLock.RLock()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	require.NoError(t, err)
	socket := os.NewFile(uintptr(fd), "reserved")
	t.Cleanup(func() { socket.Close() })
	require.NoError(t, syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	own, err := syscall.Getsockname(fd)
	require.NoError(t, err)
	return fmt.Sprint("127.0.0.1:", own.(*syscall.SockaddrInet4).Port), func() net.Listener {
		require.NoError(t, syscall.Listen(fd, 128))
		ln, err := net.FileListener(socket)
		require.NoError(t, err)
		return ln
	}
}

// awaitStop waits until a process is stopped.
func awaitStop(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	var status syscall.WaitStatus
	err := error(syscall.EINTR)
	for err == syscall.EINTR {
		_, err = syscall.Wait4(cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
	}
	require.NoError(t, err)
	require.True(t, status.Stopped(), status)
}

// TestStoppedUnderPMI: a rank that is stopped before the launcher answers has time when it goes on.
func TestStoppedUnderPMI(t *testing.T) {
	need.Full(t)
	t.Parallel() // it waits
	ln := ranks.Listen(t)
	cmd := ranks.Command(ranks.Within(t), "brief", "false")
	cmd.Env = append(WithoutLauncher(cmd.Env), "PMI_PORT="+ln.Addr().String(), "PMI_ID=0")
	var out strings.Builder
	cmd.Stdout = &out
	require.NoError(t, cmd.Start())
	conn, err := ln.Accept()
	require.NoError(t, err)
	defer conn.Close()
	r := bufio.NewReader(conn)
	for _, says := range []string{
		"cmd=initack\ncmd=set size=1\ncmd=set rank=0\ncmd=set debug=0\n",
		"cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n",
		"cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024\n",
		"cmd=my_kvsname kvsname=kvs\n",
		"cmd=finalize_ack\n",
	} {
		request, err := r.ReadString('\n')
		require.NoError(t, err)
		if strings.HasPrefix(request, "cmd=get_maxes") {
			require.NoError(t, cmd.Process.Signal(syscall.SIGSTOP))
			awaitStop(t, cmd)
			time.Sleep(briefly * 3 / 2)
			require.NoError(t, cmd.Process.Signal(syscall.SIGCONT))
		}
		_, err = io.WriteString(conn, says)
		require.NoError(t, err)
	}
	require.NoError(t, cmd.Wait(), "%s", &out)
	require.Equal(t, "joined\n", out.String())
}
