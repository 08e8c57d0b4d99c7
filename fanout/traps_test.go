package fanout

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/impi"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// plainAsk sends a request in the plain dialect, as a program of another implementation
// does.
func plainAsk(t *testing.T, c *impi.Comm) {
	t.Helper()
	require.NoError(t, c.Send(t.Context(), nil, 0, TagRequest))
}

// answer receives a message of a supplier.
func answer(t *testing.T, c *impi.Comm, n int) (impi.Status, []byte) {
	t.Helper()
	buf := make([]byte, n)
	st, err := c.Recv(ranks.Within(t), buf, 0, impi.AnyTag)
	require.NoError(t, err)
	return st, buf[:st.Len]
}

// The wire format is that of CMPIFanoutTransport: an empty request with tag 2, the parts as one
// message with tag 1, an empty end with tag 0.
func TestPlainWire(t *testing.T) {
	everywhere(t, func(t *testing.T, place string) {
		w := comms(t, place, 2)
		ctx := ranks.Within(t)
		s := newSupplier(t, w[0])
		plainAsk(t, w[1])
		require.NoError(t, s.Send(ctx, []byte("a"), nil, []byte("bc")))
		st, b := answer(t, w[1], 10)
		require.Equal(t, impi.Status{Source: 0, Tag: 1, Len: 3}, st)
		require.Equal(t, "abc", string(b))
		plainAsk(t, w[1])
		require.NoError(t, s.End(ctx))
		st, _ = answer(t, w[1], 10)
		require.Equal(t, impi.Status{Source: 0, Tag: 0, Len: 0}, st)
		require.NoError(t, s.End(ctx), "again")
		require.ErrorIs(t, s.Send(ctx, []byte("x")), ErrClosed)

		c := newClient(t, w[1])
		got := make(chan error, 1)
		go func() {
			k, err := c.Receive(ctx)
			if err == nil && (string(k.Bytes()) != "chunk" || k.Supplier() != 0) {
				err = fmt.Errorf("chunk %q of %d", k.Bytes(), k.Supplier())
			}
			k.Release()
			got <- err
			_, err = c.Receive(ctx)
			got <- err
		}()
		for _, step := range []struct {
			body string
			tag  int
			want error
		}{{"chunk", TagData, nil}, {"", TagEnd, io.EOF}} {
			st, err := w[0].Recv(ctx, nil, impi.AnySource, impi.AnyTag)
			require.NoError(t, err)
			require.Equal(t, impi.Status{Source: 1, Tag: 2, Len: 0}, st)
			require.NoError(t, w[0].Send(ctx, []byte(step.body), 1, step.tag))
			require.Equal(t, step.want, <-got)
		}
		_, err := c.Receive(ctx)
		require.Equal(t, io.EOF, err)
	})
}

// Chunks without bytes would be ends, and chunks go one way.
func TestRefused(t *testing.T) {
	w := comms(t, "here", 2)
	ctx := t.Context()
	s := newSupplier(t, w[0])
	c := newClient(t, w[1])
	require.ErrorIs(t, s.Send(ctx), ErrEmptyChunk)
	require.ErrorIs(t, s.Send(ctx, nil, []byte{}), ErrEmptyChunk)
	require.ErrorIs(t, s.SendOwned(ctx, nil, nil), ErrEmptyChunk)
	_, err := s.SendEach(ctx, []byte("x"), nil)
	require.ErrorIs(t, err, ErrEmptyChunk)
	_, err = s.Receive(ctx)
	require.ErrorIs(t, err, ErrDirection)
	require.ErrorIs(t, c.Send(ctx, []byte("x")), ErrDirection)
	require.ErrorIs(t, s.Acknowledge(0), ErrInvalid)
	require.NoError(t, c.Close())
	_, err = c.Receive(ctx)
	require.ErrorIs(t, err, ErrClosed)
	require.NoError(t, s.Close())
	require.ErrorIs(t, s.Send(ctx, []byte("x")), ErrClosed)
	Chunk{}.Release()
	require.Equal(t, -1, Chunk{}.Supplier())
	require.NoError(t, Result{}.Release())

	for _, opts := range [][]Option{
		{Workers(0)}, {Workers(2)}, {Workers(1, 1)}, {Queue(-1)}, {Batch(-1)}, {Redeliver(), Unacknowledged(0)},
		{Redeliver(), Unacknowledged(tagSpan + 1)}, {Collected(0)}, {Collected(2)},
	} {
		_, err := NewSupplier(w[0], opts...)
		require.ErrorIs(t, err, ErrInvalid)
	}
	for _, opts := range [][]ClientOption{{From(1)}, {From(2)}, {From(0, 0)}, {Window(0)}, {Window(maxWindow + 1)}, {MaxChunk(-1)}, {AdaptiveWindow(0)}} {
		_, err := NewClient(w[1], opts...)
		require.ErrorIs(t, err, ErrInvalid)
	}
	_, err = NewResults(w[1], To(2))
	require.ErrorIs(t, err, ErrInvalid)
	_, err = NewResults(w[1], Outstanding(0))
	require.ErrorIs(t, err, ErrInvalid)
	for _, opts := range [][]CollectorOption{{ResultsOf(2)}, {ResultsOf(1, 1)}, {Reorder(-1)}, {AcknowledgeTo(w[0], 2)}} {
		_, err := NewCollector(w[0], opts...)
		require.ErrorIs(t, err, ErrInvalid)
	}
}

