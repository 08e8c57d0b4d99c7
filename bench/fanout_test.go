package main

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFanout(t *testing.T) {
	if !slices.Contains(providers(t), "shm") {
		t.Skip("no shared memory")
	}
	args := slices.Concat([]string{"fanout", "rate"}, tiny, []string{"--sizes", "1,64k,100k", "--window", "3", "--iters", "20"})
	r := decode(t, output(t, append(args, "--json")...))
	require.Len(t, r.Environment.Ranks, defaultFanoutRanks)
	require.Len(t, r.Results, 3*len(dialects))
	for i, v := range r.Results {
		require.Equal(t, patternFanout, v.Pattern)
		require.Equal(t, layerFanout, v.Layer)
		require.Equal(t, suiteFanout, v.Suite)
		require.Equal(t, dialects[i/3], v.Op)
		require.Equal(t, []int64{1, 64 << 10, 100 << 10}[i%3], v.Bytes)
		require.EqualValues(t, 3, v.Window)
		require.EqualValues(t, defaultFanoutRanks, v.Ranks)
		require.Equal(t, unitFanout, v.Unit)
		require.True(t, v.Verified)
		require.Positive(t, v.P50)
	}
	require.Contains(t, string(output(t, args...)), "shm fan-out from a supplier to 2 workers, plain, chunks/s, window 3")
}

// Figures are held to both peers, each at its window and number of ranks; the dialect that
// serves best counts.
func TestFanoutBars(t *testing.T) {
	fig := func(peer, op string, ranks, window int64, p50 float64) figure {
		layer := layerFanout
		if peer != peerSluice {
			layer = peer
		}
		return newFigure([]Result{{Layer: layer, Suite: suiteFanout, Provider: "shm", Pattern: patternFanout, Peer: peer, Op: op, Bytes: 64,
			Ranks: ranks, Window: window, Unit: unitFanout, P50: p50}})
	}
	got := compareFigures([]figure{
		fig(peerSluice, dialectPlain, 3, 8, 100), fig(peerSluice, dialectNumbered, 3, 8, 300), fig(peerSluice, dialectPlain, 3, 1, 900),
		fig("openmpi", "request/chunk", 3, 8, 250), fig(peerZMQ, "request/chunk", 3, 8, 100), fig(peerZMQ, "request/chunk", 9, 1, 1),
	})
	var text []string
	for _, c := range got {
		met := "information"
		if c.Met != nil {
			met = map[bool]string{true: "met", false: "missed"}[*c.Met]
		}
		text = append(text, strings.Join([]string{c.Op, c.Peer, met}, " "))
		require.EqualValues(t, 8, c.Window)
	}
	require.Contains(t, text, "numbered openmpi missed")
	require.Contains(t, text, "numbered libzmq met")
	for _, s := range text {
		require.False(t, strings.HasPrefix(s, dialectPlain+" ") && strings.HasSuffix(s, "missed"), s)
	}
}

// The peers measure what we do.
func TestFanoutPeers(t *testing.T) {
	p, err := buildPeers(context.Background())
	if err != nil {
		t.Skip(err)
	}
	defer p.Close()
	for _, args := range [][]string{{"zmq", "-r", "3"}, {"openmpi", "shm", "fanout"}} {
		rs, err := p.runRanks(t.Context(), 3, append(args, "-s", "64,100k", "-w", "2", "-t", "0.001", "-b", "10")...)
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
