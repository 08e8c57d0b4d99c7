package walkthrough

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

var block = regexp.MustCompile("(?ms)^```(\\w+)\n(.*?)^```$")

// blocks are those of a language on a page.
func blocks(t *testing.T, page, language string) (list []string) {
	t.Helper()
	b, err := os.ReadFile(page)
	require.NoError(t, err)
	for _, m := range block.FindAllStringSubmatch(string(b), -1) {
		if m[1] == language {
			list = append(list, m[2])
		}
	}
	require.NotEmpty(t, list, page)
	return list
}

// loopbackUp brings up the loopback interface of this thread's network.
func loopbackUp() error {
	l, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(l)
}

// follow does what a page says in the folder hello of README, beside the clone, with commands of the given
// roles of this program in place of those of the same name, and returns what it printed. What runs the shell,
// if not nothing, is given as inside.
func follow(t *testing.T, inside []string, page string) string {
	t.Helper()
	here, err := filepath.Abs("../..")
	require.NoError(t, err)
	beside := t.TempDir()
	hello, bin, s := filepath.Join(beside, "hello"), filepath.Join(beside, "bin"), newStore(t)
	require.NoError(t, os.Symlink(here, filepath.Join(beside, "sluice")))
	require.NoError(t, os.Mkdir(hello, 0o755))
	require.NoError(t, os.Mkdir(bin, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(hello, "main.go"), []byte(blocks(t, "../../README.md", "go")[0]), 0o600))
	me, err := os.Executable()
	require.NoError(t, err)
	for _, name := range []string{"docker", "kubectl"} {
		script := fmt.Sprintf("#!/bin/sh\nexport %s=%s %s=%s\nexec %s \"$@\"\n", roleVariable, name, storeVariable, s.dir, me)
		require.NoError(t, os.WriteFile(filepath.Join(bin, name), []byte(script), 0o755))
	}
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "GOWORK=") || strings.HasPrefix(v, "SLUICE_") })
	// Without the path of the folder in what is compiled, the next test finds it in Go's cache.
	env = append(env, "PATH="+bin+":"+os.Getenv("PATH"), "GOFLAGS="+os.Getenv("GOFLAGS")+" -trimpath")
	run := func(script string, start func(*exec.Cmd) error, prefix ...string) string {
		args := append(slices.Clone(prefix), "sh", "-ec", script)
		ctx, cancel := context.WithTimeout(t.Context(), 3*ranks.Limit) // it compiles
		defer cancel()
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Dir, cmd.Env = hello, env
		var out buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		require.NoError(t, start(cmd))
		require.NoError(t, cmd.Wait(), "%s", &out)
		return out.String()
	}
	run(`go mod init hello
go mod edit -require github.com/sluice-hpc/sluice@v0.0.0 -replace github.com/sluice-hpc/sluice=../sluice
go mod tidy`, (*exec.Cmd).Start)
	var script strings.Builder
	for _, b := range blocks(t, page, "sh") {
		script.WriteString(b)
	}
	network, err := newNetwork() // whose ports are all free
	require.NoError(t, err)
	defer network.Close()
	return run(script.String(), func(cmd *exec.Cmd) error { return network.In(cmd.Start) }, inside...)
}

// TestContainersPage follows docs/containers.md.
func TestContainersPage(t *testing.T) {
	need.Full(t)
	machine(t)
	out := follow(t, nil, docs+"containers.md")
	require.Equal(t, 1, strings.Count(out, "rank 0 of 1 has 0\n"), out)
	for rank := range 4 {
		require.Equal(t, 1, strings.Count(out, fmt.Sprintf("rank %d of 4 has %d\n", rank, (rank+3)%4)), out)
	}
	for rank := range 2 {
		require.Equal(t, 1, strings.Count(out, fmt.Sprintf("rank %d of 2 has %d\n", rank, 1-rank)), out)
	}
	require.Regexp(t, `(?m)^0 1 +shm `, out, "of sluice info --job")
	b, err := os.ReadFile(docs + "Dockerfile")
	require.NoError(t, err)
	require.Contains(t, string(b), blocks(t, docs+"containers.md", "dockerfile")[0])
}

// TestKubernetesPage follows docs/kubernetes.md.
func TestKubernetesPage(t *testing.T) {
	need.Full(t)
	machine(t)
	out := follow(t, nil, docs+"kubernetes.md")
	for rank := range 4 {
		require.Equal(t, 1, strings.Count(out, fmt.Sprintf("[pod/hello-%d/rank] rank %d of 4 has %d\n", rank, rank, (rank+3)%4)), out)
	}
}
