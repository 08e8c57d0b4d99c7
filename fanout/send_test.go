package fanout

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// Several chunks that are sent together reach workers of both dialects, each once and with its
// number. A worker that has asked for several gets several in a message of the given length.
func TestSendEach(t *testing.T) {
	const count, most, batch = 100, 100, 600
	everywhere(t, func(t *testing.T, place string) {
		w := comms(t, place, 3)
		for _, opts := range [][]Option{{Batch(batch)}, nil, {Batch(batch), Redeliver(), Unacknowledged(16)}, {Queue(10), Batch(batch), Timed()}} {
			w := dup(t, w)
			ctx := ranks.Within(t)
			s := newSupplier(t, w[0], opts...)
			numbered := newClient(t, w[1], Numbered(), Window(8), MaxChunk(batch))
			plain := newClient(t, w[2])
			// Both have asked before there is anything.
			for _, c := range []*Client{plain, numbered} {
				_, err := c.Receive(over(t))
				require.Error(t, err)
			}
			chunks := make([][]byte, count)
			for i := range chunks {
				chunks[i] = pattern(i, 1+i*i%most)
				chunks[i][0] = byte(i)
			}
			var got [2][]int
			work := func(c *Client, mine *[]int) func() error {
				return func() error {
					return c.Each(ctx, time.Second, func(k Chunk) error {
						i := int(k.Bytes()[0])
						if i >= count || !bytes.Equal(k.Bytes(), chunks[i]) || c == numbered && k.Seq() != uint64(i) {
							return fmt.Errorf("chunk %d, %v", k.Seq(), k.Bytes())
						}
						*mine = append(*mine, i)
						return nil
					})
				}
			}
			noErrors(t, together(work(numbered, &got[0]), work(plain, &got[1]), func() error {
				for first, size := 0, 1; first < count; first, size = first+size, size+7 {
					some := chunks[first:min(first+size, count)]
					if n, err := s.SendEach(ctx, some...); err != nil || n != len(some) {
						return fmt.Errorf("%d of %d: %w", n, len(some), err)
					}
				}
				return s.End(ctx)
			}))
			require.NoError(t, numbered.Close())
			require.NoError(t, plain.Close())
			seen := map[int]bool{}
			for _, i := range append(got[0], got[1]...) {
				require.False(t, seen[i])
				seen[i] = true
			}
			require.Len(t, seen, count)
			st := s.Stats()
			require.EqualValues(t, count, st.Next)
			require.Equal(t, []int{len(got[0]), len(got[1])}, []int{int(st.Workers[0].Chunks), int(st.Workers[1].Chunks)})
			require.Equal(t, st.Workers[1].Chunks, st.Workers[1].Messages)
			if opts == nil {
				require.Equal(t, st.Workers[0].Chunks, st.Workers[0].Messages)
			}
		}
	})
}

// A message has exactly the chunks that a worker has asked for.
func TestSendEachTogether(t *testing.T) {
	w := comms(t, "here", 2)
	ctx := ranks.Within(t)
	s := newSupplier(t, w[0], Batch(1000))
	c := newClient(t, w[1], Numbered(), Window(5))
	_, err := c.Receive(over(t))
	require.Error(t, err)
	chunk := make([]byte, 184) // five of them fit
	gone := once(t, func() bool { return s.Stats().Workers[0].Messages > 0 })
	n, err := s.SendEach(gone, chunk, chunk, chunk, chunk, chunk, chunk)
	require.Error(t, err)
	require.Equal(t, 5, n)
	require.EqualValues(t, 1, s.Stats().Workers[0].Messages)
	for range 2 { // then two more are asked for
		received(t, ctx, c)
	}
	n, err = s.SendEach(over(t), chunk)
	require.Error(t, err)
	require.Zero(t, n)
	received(t, ctx, c)
	received(t, ctx, c)
	n, err = s.SendEach(ctx, chunk, chunk, chunk[:1])
	require.NoError(t, err)
	require.Equal(t, 3, n)
	require.EqualValues(t, 2, s.Stats().Workers[0].Messages)
	require.NoError(t, s.Close())
	require.NoError(t, c.Close())
}
