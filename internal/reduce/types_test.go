package reduce_test

import (
	"fmt"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/reduce"
)

func TestTypes(t *testing.T) {
	for _, c := range []struct {
		t    reduce.Type
		of   reduce.Type
		size int
		name string
	}{
		{reduce.Int32, reduce.TypeOf[int32](), 4, "int32"},
		{reduce.Int64, reduce.TypeOf[int64](), 8, "int64"},
		{[...]reduce.Type{4: reduce.Int32, 8: reduce.Int64}[unsafe.Sizeof(int(0))], reduce.TypeOf[int](), int(unsafe.Sizeof(int(0))), fmt.Sprint("int", 8*unsafe.Sizeof(int(0)))},
		{[...]reduce.Type{4: reduce.Uint32, 8: reduce.Uint64}[unsafe.Sizeof(int(0))], reduce.TypeOf[uint](), int(unsafe.Sizeof(int(0))), fmt.Sprint("uint", 8*unsafe.Sizeof(int(0)))},
		{reduce.Uint32, reduce.TypeOf[uint32](), 4, "uint32"},
		{reduce.Uint64, reduce.TypeOf[uint64](), 8, "uint64"},
		{reduce.Float32, reduce.TypeOf[float32](), 4, "float32"},
		{reduce.Float64, reduce.TypeOf[float64](), 8, "float64"},
		{reduce.Complex64, reduce.TypeOf[complex64](), 8, "complex64"},
		{reduce.Complex128, reduce.TypeOf[complex128](), 16, "complex128"},
		{reduce.Float64Int64, reduce.Float64Int64, int(unsafe.Sizeof(reduce.Pair{})), "float64 with int64"},
	} {
		require.Equal(t, c.t, c.of, c.name)
		require.Equal(t, c.size, c.t.Size(), c.name)
		require.Equal(t, c.name, c.t.String())
		require.True(t, c.t.Valid(), c.name)
	}
	for _, bad := range []reduce.Type{reduce.Types, 255} {
		require.False(t, bad.Valid())
		require.Zero(t, bad.Size())
		require.Equal(t, "unknown type", bad.String())
	}
	require.EqualValues(t, 16, unsafe.Sizeof(reduce.Pair{}))
}

func TestDefined(t *testing.T) {
	const (
		integers = "int32 int64 uint32 uint64"
		reals    = integers + " float32 float64"
		numbers  = reals + " complex64 complex128"
		pairs    = "float64 with int64"
	)
	for o, names := range []string{numbers, numbers, reals, reals, integers, integers, integers, pairs, pairs} {
		defined := ""
		for typ := range reduce.Type(255) {
			f, ok := reduce.Lookup(reduce.Op(o), typ)
			require.Equal(t, ok, reduce.Defined(reduce.Op(o), typ))
			require.Equal(t, ok, f != nil)
			fold, foldOK := reduce.LookupFold(reduce.Op(o), typ)
			require.Equal(t, ok, foldOK)
			require.Equal(t, ok, fold != nil)
			if ok {
				defined += " " + typ.String()
			}
		}
		require.Equal(t, " "+names, defined, reduce.Op(o))
	}
	for _, bad := range []reduce.Op{reduce.Ops, 255} {
		require.False(t, reduce.Defined(bad, reduce.Int32))
		require.Equal(t, "unknown operation", bad.String())
	}
	require.Equal(t, "sum", reduce.Sum.String())
	require.Equal(t, "maxloc", reduce.MaxLoc.String())
}
