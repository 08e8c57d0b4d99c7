package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
	"github.com/sluice-hpc/sluice/internal/xdp"
)

func init() {
	acts["sluice"] = func(args []string) int {
		os.Args = append([]string{"sluice"}, args...)
		return run()
	}
}

// sluiceIn is a sluice in a network namespace, as a user.
func sluiceIn(ctx context.Context, ns string, user int, args ...string) *exec.Cmd {
	argv := append([]string{"netns", "exec", ns, "setpriv", fmt.Sprintf("--reuid=%d", user), fmt.Sprintf("--regid=%d", user), "--clear-groups", os.Args[0]}, args...)
	cmd := exec.CommandContext(ctx, "ip", argv...)
	cmd.Env = append(os.Environ(), ranks.Env+"=sluice")
	return cmd
}

// The helper prints where it listens, makes the provider available only to its group, and ends
// on SIGTERM.
func TestHelperCommand(t *testing.T) {
	need.Networks(t)
	need.Program(t, "setpriv")
	need.Probe(t, "AF_XDP", xdp.Supported())
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	ns := fmt.Sprintf("sluiceH%d", os.Getpid())
	ip := func(args ...string) error {
		out, err := exec.Command("ip", args...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("ip %q: %w: %s", args, err, out)
		}
		return nil
	}
	require.NoError(t, ip("netns", "add", ns))
	t.Cleanup(func() { require.NoError(t, ip("netns", "del", ns)) })
	require.NoError(t, ip("-n", ns, "link", "add", "veth0", "type", "veth", "peer", "name", "veth1"))
	require.NoError(t, ip("-n", ns, "addr", "add", "198.18.0.1/24", "dev", "veth0"))
	require.NoError(t, ip("-n", ns, "link", "set", "veth0", "up"))

	dir, err := os.MkdirTemp("", "sluice")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	path := filepath.Join(dir, "below", "xdp.sock")
	info := func(user int) providerEntry {
		cmd := sluiceIn(ctx, ns, user, "info", "--json")
		cmd.Env = append(cmd.Env, xdp.EnvHelper+"="+path)
		out, err := cmd.Output()
		require.NoError(t, err)
		var r infoReport
		require.NoError(t, json.Unmarshal(out, &r))
		i := slices.IndexFunc(r.Providers, func(p providerEntry) bool { return p.Name == "xdp" })
		require.GreaterOrEqual(t, i, 0)
		if r.Providers[i].Available == "yes" {
			d := slices.IndexFunc(r.Devices, func(d deviceEntry) bool { return d.Name == "xdp_veth0" })
			require.GreaterOrEqual(t, d, 0)
			require.Equal(t, "veth0", r.Devices[d].Netdev)
			require.NotEmpty(t, r.Devices[d].NotOpened)
		}
		return r.Providers[i]
	}

	args := []string{"xdp-helper", "--group", "1234", "--interface", "veth0", "--address", "198.18.0.1", "--socket", path}
	helper := sluiceIn(ctx, ns, 0, args...)
	out, err := helper.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, helper.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, path+"\n", line)

	require.Equal(t, providerEntry{Name: "xdp", Available: "yes"}, info(1234))
	for user, why := range map[int]string{1235: "permission denied"} {
		e := info(user)
		require.Equal(t, "no", e.Available)
		require.Contains(t, e.Reason, why)
	}
	second, err := sluiceIn(ctx, ns, 0, args...).CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(second), "another helper is already listening at")

	require.NoError(t, helper.Process.Signal(syscall.SIGTERM))
	require.NoError(t, helper.Wait())
	require.NoFileExists(t, path)
	e := info(1234)
	require.Equal(t, "no", e.Available)
	require.Contains(t, e.Reason, "no such file")
}

// The helper checks its flags, and needs privileges.
func TestHelperUsage(t *testing.T) {
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{nil, statusBadUsage, "needs --group"},
		{[]string{"--group", "no such group"}, statusBadUsage, "unknown group"},
		{[]string{"--group", "0", "--interface", "lo"}, statusBadUsage, "needs --interface and --address"},
		{[]string{"--group", "0", "--interface", "lo", "--address", "here"}, statusBadUsage, "unable to parse IP"},
		{[]string{"--group", "0", "--interface", "lo", "--address", "127.0.0.1", "--seats", "3"}, statusBadUsage, "power of two"},
		{[]string{"--group", "0", "--interface", "none0", "--address", "127.0.0.1"}, statusJustError, ""},
	} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], append([]string{"xdp-helper"}, c.args...)...)
		cmd.Env = append(os.Environ(), ranks.Env+"=sluice")
		out, err := cmd.CombinedOutput()
		require.Error(t, err)
		require.Equal(t, c.status, cmd.ProcessState.ExitCode(), string(out))
		require.Contains(t, string(out), c.want)
	}
}
