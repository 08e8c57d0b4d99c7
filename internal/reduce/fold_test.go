package reduce_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/reduce"
)

// serial is what a fold must give: one source after the other, over whole vectors.
func serial(f reduce.Func, srcs [][]byte) []byte {
	acc := bytes.Clone(srcs[0])
	for _, src := range srcs[1:] {
		f(acc, acc, src)
	}
	return acc
}

// sources makes k vectors, of which dst is number in; none if that is negative.
func sources(r *rand.Rand, dst []byte, k, in int, fill func(r *rand.Rand, p []byte)) [][]byte {
	srcs := make([][]byte, k)
	for i := range srcs {
		srcs[i] = make([]byte, len(dst))
		if i == in {
			srcs[i] = dst
		}
		fill(r, srcs[i])
	}
	return srcs
}

// Folding gives the bits of the serial loop, whatever the number of sources, the
// length, and the source that is overwritten.
func TestFold(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	defined(func(o reduce.Op, typ reduce.Type) {
		t.Run(fmt.Sprintf("%v/%v", o, typ), func(t *testing.T) {
			oracle, _ := reduce.Portable().Lookup(o, typ)
			size := typ.Size()
			for _, n := range []int{0, 1, 2, 3, 7, 15, 16, 31, 63, 100, reduce.FoldBlock / size, reduce.FoldBlock/size + 1, reduce.Stretch/size + 5} {
				for _, k := range []int{1, 2, 3, 4, 5, 9} {
					if k != 4 && (n > 100 || testing.Short() && k%2 == 0) {
						continue // across blocks only once: it takes long
					}
					for in := -1; in < k; in++ {
						for _, set := range append(reduce.Sets(), reduce.Portable()) {
							dst := make([]byte, n*size)
							srcs := sources(r, dst, k, in, func(r *rand.Rand, p []byte) { random(r, p, typ) })
							want := serial(oracle, srcs)
							again := append([][]byte{}, srcs...)
							if in >= 0 {
								again[in] = bytes.Clone(dst)
							}
							fold, _ := set.Fold(o, typ)
							fold(dst, srcs)
							require.Equal(t, -1, firstDifference(typ, want, dst), "%s: %d elements, %d sources, into %d", set.Name, n, k, in)

							dst = make([]byte, n*size)
							if in >= 0 {
								copy(dst, again[in])
								again[in] = dst
							}
							f, _ := set.Lookup(o, typ)
							reduce.Fold(f, dst, again)
							require.Equal(t, -1, firstDifference(typ, want, dst), "%s, binary: %d elements, %d sources, into %d", set.Name, n, k, in)
						}
					}
				}
			}
		})
	})
}

// affine composes maps x -> m*x + c over bytes, of which an element has any number:
// associative, and not commutative.
func affine(dst, a, b []byte) {
	for i := 0; i < len(dst); i += 2 {
		m, c := a[i]*b[i], a[i]*b[i+1]+a[i+1]
		dst[i], dst[i+1] = m, c
	}
}

// A user's function sees whole elements, in the order of the sources.
func TestUser(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	bits := func(r *rand.Rand, p []byte) {
		for i := 0; i < len(p); i += 8 {
			var word [8]byte
			binary.NativeEndian.PutUint64(word[:], r.Uint64()|0x0101010101010101)
			copy(p[i:], word[:])
		}
	}
	for _, size := range []int{2, 6, 24, 1000, reduce.FoldBlock, reduce.FoldBlock + 2, 3 * reduce.FoldBlock} {
		user := reduce.User{Size: size, Combine: func(dst, a, b []byte) {
			require.NotEmpty(t, dst)
			require.Zero(t, len(dst)%size, "whole elements")
			require.Len(t, a, len(dst))
			require.Len(t, b, len(dst))
			affine(dst, a, b)
		}}
		for _, n := range []int{0, 1, 2, 20, 2*reduce.FoldBlock/size + 1} {
			for k := 1; k <= 5; k++ {
				for in := -1; in < k; in++ {
					dst := make([]byte, n*size)
					srcs := sources(r, dst, k, in, bits)
					want := serial(affine, srcs)
					if k == 2 {
						got := make([]byte, len(dst))
						user.Apply(got, srcs[0], srcs[1])
						require.Equal(t, want, got)
						if n > 1 {
							reversed := serial(affine, [][]byte{srcs[1], srcs[0]})
							require.NotEqual(t, want, reversed, "the order must matter for this test")
						}
					}
					user.Fold(dst, srcs)
					require.True(t, bytes.Equal(want, dst), "%d elements of %d, %d sources, into %d", n, size, k, in)
				}
			}
		}
		require.Panics(t, func() { user.Apply(make([]byte, size+1), make([]byte, size+1), make([]byte, size+1)) })
		require.Panics(t, func() { user.Fold(make([]byte, size), nil) })
		require.Panics(t, func() { user.Fold(make([]byte, size+1), [][]byte{make([]byte, size+1)}) })
	}
	for _, size := range []int{0, -8} {
		user := reduce.User{Size: size, Combine: affine}
		require.Panics(t, func() { user.Apply(nil, nil, nil) })
		require.Panics(t, func() { user.Fold(nil, [][]byte{nil}) })
	}
}
