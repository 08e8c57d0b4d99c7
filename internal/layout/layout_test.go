package layout

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

// draw makes a shape of n bytes without overlap: parts in any order over one or several slices,
// which lie beside or within each other. It also returns the places of the bytes, in order.
func draw(t *testing.T, r *rand.Rand, n int) (s Shape, places []*byte) {
	for n > 0 {
		size := 1 + r.IntN(min(n, 600))
		count := 1 + r.IntN(n/size)
		stride := size + r.IntN(2*size)
		if r.IntN(4) == 0 {
			count = 1
		}
		base := make([]byte, r.IntN(20)+count*stride+stride)
		p := Part{base, len(base) - count*stride - stride, size, count, stride}
		parts := []Part{p}
		n -= size * count
		if rest := stride - size; rest > 0 && n >= rest*count && r.IntN(2) == 0 { // what lies between the blocks
			parts = append(parts, Part{base, p.Off + size, rest, count, stride})
			n -= rest * count
		}
		r.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
		for _, p := range parts {
			if r.IntN(2) == 0 {
				p.Off, p.Stride = p.Off+(p.Count-1)*p.Stride, -p.Stride
			}
			require.NoError(t, s.Add(p))
			for i := range p.Count {
				for k := range p.Block {
					places = append(places, &p.Base[p.Off+i*p.Stride+k])
				}
			}
		}
	}
	return s, places
}

func fill(r *rand.Rand, b []byte) {
	for i := range b {
		b[i] = byte(r.Uint32())
	}
}

func read(places []*byte) []byte {
	b := make([]byte, len(places))
	for i, p := range places {
		b[i] = *p
	}
	return b
}

// TestMove: any range of any layout to any layout, against the copy byte by byte.
func TestMove(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %#x", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	rounds := need.InShort(400, 2000)
	for range rounds {
		n := r.IntN(3000)
		if r.IntN(20) == 0 {
			n = r.IntN(100_000) // so that single blocks are large
		}
		src, from := draw(t, r, n)
		dst, into := draw(t, r, n)
		require.NoError(t, dst.Disjoint())
		require.Equal(t, n, src.Len())
		sources, _ := src.Bases()
		targets, _ := dst.Bases()
		for _, b := range slices.Concat(sources, targets) {
			fill(r, b)
		}
		message := read(from)
		var before, want [][]byte
		for _, b := range targets {
			before = append(before, bytes.Clone(b))
		}
		for i, p := range into {
			*p = message[i]
		}
		for i, b := range targets {
			want = append(want, bytes.Clone(b))
			copy(b, before[i])
		}
		cuts := []int{0, n}
		for range r.IntN(4) {
			cuts = append(cuts, r.IntN(n+1))
		}
		slices.Sort(cuts)
		for i := 1; i < len(cuts); i++ {
			Move(&dst, &src, cuts[i-1], cuts[i]-cuts[i-1])
		}
		for i := range want {
			require.True(t, bytes.Equal(want[i], targets[i]))
		}
		at := r.IntN(n + 1)
		b := make([]byte, r.IntN(n-at+1))
		src.Gather(b, at)
		require.True(t, bytes.Equal(message[at:at+len(b)], b))
		fill(r, b)
		dst.Scatter(b, at)
		require.True(t, bytes.Equal(slices.Concat(message[:at], b, message[at+len(b):]), read(into)))
	}
}

// TestAdd: what follows on in memory is one block, and one block is flat.
func TestAdd(t *testing.T) {
	b := make([]byte, 100)
	var s Shape
	require.Nil(t, s.Flat())
	require.NoError(t, s.Add(Part{b, 10, 5, 4, 5}))
	require.NoError(t, s.Add(Part{b, 30, 0, 1, 0}))
	require.NoError(t, s.Add(Part{b, 30, 10, 1, 7}))
	require.Equal(t, 1, s.Blocks())
	require.Len(t, s.Flat(), 30)
	require.Same(t, &b[10], &s.Flat()[0])
	require.NoError(t, s.Add(Part{b[:90], 40, 10, 1, 0}), "of another slice")
	require.NoError(t, s.Add(Part{b, 50, 5, 3, 6}))
	require.Equal(t, 5, s.Blocks())
	require.Equal(t, 55, s.Len())
	require.Nil(t, s.Flat())
	bases, of := s.Bases()
	require.Len(t, bases, 2)
	require.Equal(t, []int{0, 1, 0}, of)
	require.ErrorContains(t, (&Shape{length: math.MaxInt - 3}).Add(Part{b, 0, 4, 1, 0}), "overflow")

	c, d := make([]byte, 67), make([]byte, 90)
	moved, err := s.Rebase([][]byte{c, d})
	require.NoError(t, err)
	for i := range c {
		b[i], c[i], d[i] = 1, 2, 3
	}
	got := make([]byte, s.Len())
	moved.Gather(got, 0)
	require.Equal(t, slices.Concat(bytes.Repeat([]byte{2}, 30), bytes.Repeat([]byte{3}, 10), bytes.Repeat([]byte{2}, 15)), got)
	s.Gather(got, 0)
	require.Equal(t, bytes.Repeat([]byte{1}, 55), got, "the original stays where it is")
	_, err = s.Rebase([][]byte{c[:66], d})
	require.ErrorContains(t, err, "slice 0 has 66 bytes, the layout reaches to 67")
}
