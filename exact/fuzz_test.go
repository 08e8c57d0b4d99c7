package exact_test

import (
	"encoding/binary"
	"math"
	"math/big"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/exact"
)

// floats reads b as float64, up to 2000 of them; what is left over is dropped.
func floats(b []byte) (x []float64) {
	for len(b) >= 8 && len(x) < 2000 {
		x = append(x, math.Float64frombits(binary.LittleEndian.Uint64(b)))
		b = b[8:]
	}
	return x
}

func floatBytes(x ...float64) (b []byte) {
	for _, v := range x {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(v))
	}
	return b
}

// FuzzSum takes bytes as terms, and as factors, and compares with math/big; repeat
// makes the slice long enough for the table.
func FuzzSum(f *testing.F) {
	f.Add(floatBytes(edges...), uint8(0))
	f.Add(floatBytes(edges...), uint8(40))
	f.Add(floatBytes(1e300, 1, -1e300), uint8(200))
	f.Add(floatBytes(negZero), uint8(255))
	f.Add(floatBytes(inf, 1), uint8(1))
	f.Fuzz(func(t *testing.T, b []byte, repeat uint8) {
		once := floats(b)
		x := once
		for range repeat {
			if len(x)+len(once) > 2000 {
				break
			}
			x = append(x, once...)
		}
		requireSame(t, sumReference(x).round(), exact.Sum(x))
		half := len(x) / 2
		y := x[half : 2*half]
		requireSame(t, dotReference(x[:half], y).round(), exact.Dot(x[:half], y))

		var one, whole exact.Accumulator
		for _, v := range x {
			one.Add(v)
		}
		for i, v := range x[:half] {
			one.AddProduct(v, y[i])
		}
		whole.AddProducts(y, x[:half])
		whole.AddSlice(x)
		require.Equal(t, encoded(t, &one), encoded(t, &whole))
		requireKernels(t, x[:half], y)
	})
}

// FuzzStrided takes bytes as float64, and as float32, with strides, and as complex numbers of both kinds, and
// compares each kernel with one addition after the other; repeat makes the slices long enough for kernels.
func FuzzStrided(f *testing.F) {
	f.Add(floatBytes(edges...), uint8(3), uint8(2), uint8(1))
	f.Add(floatBytes(inf, -inf, nan, negZero), uint8(40), uint8(1), uint8(3))
	f.Add(floatBytes(1e300, 1, -1e300), uint8(200), uint8(1), uint8(1))
	f.Add(floatBytes(tiny, -tiny, math.Float64frombits(0x0000_0001_8000_0001)), uint8(30), uint8(4), uint8(1))
	f.Fuzz(func(t *testing.T, b []byte, repeat, strideX, strideY uint8) {
		const most = 2000
		x := floats(b)
		for once := x; repeat > 0 && len(x)+len(once) <= most; repeat-- {
			x = append(x, once...)
		}
		var u []float32
		for _, v := range x {
			both := math.Float64bits(v)
			u = append(u, math.Float32frombits(uint32(both)), math.Float32frombits(uint32(both>>32)))
		}
		sx, sy := 1+int(strideX%8), 1+int(strideY%8)
		n := len(x) / max(sx, sy)
		requireStrided(t, x[:n*sx], sx, x[len(x)-n*sy:], sy) // they overlap
		requireStrided(t, u[:n*sx], sx, u[len(u)-n*sy:], sy)
		requireSquares(t, x, sx)
		requireSquares(t, u, sx)
		z, w := paired[complex128](x), complexOf(u)
		for shift := range min(2, len(z)+1) {
			requireComplex(t, z[shift:], z[:len(z)-shift])
			requireComplex(t, w[shift:], w[:len(w)-shift])
		}
	})
}

// FuzzUnmarshal reads any bytes: what is accepted is the one encoding of its sum.
func FuzzUnmarshal(f *testing.F) {
	for _, x := range [][]float64{nil, {negZero}, {1}, {-1, 0x1p64}, {nan, inf}, edges} {
		var a exact.Accumulator
		a.AddSlice(x)
		a.AddProducts(x, x)
		f.Add(encoded(f, &a))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var a, back exact.Accumulator
		if err := a.UnmarshalBinary(b); err != nil {
			require.ErrorIs(t, err, exact.ErrEncoding)
			require.Equal(t, exact.Accumulator{}, a)
			return
		}
		require.Equal(t, b, encoded(t, &a))
		w := wordsOf(&a)
		require.NoError(t, back.SetWords(&w))
		require.Equal(t, a, back)
		a.Round()
	})
}

// FuzzSetNarrowWords: narrow words are those of no accumulators, or of such as have their sum.
func FuzzSetNarrowWords(f *testing.F) {
	for _, c := range []struct {
		low   int
		terms []float64
	}{{66, []float64{1, -1e-9, 3}}, {0, []float64{5e-324}}, {limbs - 4, []float64{-huge, -huge}}, {60, []float64{nan}}} {
		var a exact.Accumulator
		a.AddSlice(c.terms)
		words := make([]int64, exact.FlagWords+4)
		a.NarrowWords(words, c.low)
		b := []byte{byte(c.low)}
		for _, v := range words {
			b = binary.LittleEndian.AppendUint64(b, uint64(v))
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < 1+8*(exact.FlagWords+2) {
			return
		}
		low, words := int(b[0]), make([]int64, (len(b)-1)/8)
		for i := range words {
			words[i] = int64(binary.LittleEndian.Uint64(b[1+8*i:]))
		}
		if low+len(words)-exact.FlagWords > limbs {
			return // it panics
		}
		a := *filled()
		if err := a.SetNarrowWords(words, low); err != nil {
			require.ErrorIs(t, err, exact.ErrWords)
			require.Equal(t, *filled(), a)
			return
		}
		var back exact.Accumulator
		w := wordsOf(&a)
		require.NoError(t, back.SetWords(&w))
		require.Equal(t, a, back)
		if got := a.Round(); words[0]|words[1]|words[2] == 0 { // no NaN, no infinity
			sum := new(big.Int)
			for i := len(words) - 1; i >= exact.FlagWords; i-- {
				sum.Add(sum.Lsh(sum, 32), big.NewInt(words[i]))
			}
			want, _ := new(big.Float).SetMantExp(new(big.Float).SetInt(sum), 32*low-2150).Float64()
			require.True(t, want == got, "%v is %v", got, want)
		}
	})
}

// FuzzSetWords takes any words: what is accepted is a sum whose words are accepted
// again and do not change.
func FuzzSetWords(f *testing.F) {
	var seed exact.Accumulator
	for range 3 {
		seed.AddSlice(edges)
		w := wordsOf(&seed)
		add(&w, &w)
		b := []byte{}
		for _, v := range w {
			b = binary.LittleEndian.AppendUint64(b, uint64(v))
		}
		f.Add(b)
		seed.AddProduct(huge, -huge)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var w [exact.Words]int64
		for i := range w {
			if len(b) >= 8*(i+1) {
				w[i] = int64(binary.LittleEndian.Uint64(b[8*i:]))
			}
		}
		var a, back exact.Accumulator
		if err := a.SetWords(&w); err != nil {
			require.ErrorIs(t, err, exact.ErrWords)
			require.Equal(t, exact.Accumulator{}, a)
			return
		}
		w = wordsOf(&a)
		require.NoError(t, back.SetWords(&w))
		require.Equal(t, a, back)
		require.NoError(t, back.UnmarshalBinary(encoded(t, &a)))
		require.Equal(t, w, wordsOf(&back))
		a.Round()
	})
}
