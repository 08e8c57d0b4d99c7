package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/internal/test/need"
)

// hosts makes two networks that only see each other, and returns the commands that begin
// those of processes inside.
//
//	   network one                 network two
//	+--------------+            +--------------+
//	|  198.18.0.1  | -- veth -- |  198.18.0.2  |
//	+--------------+            +--------------+
func hosts(t *testing.T) (one, two []string) {
	t.Helper()
	need.Networks(t)
	names := []string{fmt.Sprintf("benchA%d", os.Getpid()), fmt.Sprintf("benchB%d", os.Getpid())}
	ip := func(args ...string) {
		t.Helper()
		out, err := exec.Command("ip", args...).CombinedOutput()
		require.NoError(t, err, "ip %s: %s", strings.Join(args, " "), out)
	}
	for _, name := range names {
		ip("netns", "add", name)
		t.Cleanup(func() { ip("netns", "del", name) })
	}
	ip("-n", names[0], "link", "add", "veth0", "type", "veth", "peer", "name", "veth0", "netns", names[1])
	for i, name := range names {
		// RFC 2544: 198.18.0.0/15 is for tests of networks.
		ip("-n", name, "addr", "add", fmt.Sprintf("198.18.0.%d/24", i+1), "dev", "veth0")
		ip("-n", name, "link", "set", "veth0", "up")
		ip("-n", name, "link", "set", "lo", "up")
	}
	return []string{"ip", "netns", "exec", names[0]}, []string{"ip", "netns", "exec", names[1]}
}

// ended is what a process has printed, and how it ended.
type ended struct {
	out, told string
	err       error
}

// begin starts bench behind a prefix, with variables of its own.
func begin(ctx context.Context, prefix, env []string, args ...string) <-chan ended {
	argv := append(append(append([]string(nil), prefix...), os.Args[0]), args...)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(environment(), env...)
	var out, told bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &told
	inOwnGroup(cmd)
	end := make(chan ended, 1)
	go func() {
		err := cmd.Run()
		end <- ended{out.String(), told.String(), err}
	}()
	return end
}

// TestTwoHosts: two processes on different hosts meet without a launcher, and measure.
func TestTwoHosts(t *testing.T) {
	need.Full(t)
	one, two := hosts(t)
	secret := []string{boot.EnvSecret + "=" + strings.Repeat("5a", 32)}
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	const listen, host = "198.18.0.1:18516", "198.18.0.1"
	for name, c := range map[string]struct {
		args, two  []string
		env1, env2 []string
		says       string // the failure of the second; empty: it prints results over tcp
		results    int
	}{
		"summary":    {args: []string{"--time", "1ms", "--sizes", "8"}, results: 2},
		"verbs":      {args: append([]string{"verbs", "lat", "--provider", "tcp", "--sizes", "8"}, tiny...), results: 1},
		"channel":    {args: append([]string{"channel", "bw", "--sizes", "8,64k"}, tiny...), results: 2},
		"collective": {args: append([]string{"barrier"}, tiny...), results: 2},
		"impi":       {args: append([]string{"impi", "lat", "--carrier", "tcp", "--sizes", "8"}, tiny...), results: 1},
		"tune":       {args: []string{"tune", "--what", "eager", "--time", "1ms", "--rounds", "1"}, results: 2 * (strings.Count(tunedEager, ",") + 1)},
		"insecure": {args: append([]string{"channel", "lat", "--sizes", "8"}, tiny...), results: 1,
			env1: []string{boot.EnvInsecure + "=1"}, env2: []string{boot.EnvInsecure + "=1"}},
		"other options": {args: []string{"verbs", "lat", "--provider", "tcp", "--sizes", "8"}, two: []string{"verbs", "lat", "--provider", "tcp", "--sizes", "64"}, says: "different options"},
		"other tune":    {args: []string{"tune", "--what", "eager"}, two: []string{"tune", "--what", "pack"}, says: "different options"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.two == nil {
				c.two = c.args
			}
			if c.env1 == nil {
				c.env1, c.env2 = secret, secret
			}
			server := begin(ctx, one, c.env1, append(append([]string(nil), c.args...), "--listen", listen)...)
			client := <-begin(ctx, two, c.env2, append(append([]string(nil), c.two...), "--json", host)...)
			served := <-server
			if c.says != "" {
				require.Error(t, client.err)
				require.Error(t, served.err)
				require.Contains(t, client.told+served.told, c.says)
				return
			}
			require.NoError(t, client.err, "%s\n%s", client.told, served.told)
			require.NoError(t, served.err, "%s\n%s", client.told, served.told)
			require.Empty(t, served.out, "one of them prints")
			require.Contains(t, served.told, "listening at 198.18.0.1:18516")
			r := decode(t, []byte(client.out))
			require.Len(t, r.Results, c.results)
			for _, v := range r.Results {
				require.Equal(t, "tcp", v.Provider)
				require.Equal(t, v.Bytes > 0, v.Verified)
			}
		})
	}
	t.Run("another secret", func(t *testing.T) {
		within, stop := context.WithCancel(ctx)
		server := begin(within, one, secret, "verbs", "lat", "--listen", listen)
		client := <-begin(ctx, two, []string{boot.EnvSecret + "=" + strings.Repeat("a5", 32)}, "verbs", "lat", host)
		require.Error(t, client.err)
		require.Contains(t, client.told, "secret")
		stop() // it waits for a peer that knows the secret
		require.Error(t, (<-server).err)
	})
	for _, args := range [][]string{{"verbs", "lat", "--listen", listen}, {"verbs", "lat", host}} {
		said := <-begin(ctx, one, nil, args...)
		require.Error(t, said.err)
		require.Contains(t, said.told, boot.EnvSecret, "without a secret the hosts do not connect")
	}
}
