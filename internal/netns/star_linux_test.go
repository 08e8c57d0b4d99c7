package netns

import (
	"io"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/leak"
	"github.com/sluice-hpc/sluice/internal/test/need"
)

func TestMain(m *testing.M) { leak.Main(m) }

// TestStar: hosts reach each other by the router, as processes that were started inside do,
// until it loses everything.
func TestStar(t *testing.T) {
	need.Networks(t)
	need.Program(t, "nft")
	s, err := NewStar(2)
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	require.NoError(t, s.Cut())

	var ln net.Listener
	require.NoError(t, s.Hosts[0].In(func() (err error) {
		ln, err = net.Listen("tcp4", Address(0).String()+":0")
		return err
	}))
	defer ln.Close()
	call := func(timeout time.Duration) error {
		return s.Hosts[1].In(func() error {
			c, err := net.DialTimeout("tcp4", ln.Addr().String(), timeout)
			if err == nil {
				err = c.Close()
			}
			return err
		})
	}
	require.NoError(t, call(time.Minute))
	c, err := ln.Accept()
	require.NoError(t, err)
	require.Equal(t, Address(1).String(), c.RemoteAddr().(*net.TCPAddr).IP.String())
	require.NoError(t, c.Close())

	own, err := os.Readlink("/proc/self/ns/net")
	require.NoError(t, err)
	var inside []byte
	require.NoError(t, s.Hosts[1].In(func() (err error) {
		inside, err = exec.Command("readlink", "/proc/self/ns/net").Output()
		return err
	}))
	require.NotEqual(t, own+"\n", string(inside))

	router, err := Open(s.Router.Path()) // as another process would
	require.NoError(t, err)
	defer router.Close()
	require.NoError(t, router.Lose(1000))
	require.Error(t, call(100*time.Millisecond))
	require.NoError(t, router.Lose(0))
	require.NoError(t, call(time.Minute))
	c, err = ln.Accept()
	require.NoError(t, err)
	_, err = c.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	require.NoError(t, c.Close())
}
