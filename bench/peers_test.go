package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

const peerLineOutput = `{"pattern":"lat","layer":"mpi","provider":"shm","peer":"mpich","op":"persistent","version":"MPICH Version: 4.0.2","mode":"batch","batch":715,"bytes":8,"unit":"ns","min":134.123,"p50":136.897,"p99":182.076,"p999":236.297,"max":353.142,"mean":139.151,"samples":1000}`

func TestParseResults(t *testing.T) {
	t.Parallel()
	rs, err := parseResults(strings.NewReader("warning of a launcher\n" + peerLineOutput + "\n" + peerLineOutput + "\n"))
	require.NoError(t, err)
	require.Len(t, rs, 2)
	require.Equal(t, Result{Pattern: "lat", Layer: "mpi", Provider: "shm", Peer: "mpich", Op: "persistent", Version: "MPICH Version: 4.0.2",
		Mode: "batch", Batch: 715, Bytes: 8, Unit: "ns", Min: 134.123, P50: 136.897, P99: 182.076, P999: 236.297, Max: 353.142, Mean: 139.151,
		Samples: 1000}, rs[1])

	change := func(from, to string) string { return strings.Replace(peerLineOutput, from, to, 1) }
	for _, c := range []struct{ output, fail string }{
		{"", "no results"},
		{"mpirun: something is wrong\n", "no results"},
		{peerLineOutput[:50], "unexpected end of JSON"},
		{change(`"lat"`, `"lap"`), "pattern"},
		{change(`"ns"`, `"us"`), "unit"},
		{change(`"mpich"`, `""`), "peer, provider or layer is missing"},
		{change(`"bytes":8`, `"bytes":-8`), "-8 bytes"},
		{change(`"bytes":8`, `"bytes":8e99`), "cannot unmarshal"},
		{change(`"samples":1000`, `"samples":0`), "0 samples"},
		{change(`"min":134.123`, `"min":-1`), "figure -1"},
		{change(`"min":134.123`, `"min":1000`), "not in ascending order"},
	} {
		_, err := parseResults(strings.NewReader(c.output))
		var bad *PeerOutputError
		require.ErrorAs(t, err, &bad, c.output)
		require.ErrorContains(t, err, c.fail)
	}
}

func FuzzParseResults(f *testing.F) {
	f.Add(peerLineOutput)
	f.Add("x\n" + peerLineOutput + "\n{}")
	f.Add(`{"pattern":"bw","layer":"mpi","provider":"tcp","peer":"openmpi","unit":"MB/s","samples":1}`)
	f.Fuzz(func(t *testing.T, output string) {
		rs, err := parseResults(strings.NewReader(output))
		if err != nil {
			return
		}
		// Whatever is accepted can be merged and compared.
		require.NotEmpty(t, rs)
		for i := range rs {
			require.NoError(t, rs[i].check())
			rs[i].Peer = peerSluice
		}
		r := &row{pattern: rs[0].Pattern}
		compareFigures([]figure{{mergeRounds(rs), r}, {rs[0], r}}, nil)
	})
}

// Where they cannot be built nothing is left of the attempt.
func TestPeerNotBuilt(t *testing.T) {
	need.Program(t, "sh")
	sh, err := exec.LookPath("sh")
	require.NoError(t, err)
	path, tmp := t.TempDir(), t.TempDir()
	require.NoError(t, os.Symlink(sh, filepath.Join(path, "sh")))
	t.Setenv("PATH", path) // there is not even mkdir
	t.Setenv("TMPDIR", tmp)
	_, err = buildPeers(t.Context(), "")
	require.ErrorContains(t, err, "build the peer programs")
	left, err := os.ReadDir(tmp)
	require.NoError(t, err)
	require.Empty(t, left)
}

// What is not there is said so.
func TestPeerNotInstalled(t *testing.T) {
	need.Program(t, "sh")
	need.Full(t)
	full, err := buildPeers(context.Background(), "")
	require.NoError(t, err)
	defer full.Close()
	// The scripts without any program built.
	t.Setenv("BUILD", t.TempDir())
	for _, args := range [][]string{{peerLimit}, {"openmpi", "shm", "p2p"}, {"mpich", "tcp", "coll"}} {
		_, err := full.run(context.Background(), setting{}, args...)
		require.ErrorIs(t, err, errNotInstalled, "%v", args)
	}
}
