package reduce_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/reduce"
)

// Whatever the bits, and wherever they lie, every set of kernels gives those of the
// portable loops, of two operands and of many.
func FuzzKernels(f *testing.F) {
	defined(func(o reduce.Op, typ reduce.Type) {
		p := make([]byte, 23*typ.Size())
		i := 0
		fill(p, typ, func(n int) int { i++; return i % n })
		f.Add(uint8(o), uint8(typ), uint8(i), uint8(2+i%3), p)
	})
	f.Fuzz(func(t *testing.T, op, kind, offset, count uint8, p []byte) {
		o, typ := reduce.Op(op), reduce.Type(kind)
		oracle, ok := reduce.Portable().Lookup(o, typ)
		if !ok {
			require.False(t, reduce.Defined(o, typ))
			return
		}
		k := 2 + int(count%4)
		size := len(p) / k / typ.Size() * typ.Size()
		srcs := make([][]byte, k)
		for i := range srcs {
			srcs[i], _ = within(size, int(offset)*i%16)
			copy(srcs[i], p[i*size:])
		}
		pair := make([]byte, size)
		oracle(pair, srcs[0], srcs[1])
		want := serial(oracle, srcs)
		for _, set := range reduce.Sets() {
			f, _ := set.Lookup(o, typ)
			got, _ := within(size, int(offset%16))
			f(got, srcs[0], srcs[1])
			require.Equal(t, -1, firstDifference(typ, pair, got), "%s: %v of %v", set.Name, o, typ)

			fold, _ := set.Fold(o, typ)
			in := append([][]byte{}, srcs...)
			in[k-1] = bytes.Clone(srcs[k-1])
			fold(in[k-1], in)
			require.Equal(t, -1, firstDifference(typ, want, in[k-1]), "%s: fold, %v of %v", set.Name, o, typ)
		}
	})
}
