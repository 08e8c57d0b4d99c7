package reduce_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/reduce"
	"github.com/sluice-hpc/sluice/internal/test/need"
)

// defined calls f for every operation and every type that it is defined over.
func defined(f func(o reduce.Op, t reduce.Type)) {
	for o := range reduce.Op(reduce.Ops) {
		for t := range reduce.Type(reduce.Types) {
			if reduce.Defined(o, t) {
				f(o, t)
			}
		}
	}
}

// lengths in elements: more than one turn of the longest loop, and some with the
// border of what a kernel is given at once in them; fewer with -short.
func lengths(t reduce.Type) []int {
	var all []int
	for n := range 71 {
		if n < 36 || !testing.Short() {
			all = append(all, n)
		}
	}
	if testing.Short() {
		return append(all, 1000, reduce.Stretch/t.Size()+3)
	}
	return append(all, 1000, 4099, reduce.Stretch/t.Size(), 2*reduce.Stretch/t.Size()+3)
}

// pools have values of each type's list, and some with any bits at all.
var pools [reduce.Types][]byte

// random fills p with a piece of the type's pool: to make each value anew takes longer than
// all kernels take with it.
func random(r *rand.Rand, p []byte, t reduce.Type) {
	if pools[t] == nil {
		pool := make([]byte, 5*reduce.Stretch) // of a length that all elements divide
		fill(pool, t, r.IntN)
		for i := 0; i+4 <= len(pool); i += 4 {
			if r.IntN(8) == 0 {
				view[uint32](pool[i : i+4])[0] = r.Uint32()
			}
		}
		pools[t] = pool
	}
	copy(p, pools[t][r.IntN((len(pools[t])-len(p))/t.Size())*t.Size():])
}

// margin is not written, before and after the result.
const margin = 32

// within returns size bytes, offset from what the allocator aligned, with a margin
// on both sides, and the whole.
func within(size, offset int) (p, whole []byte) {
	whole = bytes.Repeat([]byte{0xa5}, margin+offset+size+margin)
	return whole[margin+offset:][:size:size], whole
}

// Aliases of the result: which operands it is.
const (
	aliasNone = iota
	aliasA
	aliasB
	aliasBoth
	aliases
)

// Every set of kernels gives the bits of the portable loops, whatever the length,
// the addresses, and the operand that is overwritten; and writes nothing else.
func TestKernels(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	defined(func(o reduce.Op, typ reduce.Type) {
		t.Run(fmt.Sprintf("%v/%v", o, typ), func(t *testing.T) {
			size := typ.Size()
			// Elements as they are aligned in shared memory, and bytes at any address.
			offsets := [][3]int{{0, 0, 0}, {1, 2, 3}, {size, 0, 0}, {0, size, 3 * size}, {2 * size, size, size}}
			if testing.Short() {
				offsets = offsets[:2]
			}
			for _, n := range lengths(typ) {
				for _, offset := range offsets {
					for alias := range aliases {
						kernelCase(t, r, o, typ, n, offset, alias)
					}
				}
			}
		})
	})
}

func kernelCase(t *testing.T, r *rand.Rand, o reduce.Op, typ reduce.Type, n int, offset [3]int, alias int) {
	size := n * typ.Size()
	x, _ := within(size, offset[1])
	y, _ := within(size, offset[2])
	random(r, x, typ)
	random(r, y, typ)
	if alias == aliasBoth {
		copy(y, x)
	}
	want := make([]byte, size)
	oracle, _ := reduce.Portable().Lookup(o, typ)
	oracle(want, x, y)
	for _, set := range append(reduce.Sets(), reduce.Portable()) {
		f, _ := set.Lookup(o, typ)
		got, whole := within(size, offset[0])
		a, b := x, y
		if alias == aliasA || alias == aliasBoth {
			a = got
			copy(got, x)
		}
		if alias == aliasB || alias == aliasBoth {
			b = got
			copy(got, y)
		}
		xBefore, yBefore := bytes.Clone(x), bytes.Clone(y)
		f(got, a, b)
		if i := firstDifference(typ, want, got); i >= 0 {
			t.Fatalf("%s: %v of %d %v, offsets %d, alias %d: word %d differs", set.Name, o, n, typ, offset, alias, i)
		}
		outside := bytes.Count(whole[:margin+offset[0]], []byte{0xa5}) + bytes.Count(whole[margin+offset[0]+size:], []byte{0xa5})
		if outside != len(whole)-size || !bytes.Equal(x, xBefore) || !bytes.Equal(y, yBefore) {
			t.Fatalf("%s: %v of %d %v, offsets %d, alias %d: wrote elsewhere", set.Name, o, n, typ, offset, alias)
		}
	}
}

