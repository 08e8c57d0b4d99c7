package exact_test

import (
	"encoding"
	"encoding/hex"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/exact"
)

var (
	_ encoding.BinaryAppender    = (*exact.Accumulator)(nil)
	_ encoding.BinaryMarshaler   = (*exact.Accumulator)(nil)
	_ encoding.BinaryUnmarshaler = (*exact.Accumulator)(nil)
)

func TestEncodingGolden(t *testing.T) {
	for _, c := range []struct {
		name string
		make func(a *exact.Accumulator)
		// version, flags, scale, limbs, magnitude
		want string
	}{
		{"none", func(*exact.Accumulator) {}, "01 00 00 00"},
		{"0", func(a *exact.Accumulator) { a.Add(0) }, "01 10 00 00"},
		{"-0", func(a *exact.Accumulator) { a.Add(negZero) }, "01 08 00 00"},
		{"-0 and 0", func(a *exact.Accumulator) { a.Add(negZero); a.Add(0) }, "01 10 00 00"},
		{"NaN", func(a *exact.Accumulator) { a.Add(nan) }, "01 11 00 00"},
		{"Inf", func(a *exact.Accumulator) { a.Add(inf) }, "01 12 00 00"},
		{"-Inf and 1", func(a *exact.Accumulator) { a.Add(-inf); a.Add(1) }, "01 14 43 01 00000040"},
		{"1", func(a *exact.Accumulator) { a.Add(1) }, "01 10 43 01 00000040"},
		{"-1", func(a *exact.Accumulator) { a.Add(-1) }, "01 90 43 01 00000040"},
		{"2^64-1", func(a *exact.Accumulator) { a.Add(0x1p64); a.Add(-1) }, "01 10 43 03 0000003f ffffffff ffffffc0"},
		{"1-2^64", func(a *exact.Accumulator) { a.Add(-0x1p64); a.Add(1) }, "01 90 43 03 0000003f ffffffff ffffffc0"},
		{"least product", func(a *exact.Accumulator) { a.AddProduct(tiny, -tiny) }, "01 90 00 01 00000004"},
		{"largest product", func(a *exact.Accumulator) { a.AddProduct(huge, huge) },
			"01 10 7f 05 0000003f ffffffff fffc0000 00000000 10000000"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var a exact.Accumulator
			c.make(&a)
			b, err := a.AppendBinary([]byte("before"))
			require.NoError(t, err)
			require.Equal(t, "before", string(b[:6]))
			require.Equal(t, strings.ReplaceAll(c.want, " ", ""), hex.EncodeToString(b[6:]))
			back := *filled()
			require.NoError(t, back.UnmarshalBinary(b[6:]))
			require.Equal(t, wordsOf(&a), wordsOf(&back))
		})
	}
}

func TestEncodingRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(17, 18))
	for name, source := range sources {
		for n := range 50 {
			var a, back exact.Accumulator
			a.AddSlice(draw(r, n*n, source))
			a.AddProducts(draw(r, n, source), draw(r, n, source))
			b, err := a.MarshalBinary()
			require.NoError(t, err)
			require.LessOrEqual(t, len(b), exact.MaxEncoded)
			require.NoError(t, back.UnmarshalBinary(b))
			require.Equal(t, wordsOf(&a), wordsOf(&back), name)
		}
	}
}

// TestEncodingTop: sums up to the end of the range come back, also those that reach the last limb.
func TestEncodingTop(t *testing.T) {
	for _, x := range []float64{math.MaxFloat64, -math.MaxFloat64} {
		var a exact.Accumulator
		a.Add(x)
		for doubled := 1; doubled <= 1111; doubled++ { // 2^1024 to 2^2135
			a.Merge(&a)
			b, err := a.MarshalBinary()
			require.NoError(t, err)
			var back exact.Accumulator
			require.NoError(t, back.UnmarshalBinary(b), "doubled %d times", doubled)
			again, err := back.MarshalBinary()
			require.NoError(t, err)
			require.Equal(t, b, again)
		}
	}
}

// TestEncodingLength says that the longest encoding is one of MaxEncoded bytes.
func TestEncodingLength(t *testing.T) {
	var w [exact.Words]int64
	w[0], w[topWord], w[otherWord] = 1, 1, 1
	var a exact.Accumulator
	require.NoError(t, a.SetWords(&w))
	require.Len(t, encoded(t, &a), exact.MaxEncoded)
}

func TestBadEncodings(t *testing.T) {
	for _, c := range []struct{ name, bytes string }{
		{"nothing", ""},
		{"short", "01 10 00"},
		{"version 0", "00 10 00 00"},
		{"version 2", "02 10 00 00"},
		{"unknown flag", "01 30 00 00"},
		{"NaN without terms", "01 01 00 00"},
		{"infinity and -0 alone", "01 0a 00 00"},
		{"-0 and others", "01 18 00 00"},
		{"limb without terms", "01 00 43 01 00000040"},
		{"limb with -0 alone", "01 08 43 01 00000040"},
		{"negative zero", "01 90 00 00"},
		{"scaled zero", "01 10 01 00"},
		{"cut off", "01 10 43 02 00000040"},
		{"too long", "01 10 43 01 00000040 00"},
		{"first limb zero", "01 10 43 02 00000000 00000040"},
		{"last limb zero", "01 10 43 02 00000040 00000000"},
		{"only limb zero", "01 10 43 01 00000000"},
		{"beyond the limbs", "01 10 85 02 00000001 00000001"},
		{"beyond the range", "01 10 85 01 40000000"},
		{"beyond the range, negative", "01 90 84 02 40000000 00000001"},
		{"beyond the range, most", "01 90 85 01 ffffffff"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, err := hex.DecodeString(strings.ReplaceAll(c.bytes, " ", ""))
			require.NoError(t, err)
			a := *filled()
			before := encoded(t, &a)
			require.ErrorIs(t, a.UnmarshalBinary(b), exact.ErrEncoding)
			require.Equal(t, before, encoded(t, &a))
		})
	}
}
