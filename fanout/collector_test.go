package fanout

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/impi"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// Results that arrive in any order, from any worker, are returned in the order of their
// chunks, within the collector's bound on memory.
func TestCollector(t *testing.T) {
	everywhere(t, func(t *testing.T, place string) {
		w := comms(t, place, 4)
		ctx := ranks.Within(t)
		const count, bound = 300, 4000
		c := newCollector(t, w[0], Reorder(bound))
		// Each worker has some of the chunks, in order, as from a supplier whose workers live.
		of := make([][]uint64, 4)
		for i := range count {
			k := 1 + rand.IntN(3)
			of[k] = append(of[k], uint64(i))
		}
		sides := []func() error{func() error {
			return collectAll(ctx, c, count, func(i int) []byte { return pattern(i, i) })
		}}
		for k := 1; k < 4; k++ {
			sides = append(sides, func() error {
				r := newResults(t, w[k], Outstanding(5))
				for _, seq := range of[k] {
					b := pattern(int(seq), int(seq))
					if err := r.Send(ctx, seq, b[:seq/2], b[seq/2:]); err != nil {
						return err
					}
				}
				if err := r.End(ctx); err != nil {
					return err
				}
				return r.End(ctx)
			})
		}
		noErrors(t, together(sides...))
		s := c.Stats()
		require.Equal(t, []uint64{count, 0}, []uint64{s.Next, s.Duplicates})
		require.Less(t, s.MostBytes, bound+2*(count+resultCost), "the one that reaches the bound, and the one that is waited for")
		require.Zero(t, s.Held+s.HeldBytes+s.Workers)
	})
}

// Duplicates are dropped; results that are missing at the end are reported, and those after them
// are returned.
func TestCollectorGaps(t *testing.T) {
	w := comms(t, "here", 2)
	ctx := ranks.Within(t)
	c := newCollector(t, w[0])
	r := newResults(t, w[1])
	for _, seq := range []uint64{0, 0, 3, 3, 1, 0} {
		require.NoError(t, r.Send(ctx, seq, []byte{byte(seq)}))
	}
	ended := make(chan error, 1)
	go func() { ended <- r.End(ctx) }()
	for _, want := range []uint64{0, 1} {
		got := received(t, ctx, c)
		require.Equal(t, []any{want, []byte{byte(want)}, 1}, []any{got.Seq(), got.Bytes(), got.Worker()})
		require.NoError(t, got.Release())
	}
	_, err := c.Receive(ctx)
	var lost *LostError
	require.ErrorAs(t, err, &lost)
	require.Equal(t, LostError{2, 2}, *lost)
	got := received(t, ctx, c)
	require.Equal(t, uint64(3), got.Seq())
	require.NoError(t, got.Release())
	_, err = c.Receive(ctx)
	require.Equal(t, io.EOF, err)
	require.NoError(t, <-ended)
	require.ErrorIs(t, r.Send(ctx, 4), ErrClosed)
	require.Equal(t, uint64(3), c.Stats().Duplicates)
}

// At the bound, and not before, only the result that is waited for is received.
func TestReorderBound(t *testing.T) {
	const bound = 1000
	for memory, want := range map[int]int{bound - 1: impi.AnyTag, bound: resultTag(3), bound + 1: resultTag(3)} {
		c := &Collector{o: collectorOptions{memory: bound}, workers: map[int]bool{1: true}, next: 3, held: map[uint64]*result{5: {}}, memory: memory}
		_, tag, err := c.following()
		require.NoError(t, err)
		require.Equal(t, want, tag, "%d bytes held, bound %d", memory, bound)
	}
}

// As many acknowledgements as fit into a message are sent at once, even while nothing is received;
// one fewer is not.
func TestAcknowledgementsGo(t *testing.T) {
	w := comms(t, "here", 2)
	c := newCollector(t, w[0], AcknowledgeTo(w[0], 1))
	for i := range uint64(askMost) {
		there, _, err := w[1].Iprobe(0, TagCollect)
		require.NoError(t, err)
		require.False(t, there, "after %d results", i)
		require.NoError(t, Result{c: c, r: &result{seq: i}}.Release())
	}
	there, st, err := w[1].Iprobe(0, TagCollect)
	require.NoError(t, err)
	require.True(t, there, "after %d results", askMost)
	require.Equal(t, 8*askMost, st.Len)
}

