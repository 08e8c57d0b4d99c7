package impi

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// exchanged sends a message from one layout to another, and returns what the receive ended with.
func exchanged(t testing.TB, a, b *Comm, from, to channel.Layout) (Status, error) {
	t.Helper()
	ctx := within(t)
	sent, err := a.IsendLayout(from, b.Rank(), 7)
	require.NoError(t, err)
	got, err := b.IrecvLayout(to, a.Rank(), 7)
	require.NoError(t, err)
	st, err := got.Wait(ctx)
	_, e := sent.Wait(ctx)
	require.NoError(t, e)
	return st, err
}

// TestLayouts: elements go from any layout to any other, packed or in pieces, short or long, and nothing beside
// them is touched.
func TestLayouts(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Comm) {
		rng := rand.New(rand.NewPCG(5, 6))
		const n = 60_000
		// Layouts of so many elements, and the places of these.
		type shape struct {
			name   string
			layout func(s []float64) channel.Layout
			at     func(i int) int
		}
		for _, count := range []int{0, 1, 24, 1200, 12_000} {
			blocks := count / 12
			index := rng.Perm(n / 12)
			lengths, indices := make([]int, blocks), make([]int, blocks)
			for i := range blocks {
				lengths[i], indices[i] = 12, 12*index[i]
			}
			shapes := []shape{
				{"all", func(s []float64) channel.Layout { return channel.Slice(s[:count]) }, func(i int) int { return i }},
				{"column", func(s []float64) channel.Layout { return channel.StridedSlice(s, 3, 1, count, 4) }, func(i int) int { return 3 + 4*i }},
				{"backwards", func(s []float64) channel.Layout { return channel.StridedSlice(s, n-1, 1, count, -2) }, func(i int) int { return n - 1 - 2*i }},
				{"long blocks", func(s []float64) channel.Layout { return channel.StridedSlice(s, 10, 600, count/600, 700) }, func(i int) int { return 10 + i/600*700 + i%600 }},
				{"indexed", func(s []float64) channel.Layout { return channel.Indexed(channel.Bytes(s), 8, lengths, indices) }, func(i int) int { return indices[i/12] + i%12 }},
			}
			for _, x := range shapes {
				for _, y := range shapes {
					src, dst := make([]float64, n), make([]float64, n)
					for i := range src {
						src[i] = rng.Float64()
					}
					from, to := x.layout(src), y.layout(dst)
					if from.Len() != 8*count || to.Len() != 8*count {
						continue // not a whole number of blocks
					}
					st, err := exchanged(t, a, b, from, to)
					require.NoError(t, err)
					require.Equal(t, Status{Source: a.Rank(), Tag: 7, Len: 8 * count}, st)
					want := make([]float64, n)
					for i := range count {
						want[y.at(i)] = src[x.at(i)]
					}
					require.True(t, slices.Equal(want, dst), "%d elements, from %s to %s", count, x.name, y.name)
				}
			}
		}
	})
}

// TestLayoutLengths: a message may be shorter than a layout; of a longer one the beginning is received. The other
// side may have bytes.
func TestLayoutLengths(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Comm) {
		for _, count := range []int{100, 20_000} {
			src, dst := make([]int32, count), make([]int32, 2*count)
			for i := range src {
				src[i] = int32(1 + i)
			}
			for _, room := range []int{count + 5, count - 5} {
				clear(dst)
				column := channel.StridedSlice(dst, 0, 1, min(room, count), 2)
				if room > count {
					column = channel.StridedSlice(make([]int32, 2*room), 0, 1, room, 2)
				}
				st, err := exchanged(t, a, b, channel.Slice(src), column)
				require.Equal(t, 4*count, st.Len)
				if room > count {
					require.NoError(t, err)
					continue
				}
				require.ErrorIs(t, err, ErrTruncated)
				require.ErrorContains(t, err, fmt.Sprintf("the message has %d bytes, the receive takes %d bytes", 4*count, 4*room))
				want := make([]int32, 2*count)
				for i := range room {
					want[2*i] = src[i]
				}
				require.Equal(t, want, dst)
			}
			clear(dst)
			both(t, func() error {
				return a.Send(t.Context(), channel.Bytes(src[:count/2]), b.Rank(), 1)
			}, func() error {
				q, err := b.IrecvLayout(channel.StridedSlice(dst, 1, 1, count, 2), a.Rank(), 1)
				if err != nil {
					return err
				}
				st, err := q.Wait(t.Context())
				require.Equal(t, 2*count, st.Len)
				return err
			})
			want := make([]int32, 2*count)
			for i := range count / 2 {
				want[1+2*i] = src[i]
			}
			require.Equal(t, want, dst)
		}
	})
}

