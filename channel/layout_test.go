package channel

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

// block is n bytes at off of slice base: what a layout comes down to.
type block struct{ base, off, n int }

// drawn is a random layout with what it means, said in the plainest way.
type drawn struct {
	name   string
	bases  [][]byte
	layout Layout
	blocks []block
}

// draw makes a layout of n bytes without overlap. alloc gives the memory.
func draw(r *rand.Rand, n int, alloc func(int) []byte) drawn {
	switch kind := r.IntN(5); {
	case n == 0:
		return drawn{name: "nothing"}
	case kind == 0:
		b := alloc(n)
		return drawn{"contiguous", [][]byte{b}, Contiguous(b), []block{{0, 0, n}}}
	case kind == 1:
		v, blocks := drawVector(r, n, 0, alloc)
		return drawn{fmt.Sprintf("strided %d × %d, stride %d", v.Blocks, v.BlockSize, v.Stride), [][]byte{v.Base},
			Strided(v.Base, v.Offset, v.BlockSize, v.Blocks, v.Stride), blocks}
	case kind == 2:
		var d drawn
		var vs []Vector
		for i := 0; n > 0; i++ {
			m := 1 + r.IntN(n)
			v, blocks := drawVector(r, m, i, alloc)
			vs = append(vs, v)
			d.bases = append(d.bases, v.Base)
			d.blocks = append(d.blocks, blocks...)
			n -= m
		}
		d.name, d.layout = fmt.Sprintf("array of %d vectors", len(vs)), StridedArray(vs...)
		return d
	case kind == 3:
		return drawInterleaved(r, n, alloc)
	default:
		return drawIndexed(r, n, alloc)
	}
}

// drawVector makes a vector of n bytes over base number i.
func drawVector(r *rand.Rand, n, i int, alloc func(int) []byte) (Vector, []block) {
	size := divisor(r, n)
	count := n / size
	stride := size + r.IntN(2*size+1)
	span := (count-1)*stride + size
	before := r.IntN(20)
	v := Vector{Base: alloc(before + span + r.IntN(20)), Offset: before, BlockSize: size, Blocks: count, Stride: stride}
	if r.IntN(2) == 0 {
		v.Offset, v.Stride = before+(count-1)*stride, -stride
	}
	blocks := make([]block, count)
	for j := range blocks {
		blocks[j] = block{i, v.Offset + j*v.Stride, size}
	}
	return v, blocks
}

// drawInterleaved makes vectors that lie in each other, as the fields of an array
// of structures do.
func drawInterleaved(r *rand.Rand, n int, alloc func(int) []byte) drawn {
	size := divisor(r, n)
	count := n / size
	first := 1 + r.IntN(size)
	b := alloc(count*size + 5)
	d := drawn{name: "interleaved vectors", bases: [][]byte{b}}
	vs := []Vector{{b, 5, first, count, size}}
	if first < size {
		vs = append(vs, Vector{b, 5 + first, size - first, count, size})
	}
	d.layout = StridedArray(vs...)
	d.blocks = make([]block, 0, len(vs)*count)
	for _, v := range vs {
		for j := range count {
			d.blocks = append(d.blocks, block{0, v.Offset + j*v.Stride, v.BlockSize})
		}
	}
	return d
}

func drawIndexed(r *rand.Rand, n int, alloc func(int) []byte) drawn {
	elem := divisor(r, n)
	for n/elem > 2000 {
		elem = divisor(r, n)
	}
	var lengths []int
	for left := n / elem; left > 0; {
		m := min(left, r.IntN(5))
		lengths = append(lengths, m)
		left -= m
	}
	indices := make([]int, len(lengths))
	at := r.IntN(3)
	for _, i := range r.Perm(len(lengths)) {
		indices[i] = at
		at += lengths[i] + r.IntN(3)
	}
	b := alloc(at*elem + r.IntN(elem))
	d := drawn{name: fmt.Sprintf("indexed %d blocks of elements of %d", len(lengths), elem), bases: [][]byte{b}, layout: Indexed(b, elem, lengths, indices)}
	for i, m := range lengths {
		d.blocks = append(d.blocks, block{0, indices[i] * elem, m * elem})
	}
	return d
}

// divisor returns a divisor of n, each as often.
func divisor(r *rand.Rand, n int) int {
	var list []int
	for d := 1; d*d <= n; d++ {
		if n%d == 0 {
			list = append(list, d, n/d)
		}
	}
	return list[r.IntN(len(list))]
}

// packed reads the message byte by byte.
func (d *drawn) packed() []byte {
	p := make([]byte, 0, d.layout.Len())
	for _, b := range d.blocks {
		p = append(p, d.bases[b.base][b.off:b.off+b.n]...)
	}
	return p
}

// images returns what the bases are to hold after message p was received.
func (d *drawn) images(p []byte) [][]byte {
	var list [][]byte
	for _, b := range d.bases {
		list = append(list, bytes.Clone(b))
	}
	for _, b := range d.blocks {
		copy(list[b.base][b.off:b.off+b.n], p[:b.n])
		p = p[b.n:]
	}
	return list
}