// A message that is not a request is an error that names its rank and the reason, and the supplier
// goes on.
func TestBadRequests(t *testing.T) {
	w := comms(t, "here", 3)
	ctx := ranks.Within(t)
	for _, queue := range []int{0, 4} {
		for _, c := range []struct {
			from, tag int
			body      []byte
			keep      Option
		}{
			{1, TagRequest, []byte("x"), nil},
			{1, 3, nil, nil},
			{1, TagLeave, []byte("x"), nil},
			{2, TagRequest, nil, nil}, // no worker
			{1, TagAsk, nil, nil},
			{1, TagAsk, appendAsk(nil, 1, []uint64{0})[:15], nil},
			{1, TagAsk, appendAsk(nil, maxWindow+1, nil), nil},
			{1, TagAsk, []byte{1, 0, 0, 0, 1, 0, 0, 0}, nil},
			{1, TagAsk, appendAsk(nil, 1, []uint64{77}), Redeliver()},
			{1, TagCollect, appendNumbers(nil, []uint64{0}), Redeliver()},
			{1, TagCollect, []byte("x"), Collected(1)},
			{1, TagAsk, make([]byte, 10_000), nil},
		} {
			w := dup(t, w)
			s := newSupplier(t, w[0], Workers(1), Queue(queue), c.keep)
			if queue > 0 { // for the answer, before anything has been met
				require.NoError(t, s.Send(ctx, []byte("chunk")))
			}
			require.NoError(t, w[c.from].Send(ctx, c.body, 0, c.tag))
			var e *MessageError
			err := s.Send(ctx, []byte("chunk"))
			for err == nil && queue > 0 { // what the goroutine has met, a later call says
				err = s.Send(ctx, []byte("chunk"))
			}
			require.ErrorAs(t, err, &e, "tag %d, %q", c.tag, c.body)
			require.ErrorIs(t, err, ErrProtocol)
			require.Equal(t, []int{c.from, c.tag, len(c.body)}, []int{e.Rank, e.Tag, e.Bytes})
			require.NoError(t, w[1].Send(ctx, nil, 0, TagRequest))
			if queue == 0 {
				require.NoError(t, s.Send(ctx, []byte("chunk")))
			}
			_, b := answer(t, w[1], 100)
			if c.keep != nil { // it comes with its number
				_, _, b, _, err = parseRecord(b)
				require.NoError(t, err)
			}
			require.Equal(t, "chunk", string(b))
			require.NoError(t, s.Close())
		}
	}
}

// A client does not take another message for a chunk.
func TestBadChunks(t *testing.T) {
	w := comms(t, "here", 3)
	ctx := ranks.Within(t)
	for _, c := range []struct {
		from, tag int
		body      []byte
		opts      []ClientOption
	}{
		{0, TagRequest, []byte("x"), nil},
		{0, TagNumbered, []byte("x"), nil},
		{0, TagData, []byte("x"), []ClientOption{Numbered()}},
		{0, TagNumbered, []byte("x"), []ClientOption{Numbered()}},
		{0, TagNumbered, make([]byte, recordHeader), []ClientOption{Numbered()}},
		{0, TagData, []byte("long"), []ClientOption{MaxChunk(3)}},
		{2, TagData, []byte("x"), []ClientOption{From(0)}},
	} {
		w := dup(t, w)
		k := newClient(t, w[1], c.opts...)
		require.NoError(t, w[c.from].Send(ctx, c.body, 1, c.tag))
		if c.from != 0 { // it looks at its supplier's messages only
			_, err := w[1].Probe(ctx, c.from, c.tag)
			require.NoError(t, err)
			_, err = k.Receive(over(t))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.NoError(t, k.Close())
			continue
		}
		_, err := k.Receive(ctx)
		var e *MessageError
		require.ErrorAs(t, err, &e)
		require.Equal(t, []int{c.from, c.tag, len(c.body)}, []int{e.Rank, e.Tag, e.Bytes})
		require.NoError(t, k.Close())
	}
}

