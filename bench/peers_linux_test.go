package main

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

// The programs are built from what is embedded, and the limits are measured.
func TestLimit(t *testing.T) {
	need.Compiler(t)
	need.Program(t, "sh")
	need.Full(t)
	p, err := buildPeers(context.Background(), "")
	require.NoError(t, err)
	defer func() {
		require.NoError(t, p.Close())
		require.NoDirExists(t, p.dir)
	}()
	require.NotEmpty(t, p.versions[peerLimit])
	ways := func(args ...string) (list []string) {
		rs, err := p.run(context.Background(), setting{}, append([]string{peerLimit, "-t", "0.002"}, args...)...)
		require.NoError(t, err)
		for _, r := range rs {
			require.Equal(t, peerLimit, r.Peer)
			require.Positive(t, r.P50)
			list = append(list, r.Pattern+" "+r.Op+" "+formatSize(r.Bytes))
		}
		return list
	}
	require.Equal(t, []string{"lat line 8", "lat memcpy 8", "lat process_vm 8", "lat memcpy 64k", "lat process_vm 64k"}, ways("-s", "8,64k"))
	require.Equal(t, []string{"bw memcpy 1M", "bw process_vm 1M"}, ways("-d", "bw", "-s", "1M", "-w", "4"))
	for _, args := range [][]string{{peerLimit, "-t", "never"}, {peerLimit, "-d", "sideways"}, {"openmpi", "pigeon", "p2p"}, {"openmpi", "shm", "tune"}, {"pvm", "shm", "bw"}, {"mpich"}} {
		_, err = p.run(context.Background(), setting{}, args...)
		require.Error(t, err, "%v", args)
		require.NotErrorIs(t, err, errNotInstalled)
	}
}

// A cancelled peer ends with all that it has started.
func TestPeerCancelled(t *testing.T) {
	need.Compiler(t)
	need.Program(t, "sh")
	need.Full(t)
	p, err := buildPeers(context.Background(), "")
	require.NoError(t, err)
	defer p.Close()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = p.run(ctx, setting{}, peerLimit, "-t", "1000")
	require.ErrorIs(t, err, context.Canceled)
}

// A root directory is entered without leaving a trace: here this machine's own.
func TestRootDirectory(t *testing.T) {
	need.Root(t)
	need.Compiler(t)
	need.Program(t, "sh", "unshare", "chroot")
	// Network namespaces come and go with tests of other packages.
	mounts := func() string {
		all, err := os.ReadFile("/proc/self/mounts")
		require.NoError(t, err)
		list := slices.Collect(strings.Lines(string(all)))
		return strings.Join(slices.DeleteFunc(list, func(line string) bool { return strings.Contains(line, " /run/netns") }), "")
	}
	before := mounts()
	p, err := buildPeers(t.Context(), "/", peerLimit)
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	require.Equal(t, map[string]string{peerLimit: "1"}, p.versions, "what is not wanted is not built")
	rs, err := p.run(t.Context(), setting{}, peerLimit, "-s", "8", "-t", "0.002")
	require.NoError(t, err)
	require.Len(t, rs, 3)
	_, err = p.run(t.Context(), setting{}, "openmpi", "shm", "p2p")
	require.ErrorIs(t, err, errNotInstalled)
	require.Equal(t, before, mounts())
}
