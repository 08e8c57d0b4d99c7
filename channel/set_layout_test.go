package channel

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSetLayout: any layout in place of any other of the same length, over other memory.
func TestSetLayout(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Node) {
		for _, size := range []int{8, 1200, 96_000} {
			s, r := declareBoth(t, a, b, Contiguous(allocate(t, a, size, true)), Contiguous(allocate(t, b, size, false)))
			for i := range 8 {
				src, dst := allocate(t, a, 3*size, i%2 == 0), allocate(t, b, 3*size, i%3 == 0)
				random(rand.New(rand.NewPCG(2, uint64(i))), src)
				half, block := size/2, size/8
				from := StridedArray(Vector{src[:2*size], size, block, 4, 2 * block}, Vector{src[size:], 0, half, 1, 0})
				into := Strided(dst, 7*2*block, block, 8, -2*block)
				want := make([]byte, 3*size)
				for k := range 8 { // from the top downwards
					at := size + (k-4)*block
					if k < 4 {
						at = size + 2*k*block
					}
					copy(want[(7-k)*2*block:][:block], src[at:][:block])
				}
				require.NoError(t, s.SetLayout(from))
				require.NoError(t, r.SetLayout(into))
				require.NoError(t, r.Start())
				require.True(t, r.Active())
				require.ErrorIs(t, r.SetLayout(into), ErrActive)
				require.NoError(t, s.Start())
				require.NoError(t, r.WaitContext(within(t)))
				require.NoError(t, s.WaitContext(within(t)))
				require.False(t, r.Active())
				require.False(t, s.Active())
				require.Equal(t, want, dst)
			}
			require.ErrorIs(t, s.SetLayout(Contiguous(make([]byte, size+1))), ErrLayout)
			require.ErrorIs(t, s.SetLayout(Strided(nil, 0, size, 1, 0)), ErrLayout)
			if size > 8 { // in a receive
				require.ErrorIs(t, r.SetLayout(Strided(make([]byte, size), 0, size/4, 4, 8)), ErrLayout)
			}
			both, err := a.Multiple(s)
			require.NoError(t, err)
			require.ErrorIs(t, both.SetLayout(Contiguous(nil)), ErrInvalid)
			require.NoError(t, s.Close())
			require.False(t, s.Active())
			require.ErrorIs(t, s.SetLayout(Contiguous(make([]byte, size))), ErrClosed)
			require.NoError(t, r.Close())
		}
	})
}

// TestHosts: which ranks share a host, in the order of the ranks.
func TestHosts(t *testing.T) {
	for _, n := range join(t, 3) {
		require.Equal(t, []int{0, 0, 0}, n.Hosts())
	}
	for _, n := range join(t, 5, withHosts(func(rank int) int { return 7 - rank%3 })) {
		require.Equal(t, []int{0, 1, 2, 0, 1}, n.Hosts())
	}
	require.Equal(t, []int{0}, join(t, 1)[0].Hosts())
}
