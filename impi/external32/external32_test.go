package external32

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func unhex(t testing.TB, s string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	require.NoError(t, err)
	return b
}

// golden checks one vector in both directions.
func golden[T Element](t *testing.T, want string, v ...T) {
	b := Append(nil, v)
	require.Equal(t, unhex(t, want), b, "%T", v)
	got := make([]T, len(v))
	rest, err := Parse(got, append(b, 0xee))
	require.NoError(t, err, "%T", v)
	require.Equal(t, v, got)
	require.Equal(t, []byte{0xee}, rest, "%T", v)
}

// TestGolden has elements of every type as they are on the wire.
func TestGolden(t *testing.T) {
	golden[int8](t, "01 ff 80", 1, -1, -128)
	golden[uint8](t, "01 ff", 1, 255)
	golden[int16](t, "0102 fffe", 0x102, -2)
	golden[uint16](t, "0102 fffe", 0x102, 0xfffe)
	golden[int32](t, "01020304 fffffffe", 0x1020304, -2)
	golden[uint32](t, "01020304 fffffffe", 0x1020304, 0xfffffffe)
	golden[int64](t, "0102030405060708 fffffffffffffffe", 0x102030405060708, -2)
	golden[uint64](t, "0102030405060708 fffffffffffffffe", 0x102030405060708, 1<<64-2)
	golden[float32](t, "3f800000 c0200000 ff800000", 1, -2.5, float32(math.Inf(-1)))
	golden[float64](t, "3ff0000000000000 c004000000000000", 1, -2.5)
	golden[complex64](t, "3f800000 c0200000 00000000 3f800000", complex(1, -2.5), 1i)
	golden[complex128](t, "3ff0000000000000 c004000000000000", complex(1, -2.5))
	type celsius float32
	golden[celsius](t, "3f800000", 1)
	type amplitude complex64
	golden[amplitude](t, "3f800000 40000000", complex(1, 2))
	require.Empty(t, Append[int64](nil, nil))
}

func TestSize(t *testing.T) {
	require.Equal(t, []int{1, 1, 2, 2, 4, 4, 8, 8, 4, 8, 8, 16}, []int{
		Size[int8](), Size[uint8](), Size[int16](), Size[uint16](), Size[int32](), Size[uint32](), Size[int64](), Size[uint64](),
		Size[float32](), Size[float64](), Size[complex64](), Size[complex128](),
	})
}

func TestShort(t *testing.T) {
	v, b := []int32{7, 8}, make([]byte, 7)
	rest, err := Parse(v, b)
	require.ErrorIs(t, err, ErrShort)
	var e *ShortError
	require.ErrorAs(t, err, &e)
	require.Equal(t, ShortError{7, 8}, *e)
	require.EqualError(t, err, "impi/external32: not enough bytes: 7 of 8")
	require.Equal(t, []int32{7, 8}, v)
	require.Equal(t, b, rest)
}

// bits makes an element of any bits; of NaNs too all have to survive.
type bits[T Element] func(r *rand.Rand) T

// property compares with encoding/binary, which writes one element after the other.
func property[T Element](t *testing.T, make1 bits[T]) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		v := make([]T, r.IntN(40))
		for i := range v {
			v[i] = make1(r)
		}
		prefix := make([]byte, r.IntN(9), 9+r.IntN(700))
		var naive bytes.Buffer
		for _, x := range v {
			require.NoError(t, binary.Write(&naive, binary.BigEndian, x))
		}
		b := Append(prefix, v)
		require.Equal(t, prefix, b[:len(prefix)])
		b = b[len(prefix):]
		require.True(t, bytes.Equal(naive.Bytes(), b), "%T", v)
		require.Len(t, b, len(v)*Size[T]())
		got := make([]T, len(v))
		rest, err := Parse(got, b)
		require.NoError(t, err)
		require.Empty(t, rest)
		require.True(t, bytes.Equal(b, Append(nil, got)), "%T", v)
	}
}

func TestProperty(t *testing.T) {
	property(t, func(r *rand.Rand) int8 { return int8(r.Uint32()) })
	property(t, func(r *rand.Rand) uint8 { return uint8(r.Uint32()) })
	property(t, func(r *rand.Rand) int16 { return int16(r.Uint32()) })
	property(t, func(r *rand.Rand) uint16 { return uint16(r.Uint32()) })
	property(t, func(r *rand.Rand) int32 { return int32(r.Uint32()) })
	property(t, func(r *rand.Rand) uint32 { return r.Uint32() })
	property(t, func(r *rand.Rand) int64 { return int64(r.Uint64()) })
	property(t, func(r *rand.Rand) uint64 { return r.Uint64() })
	property(t, func(r *rand.Rand) float32 { return float32(r.NormFloat64()) })
	property(t, func(r *rand.Rand) float64 { return math.Float64frombits(r.Uint64()) })
	property(t, func(r *rand.Rand) complex64 { return complex(r.Float32(), -r.Float32()) })
	property(t, func(r *rand.Rand) complex128 { return complex(r.NormFloat64(), r.ExpFloat64()) })
}

// TestSequence: values of several types one after the other, as a C struct is packed.
func TestSequence(t *testing.T) {
	b := Append(nil, []int32{1, 2})
	b = Append(b, []float64{0.5})
	b = Append(b, []int8{-1})
	require.Equal(t, unhex(t, "00000001 00000002 3fe0000000000000 ff"), b)
	i, f, c := make([]int32, 2), make([]float64, 1), make([]int8, 1)
	rest, err := Parse(i, b)
	require.NoError(t, err)
	rest, err = Parse(f, rest)
	require.NoError(t, err)
	rest, err = Parse(c, rest)
	require.NoError(t, err)
	require.Empty(t, rest)
	require.Equal(t, []any{int32(1), int32(2), 0.5, int8(-1)}, []any{i[0], i[1], f[0], c[0]})
}

func TestAllocs(t *testing.T) {
	v, b := make([]complex128, 100), make([]byte, 0, 1600)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		b = Append(b[:0], v)
		if _, err := Parse(v, b); err != nil {
			panic(err)
		}
	}))
}

func BenchmarkAppend(b *testing.B) {
	v, out := make([]float64, 8192), []byte(nil)
	b.SetBytes(8 * 8192)
	for b.Loop() {
		out = Append(out[:0], v)
	}
}

func BenchmarkParse(b *testing.B) {
	v, in := make([]float64, 8192), make([]byte, 8*8192)
	b.SetBytes(8 * 8192)
	for b.Loop() {
		if _, err := Parse(v, in); err != nil {
			b.Fatal(err)
		}
	}
}

// again reads as many T as b has, and writes them.
func again[T Element](t *testing.T, b []byte) {
	v := make([]T, len(b)/Size[T]())
	rest, err := Parse(v, b)
	require.NoError(t, err)
	require.Len(t, rest, len(b)%Size[T]())
	require.True(t, bytes.Equal(b, append(Append(nil, v), rest...)), "%T", v)
	_, err = Parse(make([]T, len(v)+1), b)
	require.ErrorIs(t, err, ErrShort)
}

// FuzzBytes: any bytes are elements of every type, and become the same bytes again.
func FuzzBytes(f *testing.F) {
	f.Add([]byte("\x00\x01\x02\x03\x04\x05\x06\x07\x08"))
	f.Fuzz(func(t *testing.T, b []byte) {
		again[int8](t, b)
		again[uint16](t, b)
		again[int32](t, b)
		again[uint64](t, b)
		again[float32](t, b)
		again[float64](t, b)
		again[complex64](t, b)
		again[complex128](t, b)
	})
}
