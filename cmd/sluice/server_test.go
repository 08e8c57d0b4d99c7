//go:build unix

package main

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/impi/startup"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// startupServer is a sluice server that runs.
type startupServer struct {
	cmd  *exec.Cmd
	addr string
	log  *bufio.Reader // what it says on standard error
}

// startServer starts a server with these arguments, and with this environment alone.
func startServer(t *testing.T, env []string, args ...string) *startupServer {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(withoutKey(os.Environ()), append(env, ranks.Env+"=server")...)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	log, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		cancel()
		cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	return &startupServer{cmd, strings.TrimSpace(line), bufio.NewReader(log)}
}

func withoutKey(env []string) []string {
	return slices.DeleteFunc(env, func(v string) bool { return strings.HasPrefix(v, keyVariable+"=") })
}

func init() {
	acts["server"] = func(args []string) int {
		os.Args = append([]string{"sluice", "server"}, args...) // cobra reads them there
		return run()
	}
}

// finish reads the rest of the log, and returns it and the exit status.
func (s *startupServer) finish(t *testing.T) (log string, status int) {
	t.Helper()
	b, err := io.ReadAll(s.log)
	require.NoError(t, err)
	s.cmd.Wait()
	return string(b), s.cmd.ProcessState.ExitCode()
}

func dialServer(t *testing.T, addr string, key uint64) *startup.Job {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	j, err := startup.Dial(ctx, addr, startup.Config{Key: key, Hosts: []startup.Host{{
		ID:        startup.HostIDOf(netip.MustParseAddr("127.0.0.1")),
		Processes: []startup.Process{{PID: 1}},
	}}})
	require.NoError(t, err)
	return j
}

func TestServer(t *testing.T) {
	t.Run("none", func(t *testing.T) {
		s := startServer(t, nil, "-n", "1", "--addr", "127.0.0.1:0", "--auth", "none", "-v")
		require.NoError(t, dialServer(t, s.addr, 0).Finish())
		log, status := s.finish(t)
		require.Zero(t, status, log)
		require.Contains(t, log, `msg="startup: client finished" client=0`)
		require.Contains(t, log, "label=P_PID")
		require.NotContains(t, log, keyVariable)
	})
	t.Run("key", func(t *testing.T) {
		s := startServer(t, []string{keyVariable + "=271828"}, "-n", "1", "--addr", "127.0.0.1:0")
		require.NoError(t, dialServer(t, s.addr, 271828).Finish())
		log, status := s.finish(t)
		require.Zero(t, status, log)
		require.NotContains(t, log, "271828")
	})
	t.Run("key of its own, all addresses", func(t *testing.T) {
		s := startServer(t, nil, "-n", "1")
		line, err := s.log.ReadString('\n')
		require.NoError(t, err)
		text, ok := strings.CutPrefix(strings.TrimSpace(line), keyVariable+"=")
		require.True(t, ok, line)
		key, err := strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
		require.NotZero(t, key)
		require.False(t, netip.MustParseAddrPort(s.addr).Addr().IsUnspecified())
		require.NoError(t, dialServer(t, s.addr, key).Finish())
		log, status := s.finish(t)
		require.Zero(t, status, log)
	})
	t.Run("client lost", func(t *testing.T) {
		s := startServer(t, nil, "-n", "1", "--addr", "127.0.0.1:0", "--auth", "none")
		require.NoError(t, dialServer(t, s.addr, 0).Close())
		log, status := s.finish(t)
		require.Equal(t, statusJustError, status)
		require.Contains(t, log, "sluice server: impi/startup: run, client 0: connection lost")
	})
	t.Run("no client joins", func(t *testing.T) {
		s := startServer(t, nil, "-n", "2", "--addr", "127.0.0.1:0", "--auth", "none", "--join-timeout", "10ms")
		log, status := s.finish(t)
		require.Equal(t, statusJustError, status)
		require.Equal(t, 1, strings.Count(log, "clients that did not join: 0, 1"), log)
	})
	t.Run("interrupted", func(t *testing.T) {
		s := startServer(t, nil, "-n", "2", "--addr", "127.0.0.1:0", "--auth", "none")
		require.NoError(t, s.cmd.Process.Signal(syscall.SIGTERM))
		log, status := s.finish(t)
		require.Equal(t, statusJustError, status)
		require.Contains(t, log, "sluice server: interrupted")
	})
}

func TestServerUsage(t *testing.T) {
	for _, c := range []struct {
		env  string
		args []string
		says string
	}{
		{"", []string{"--auth", "none", "--addr", "127.0.0.1:0"}, "0 clients: want 1 to 32 (-n)"},
		{"", []string{"--addr", "127.0.0.1:0"}, "0 clients: want 1 to 32 (-n)"},
		{"", []string{"-n", "33", "--auth", "none", "--addr", "127.0.0.1:0"}, "33 clients: want 1 to 32 (-n)"},
		{"", []string{"-n", "2", "--auth", "none"}, "method NONE on all addresses"},
		{"", []string{"-n", "2", "--auth", "some"}, "want key or none"},
		{"", []string{"-n", "2", "--join-timeout", "0s"}, "must be above 0"},
		{"", []string{"-n", "2", "rest"}, `unexpected argument "rest"`},
		{keyVariable + "=0", []string{"-n", "2"}, "is not a decimal number"},
		{keyVariable + "=secret", []string{"-n", "2"}, "is not a decimal number"},
	} {
		cmd := exec.Command(os.Args[0], c.args...)
		cmd.Env = append(withoutKey(os.Environ()), ranks.Env+"=server", c.env)
		out, err := cmd.CombinedOutput()
		require.Error(t, err)
		require.Equal(t, statusBadUsage, cmd.ProcessState.ExitCode(), "%s", out)
		require.Contains(t, string(out), c.says)
		require.NotContains(t, string(out), "secret")
		require.NotContains(t, string(out), keyVariable+"=", "no key is made for what does not run")
	}
}

func TestReachable(t *testing.T) {
	at, err := reachable(&net.TCPAddr{IP: net.IPv4(10, 1, 2, 3), Port: 70})
	require.NoError(t, err)
	require.Equal(t, "10.1.2.3:70", at)
	for _, all := range []net.IP{net.IPv4zero, net.IPv6unspecified} {
		at, err := reachable(&net.TCPAddr{IP: all, Port: 70})
		require.NoError(t, err)
		got := netip.MustParseAddrPort(at)
		require.False(t, got.Addr().IsUnspecified())
		require.EqualValues(t, 70, got.Port())
	}
}
