package fanout

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/impi"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// patterns are so many chunks, and mapped is what double makes of one.
func patterns(n int) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for i := 0; i < n && yield(pattern(i, chunkLen(i))); i++ {
		}
	}
}

func double(chunk []byte) ([]byte, error) { return append(chunk, chunk...), nil }

// doubles takes the results of patterns that double has worked on, and fails at the end.
func doubles(next *uint64, end int, fails error) func(uint64, []byte) error {
	return func(i uint64, result []byte) error {
		if i != *next || !bytes.Equal(result, bytes.Repeat(pattern(int(i), chunkLen(int(i))), 2)) {
			return fmt.Errorf("result %d, of %d bytes, in place of %d", i, len(result), *next)
		}
		if *next++; int(i) == end {
			return fails
		}
		return nil
	}
}

func TestMap(t *testing.T) {
	everywhere(t, func(t *testing.T, place string) {
		w := comms(t, place, 4)
		failed := errors.New("failed")
		var begun atomic.Int32
		for _, c := range []struct {
			name   string
			f      func([]byte) ([]byte, error)
			end    int
			master error
		}{
			{name: "all", f: double, end: -1},
			{name: "again", f: double, end: -1},
			{name: "a result is refused", f: double, end: 20, master: failed},
			{name: "a worker fails", f: func(chunk []byte) ([]byte, error) {
				if begun.Add(1) == 1 {
					return nil, failed
				}
				return double(chunk)
			}, end: -1},
		} {
			const chunks = 50
			next, workers := uint64(0), atomic.Int32{}
			ranks.Each(t, len(w), func(i int) error {
				err := Map(ranks.Within(t), w[i], patterns(chunks), c.f, doubles(&next, c.end, c.master))
				switch {
				case i == 0 && !errors.Is(err, c.master):
					return fmt.Errorf("%s: %w in place of %v", c.name, err, c.master)
				case i > 0 && errors.Is(err, failed):
					workers.Add(1)
				case i > 0 && err != nil:
					return err
				}
				return w[i].Run(ranks.Within(t), channel.Barrier())
			})
			if c.end < 0 {
				require.EqualValues(t, chunks, next, c.name)
			} else {
				require.EqualValues(t, c.end+1, next, c.name)
			}
			require.Equal(t, c.name == "a worker fails", workers.Load() == 1, c.name)
		}
	})
}

// A rank alone does it all itself.
func TestMapAlone(t *testing.T) {
	w := comms(t, "here", 1)[0]
	next := uint64(0)
	require.NoError(t, Map(t.Context(), w, patterns(10), double, doubles(&next, -1, nil)))
	require.EqualValues(t, 10, next)
	failed := errors.New("failed")
	err := Map(t.Context(), w, patterns(10), func([]byte) ([]byte, error) { return nil, failed }, nil)
	require.ErrorIs(t, err, failed)
	require.ErrorContains(t, err, "chunk 0")
	require.ErrorIs(t, Map(over(t), w, patterns(1), double, nil), context.DeadlineExceeded)
}

// Of workers that are killed the chunks go to the others.
func mapAct(ctx context.Context, w *impi.Comm, die func() error) error {
	next, done := uint64(0), 0
	err := Map(ctx, w, patterns(50), func(chunk []byte) ([]byte, error) {
		if done++; done == 5 && w.Rank() > 1 {
			return nil, die()
		}
		return double(chunk)
	}, doubles(&next, -1, nil))
	if err == nil && w.Rank() == 0 && next != 50 {
		err = fmt.Errorf("%d results", next)
	}
	return err
}