// End does not wait for ranks that are not workers, and names those that have not asked when the
// time is up; each worker gets its end once.
func TestEnd(t *testing.T) {
	w := comms(t, "here", 5)
	for _, queue := range []int{0, 2} {
		w := dup(t, w)
		ctx := ranks.Within(t)
		s := newSupplier(t, w[0], Workers(1, 2, 3), Queue(queue))
		plainAsk(t, w[1])
		require.NoError(t, s.Send(ctx, []byte("x")))
		answer(t, w[1], 1)
		plainAsk(t, w[3])
		plainAsk(t, w[3]) // it has a window of 2
		var e *EndError
		heard := once(t, func() bool { return s.Stats().Workers[2].State == Ended })
		require.ErrorAs(t, s.End(heard), &e)
		require.Equal(t, []int{2}, e.Never)
		require.Equal(t, []int{1}, e.Late)
		require.Zero(t, e.Kept)
		require.ErrorIs(t, e, context.Canceled)
		require.Contains(t, e.Error(), "ranks [2] never asked: ranks [1] have not asked again")
		require.ErrorIs(t, s.Send(ctx, []byte("x")), ErrClosed)
		st, _ := answer(t, w[3], 0)
		require.Equal(t, TagEnd, st.Tag)
		plainAsk(t, w[1])
		plainAsk(t, w[2])
		require.NoError(t, s.End(ctx))
		answer(t, w[1], 0)
		answer(t, w[2], 0)
		for _, c := range w[1:] {
			there, st, err := c.Iprobe(0, impi.AnyTag)
			require.NoError(t, err)
			require.False(t, there, "%+v", st)
		}
		for _, k := range s.Stats().Workers {
			require.Equal(t, Ended, k.State)
		}
	}
}

// A worker that leaves gets the chunks that it has been given, then its end; it may come back.
// When no worker is left, Send fails.
func TestLeave(t *testing.T) {
	everywhere(t, func(t *testing.T, place string) {
		w := comms(t, place, 3)
		for _, opts := range [][]ClientOption{{Window(2)}, {Window(2), MaxChunk(10)}, {Window(2), Numbered()}} {
			w := dup(t, w)
			ctx := ranks.Within(t)
			s := newSupplier(t, w[0], Workers(1))
			for range 2 {
				c := newClient(t, w[1], opts...)
				_, err := c.Receive(over(t)) // it has asked for two
				require.ErrorIs(t, err, context.DeadlineExceeded)
				_, err = w[0].Probe(ctx, 1, impi.AnyTag) // which is here: of a worker that has left nothing else is known
				require.NoError(t, err)
				require.NoError(t, s.Send(ctx, []byte("one")))
				k := received(t, ctx, c)
				require.Equal(t, "one", string(k.Bytes()))
				k.Release()
				_, err = c.Receive(over(t)) // it has asked for one more
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.NoError(t, s.Send(ctx, []byte("two")))
				c.Leave()
				k = received(t, ctx, c)
				require.Equal(t, "two", string(k.Bytes()))
				k.Release()
				// It had asked for more, which it may yet be given before the leave is heard.
				given, got := 0, 0
				noErrors(t, together(
					func() error {
						var err error
						for ; err == nil; given++ {
							err = s.Send(ctx, []byte("three"))
						}
						given--
						if !errors.Is(err, ErrNoWorkers) {
							return fmt.Errorf("without workers: %w", err)
						}
						return nil
					},
					func() error { return c.Each(ctx, time.Second, func(Chunk) error { got++; return nil }) }))
				require.Equal(t, given, got)
				require.LessOrEqual(t, got, 1)
				require.NoError(t, c.Close())
				require.Equal(t, Left, s.Stats().Workers[0].State)
			}
			require.NoError(t, s.End(ctx))
		}
	})
}

// A client that waits in Receive can leave.
func TestLeaveWaiting(t *testing.T) {
	w := comms(t, "here", 2)
	ctx := ranks.Within(t)
	s := newSupplier(t, w[0], Queue(1))
	c := newClient(t, w[1], Numbered())
	stop, cancel := context.WithCancel(ctx)
	noErrors(t, together(
		func() error { return c.Each(stop, ranks.Limit, func(Chunk) error { cancel(); return nil }) },
		func() error { return s.Send(ctx, []byte("x")) }))
	require.NoError(t, s.End(ctx))
}