// TestLayoutErrors: what is wrong with a layout is said in elements, before anything is sent; so is memory that is
// closed, which a packed receive keeps in use.
func TestLayoutErrors(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Comm) {
		outside := channel.StridedSlice(make([]float64, 10), 0, 1, 6, 2)
		_, err := a.IsendLayout(outside, b.Rank(), 3)
		require.EqualError(t, err, fmt.Sprintf("impi: send to rank %d, tag 3: %v", b.Rank(), outside.Err()))
		require.ErrorContains(t, err, "6 blocks of 1 elements, stride 2, at offset 0 reach outside a slice of 10 elements")
		require.ErrorIs(t, err, channel.ErrLayout)
		_, err = b.IrecvLayout(outside, AnySource, AnyTag)
		require.ErrorIs(t, err, channel.ErrLayout)
		_, err = b.IrecvLayout(channel.StridedSlice(make([]float64, 10), 0, 2, 3, 1), a.Rank(), 3)
		require.ErrorContains(t, err, "overlap")
		column := channel.StridedSlice(make([]float64, 10), 0, 1, 5, 2)
		_, err = a.IsendLayout(column, 17, 3)
		require.ErrorIs(t, err, ErrInvalid)
		_, err = b.IrecvLayout(column, 17, 3)
		require.ErrorIs(t, err, ErrInvalid)

		m, err := b.job.Alloc(800)
		require.NoError(t, err)
		all := m.Bytes()
		in := channel.StridedSlice(channel.View[float64](m), 0, 1, 50, 2)
		q, err := b.IrecvLayout(in, a.Rank(), 4)
		require.NoError(t, err)
		require.ErrorIs(t, m.Close(), ErrBusy)
		require.NoError(t, q.Cancel())
		st, err := q.Wait(t.Context())
		require.NoError(t, err)
		require.True(t, st.Cancelled)
		require.NoError(t, m.Close())
		plain, want := b.Irecv(all, a.Rank(), 4)
		q, err = b.IrecvLayout(in, a.Rank(), 4)
		require.Equal(t, want, err)
		if want != nil { // not of the heap
			require.ErrorIs(t, err, ErrClosed)
			return
		}
		for _, q := range []Request{plain, q} {
			require.NoError(t, q.Cancel())
			_, err := q.Wait(t.Context())
			require.NoError(t, err)
		}
	})
}

// TestUnpacking: while a message is put where it belongs, without the lock, its request is not complete, its
// memory is in use, and nothing else ends it.
func TestUnpacking(t *testing.T) {
	const count = 4 * unpackApart
	for _, c := range []struct {
		name      string
		meanwhile func(t *testing.T, a, b *Comm, q Request, m *Memory) (then func())
	}{
		{"another message", func(t *testing.T, a, b *Comm, _ Request, _ *Memory) func() {
			require.NoError(t, a.Send(within(t), []byte{5}, b.Rank(), 8))
			received(t, b, make([]byte, 1), a.Rank(), 8)
			return nil
		}},
		{"a report", func(t *testing.T, _, b *Comm, _ Request, _ *Memory) func() {
			var out strings.Builder
			require.NoError(t, b.job.Report(&out))
			require.Contains(t, out.String(), fmt.Sprintf("rank 1: receive from rank 0, tag 7, %d bytes: has come, and is being put into its layout\n", count))
			return nil
		}},
		{"cancelled", func(t *testing.T, _, _ *Comm, q Request, _ *Memory) func() {
			require.NoError(t, q.Cancel())
			return nil
		}},
		{"its memory is closed", func(t *testing.T, _, _ *Comm, _ Request, m *Memory) func() {
			require.ErrorIs(t, m.Close(), ErrBusy)
			return nil
		}},
		{"the peer is lost", func(_ *testing.T, a, b *Comm, _ Request, _ *Memory) func() {
			b.e.lock.Lock()
			b.p.pair(int32(a.Rank())).link.lost(io.ErrUnexpectedEOF)
			b.e.lock.Unlock()
			return nil
		}},
		{"the job is closed", func(t *testing.T, _, b *Comm, _ Request, _ *Memory) func() {
			closed := make(chan error)
			go func() { closed <- b.job.Close(context.WithoutCancel(t.Context())) }()
			ranks.Eventually(t, func() bool { // it waits for this alone
				b.e.lock.Lock()
				defer b.e.lock.Unlock()
				gone := departure{e: b.e}
				return b.e.closing && gone.over() && len(b.e.sleepers) > 0
			})
			return func() { require.NoError(t, <-closed) }
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := worlds(t, place{"shm", 2, 1, Config{Providers: []string{"shm"}}})
			a, b := w[0], w[1]
			m, err := b.job.Alloc(2 * count)
			require.NoError(t, err)
			in := m.Bytes()
			q, err := b.IrecvLayout(channel.StridedSlice(in, 0, 1, count, 2), a.Rank(), 7)
			require.NoError(t, err)
			out := filled(count, 3)
			ctx := within(t)
			sent := make(chan error)
			b.e.lock.Lock() // nothing else unpacks
			go func() { sent <- a.Send(ctx, out, b.Rank(), 7) }()
			for len(b.e.packed) == 0 && ctx.Err() == nil {
				b.e.poll(true)
			}
			packed := b.e.packed
			b.e.packed = nil
			b.e.lock.Unlock()
			require.Len(t, packed, 1)
			r := packed[0]
			require.NoError(t, <-sent)
			then := c.meanwhile(t, a, b, q, m)
			if then == nil {
				pending(t, q)
			}
			r.scatter()
			for i, v := range out {
				require.Equal(t, v, in[2*i], i)
			}
			b.e.lock.Lock()
			b.e.unpacked(r)
			b.e.lock.Unlock()
			if then != nil {
				then()
			}
			st := completed(t, q)
			require.Equal(t, Status{Source: a.Rank(), Tag: 7, Len: count}, st)
		})
	}
}
