//go:build unix

package channel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/internal/logbuf"
	"github.com/sluice-hpc/sluice/internal/proof"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

func init() {
	// mistaken joins its job, says what came of it, and ends with its standard input.
	acts["mistaken"] = act{prepare: func([]string) error {
		slog.SetLogLoggerLevel(slog.LevelDebug) // rank 0 says which have joined
		n, err := Join(context.Background())
		if err != nil {
			var e *Error
			errors.As(err, &e)
			fmt.Fprintf(os.Stderr, "culprit %d, refused %v: %v\n", e.Rank, errors.Is(err, ErrRefused), err)
			return ranks.Status(3)
		}
		fmt.Fprintln(os.Stderr, "joined")
		io.Copy(io.Discard, os.Stdin)
		n.Close()
		return ranks.Status(0)
	}}
	// foreign is a rank of another version: all that it shares with the others is the proof.
	acts["foreign"] = act{prepare: func([]string) error {
		e, err := boot.ByHand(2, 3, os.Getenv(boot.EnvServer))
		if err != nil {
			return err
		}
		for err = io.EOF; errors.Is(err, io.EOF) || errors.As(err, new(*net.OpError)); time.Sleep(time.Millisecond) { // until there is a rendezvous
			var conn net.Conn
			if conn, err = net.Dial("tcp", e.Server); err == nil {
				_, err = proof.Dial(conn, proof.Params{Secret: e.Secret, Protocol: "sluice-boot", Major: 9, Job: e.Job, Self: rankID(2)}, nil)
				conn.Close()
			}
		}
		fmt.Fprintln(os.Stderr, err)
		return ranks.Status(3)
	}}
}

// mistake is what is wrong with a job of three ranks, which their user starts.
type mistake struct {
	name    string
	at      int                                 // which process makes it; none: -1
	env     string                              // its variables, in place of those that it should have; NAME= removes one
	program func(t *testing.T) string           // that it runs; nil: that of the others
	act     string                              // "": mistaken
	absent  []int                               // processes that are not started
	listens func(t *testing.T, ln net.Listener) // what is at the address before rank 0 comes; nil: nothing
	all     string                              // what all others say, with $SERVER for the address
	lowest  bool                                // no: the lowest of the others does
	own     string                              // what the process itself says; "": the same; "-": nothing
	culprit string                              // in the error of the others; "": they have none, or it is about what is at the address
}

const otherTestSecret = "ff0102030405060708090a0b0c0d0e0f"

