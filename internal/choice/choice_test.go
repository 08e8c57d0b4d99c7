package choice

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// uses says how often each way is taken in so many turns of ways that take these times.
func uses(c *Choice, n uint64, turns int, took ...time.Duration) (count [Ways]int) {
	for range turns {
		w := c.Next(len(took), n)
		count[w]++
		c.Note(w, n, took[w])
	}
	return count
}

// TestFastest: each way is tried, then the fastest is taken; others cost little, however slow they are,
// and a change is noticed whichever way it goes.
func TestFastest(t *testing.T) {
	const us = time.Microsecond
	var c Choice
	for _, took := range [][]time.Duration{
		{10 * us, 5 * us}, {10 * us, 40 * us}, {90 * us, 11 * us}, {10 * us, 10 * us, 2 * us},
		{1000 * us, 10 * us, 20 * us}, {1 * us, 2 * us, 3 * us},
	} {
		best := 0
		for w := range took {
			if took[w] < took[best] {
				best = w
			}
		}
		uses(&c, 1<<16, 100_000, took...)
		require.Equal(t, best, c.Best(len(took), 1<<16), "%v", took)
		spent := time.Duration(0)
		const turns = 5000
		for w, n := range uses(&c, 1<<16, turns, took...) {
			if w < len(took) {
				require.NotZero(t, n, "way %d of %v is never tried", w, took)
				spent += time.Duration(n) * took[w]
			}
		}
		require.LessOrEqual(t, spent, turns*took[best]*(probeShare+2)/probeShare, "%v", took)
	}
}

// TestSizes: what is learned of one size is not applied to others.
func TestSizes(t *testing.T) {
	var c Choice
	uses(&c, 10_000, 100, 2, 1)
	uses(&c, 1<<20, 100, 1, 2)
	for n, want := range map[uint64]int{0: 1, 1: 1, 16383: 1, 1 << 20: 0, 1<<21 - 1: 0} {
		require.Equal(t, want, c.Best(2, n), "%d bytes", n)
	}
	uses(&c, 1<<63, 100, 2, 1)
	require.Equal(t, 1, c.Best(2, 1<<40))
}

// TestOutliers: a time that includes page faults, or of a side that was descheduled, decides nothing.
func TestOutliers(t *testing.T) {
	var c Choice
	c.Note(c.Next(2, 0), 0, time.Second)
	uses(&c, 0, 100, 10, 20)
	require.Equal(t, 0, c.Best(2, 0))
	c.Note(0, 0, time.Second)
	require.Equal(t, 0, c.Best(2, 0))
}

// TestOneWay: there is nothing to choose.
func TestOneWay(t *testing.T) {
	var c Choice
	require.Equal(t, [Ways]int{1000}, uses(&c, 0, 1000, 1))
}
