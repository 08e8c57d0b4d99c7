package channel

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/verbs"
)

// TestRebaseUsable: a handle whose memory could not be used is as good as any with other memory, and with the
// same when that can be.
func TestRebaseUsable(t *testing.T) {
	const size = 20_000
	a, b := connected(t, "shm")
	p := peerOf(t, a, b.Rank())
	s, out := send(t, a, b.Rank(), size)
	r, in := receive(t, b, a.Rank(), size)
	closed, err := p.link.dev.ctx.AllocPD()
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	heap, other := make([]byte, size), newMemory(t, a, size)
	p.mu.Lock()
	good := p.link.dev.pd
	p.link.dev.pd = closed
	p.mu.Unlock()
	for range 2 { // there is no pipe
		require.ErrorIs(t, s.Rebase(heap), verbs.ErrClosed)
		require.ErrorIs(t, s.Start(), verbs.ErrClosed)
	}
	require.NoError(t, s.Rebase(other.Bytes()))
	require.ErrorIs(t, s.Rebase(heap), verbs.ErrClosed)
	require.NoError(t, other.Close())
	p.mu.Lock()
	p.link.dev.pd = good
	p.mu.Unlock()
	for i, b := range [][]byte{out, heap} {
		b[0], b[size-1] = byte(1+i), byte(2+i)
		require.NoError(t, s.Rebase(b))
		pass(t, s, r, r)
		require.Equal(t, b, in)
	}
}

// TestLayoutError: a layout that is wrong is not sent, although what comes before the fault is contiguous.
func TestLayoutError(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Node) {
		bad := StridedArray(Vector{make([]byte, 8), 0, 8, 1, 0}, Vector{make([]byte, 8), 4, 8, 1, 0})
		require.ErrorIs(t, a.SendLayout(within(t), bad, b.Rank()), ErrLayout)
		require.ErrorIs(t, b.RecvLayout(within(t), bad, a.Rank()), ErrLayout)
		require.ErrorIs(t, b.RecvLayout(within(t), Strided(make([]byte, 9), 0, 5, 2, 4), a.Rank()), ErrLayout)
		passOnce(t, a, b, Contiguous([]byte{5}), Strided(make([]byte, 3), 1, 1, 1, 0))
		passOnce(t, a, b, Strided(nil, 0, 0, 0, 0), Contiguous(nil))
	})
}

// TestLayoutSaidLong: a layout that comes again after one that is too long to be kept is told again.
func TestLayoutSaidLong(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Node) {
		const parts, each = 100, 4 << 10
		lengths, indices := make([]int, parts), make([]int, parts)
		for i := range parts {
			lengths[i], indices[i] = 1, 2*i
		}
		long := func(m []byte) Layout { return Indexed(m, each, lengths, indices) }
		out, in := newMemory(t, a, 2*parts*each).Bytes(), newMemory(t, b, 2*parts*each).Bytes()
		for i, lay := range []func([]byte) Layout{strided(32 << 10), long, strided(32 << 10), long} {
			random(rand.New(rand.NewPCG(6, uint64(i))), out)
			passOnce(t, a, b, lay(out), lay(in))
			require.True(t, bytes.Equal(packed(lay(out)), packed(lay(in))))
		}
	})
}

// TestRefit: handles that get any memory and any layout after any other, and messages used once between, move
// exactly their bytes, and nothing stays in use.
func TestRefit(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Node) {
		seed := rand.Uint64()
		r := rand.New(rand.NewPCG(seed, 0))
		rounds := 60
		if testing.Short() {
			rounds = 15
		}
		for _, size := range []int{8, 56, 64, 4096, 4100, 60_000} {
			type side struct {
				node  *Node
				h     *Handle
				drawn drawn
				used  []*Memory // by the layout
				left  []*Memory // by the one before
			}
			refit := func(e *side, first bool) {
				e.left, e.used = e.used, nil
				own := r.IntN(2) == 0
				alloc := func(n int) []byte {
					if !own {
						return make([]byte, n)
					}
					m := newMemory(t, e.node, max(n, 1))
					e.used = append(e.used, m)
					return m.Bytes()[:n]
				}
				at := r.IntN(3) * 8
				base := func() []byte { return alloc(at + size + r.IntN(2)*24) } // longer, perhaps
				switch r.IntN(3) {
				case 0:
					e.drawn = draw(r, size, alloc)
				case 1:
					if !first && e.h.flat != nil {
						at = e.h.shape.Parts()[0].Off
						m := base()
						e.drawn = drawn{"rebased", [][]byte{m}, Strided(m, at, size, 1, 0), []block{{0, at, size}}}
						require.NoError(t, e.h.Rebase(m))
						return
					}
					fallthrough
				case 2:
					m := base()
					e.drawn = drawn{"contiguous", [][]byte{m}, Strided(m, at, size, 1, 0), []block{{0, at, size}}}
				}
				if !first {
					require.NoError(t, e.h.SetLayout(e.drawn.layout))
				}
			}
			src, dst := &side{node: a}, &side{node: b}
			for round := range rounds {
				name := fmt.Sprintf("seed %d, %d bytes, round %d", seed, size, round)
				for _, e := range []*side{src, dst} {
					if round == 0 || r.IntN(3) > 0 {
						refit(e, round == 0)
					}
				}
				if round == 0 {
					src.h, dst.h = declareBoth(t, a, b, src.drawn.layout, dst.drawn.layout)
				}
				for _, m := range append(src.left, dst.left...) {
					require.NoError(t, m.Close(), name)
				}
				src.left, dst.left = nil, nil
				for _, m := range append(src.used[:len(src.used):len(src.used)], dst.used...) {
					require.ErrorIs(t, m.Close(), ErrBusy, name)
				}
				for _, base := range append(src.drawn.bases[:len(src.drawn.bases):len(src.drawn.bases)], dst.drawn.bases...) {
					random(r, base)
				}
				want := dst.drawn.images(src.drawn.packed())
				switch r.IntN(4) {
				case 0:
					passOnce(t, a, b, src.drawn.layout, dst.drawn.layout)
				case 1:
					startAll(t, dst.h, src.h)
					arrives(t, src.h, dst.h, name)
				default:
					startAll(t, src.h, dst.h)
					arrives(t, src.h, dst.h, name)
				}
				for i := range want {
					require.True(t, bytes.Equal(want[i], dst.drawn.bases[i]), name)
				}
			}
			require.NoError(t, src.h.Close())
			require.NoError(t, dst.h.Close())
			for _, m := range append(src.used, dst.used...) {
				require.NoError(t, m.Close())
			}
		}
	})
}