func TestCollectorBad(t *testing.T) {
	for _, b := range []struct {
		from, tag int
		body      []byte
	}{
		{1, resultTag(0), []byte("short")},
		{1, resultTag(0), binary.LittleEndian.AppendUint64(nil, 1)},
		{1, resultTag(1), binary.LittleEndian.AppendUint64(nil, 0)},
		{2, TagEnd, nil},
	} {
		w := comms(t, "here", 3)
		c := newCollector(t, w[0], ResultsOf(1))
		require.NoError(t, w[b.from].Send(t.Context(), b.body, 0, b.tag))
		_, err := c.Receive(ranks.Within(t))
		var e *MessageError
		require.ErrorAs(t, err, &e)
		require.Equal(t, []int{b.from, b.tag, len(b.body)}, []int{e.Rank, e.Tag, e.Bytes})
	}
}

// While no result is taken, nothing grows: workers wait, and so does the supplier.
func TestStalledCollector(t *testing.T) {
	w := comms(t, "shm", 3)
	in, out := dup(t, w), dup(t, w)
	ctx := ranks.Within(t)
	const bound, queue = 16, 4
	s := newSupplier(t, in[0], Queue(queue), Workers(1), Collected(2), Unacknowledged(bound))
	c := newCollector(t, out[2], ResultsOf(1), AcknowledgeTo(in[2], 0))
	client := newClient(t, in[1], Numbered(), Window(8))
	results := newResults(t, out[1], To(2))
	worker := make(chan error, 1)
	go func() {
		err := client.Each(ctx, 0, func(k Chunk) error { return results.Send(ctx, k.Seq(), k.Bytes()) })
		if err == nil {
			err = results.End(ctx)
		}
		worker <- err
	}()
	for n := range bound {
		require.NoError(t, s.Send(ctx, []byte{byte(n)}))
	}
	require.ErrorIs(t, s.Send(over(t), []byte{bound}), context.DeadlineExceeded)
	require.Equal(t, bound, s.Stats().Unacknowledged)
	var e *EndError
	require.ErrorIs(t, s.Drain(over(t)), context.DeadlineExceeded)
	require.ErrorAs(t, s.End(over(t)), &e)
	require.Equal(t, bound, e.Kept)
	noErrors(t, together(
		func() error {
			for i := range bound {
				r, err := c.Receive(ctx)
				if err != nil || r.Bytes()[0] != byte(i) {
					return fmt.Errorf("result %d: %w", i, err)
				}
				if err := r.Release(); err != nil {
					return err
				}
			}
			if _, err := c.Receive(ctx); err != io.EOF {
				return err
			}
			return nil
		},
		func() error { return s.End(ctx) },
		func() error { return <-worker }))
	require.Zero(t, s.Stats().Unacknowledged)
}

// The bound counts kept chunks, not the span from the first to the last. A repeated or late
// acknowledgement does not acknowledge a later chunk in the same place.
func TestAcknowledgedOutOfOrder(t *testing.T) {
	w := comms(t, "shm", 2)
	ctx := ranks.Within(t)
	const bound = 4
	s := newSupplier(t, w[0], Queue(bound), Collected(), Unacknowledged(bound))
	client := newClient(t, w[1], Numbered(), Window(bound))
	receive := func(want uint64) {
		t.Helper()
		require.NoError(t, s.Send(ctx, []byte{byte(want)}))
		k := received(t, ctx, client)
		require.Equal(t, want, k.Seq())
	}
	for i := range uint64(bound) {
		receive(i)
	}
	require.Equal(t, bound, s.Stats().Unacknowledged)
	require.ErrorIs(t, s.Acknowledge(bound), ErrInvalid, "of the next chunk")
	begun := func(rank int, seq uint64) (bool, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		err := s.begun(rank, seq, true)
		return s.kept[seq%bound].begun, err
	}
	_, err := begun(1, bound)
	require.Error(t, err, "begun with the next chunk")
	got, err := begun(2, 0)
	require.NoError(t, err)
	require.False(t, got, "another worker has begun with it")
	for i := range uint64(bound) - 1 {
		require.NoError(t, s.Acknowledge(bound-1-i))
	}
	require.Equal(t, 1, s.Stats().Unacknowledged)
	require.ErrorIs(t, s.Drain(over(t)), context.DeadlineExceeded)
	require.NoError(t, s.Acknowledge(0))
	require.Zero(t, s.Stats().Unacknowledged)
	require.True(t, s.low == s.next && s.next == bound, "kept from %d to %d", s.low, s.next)
	for i := range uint64(bound) { // in the same places
		receive(bound + i)
	}
	for i := range uint64(bound) {
		require.NoError(t, s.Acknowledge(i))
	}
	for _, c := range []struct {
		seq  uint64
		want bool
	}{{0, false}, {bound, true}} { // of the earlier chunk in the place, and of this one
		got, err = begun(1, c.seq)
		require.NoError(t, err)
		require.Equal(t, c.want, got, "begun with chunk %d, in the place of chunk %d", bound, c.seq)
	}
	require.Equal(t, bound, s.Stats().Unacknowledged)
	var e *EndError
	require.ErrorAs(t, s.End(over(t)), &e)
	require.Equal(t, bound, e.Kept)
	for i := range uint64(bound) {
		require.NoError(t, s.Acknowledge(bound+i))
	}
	noErrors(t, together(
		func() error {
			if _, err := client.Receive(ctx); err != io.EOF {
				return err
			}
			return nil
		},
		func() error { return s.End(ctx) }))
}