var mistakes = []mistake{
	// Of one that has proved to be of the job, or can.
	{name: "another size", at: 1, env: "SLUICE_SIZE=4", all: "rank 1 was refused: it believes that the job has 4 ranks, but the job has 3", own: "the rendezvous refused rank 1: it believes", culprit: "1"},
	{name: "the same rank twice", at: 2, env: "SLUICE_RANK=1", all: ": two processes have this number: ", culprit: "1"},
	{name: "no such rank", at: 2, env: "SLUICE_RANK=3", all: `rank 3 gave up: boot: SLUICE_RANK="3": must be below SLUICE_SIZE=3: want 0 to 2`, own: `SLUICE_RANK="3": must be below`, culprit: "3"},
	{name: "no such rank, and another size", at: 2, env: "SLUICE_RANK=3 SLUICE_SIZE=4", all: "rank 3 was refused: it believes that the job has 4 ranks", own: "the rendezvous refused rank 3", culprit: "3"},
	{name: "a negative rank", at: 1, env: "SLUICE_RANK=-1", all: `a process that is no rank gave up: boot: SLUICE_RANK="-1": must be below`, own: `SLUICE_RANK="-1"`, culprit: "-1"},
	{name: "a rank that is no number", at: 2, env: "SLUICE_RANK=two", all: `a process that is no rank gave up: boot: SLUICE_RANK="two": not a number`, own: `SLUICE_RANK="two": not a number`, culprit: "-1"},
	{name: "a size that is no number", at: 2, env: "SLUICE_SIZE=three", all: `rank 2 gave up: boot: SLUICE_SIZE="three": not a number`, own: `SLUICE_SIZE="three"`, culprit: "2"},
	{name: "half a local rank", at: 1, env: "SLUICE_LOCAL_RANK=1", all: "rank 1 gave up: boot: SLUICE_LOCAL_SIZE: not set", own: "set both or neither", culprit: "1"},
	{name: "another version", at: 2, act: "foreign", all: "rank 2 was refused: another version of the protocol, 9.0; this rendezvous has 1.", own: "version mismatch", culprit: "2"},
	{name: "another tuning of collectives", at: 2, env: "COLL_XSIZE=4096", all: "rank 2 was refused: settings differ between rank 0 and rank 2: COLL_XSIZE is ", culprit: "2"},
	{name: "another tuning of messages", at: 2, env: "SLUICE_TCP_EAGER=4096", all: "rank 2 was refused: settings differ between rank 0 and rank 2: SLUICE_TCP_EAGER is 8192 and 4096", culprit: "2"},
	{name: "another tuning of rank 0", at: 0, env: "COLL_XSIZE=4096", all: "rank 0 was refused: settings differ between rank 1 and rank 0: COLL_XSIZE is ", culprit: "0"},
	{name: "a setting that is no number", at: 1, env: "COLL_XSIZE=much", all: `rank 1 gave up: invalid argument: coll: COLL_XSIZE="much"`, own: `COLL_XSIZE="much"`, culprit: "1"},
	{name: "a setting of rank 0 that is no number", at: 0, env: "COLL_XSIZE=much", all: `rank 0 gave up: invalid argument: coll: COLL_XSIZE="much"`, own: `COLL_XSIZE="much"`, culprit: "0"},
	{name: "no tuning file", at: 2, env: "SLUICE_TUNING_FILE=/no/such/file", all: `rank 2 gave up: invalid argument: SLUICE_TUNING_FILE="/no/such/file"`, own: "no such file", culprit: "2"},
	{name: "no such provider", at: 1, env: "SLUICE_TRANSPORT=tpc", all: `rank 1 gave up: invalid argument: SLUICE_TRANSPORT="tpc": provider "tpc" has no device here`, own: `provider "tpc"`, culprit: "1"},
	{name: "no such network", at: 2, env: "SLUICE_NET=203.0.113.0/24", all: "rank 2 gave up: SLUICE_NET=203.0.113.0/24: this host has no such address", own: "SLUICE_NET=203.0.113.0/24", culprit: "2"},
	{name: "another program, with SLUICE_SAME", at: 2, env: "SLUICE_SAME=1", program: otherName, all: " was refused: it runs another program, ", own: "another program, ", culprit: "2"},
	{name: "another build, with SLUICE_SAME", at: 1, env: "SLUICE_SAME=1", program: otherBuild, all: " was refused: it runs another build of ", own: "another build of ", culprit: "1"},

	// Of one that cannot: whatever it is, it ends no rank.
	{name: "another secret", at: 2, env: "SLUICE_SECRET=" + otherTestSecret, all: "; rank 2 was refused: another secret", own: "the two ends have different secrets"},
	{name: "no secret", at: 1, env: "SLUICE_SECRET=", all: "; rank 1 was refused: another secret", own: "SLUICE_SECRET: not set"},
	{name: "a secret that is none", at: 2, env: "SLUICE_SECRET=secret", all: "; rank 2 was refused: another secret", own: "SLUICE_SECRET: not hexadecimal"},
	{name: "an insecure rank", at: 2, env: "SLUICE_SECRET= SLUICE_INSECURE=1", all: "; rank 2 was refused: it has none for a secret, and the job has a secret", own: "secret mismatch"},
	{name: "another job", at: 2, env: "SLUICE_JOB=other", all: `; rank 2 was refused: another job, "other"; this one is "job"`, own: "job mismatch"},
	{name: "another version and secret", at: 2, act: "foreign", env: "SLUICE_SECRET=" + otherTestSecret, all: "; rank 2 was refused: another version of the protocol, 9.0", own: "version mismatch"},

	// Of one that does not come.
	{name: "a rank is missing", at: -1, absent: []int{1}, lowest: true, all: "waiting for rank 1 of 3 at $SERVER rank=0"},
	{name: "rank 0 is missing", at: -1, absent: []int{0}, all: "waiting for the rendezvous: at $SERVER: "},
	{name: "another address", at: 2, env: "SLUICE_SERVER=127.0.0.1:9", all: "waiting for rank 2 of 3 at $SERVER", lowest: true, own: "waiting for the rendezvous: at 127.0.0.1:9: "},
	{name: "no such host", at: 2, env: "SLUICE_SERVER=no-such-host.invalid:9", all: "waiting for rank 2 of 3 at $SERVER", lowest: true, own: "lookup no-such-host.invalid"},
	{name: "another program, and a rank is missing", at: 1, program: otherName, absent: []int{2}, lowest: true, all: "waiting for rank 2 of 3 at $SERVER; rank ", own: "-"},

	// Of what is at the address.
	{name: "a web server", at: -1, listens: answers("HTTP/1.1 400 Bad Request\r\n\r\n"), all: "not a sluice peer: it sent \"HTTP/1\" first"},
	{name: "something that greets", at: -1, listens: answers("SSH-2.0-OpenSSH_9.2\r\n"), all: "not a sluice peer: it sent \"SSH-2.\" first"},
	{name: "something silent", at: -1, listens: func(*testing.T, net.Listener) {}, all: "waiting for the rendezvous: at $SERVER: the connection was accepted, and there is no answer yet"},
	{name: "the rendezvous of another job", at: -1, listens: rendezvousOf(3, "other"), all: `job mismatch: this end has "job", the peer "other"`},
	{name: "the rendezvous of a larger job", at: -1, listens: rendezvousOf(7, "job"), all: "it believes that the job has 3 ranks, but the job has 7"},
	{name: "a rendezvous of another version", at: -1, listens: otherVersion, all: "version mismatch"},

	// Of a name.
	{name: "a misspelt variable", at: 2, env: "SLUICE_TRANSPRT=tcp", all: "joined", own: "SLUICE_TRANSPRT (is it SLUICE_TRANSPORT?)"},
	{name: "a misspelt variable, and a rank is missing", at: 2, env: "SLUICE_TRANSPRT=tcp", absent: []int{1}, lowest: true, all: "waiting for rank 1 of 3", own: "SLUICE_TRANSPRT (is it SLUICE_TRANSPORT?)"},
}