// Every special value meets every other, in every lane of a register and in the
// rest that does not fill one.
func TestValues(t *testing.T) {
	defined(func(o reduce.Op, typ reduce.Type) {
		t.Run(fmt.Sprintf("%v/%v", o, typ), func(t *testing.T) {
			count := 0
			fill(make([]byte, typ.Size()), typ, func(n int) int { count = max(count, n); return 0 })
			// A step of 1 beside one of count gives all pairs; shifts give the lanes.
			words := count*count + 37
			for shift := range 17 {
				a, b := make([]byte, words*16), make([]byte, words*16)
				i, j := shift, shift
				fill(a, typ, func(n int) int { i++; return i % n })
				fill(b, typ, func(n int) int { j++; return (j/n + j) % n })
				want := make([]byte, len(a))
				oracle, _ := reduce.Portable().Lookup(o, typ)
				oracle(want, a, b)
				for _, set := range reduce.Sets() {
					f, _ := set.Lookup(o, typ)
					got := make([]byte, len(a))
					f(got, a, b)
					require.Equal(t, -1, firstDifference(typ, want, got), set.Name)
				}
			}
		})
	})
}

func TestPanics(t *testing.T) {
	buffer := make([]byte, 64)
	for _, set := range append(reduce.Sets(), reduce.Portable()) {
		f, _ := set.Lookup(reduce.Sum, reduce.Float64)
		fold, _ := set.Fold(reduce.Sum, reduce.Float64)
		for _, c := range []struct{ dst, a, b int }{{16, 16, 8}, {16, 8, 16}, {8, 16, 16}, {0, 8, 8}, {8, 0, 8}, {12, 12, 12}, {7, 7, 7}} {
			require.Panics(t, func() { f(buffer[:c.dst], buffer[:c.a], buffer[:c.b]) }, "%v", c)
			require.Panics(t, func() { fold(buffer[:c.dst], [][]byte{buffer[:c.a], buffer[:c.b]}) }, "%v", c)
		}
		require.Panics(t, func() { fold(buffer, nil) })
		require.Panics(t, func() { fold(buffer[:4], [][]byte{buffer[:4]}) })
		require.Panics(t, func() { reduce.Fold(f, buffer, nil) })
		require.Panics(t, func() { reduce.Fold(f, buffer, [][]byte{buffer, buffer[:8]}) })
		f(nil, nil, nil)
		fold(nil, [][]byte{nil, nil, nil})
		reduce.Fold(f, nil, [][]byte{nil, {}})
	}
}

func TestAllocs(t *testing.T) {
	need.NoRace(t, "it allocates")
	const size = 3 * reduce.FoldBlock
	dst := make([]byte, size)
	srcs := [][]byte{make([]byte, size), make([]byte, size), dst, make([]byte, size)}
	user := reduce.User{Size: 24, Combine: func(dst, a, b []byte) { copy(dst, b) }}
	for _, set := range append(reduce.Sets(), reduce.Portable()) {
		f, _ := set.Lookup(reduce.Sum, reduce.Float64)
		fold, _ := set.Fold(reduce.Sum, reduce.Float64)
		for name, call := range map[string]func(){
			"Func":      func() { f(dst, srcs[0], srcs[1]) },
			"FoldFunc":  func() { fold(dst, srcs) },
			"Fold":      func() { reduce.Fold(f, dst, srcs) },
			"User":      func() { user.Apply(dst, srcs[0], srcs[1]) },
			"User.Fold": func() { user.Fold(dst, srcs) },
		} {
			require.Zero(t, testing.AllocsPerRun(100, call), "%s, %s", name, set.Name)
		}
	}
}
