package main

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A round is begun if it ends in time when it takes as long as the longest; the first
// always is.
func TestPace(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rounds int
		bound  time.Duration
		takes  []time.Duration // the rounds
		want   int
	}{
		"all fit":          {3, time.Minute, []time.Duration{15 * time.Second, 15 * time.Second, 15 * time.Second}, 3},
		"two fit":          {3, time.Minute, []time.Duration{25 * time.Second, 25 * time.Second, 25 * time.Second}, 2},
		"one does not fit": {3, time.Minute, []time.Duration{90 * time.Second}, 1},
		"the longest":      {4, time.Minute, []time.Duration{25 * time.Second, 10 * time.Second, 25 * time.Second}, 2},
		"no bound":         {2, 0, []time.Duration{time.Hour, time.Hour}, 2},
	} {
		now := time.Unix(0, 0)
		p := pace{rounds: c.rounds, bound: c.bound, began: now}
		now = now.Add(5 * time.Second) // to build the peers
		for p.another(now) {
			since := now
			now = now.Add(c.takes[p.done])
			p.over(since, now)
		}
		require.Equal(t, c.want, p.done, name)
	}
}

// No contender goes on after the bound, whatever the machine does.
func TestPaceOfContenders(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	p := pace{rounds: 1, bound: quickBound, began: now}
	for _, c := range []struct {
		at, want time.Duration
		late     error
	}{
		{0, quickContender, errHung},
		{quickBound - quickContender, quickContender, errHung},
		{quickBound - time.Second, time.Second, errNoTime},
		{quickBound, 0, errNoTime},
	} {
		bound, late := p.contender(now.Add(c.at))
		require.Equal(t, c.want, bound, c.at)
		require.Equal(t, c.late, late, c.at)
	}
	p.bound = 0
	bound, late := p.contender(now.Add(time.Hour))
	require.Equal(t, contenderBound, bound)
	require.Equal(t, errHung, late)
}

// One that takes too long is ended, and named; one that fails in time fails by itself.
func TestContenderBound(t *testing.T) {
	t.Parallel()
	waits := contender{name: "sleeper", run: func(ctx context.Context) ([]Result, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	_, err := waits.runBounded(context.Background(), time.Millisecond, errHung)
	require.ErrorIs(t, err, errHung)
	require.ErrorContains(t, err, "sleeper")
	_, err = waits.runBounded(context.Background(), 0, errNoTime)
	require.ErrorIs(t, err, errNoTime)
	stopped, stop := context.WithCancel(context.Background())
	stop()
	_, err = waits.runBounded(stopped, time.Minute, errHung)
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, errHung)
	breaks := contender{run: func(context.Context) ([]Result, error) { return nil, errNotInstalled }}
	_, err = breaks.runBounded(context.Background(), time.Minute, errHung)
	require.Equal(t, errNotInstalled, err)
}

// One that takes too much of the time is in fewer rounds, which is said; the others go on.
func TestShare(t *testing.T) {
	t.Parallel()
	runs := map[string]int{}
	named := func(name string, waits bool) contender {
		return contender{name: name, run: func(ctx context.Context) ([]Result, error) {
			runs[name]++
			for start := time.Now(); waits && time.Since(start) < time.Millisecond; {
			}
			return []Result{{Peer: name, P50: float64(runs[name])}}, nil
		}}
	}
	c := comparison{compareOptions: compareOptions{rounds: 5}, pace: pace{rounds: 5, share: time.Hour, began: time.Now()}}
	figures, err := c.takeAll(t.Context(), []contender{named("one", true), named("other", false)})
	require.NoError(t, err)
	require.Len(t, figures, 2)
	require.Equal(t, map[string]int{"one": 5, "other": 5}, runs)
	require.Empty(t, c.report.Warnings)

	clear(runs)
	c.pace = pace{rounds: 5, share: 0, began: time.Now()}
	figures, err = c.takeAll(t.Context(), []contender{named("slow", true)})
	require.NoError(t, err)
	require.Equal(t, map[string]int{"slow": 1}, runs)
	require.Equal(t, 1, figures[0].Rounds)
	require.Len(t, c.report.Warnings, 1)
	require.Contains(t, c.report.Warnings[0], "slow: in 1 of 5 rounds")
}

// The output says what a quick comparison is.
func TestSaysQuick(t *testing.T) {
	t.Parallel()
	o := compareOptions{time: quickTime}
	require.Empty(t, o.saysQuick(3, time.Second), "it is not")
	o.quick = true
	require.Contains(t, o.saysQuick(3, 48*time.Second), "3 rounds of 10ms a figure, by turns, in 48 s")
	require.Contains(t, o.saysQuick(1, time.Second), "1 round of 10ms")
}
