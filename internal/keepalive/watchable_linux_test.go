package keepalive

import (
	"errors"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/leak"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
	"github.com/sluice-hpc/sluice/internal/test/refuse"
)

func TestMain(m *testing.M) {
	ranks.Play(map[string]func([]string) error{"refused": refused}, ranks.Call)
	leak.Main(m)
}

// refused is a process that may not read TCP_INFO.
func refused([]string) error {
	if err := refuse.Call(unix.SYS_GETSOCKOPT, refuse.Arg{Index: 1, Value: unix.IPPROTO_TCP}, refuse.Arg{Index: 2, Value: unix.TCP_INFO}); err != nil {
		return err
	}
	yes, err := watchable()
	if yes {
		return errors.New("it can be watched")
	}
	return err
}

func watchable() (bool, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return false, err
	}
	defer l.Close()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return false, err
	}
	defer conn.Close()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	return err == nil && Watchable(raw), err
}

// TestWatchable: a connection can be watched, but not where the system refuses to tell.
func TestWatchable(t *testing.T) {
	yes, err := watchable()
	require.NoError(t, err)
	require.True(t, yes)
	out, err := ranks.Command(ranks.Within(t), "refused").CombinedOutput()
	require.NoError(t, err, "%s", out)
}
