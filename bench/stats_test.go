package main

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

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
	lat := spec{pattern: patternLat, time: 100 * time.Millisecond}
	for _, c := range []struct {
		name      string
		change    func(*spec)
		iteration float64 // ns
		want      plan
	}{
		{"fast: batches of the most", func(*spec) {}, 100, plan{1_000_000, 1000}},
		{"slow: single iterations, never too few", func(*spec) {}, 50e6, plan{minBatches, 1}},
		{"each", func(s *spec) { s.each = true }, 100, plan{1_000_000, 1}},
		{"batch given", func(s *spec) { s.batch = 10 }, 100, plan{1_000_000, 10}},
		{"count given", func(s *spec) { s.iters = 7 }, 100, plan{7, 7}},
		{"count of messages", func(s *spec) { s.pattern, s.window, s.iters = patternBW, 64, 100 }, 1e4, plan{2, 2}},
	} {
		s := lat
		c.change(&s)
		require.Equal(t, c.want, newMeasurement(s).plan(c.iteration), c.name)
	}
}

func TestSamples(t *testing.T) {
	t.Parallel()
	read, err := findOperation("read")
	require.NoError(t, err)
	send, err := findOperation("send")
	require.NoError(t, err)
	for _, c := range []struct {
		name string
		spec spec
		want float64
	}{
		{"latency is half a round trip", spec{pattern: patternLat, op: send}, 50},
		{"latency of a read is all of it", spec{pattern: patternLat, op: read}, 100},
		{"10 windows of 4 messages of 1000 bytes in 1 µs", spec{pattern: patternBW, op: send, window: 4, bytes: 1000}, 40_000},
		{"both ways", spec{pattern: patternBiBW, op: send, window: 4, bytes: 1000}, 80_000},
		{"messages", spec{pattern: patternRate, op: send, window: 4, bytes: 8}, 40e6},
		{"a hop of a ring", spec{pattern: patternRing, op: send, ranks: 8}, 12.5},
		{"one end of a message to oneself", spec{pattern: patternLocal, op: send}, 50},
		{"an exchange of faces: what each rank sends", spec{pattern: patternHalo, op: send, bytes: 1000, ranks: 4, axis: "x"}, 10_000},
	} {
		m := newMeasurement(c.spec)
		d := newDistribution()
		m.addSamples(d, 10, 1000, nil)
		require.InEpsilon(t, c.want, d.min, 1e-9, c.name)
	}
}

func TestTimerCost(t *testing.T) {
	t.Parallel()
	require.Positive(t, timerCost())
	require.Less(t, timerCost(), 1e5)
}

// The histogram of a result has all of its samples, for whoever reads HdrHistograms.
func TestHistogram(t *testing.T) {
	t.Parallel()
	d := newDistribution()
	for v := range 1000 {
		d.add(float64(v) / 8)
	}
	h, err := hdrhistogram.Decode([]byte(d.encode()))
	require.NoError(t, err)
	require.EqualValues(t, 1000, h.TotalCount())
	require.InEpsilon(t, 62.5*perUnit, h.ValueAtQuantile(50), 0.01)
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
		_, err := warmUp(t.Context(), alone{}, s, 0)
		require.NoError(t, err)
		require.GreaterOrEqual(t, s.runs, 3)
		require.LessOrEqual(t, s.runs, 3+steadyRuns)
	}
}

// waking is a series whose runs take ever less time, for gains µs.
type waking struct{ runs, gains int }

func (s *waking) run(n int, _ []int64) error {
	s.runs++
	until := nanos() + int64(max(s.gains-s.runs*40, 0))*1000
	for nanos() < until {
	}
	return nil
}
func (s *waking) over() error   { return nil }
func (s *waking) finish() error { return nil }
