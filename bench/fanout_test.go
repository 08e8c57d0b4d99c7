package main

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

func TestFanout(t *testing.T) {
	need.Provider(t, "shm")
	args := slices.Concat([]string{"fanout", "rate"}, tiny, []string{"--sizes", "1,64k,100k", "--window", "3", "--iters", "20"})
	r := decode(t, output(t, append(args, "--json")...))
	require.Len(t, r.Environment.Ranks, 3)
	require.Len(t, r.Results, 3*len(dialects))
	for i, v := range r.Results {
		require.Equal(t, patternFanout, v.Pattern)
		require.Equal(t, layerFanout, v.Layer)
		require.Equal(t, suiteFanout, v.Suite)
		require.Equal(t, dialects[i/3], v.Op)
		require.Equal(t, []int64{1, 64 << 10, 100 << 10}[i%3], v.Bytes)
		require.EqualValues(t, 3, v.Window)
		require.EqualValues(t, 3, v.Ranks)
		require.Equal(t, unitFanout, v.Unit)
		require.True(t, v.Verified)
		require.Positive(t, v.P50)
	}
	require.Contains(t, string(output(t, args...)), "shm fanout fanout, plain, 3 ranks, up to 3 outstanding: from a supplier to workers")
}

// The peers measure what we do.
func TestFanoutPeers(t *testing.T) {
	need.Program(t, "sh")
	need.Full(t)
	p, err := buildPeers(context.Background(), "")
	require.NoError(t, err)
	defer p.Close()
	for _, args := range [][]string{{"zmq", "-r", "3"}, {"openmpi", "shm", "fanout"}} {
		rs, err := p.run(t.Context(), setting{env: []string{"RANKS=3"}}, append(args, "-s", "64,100k", "-w", "2", "-t", "0.001", "-b", "10")...)
		if err != nil {
			require.ErrorIs(t, err, errNotInstalled)
			continue
		}
		require.Len(t, rs, 2)
		for _, r := range rs {
			require.Equal(t, []any{patternFanout, suiteFanout, unitFanout}, []any{r.Pattern, r.Suite, r.Unit})
			require.Equal(t, []int64{3, 2}, []int64{r.Ranks, r.Window})
		}
	}
}
