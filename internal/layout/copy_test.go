package layout

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCopyRun copies runs of blocks of all small sizes, any distance apart, also
// backwards, and looks at every byte around them.
func TestCopyRun(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	src := make([]byte, 64<<10)
	for i := range src {
		src[i] = byte(rng.Uint32())
	}
	for size := 1; size <= 600; size++ {
		count := 1 + rng.IntN(40)
		sstep, dstep := size+rng.IntN(100), size+rng.IntN(100)
		so, do := rng.IntN(64), rng.IntN(64)
		if rng.IntN(2) == 0 {
			so, sstep = so+(count-1)*sstep, -sstep
		}
		if rng.IntN(2) == 0 {
			do, dstep = do+(count-1)*dstep, -dstep
		}
		got := make([]byte, len(src))
		want := slices.Clone(got)
		for i := range count {
			copy(want[do+i*dstep:do+i*dstep+size], src[so+i*sstep:])
		}
		copyRun(got, src, do, so, size, count, dstep, sstep)
		require.Equal(t, want, got, "%d blocks of %d bytes, %+d to %+d bytes apart", count, size, sstep, dstep)
	}
}

// TestPast: what goes past the caches is what a plain copy of it is, of any length and alignment, and
// nothing else is written.
func TestPast(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	src := make([]byte, 32<<10)
	for i := range src {
		src[i] = byte(rng.Uint32())
	}
	got := make([]byte, len(src))
	for range 2000 {
		clear(got)
		want := slices.Clone(got)
		from, to, n := rng.IntN(200), rng.IntN(200), rng.IntN(1<<rng.IntN(15))
		m := n + rng.IntN(2)*rng.IntN(100)
		require.Equal(t, copy(want[to:to+n], src[from:from+m]), CopyPast(got[to:to+n], src[from:from+m]))
		require.True(t, slices.Equal(want, got), "%d bytes from %d to %d", n, from, to)

		block, count := 1+rng.IntN(1<<rng.IntN(13)), 1+rng.IntN(4)
		s := Shape{}
		require.NoError(t, s.Add(Part{Base: src, Off: from, Block: block, Count: count, Stride: block + rng.IntN(100)}))
		n = 1 + rng.IntN(s.Len())
		first := rng.IntN(s.Len() - n + 1)
		clear(got)
		clear(want)
		s.Gather(want[to:to+n], first)
		s.GatherPast(got[to:to+n], first)
		require.True(t, slices.Equal(want, got), "%d bytes from %d of %d blocks of %d to %d", n, first, count, block, to)
	}
}

// TestCopyRunOutside: blocks that lie outside of a slice are not copied.
func TestCopyRunOutside(t *testing.T) {
	in := make([]byte, 1000)
	for _, size := range []int{8, 16, 100} {
		n := len(in) / size
		for name, f := range map[string]func(){
			"behind src": func() { copyRun(make([]byte, 2000), in, 0, size, size, n+1, size, size) },
			"behind dst": func() { copyRun(in, make([]byte, 2000), size, 0, size, n+1, size, size) },
			"before src": func() { copyRun(make([]byte, 2000), in, 0, size, size, 3, size, -size) },
			"before dst": func() { copyRun(in, make([]byte, 2000), size, 0, size, 3, -size, size) },
		} {
			require.Panics(t, f, "%s, %d", name, size)
		}
	}
}
