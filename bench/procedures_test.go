package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

func TestOverlapTimes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name             string
		times            overlapTimes
		wait, total, osu float64
	}{
		{"nothing overlaps", overlapTimes{alone: 100, compute: 100, all: 200, wait: 100, cpu: 100}, 100, 100 * 200 / 215., 0},
		{"all overlaps, by an adapter", overlapTimes{alone: 100, compute: 100, all: 100, wait: 0, cpu: 0}, 0, 100, 100},
		{"the work of the cores is left", overlapTimes{alone: 100, compute: 100, all: 215, wait: 0, cpu: 100}, 0, 100, 0},
		{"worse than one after the other", overlapTimes{alone: 100, compute: 100, all: 430, wait: 330, cpu: 100}, 330, 200, 0},
		{"half", overlapTimes{alone: 200, compute: 200, all: 300, wait: 100, cpu: 0}, 50, 150, 50},
	} {
		require.InDelta(t, c.wait, c.times.waited(), 1e-9, c.name)
		require.InDelta(t, c.total, c.times.total(), 1e-9, c.name)
		require.InDelta(t, c.osu, c.times.osu(), 1e-9, c.name)
	}
}

func TestMedianOfLater(t *testing.T) {
	t.Parallel()
	require.Equal(t, 30., medianOfLater([]int64{10, 50, 1}, []int64{20, 5, 30}))
	require.Zero(t, medianOfLater(nil, nil))
}

func TestJain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rates []float64
		want  float64
	}{
		{[]float64{5, 5, 5, 5}, 1},
		{[]float64{1, 0, 0, 0}, 0.25},
		{[]float64{1, 3}, 0.8},
		{[]float64{0, 0}, 0},
		{nil, 0},
	} {
		require.InDelta(t, c.want, jain(c.rates), 1e-9, "%v", c.rates)
	}
}

func TestComplaint(t *testing.T) {
	t.Parallel()
	for told, want := range map[string]string{
		"":                                    "status 2",
		"WARN x\nbench: it failed\nmore\n":    "it failed",
		"panic: no\n\ngoroutine 1 [running]:": "panic: no",
		"bench: first\nbench: second":         "first",
	} {
		require.Equal(t, want, complaint(told, "status 2"), told)
	}
}

// TestProcedures: each has all its figures, in the form that peers' have as well.
func TestProcedures(t *testing.T) {
	need.Full(t)
	for _, c := range []struct {
		args    string
		results int // of each figure
		figures string
	}{
		{"overlap --sizes 256k --time 1ms --memory alloc", 2, "alone,cpu,wait,total,osu"},
		{"overlap --sizes 256k --time 1ms --provider tcp --kinds send --memory heap", 1, "alone,cpu,wait,total,osu"},
		{"channel lat --sizes 8 --time 10ms --load busy", 1, "mean,p99,neighbour"},
		{"allreduce --sizes 8 --time 10ms --load busy --call declared", 1, "mean,p99,neighbour"},
		{"halo --axis all --time 10ms --load busy", 1, "mean,p99,neighbour"},
		{"handles --count 1,100 --time 1ms", 2, ",declare,first,close"},
		{"waiters --count 20 --time 20ms", 1, ",threads"},
		{"idle --time 20ms --rounds 2", 1, ""},
		{"cq --count 10,20 --time 1ms", 2, ",poll,growth,poll-growth"},
		{"cq --count 1 --time 1ms --provider tcp", 1, ",poll"},
		{"oneshot --sizes 8,64k --memory alloc --time 1ms", 10, ""},
		{"pages --sizes 1M --time 1ms", 2, ""},
		{"ahead --count 1000 --sizes 8,16k", 2, ",start,handles"},
		{"start --ranks 3", 1, ",descriptors,threads,mappings,private"},
	} {
		t.Run(c.args, func(t *testing.T) {
			r := decode(t, output(t, append(strings.Fields(c.args), "--json")...))
			require.Empty(t, r.Missing)
			got := map[string]int{}
			for _, v := range r.Results {
				require.Empty(t, v.Failed)
				require.NoError(t, v.check(), "%+v", v)
				got[v.Figure]++
			}
			want := map[string]int{}
			for figure := range strings.SplitSeq(c.figures, ",") {
				want[figure] = c.results
			}
			require.Equal(t, want, got)
		})
	}
}

// TestFiguresAreShown: a row for each measurement, with all its figures, and one that says why
// there are none.
func TestFiguresAreShown(t *testing.T) {
	t.Parallel()
	r := Result{Pattern: patternOverlap, Layer: layerChannel, Provider: "shm", Op: "send heap", Bytes: 1 << 20, Unit: unitShare, Samples: 1}
	wait, alone, failed := r, r, r
	wait.Figure, wait.P50 = "wait", 12
	alone.Figure, alone.Unit, alone.P50 = "alone", unitLatency, 2500
	failed.Op, failed.Samples, failed.Failed = "allreduce heap", 0, "peer died"
	var out bytes.Buffer
	(&outputOptions{}).print(&out, &Report{Results: []Result{alone, wait, failed}})
	require.Contains(t, out.String(), "send heap 1M bytes")
	require.Regexp(t, `2\.50 µs +12\.0 %`, out.String())
	require.Contains(t, out.String(), "allreduce heap 1M bytes: failed: peer died\n")
}

// TestAttemptFails: a job that does not end in time, or fails, is a row that has failed; the
// next one is measured all the same.
func TestAttemptFails(t *testing.T) {
	need.Full(t)
	t.Setenv(envMain, "1")
	for _, c := range []struct {
		why, provider, time string
	}{
		{"did not end within", "shm", "1m"},
		{"no such device", "none", "1ms"},
	} {
		p := *firstPattern(func(p *pattern) bool { return p.name == "idle" })
		p.alone = 5 * time.Second
		given := map[string]string{"time": c.time}
		w := newWork(&p, given)
		_, err := (&attempt{w, p.specs(w.o, 2)[0], 0, c.provider}).run(context.Background(), given)
		var failed *AttemptError
		require.ErrorAs(t, err, &failed)
		require.Contains(t, failed.Why, c.why)
	}
}

func TestProcedureOptions(t *testing.T) {
	for _, args := range []string{
		"overlap --kinds walk", "overlap --memory none", "overlap --sizes 1x", "overlap --sizes 0", "overlap --time -1s", "handles --count 0", "start --ranks 0",
		"channel lat --load heavy", "loss --loss 50", "loss --window 0", "idle --sizes 8", "load", "load heavy true", "load busy", "load busy -n 0 true",
	} {
		told, status := fails(t, strings.Fields(args)...)
		require.Equal(t, exitUsage, status, "%s: %s", args, told)
	}
}
