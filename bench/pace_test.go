package main

import (
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

// No contender goes on after the bound, whatever the machine does, but in the first round.
func TestPaceOfContenders(t *testing.T) {
	t.Parallel()
	p := newPace(&compareOptions{quick: true, rounds: 3})
	for _, c := range []struct {
		done     int
		at, want time.Duration
	}{
		{1, 0, quickContender}, {1, quickBound - quickContender, quickContender}, {1, quickBound - time.Second, time.Second}, {1, 2 * quickBound, 0}, {0, quickBound, quickContender},
	} {
		p.done = c.done
		require.Equal(t, c.want, p.contender(p.began.Add(c.at)), c.at)
	}
	p = newPace(&compareOptions{rounds: 11})
	require.Equal(t, fullContender, p.contender(p.began.Add(fullBound-fullContender)))
}

// The output says what a short comparison is.
func TestSaysShort(t *testing.T) {
	t.Parallel()
	c := comparison{compareOptions: compareOptions{time: quickTime}, pace: pace{rounds: 11, done: 11}}
	require.Empty(t, c.saysShort(c.began.Add(time.Second)), "it is not")
	c.done = 4
	require.Equal(t, []string{"4 of 11 rounds were possible within 3480 s: --only measures fewer rows"}, c.saysShort(c.began.Add(fullBound)))
	c.quick, c.done = true, 3
	require.Contains(t, c.saysShort(c.began.Add(48 * time.Second))[0], "3 rounds of 10ms a figure, by turns, in 48 s")
	c.done = 1
	require.Contains(t, c.saysShort(c.began)[0], "1 round of 10ms")
}
