package channel

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestView(t *testing.T) {
	n := join(t, 1)[0]
	m := newMemory(t, n, 100)
	v := View[float64](m)
	require.Len(t, v, 12)
	v[11] = 1
	require.Equal(t, Bytes(v[11:]), m.Bytes()[88:96], "the same memory")
	require.Len(t, View[[3]float64](m), 4)
	require.Nil(t, View[[200]byte](m), "none fits")
	require.Nil(t, View[struct{}](m))
	require.Panics(t, func() { View[*int](m) })
	require.Panics(t, func() { View[int64](somewhere(m.Bytes()[1:])) }, "not aligned")
	require.NoError(t, m.Close())
	require.Nil(t, View[float64](m))
}

type somewhere []byte

func (s somewhere) Bytes() []byte { return s }

// Layouts in elements are those in bytes.
func TestElements(t *testing.T) {
	x := make([]float64, 20)
	for i := range x {
		x[i] = float64(i)
	}
	bytesOf := func(l Layout) []byte {
		require.NoError(t, l.Err())
		b := make([]byte, l.Len())
		l.shape.Gather(b, 0)
		return b
	}
	require.Equal(t, Bytes(x), bytesOf(Slice(x)))
	require.Equal(t, Bytes([]float64{1, 2, 6, 7, 11, 12}), bytesOf(StridedSlice(x, 1, 2, 3, 5)))
	require.Equal(t, Bytes([]float64{19, 15, 11}), bytesOf(StridedSlice(x, 19, 1, 3, -4)))
	err := StridedSlice(x, 1, 2, 5, 5).Err()
	require.ErrorIs(t, err, ErrLayout)
	require.EqualError(t, err, fmt.Sprintf("bad layout: 5 blocks of 2 elements, stride 5, at offset 1 reach outside a slice of %d elements", len(x)))
	require.ErrorIs(t, StridedSlice(x, math.MaxInt/4, 1, 1, 1).Err(), ErrLayout, "whose offset in bytes overflows")
	require.NotContains(t, Strided(Bytes(x), 0, 1, -1, 1).Err().Error(), "vector", "there is one")
	require.Panics(t, func() { Slice([]string{"a"}) })
}
