package main

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/stretchr/testify/require"
)

// The histogram's quantiles are the exact ones within its three figures, the
// extremes and the mean are exact.
func TestDistribution(t *testing.T) {
	t.Parallel()
	d := newDistribution()
	var all []float64
	sum := 0.0
	for range 100_000 {
		v := 70 + 1000*rand.ExpFloat64()
		d.add(v)
		all = append(all, v)
		sum += v
	}
	slices.Sort(all)
	var r Result
	d.fill(&r)
	require.EqualValues(t, len(all), r.Samples)
	require.Equal(t, all[0], r.Min)
	require.Equal(t, all[len(all)-1], r.Max)
	require.InEpsilon(t, sum/float64(len(all)), r.Mean, 1e-9)
	for _, c := range []struct{ got, q float64 }{{r.P50, 0.5}, {r.P99, 0.99}, {r.P999, 0.999}} {
		require.InEpsilon(t, all[int(math.Ceil(c.q*float64(len(all))))-1], c.got, 2e-3, "quantile %v", c.q)
	}
	require.NoError(t, (&Result{Pattern: patternLat, Layer: layerVerbs, Provider: "shm", Peer: peerSluice, Unit: unitLatency,
		Min: r.Min, P50: r.P50, P99: r.P99, P999: r.P999, Max: r.Max, Mean: r.Mean, Samples: r.Samples}).check())
}

// Two merged distributions are the one of all samples.
func TestDistributionMerge(t *testing.T) {
	t.Parallel()
	a, b, both := newDistribution(), newDistribution(), newDistribution()
	for i := range 1000 {
		v := float64(i*i%997) + 0.5
		both.add(v)
		if i%3 == 0 {
			a.add(v)
		} else {
			b.add(v)
		}
	}
	a.merge(b)
	var got, want Result
	a.fill(&got)
	both.fill(&want)
	require.Equal(t, want, got)
}

func TestDistributionOne(t *testing.T) {
	t.Parallel()
	d := newDistribution()
	d.add(0.25)
	var r Result
	d.fill(&r)
	require.Equal(t, Result{Min: 0.25, P50: 0.25, P99: 0.25, P999: 0.25, Max: 0.25, Mean: 0.25, Samples: 1}, r)
}

func TestMedianAndSpread(t *testing.T) {
	t.Parallel()
	require.Equal(t, 0.0, median(nil))
	require.Equal(t, 2.0, median([]float64{3, 1, 2}))
	require.Equal(t, 2.5, median([]float64{4, 1, 2, 3}))
	require.Equal(t, 0.0, spread([]float64{5}))
	require.Equal(t, 1.0, spread([]float64{3, 1, 2}))
}

func TestPlan(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		layer     string
		pattern   string
		flags     []string
		iteration float64 // ns
		want      plan
	}{
		{"fast: batches of the most", layerChannel, patternLat, []string{"batch", "0"}, 100, plan{1_000_000, 1000}},
		{"slow: single iterations, never too few", layerChannel, patternLat, []string{"batch", "0"}, 50e6, plan{minBatches, 1}},
		{"each", layerChannel, patternLat, nil, 100, plan{1_000_000, 1}},
		{"batch given", layerChannel, patternLat, []string{"batch", "10"}, 100, plan{1_000_000, 10}},
		{"count given", layerChannel, patternLat, []string{"batch", "0", "iters", "7"}, 100, plan{7, 7}},
		{"count of messages", layerVerbs, patternBW, []string{"window", "64", "iters", "100"}, 1e4, plan{2, 2}},
	} {
		m := measurementOf(t, c.layer, c.pattern, append(c.flags, "sizes", "8")...)
		require.Equal(t, c.want, m.plan(c.iteration), c.name)
	}
}

func TestSamples(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		layer   string
		pattern string
		flags   []string
		want    float64
	}{
		{"latency is half a round trip", layerVerbs, patternLat, []string{"sizes", "8"}, 50},
		{"latency of a read is all of it", layerVerbs, patternLat, []string{"op", "read"}, 100},
		{"10 windows of 4 messages of 1000 bytes in 1 µs", layerChannel, patternBW, []string{"window", "4", "sizes", "1000"}, 40_000},
		{"both ways", layerIMPI, patternBiBW, []string{"window", "4", "sizes", "1000"}, 80_000},
		{"messages", layerVerbs, patternRate, []string{"window", "4", "sizes", "8"}, 40e6},
		{"a hop of a ring, of two", layerChannel, patternRing, nil, 50},
		{"one end of a message to oneself", layerChannel, patternLocal, nil, 50},
		{"an exchange of faces: what each rank sends", layerChannel, patternHalo, []string{"axis", "x"}, 10 * 2 * faceBytes},
	} {
		m := measurementOf(t, c.layer, c.pattern, c.flags...)
		m.sample(10, 1000, nil)
		require.InEpsilon(t, c.want, m.round.min, 1e-9, c.name)
	}
}

func TestTimerCost(t *testing.T) {
	t.Parallel()
	require.Positive(t, timerCost())
	require.Less(t, timerCost(), 1e5)
}

// The histogram of a result has all of its samples, for readers of HdrHistograms.
func TestHistogram(t *testing.T) {
	t.Parallel()
	d := newDistribution()
	values := []float64{0, 0.001, 2.047, 2.048, 3e11, 2 * maxValue}
	for range 1000 {
		values = append(values, 100*rand.ExpFloat64())
	}
	for _, v := range values {
		d.add(v)
	}
	h, err := hdrhistogram.Decode([]byte(d.encode()))
	require.NoError(t, err)
	require.EqualValues(t, len(values), h.TotalCount())
	for _, q := range []float64{0.1, 1, 50, 90, 99.9} {
		require.InDelta(t, d.quantile(q), float64(h.ValueAtQuantile(q))/perUnit, 1e-9, "%g %%", q)
	}
}

func TestProgressBar(t *testing.T) {
	t.Parallel()
	require.Equal(t, "[------------------------]", progressBar(0, 10))
	require.Equal(t, "[############------------]", progressBar(5, 10))
	require.Equal(t, "[########################]", progressBar(10, 10))
	require.Equal(t, "[------------------------]", progressBar(0, 0))
}

// A warm-up goes on while runs get faster, but not for ever.
func TestWarmUp(t *testing.T) {
	t.Parallel()
	for _, gains := range []int{0, 1000} {
		s := &waking{gains: gains}
		warmUp(t.Context(), alone{}, s, 0)
		require.GreaterOrEqual(t, s.runs, 3)
		require.LessOrEqual(t, s.runs, 3+steadyRuns)
	}
}

// waking is a series whose runs take ever less time, for gains µs.
type waking struct{ runs, gains int }

func (s *waking) run(n int, _ []int64) {
	s.runs++
	until := nanos() + int64(max(s.gains-s.runs*40, 0))*1000
	for nanos() < until {
	}
}
func (s *waking) prepare() {}
func (s *waking) check()   {}
func (s *waking) close()   {}
