package fanout

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/impi"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// lies are lengths that no message has. Those that fit into an int pass the checks of packets; the
// others are invalid there, and end the connection.
var lies = []uint64{DefaultLongest + 1, 1 << 40, 1<<62 - 1, 1 << 62, 1<<62 + 1, math.MaxInt64, 1 << 63, math.MaxUint64}

// A supplier that lies about the length of a chunk costs its client an error, which names
// it, and no memory; the client goes on.
func TestLyingSupplier(t *testing.T) {
	for _, dialect := range []struct {
		name string
		tag  int
		opts []ClientOption
		body []byte
	}{
		{"plain", TagData, nil, []byte("chunk")},
		{"window", TagData, []ClientOption{Window(3)}, []byte("chunk")},
		{"numbered", TagNumbered, []ClientOption{Numbered(), Window(2)}, append(appendRecord(nil, 0, 5, 0), "chunk"...)},
	} {
		for _, lie := range lies {
			t.Run(fmt.Sprintf("%s/%d", dialect.name, lie), func(t *testing.T) {
				t.Parallel()
				w, s := strangers(t, 1)
				ctx := ranks.Within(t)
				c := newClient(t, w, append(dialect.opts, From(1))...)
				s[0].announce(dialect.tag, lie, dialect.body)
				_, err := c.Receive(ctx)
				if lie > math.MaxInt64 {
					requirePeer(t, err)
					return
				}
				requireLie(t, err, "receive", dialect.tag, lie)
				require.NoError(t, s[0].send(dialect.tag, dialect.body))
				k := received(t, ctx, c)
				require.Equal(t, "chunk", string(k.Bytes()))
				require.NoError(t, c.Close())
			})
		}
	}
}

// The same of a worker, for the collector.
func TestLyingWorker(t *testing.T) {
	for _, lie := range lies {
		t.Run(fmt.Sprint(lie), func(t *testing.T) {
			t.Parallel()
			w, s := strangers(t, 1)
			ctx := ranks.Within(t)
			c := newCollector(t, w)
			body := append(binary.LittleEndian.AppendUint64(nil, 0), "result"...)
			s[0].announce(resultTag(0), lie, body)
			_, err := c.Receive(ctx)
			if lie > math.MaxInt64 {
				requirePeer(t, err)
				return
			}
			requireLie(t, err, "collect", resultTag(0), lie)
			require.NoError(t, s[0].send(resultTag(0), body))
			r := received(t, ctx, c)
			require.Equal(t, "result", string(r.Bytes()))
		})
	}
}

// requireLie checks that the error names the operation, the rank, the tag and the length.
func requireLie(t *testing.T, err error, op string, tag int, lie uint64) {
	t.Helper()
	var e *MessageError
	require.ErrorAs(t, err, &e)
	require.ErrorIs(t, err, ErrProtocol)
	require.Equal(t, []int{1, tag, int(lie)}, []int{e.Rank, e.Tag, e.Bytes})
	require.Contains(t, err.Error(), "fanout: "+op+": ")
}

// requirePeer checks that the packets themselves violate the protocol, and that the error names
// rank 1.
func requirePeer(t *testing.T, err error) {
	t.Helper()
	var e *impi.Error
	require.ErrorAs(t, err, &e)
	require.ErrorIs(t, err, ErrProtocol)
	require.Equal(t, 1, e.Rank)
}

// A message that is announced and does not come blocks no receiver that can give it up:
// neither a message up to the bound, nor one that matches a posted receive. The client can be
// closed.
func TestAnnouncedOnly(t *testing.T) {
	for _, opts := range [][]ClientOption{nil, {MaxChunk(100)}, {MaxChunk(100_000), Window(2)}} {
		for _, length := range []uint64{100, 1 << 40, 1<<62 + 1} {
			if length > 100 && len(opts) == 0 {
				continue // it is refused
			}
			w, s := strangers(t, 1)
			c := newClient(t, w, append(opts, From(1))...)
			_, err := c.Receive(over(t)) // what it posts, it has posted
			require.ErrorIs(t, err, context.DeadlineExceeded)
			s[0].announce(TagData, length, []byte("chunk"))
			for range 2 { // the last of these meets no receive, and has come behind it
				require.NoError(t, s[0].send(TagNumbered, []byte("x")))
			}
			_, err = w.Probe(ranks.Within(t), 1, TagNumbered)
			require.NoError(t, err)
			_, err = c.Receive(over(t))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.NoError(t, c.Close())
		}
	}
}

