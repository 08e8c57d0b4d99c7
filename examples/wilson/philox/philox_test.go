package philox

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// Known answers of the authors' Random123, file kat_vectors, philox4x32 10.
func TestKnownAnswers(t *testing.T) {
	for _, c := range []struct {
		counter [4]uint32
		key     [2]uint32
		want    [4]uint32
	}{
		{[4]uint32{}, [2]uint32{}, [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{[4]uint32{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, [2]uint32{0xffffffff, 0xffffffff}, [4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{[4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, [2]uint32{0xa4093822, 0x299f31d0}, [4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	} {
		require.Equal(t, c.want, Block(c.counter, c.key), "counter %08x key %08x", c.counter, c.key)
	}
}

// A stream is the blocks of its counters, one after the other.
func TestStream(t *testing.T) {
	s := New(0x299f31d0a4093822, 1, 2, 3)
	for i := range uint32(5) {
		b := Block([4]uint32{i, 1, 2, 3}, [2]uint32{0xa4093822, 0x299f31d0})
		require.Equal(t, uint64(b[0])<<32|uint64(b[1]), s.Uint64())
		require.Equal(t, uint64(b[2])<<32|uint64(b[3]), s.Uint64())
	}
	var zero Stream
	require.EqualValues(t, 0x6627e8d5e169c58d, zero.Uint64())
}

// Moments of the distributions, within six standard deviations of the mean of n.
func TestMoments(t *testing.T) {
	const n = 200_000
	s := New(7, 0, 0, 0)
	var uniform, square, normal, variance, fourth float64
	for range n / 2 {
		a, b := s.Normal()
		for _, x := range [2]float64{a, b} {
			normal += x
			variance += x * x
			fourth += x * x * x * x
		}
		for range 2 {
			u := s.Float64()
			require.True(t, u > 0 && u <= 1)
			uniform += u
			square += u * u
		}
	}
	within := func(want, sum, deviation float64) {
		t.Helper()
		require.InDelta(t, want, sum/n, 6*deviation/math.Sqrt(n))
	}
	within(1./2, uniform, math.Sqrt(1./12))
	within(1./3, square, math.Sqrt(4./45))
	within(0, normal, 1)
	within(1, variance, math.Sqrt(2))
	within(3, fourth, math.Sqrt(96))
}

func TestAllocs(t *testing.T) {
	var x float64
	require.Zero(t, testing.AllocsPerRun(100, func() {
		s := New(1, 2, 3, 4)
		a, b := s.Normal()
		x += a + b
	}))
}