// TestMistakes: each mistake in starting a job is found, and all its ranks say which rank it is and why.
func TestMistakes(t *testing.T) {
	for _, m := range mistakes {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel() // they wait, for processes and for the first report
			if m.culprit == "" {
				need.Full(t)
			}
			m.play(t)
		})
	}
}

func (m *mistake) play(t *testing.T) {
	ctx := ranks.Within(t)
	server := ranks.Free(t) // rank 0 listens there, at last
	var before net.Listener
	if m.listens != nil || m.at == 0 {
		var err error
		before, err = net.Listen("tcp", server)
		require.NoError(t, err)
		t.Cleanup(func() { before.Close() })
	}
	if m.listens != nil {
		m.listens(t, before)
	}
	begin := time.Now()
	var outputs [3]*logbuf.Buffer
	says := func(rank int, want string) {
		for !strings.Contains(outputs[rank].String(), want) {
			require.NoError(t, ctx.Err(), "rank %d does not say %q, but\n%s", rank, want, outputs[rank])
			time.Sleep(time.Millisecond)
		}
	}
	start := func(rank int) {
		env := map[string]string{"SLUICE_RANK": fmt.Sprint(rank), "SLUICE_SIZE": "3", "SLUICE_SERVER": server, "SLUICE_SECRET": testSecret, "SLUICE_JOB": "job"}
		act, program := "mistaken", ranks.Program()
		if rank == m.at {
			for _, v := range strings.Fields(m.env) {
				name, value, _ := strings.Cut(v, "=")
				env[name] = value
			}
			if m.act != "" {
				act = m.act
			}
			if m.program != nil {
				program = m.program(t)
			}
		}
		cmd := exec.CommandContext(ctx, program)
		cmd.Env = append(boot.WithoutLauncher(os.Environ()), ranks.Variables(act)...)
		for name, value := range env {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
		outputs[rank] = &logbuf.Buffer{}
		cmd.Stdout, cmd.Stderr = outputs[rank], outputs[rank]
		in, err := cmd.StdinPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { in.Close(); cmd.Process.Kill(); cmd.Wait() })
	}
	for rank := range outputs {
		if rank != m.at && !slices.Contains(m.absent, rank) {
			start(rank)
		}
	}
	switch {
	case m.at > 0 && m.culprit != "": // rank 0 waits for half a second for those that come after the mistake
		says(0, fmt.Sprintf("rendezvous: joined rank=%d ", 3-m.at))
	case m.at == 0: // and for seconds after its own: the others try already
		end, _ := ctx.Deadline()
		require.NoError(t, before.(*net.TCPListener).SetDeadline(end))
		one, err := before.Accept()
		require.NoError(t, err)
		other, err := before.Accept()
		require.NoError(t, err)
		require.NoError(t, errors.Join(before.Close(), one.Close(), other.Close()))
	}
	if m.at >= 0 {
		start(m.at)
	}
	low := slices.IndexFunc(outputs[:], func(out *logbuf.Buffer) bool { return out != nil && (m.at < 0 || out != outputs[m.at]) })
	all := strings.ReplaceAll(m.all, "$SERVER", server)
	for rank, out := range outputs {
		switch {
		case out == nil, rank == m.at && m.own == "-":
		case rank == m.at && m.own != "":
			says(rank, m.own)
		case m.lowest && rank != low:
		default:
			says(rank, all)
			if m.culprit != "" {
				says(rank, "culprit "+m.culprit)
			} else if m.listens == nil {
				require.NotContains(t, out.String(), "culprit", "it ends no rank")
			}
		}
	}
	t.Logf("found within %v", time.Since(begin).Round(time.Millisecond))
}