// If a worker leaves its job with unacknowledged chunks, they go to another.
func TestRedelivered(t *testing.T) {
	everywhere(t, func(t *testing.T, place string) {
		if place == "here" {
			return // its processes cannot leave one by one
		}
		for _, queue := range []int{0, 8} {
			jobs := jobsOf(t, place, 3)
			ctx := ranks.Within(t)
			s := newSupplier(t, jobs[0].World(), Redeliver(), Queue(queue))
			c := newClient(t, jobs[1].World(), Numbered(), Window(3))
			noErrors(t, together(
				func() error {
					_, err := c.Receive(ctx) // and two more are on their way
					return err
				},
				func() error {
					for i := range 3 {
						if err := s.Send(ctx, []byte{byte(i)}); err != nil {
							return err
						}
					}
					return nil
				}))
			got := map[byte]bool{}
			noErrors(t, together(
				func() error { return jobs[1].Close(ctx) },
				func() error { return s.End(ctx) },
				func() error {
					c := newClient(t, jobs[2].World(), Numbered())
					return c.Each(ctx, time.Second, func(k Chunk) error {
						if k.Seq() != uint64(k.Bytes()[0]) || got[k.Bytes()[0]] {
							return fmt.Errorf("chunk %d: %v", k.Seq(), k.Bytes())
						}
						got[k.Bytes()[0]] = true
						return nil
					})
				}))
			require.Len(t, got, 3)
			st := s.Stats().Workers
			require.Equal(t, []WorkerState{Lost, Ended}, []WorkerState{st[0].State, st[1].State})
			require.Positive(t, st[0].Redelivered)
			require.Error(t, st[0].Err)
		}
	})
}

// A program that is told to end finishes what it has begun.
func TestGrace(t *testing.T) {
	w := comms(t, "here", 2)
	ctx := ranks.Within(t)
	s := newSupplier(t, w[0], Queue(10))
	c := newClient(t, w[1])
	told, tell := context.WithCancel(ctx)
	sent, got := 0, 0
	noErrors(t, together(
		func() error {
			return s.Supply(told, ranks.Limit, func(context.Context) ([][]byte, error) {
				if sent++; sent == 5 {
					tell()
				}
				return [][]byte{{byte(sent)}}, nil
			})
		},
		func() error { return c.Each(ctx, 0, func(Chunk) error { got++; return nil }) }))
	require.Equal(t, 5, sent)
	require.Equal(t, 5, got)

	s = newSupplier(t, w[0], Queue(10))
	c = newClient(t, w[1])
	broken := fmt.Errorf("the source is broken")
	noErrors(t, together(
		func() error {
			err := s.Supply(ctx, 0, func(context.Context) ([][]byte, error) { return nil, broken })
			if !errors.Is(err, broken) {
				return fmt.Errorf("from a broken source: %w", err)
			}
			return nil
		},
		func() error { return c.Each(ctx, 0, func(Chunk) error { return nil }) }))
}