// Messages of workers are short: a supplier does not wait for a longer one, and serves other
// workers.
func TestLyingRequest(t *testing.T) {
	for _, queue := range []int{0, 4} {
		for _, lie := range lies {
			w, s := strangers(t, 2)
			ctx := ranks.Within(t)
			supplier := newSupplier(t, w, Queue(queue))
			s[0].announce(TagRequest, lie, []byte("x"))
			if lie <= math.MaxInt64 {
				var err error
				for err == nil { // what the goroutine of a queue has met, a later call says
					err = supplier.Send(ctx, []byte("chunk"))
				}
				requireLie(t, err, "send", TagRequest, lie)
			}
			require.NoError(t, s[1].send(TagRequest, nil))
			if supplier.Stats().Queued == 0 {
				require.NoError(t, supplier.Send(ctx, []byte("chunk")))
			}
			tag, body, err := s[1].receive()
			require.NoError(t, err)
			require.Equal(t, TagData, tag)
			require.Equal(t, "chunk", string(body))
			require.NoError(t, supplier.Close())
		}
	}
}

// Bounds of lengths are exact, wherever the message comes from.
func TestBadLength(t *testing.T) {
	for _, c := range []struct {
		n, most int
		ok      bool
	}{
		{0, 1, true}, {1, 1, true}, {2, 1, false}, {-1, 1, false}, {math.MinInt, math.MaxInt, false},
		{math.MaxInt, math.MaxInt - 1, false}, {math.MaxInt, math.MaxInt, true}, {DefaultLongest, DefaultLongest, true},
	} {
		require.Equal(t, c.ok, badLength(c.n, c.most, "Longest") == "", "%d of %d", c.n, c.most)
	}
}

// The allocated memory is at least the length and at most twice that, and does not overflow.
func TestRoomFor(t *testing.T) {
	for _, n := range []int{0, 1, 256, 257, 1 << 20, 1<<20 + 1, keepLeases, keepLeases + 1, 1 << 40, 1<<62 + 1, math.MaxInt} {
		room := roomFor(n)
		require.GreaterOrEqual(t, room, n)
		require.LessOrEqual(t, room/2, max(n, 128))
	}
}

// Messages above a bound that the user has set are errors, on every path, and later messages are
// received.
func TestLongest(t *testing.T) {
	everywhere(t, func(t *testing.T, place string) {
		w := comms(t, place, 2)
		for _, n := range []int{11, 5000, 300_000} { // of one packet, and of several
			ctx := ranks.Within(t)
			in, out := dup(t, w), dup(t, w)
			c := newClient(t, in[1], Longest(10), Window(2))
			results := newCollector(t, out[1], LongestResult(10))
			noErrors(t, together(
				func() error {
					s := newSupplier(t, in[0])
					for _, b := range [][]byte{make([]byte, n), []byte("ten bytes.")} {
						if err := s.Send(ctx, b); err != nil {
							return err
						}
					}
					return s.End(ctx)
				},
				func() error {
					var e *MessageError
					if _, err := c.Receive(ctx); !errors.As(err, &e) || e.Rank != 0 || e.Bytes != n {
						return fmt.Errorf("a long chunk: %w", err)
					}
					k, err := c.Receive(ctx)
					if err != nil || string(k.Bytes()) != "ten bytes." {
						return fmt.Errorf("the next chunk: %w", err)
					}
					k.Release()
					return c.Each(ctx, 0, func(Chunk) error { return errors.New("one more") })
				},
				func() error {
					r := newResults(t, out[0], To(1))
					if err := r.Send(ctx, 0, make([]byte, n)); err != nil {
						return err
					}
					if err := r.Send(ctx, 0, []byte("ok")); err != nil {
						return err
					}
					return r.End(ctx)
				},
				func() error {
					var e *MessageError
					if _, err := results.Receive(ctx); !errors.As(err, &e) || e.Rank != 0 || e.Bytes != n+resultHeader {
						return fmt.Errorf("a long result: %w", err)
					}
					r, err := results.Receive(ctx)
					if err != nil || string(r.Bytes()) != "ok" {
						return fmt.Errorf("the next result: %w", err)
					}
					return r.Release()
				}))
			require.NoError(t, c.Close())
		}
	})
}