// The queue is bounded and visible in Stats; a worker that asks late gets the queued chunks.
func TestQueue(t *testing.T) {
	w := comms(t, "here", 3)
	ctx := ranks.Within(t)
	s := newSupplier(t, w[0], Queue(3), Batch(1000))
	released := make([]int, 4)
	for i := range 3 {
		require.NoError(t, s.SendOwned(ctx, func() { released[i]++ }, []byte{byte(i)}, []byte{9}))
	}
	require.ErrorIs(t, s.SendOwned(over(t), func() { released[3]++ }, []byte{3}), context.DeadlineExceeded)
	st := s.Stats()
	require.Equal(t, []int{3, 6, 3}, []int{st.Queued, st.QueuedBytes, st.Capacity})
	require.Equal(t, Unknown, st.Workers[1].State)
	late := newClient(t, w[2], Numbered())
	k := received(t, ctx, late)
	require.Equal(t, []byte{0, 9}, k.Bytes())
	other := newClient(t, w[1])
	ends := func(c *Client, chunks int) func() error {
		return func() error {
			n := 0
			err := c.Each(ctx, time.Second, func(Chunk) error { n++; return nil })
			if n != chunks {
				return fmt.Errorf("%d chunks, not %d: %w", n, chunks, err)
			}
			return err
		}
	}
	noErrors(t, together(ends(late, 2), ends(other, 0), func() error { return s.End(ctx) }))
	require.Equal(t, []int{1, 1, 1, 0}, released)
	st = s.Stats()
	require.Equal(t, []uint64{3, 6, 1}, []uint64{st.Workers[1].Chunks, st.Workers[1].Bytes, st.Workers[1].Messages}, "one batch")
}

// Two suppliers feed the same workers; the end of one is not that of the other.
func TestSeveralSuppliers(t *testing.T) {
	need.Full(t)
	everywhere(t, func(t *testing.T, place string) {
		w := comms(t, place, 4)
		for _, opts := range [][]ClientOption{{Window(2)}, {Window(2), MaxChunk(100)}, {Numbered()}} {
			w := dup(t, w)
			ctx := ranks.Within(t)
			got := make([][2]int, 4)
			sides := []func() error{}
			for i := range 2 {
				sides = append(sides, func() error {
					s := newSupplier(t, w[i], Workers(2, 3))
					for n := range 10 * (i + 1) {
						if err := s.Send(ctx, []byte{byte(i), byte(n)}); err != nil {
							return err
						}
					}
					return s.End(ctx)
				})
			}
			for i := 2; i < 4; i++ {
				sides = append(sides, func() error {
					c := newClient(t, w[i], slices.Concat(opts, []ClientOption{From(0, 1)})...)
					return c.Each(ctx, time.Second, func(k Chunk) error {
						if int(k.Bytes()[0]) != k.Supplier() {
							return fmt.Errorf("chunk %v of %d", k.Bytes(), k.Supplier())
						}
						got[i][k.Supplier()]++
						return nil
					})
				})
			}
			noErrors(t, together(sides...))
			require.Equal(t, 10, got[2][0]+got[3][0])
			require.Equal(t, 20, got[2][1]+got[3][1])
		}
	})
}

// A slow worker gets fewer chunks, which its times show.
func TestSlowWorker(t *testing.T) {
	w := comms(t, "here", 3)
	ctx := ranks.Within(t)
	s := newSupplier(t, w[0], Timed())
	const count = 50
	has, slow, fast := make(chan struct{}), make(chan struct{}), 0
	noErrors(t, together(
		func() error {
			for i := range count {
				if err := s.Send(ctx, []byte{byte(i)}); err != nil {
					return err
				}
			}
			return s.End(ctx)
		},
		func() error {
			c := newClient(t, w[1])
			return c.Each(ctx, time.Second, func(Chunk) error {
				close(has) // twice would panic
				<-slow
				return nil
			})
		},
		func() error {
			c := newClient(t, w[2])
			<-has
			return c.Each(ctx, time.Second, func(Chunk) error {
				if fast++; fast == count-1 {
					close(slow)
				}
				return nil
			})
		}))
	st := s.Stats().Workers
	require.Equal(t, []uint64{1, count - 1}, []uint64{st[0].Chunks, st[1].Chunks})
	require.Equal(t, []int64{1, count - 1}, []int64{st[0].Service.Count, st[1].Service.Count})
	require.Greater(t, st[0].Service.P50, st[1].Service.P50)
	require.LessOrEqual(t, st[1].Service.P50, st[1].Service.P99)
}