// TestLayouts: any layout to any layout between two nodes, in memory of both
// kinds, declared and used once, touches exactly the bytes that it says.
func TestLayouts(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Node) {
		seed := rand.Uint64()
		t.Logf("seed %#x", seed)
		r := rand.New(rand.NewPCG(seed, 0))
		rounds := need.ByForm(5, 20, 200)
		for range rounds {
			n := r.IntN([]int{100, 5000, 100_000, 600_000}[r.IntN(4)])
			src := draw(r, n, func(n int) []byte { return allocate(t, a, n, r.IntN(2) == 0) })
			dst := draw(r, n, func(n int) []byte { return allocate(t, b, n, r.IntN(2) == 0) })
			name := fmt.Sprintf("%d bytes, %s to %s", n, src.name, dst.name)
			s, err := a.DeclareSend(src.layout, b.Rank())
			require.NoError(t, err, name)
			d, err := b.DeclareReceive(dst.layout, a.Rank())
			require.NoError(t, err, name)
			for i := range 4 {
				for _, m := range slices.Concat(src.bases, dst.bases) {
					random(r, m)
				}
				want := dst.images(src.packed())
				if i%2 == 0 {
					startAll(t, s, d)
					arrives(t, s, d, name)
				} else {
					passOnce(t, a, b, src.layout, dst.layout)
				}
				for i := range want {
					require.True(t, bytes.Equal(want[i], dst.bases[i]), name)
				}
			}
			require.NoError(t, s.Close())
			require.NoError(t, d.Close())
		}
	})
}

func TestLayoutErrors(t *testing.T) {
	b := make([]byte, 100)
	for _, c := range []struct {
		name   string
		layout Layout
		want   string
	}{
		{"negative size", Strided(b, 0, -1, 2, 10), "2 blocks of -1 bytes"},
		{"negative count", Strided(b, 0, 1, -2, 10), "-2 blocks of 1 bytes"},
		{"offset before", Strided(b, -1, 10, 1, 0), "outside a slice of 100 bytes"},
		{"offset behind", Strided(b, 91, 10, 1, 0), "outside a slice of 100 bytes"},
		{"empty behind", Strided(b, 101, 0, 1, 0), "offset 101 in a slice of 100 bytes"},
		{"last block behind", Strided(b, 0, 10, 4, 31), "outside a slice of 100 bytes"},
		{"last block before", Strided(b, 50, 10, 3, -26), "outside a slice of 100 bytes"},
		{"overflow of the stride", Strided(b, 0, 10, 3, math.MaxInt), "overflow"},
		{"overflow of the offset", Strided(b, math.MaxInt, 1, 2, 1), "overflow"},
		{"overflow downwards", Strided(b, 0, 10, 3, math.MinInt), "overflow"},
		{"overflow of the length", Strided(b, 0, math.MaxInt, 3, 0), "overflow"},
		{"second vector", StridedArray(Vector{b, 0, 10, 1, 0}, Vector{b, 95, 10, 1, 0}), "vector 1"},
		{"element size", Indexed(b, 0, []int{1}, []int{1}), "elements of 0 bytes"},
		{"counts differ", Indexed(b, 1, []int{1}, nil), "1 lengths for 0 indices"},
		{"index before", Indexed(b, 8, []int{1}, []int{-1}), "outside a slice of 12 elements"},
		{"index behind", Indexed(b, 8, []int{1}, []int{12}), "outside a slice of 12 elements"},
		{"block behind", Indexed(b, 8, []int{math.MaxInt}, []int{1}), "outside a slice of 12 elements"},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.ErrorIs(t, c.layout.Err(), ErrLayout)
			require.ErrorContains(t, c.layout.Err(), c.want)
		})
	}
	for _, c := range []struct {
		name   string
		layout Layout
		want   string
	}{
		{"stride below the size", Strided(b, 0, 10, 3, 9), ""},
		{"stride zero", Strided(b, 0, 10, 3, 0), ""},
		{"stride in elements", StridedSlice(make([]uint32, 10), 0, 3, 2, 2), "blocks of 12 bytes with a stride of 8 bytes overlap"},
		{"two vectors", StridedArray(Vector{b, 0, 10, 3, 30}, Vector{b, 9, 2, 1, 0}), ""},
		{"vectors in each other", StridedArray(Vector{b, 0, 10, 3, 30}, Vector{b, 10, 10, 2, 25}), ""},
		{"two indices", Indexed(b, 1, []int{5, 5}, []int{0, 4}), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.NoError(t, c.layout.Err(), "to send from")
			n := join(t, 1)[0]
			_, err := n.DeclareReceive(c.layout, 0)
			require.ErrorIs(t, err, ErrLayout)
			require.ErrorContains(t, err, cmp.Or(c.want, "overlap"))
			h := declareSend(t, n, c.layout, 0)
			require.NoError(t, h.Close())
		})
	}
}

func TestBytes(t *testing.T) {
	type site struct {
		Re, Im [3]float64
		N      uint16
	}
	require.Len(t, Bytes(make([]site, 3)), 3*56)
	require.Empty(t, Bytes([]int(nil)))
	x := []uint32{0x01010101}
	Bytes(x)[0] = 2
	require.NotEqual(t, uint32(0x01010101), x[0])
	for _, f := range []func(){
		func() { Bytes([]string{""}) },
		func() { Bytes([]struct{ p *int }{}) },
		func() { Bytes([]any{1}) },
		func() { Bytes([][2]func(){}) },
		func() { Bytes([]chan int{}) },
	} {
		require.Panics(t, f)
	}
}
