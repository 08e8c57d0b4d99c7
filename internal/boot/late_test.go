package boot

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// When a rank gives up waiting, it and all others learn on whose account.
func TestLateRanks(t *testing.T) {
	for _, c := range []struct {
		size   int
		joined []int // besides those that give, 0 and 1
		says   string
	}{
		{3, nil, "rank 2 has not joined"},
		{8, []int{4}, "ranks 2-3, 5-7 have not joined, rank 4 has joined and not given to the round"},
		{5, []int{2, 3, 4}, "ranks 2-4 have joined and not given to the round"},
	} {
		t.Run(c.says, func(t *testing.T) {
			w := newWorld(t, c.size, maxStrangers)
			jobs := []*Job{w.join(t, 0), w.join(t, 1)}
			for _, rank := range c.joined {
				jobs = append(jobs, w.join(t, rank))
			}
			ctx, cancel := context.WithCancelCause(ranks.Within(t))
			errs := [2]chan error{make(chan error, 1), make(chan error, 1)}
			go func() { errs[0] <- jobs[0].Barrier(ctx) }()
			go func() { errs[1] <- jobs[1].Barrier(ranks.Within(t)) }()
			w.waitGiven(t, 2)
			cancel(errors.New("enough"))
			err := <-errs[0]
			require.ErrorIs(t, err, context.Canceled)
			require.EqualError(t, err, "boot: exchange: context canceled: "+c.says)
			err = <-errs[1]
			require.ErrorIs(t, err, ErrGaveUp)
			require.EqualError(t, err, "boot: exchange: before all ranks had joined, rank 0 gave up: enough: "+c.says)
			for _, j := range jobs[2:] {
				require.EqualError(t, j.Barrier(ranks.Within(t)), err.Error())
			}
		})
	}
}

// A rendezvous that gives no reason does not hold a rank that has given up.
func TestNoVerdict(t *testing.T) {
	t.Parallel() // it waits for a second
	need.Full(t)
	w := newWorld(t, 2, maxStrangers)
	j := w.join(t, 0)
	ctx, cancel := context.WithCancel(ranks.Within(t))
	done := make(chan error, 1)
	go func() { done <- j.Barrier(ctx) }()
	w.waitGiven(t, 1)
	w.mu.Lock() // and it says nothing any more
	cancel()
	err := <-done
	w.mu.Unlock()
	require.ErrorIs(t, err, context.Canceled)
}

func TestRanges(t *testing.T) {
	for want, list := range map[string][]int{"7": {7}, "1, 3-5": {1, 3, 4, 5}, "0-2, 4-5": {0, 1, 2, 4, 5}} {
		require.Equal(t, want, ranges(list))
	}
	var odd []int
	for i := range 100 {
		odd = append(odd, 2*i+1)
	}
	require.Equal(t, "1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31, 33, 35, 37, 39 and 80 others", ranges(odd))
}