// TestJoinTimeout: Join ends in its time, and says at all ranks which is missing, and why.
func TestJoinTimeout(t *testing.T) {
	for _, c := range []struct {
		name, env, says string
		opts            []Option
	}{
		{"option", "2h", "waited for 1ms (SLUICE_JOIN_TIMEOUT)", []Option{WithJoinTimeout(time.Millisecond)}},
		{"variable", "1ms", "waited for 1ms (SLUICE_JOIN_TIMEOUT)", nil},
		{"wrong", "soon", `SLUICE_JOIN_TIMEOUT="soon": want a duration such as 90s, or none`, nil},
		{"wrong", "-1s", "want a duration", nil},
		{"wrong option", "", "join timeout of -1ns: it must not be negative", []Option{WithJoinTimeout(-1)}},
	} {
		t.Run(c.name+c.env, func(t *testing.T) {
			told(t, map[string]string{"SLUICE_RANK": "1", "SLUICE_SIZE": "2", "SLUICE_SERVER": serveJob(t, 2), "SLUICE_LAUNCHER": "run", "SLUICE_SECRET": testSecret})
			t.Setenv(EnvJoinTimeout, c.env)
			_, err := Join(within(t), append(c.opts, WithLogger(slog.New(slog.DiscardHandler)))...)
			require.ErrorContains(t, err, c.says)
		})
	}
	o, err := newOptions(nil)
	require.NoError(t, err)
	require.Equal(t, DefaultJoinTimeout, o.joinTimeout)
	require.False(t, o.joinGiven)
	t.Setenv(EnvJoinTimeout, "none")
	o, err = newOptions(nil)
	require.NoError(t, err)
	require.True(t, o.joinGiven)
	require.Greater(t, o.joinTimeout, 100*365*24*time.Hour)
}

// TestJoinTimeoutNames: a rank that gives up says which are missing and what was refused in their place, and so do
// those that it leaves waiting.
func TestJoinTimeoutNames(t *testing.T) {
	waitsLonger(t, func(ctx context.Context) bool {
		server := serveJob(t, 3)
		e := asRank(t, server, 2, 3)
		e.Secret = append(e.Secret, 1)
		_, err := e.Join(within(t))
		require.ErrorIs(t, err, proof.ErrRefused)
		var errs [2]error
		ranks.Each(t, 2, func(rank int) error {
			job, err := asRank(t, server, rank, 3).Join(within(t))
			if err == nil {
				waits := within(t)
				if rank == 0 {
					waits = ctx
				}
				_, errs[rank] = joinJob(waits, job)
			}
			return err
		})
		const says = "rank 2 has not joined; rank 2 was refused: another secret"
		return strings.Contains(errs[0].Error(), "context deadline exceeded: "+says) && strings.Contains(errs[1].Error(), "rank 0 gave up: context deadline exceeded: "+says)
	})
}

// otherName is a copy of this program with another name, otherBuild one with another build ID.
func otherName(t *testing.T) string { return copyProgram(t, "solve2", nil) }

func otherBuild(t *testing.T) string {
	return copyProgram(t, filepath.Base(ranks.Program()), func(program []byte) {
		at := bytes.Index(program, []byte("Go\x00\x00")) // the note of the linker: lengths, kind, name, ID
		require.Positive(t, at)
		program[at+4] ^= 1
	})
}

func copyProgram(t *testing.T, name string, change func([]byte)) string {
	program, err := os.ReadFile(ranks.Program())
	require.NoError(t, err)
	if change != nil {
		change(program)
	}
	path := filepath.Join(t.TempDir(), name)
	syscall.ForkLock.RLock() // a process that is started meanwhile would have it open, and it busy
	defer syscall.ForkLock.RUnlock()
	require.NoError(t, os.WriteFile(path, program, 0o755))
	return path
}

// answering accepts connections, and ends with the listener.
func answering(ln net.Listener, answer func(net.Conn)) {
	for {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		answer(conn)
		conn.Close()
	}
}

func answers(says string) func(*testing.T, net.Listener) {
	return func(_ *testing.T, ln net.Listener) {
		go answering(ln, func(conn net.Conn) { io.WriteString(conn, says) })
	}
}

func otherVersion(_ *testing.T, ln net.Listener) {
	go answering(ln, func(conn net.Conn) {
		proof.Accept(conn, proof.Params{Secret: []byte("another"), Protocol: "sluice-boot", Major: 9, Job: "job", Self: []byte("server")}, nil)
	})
}

func rendezvousOf(size int, job string) func(*testing.T, net.Listener) {
	return func(t *testing.T, ln net.Listener) {
		e, err := boot.ByHand(0, size, ln.Addr().String())
		if err != nil {
			e.Secret = asRank(t, "", 0, size).Secret
		}
		s, err := boot.Serve(context.Background(), ln, boot.ServerOptions{Size: size, Job: job, Secret: e.Secret})
		require.NoError(t, err)
		t.Cleanup(func() { s.Close() })
	}
}
