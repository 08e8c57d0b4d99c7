package global_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/exact"
	"github.com/sluice-hpc/sluice/examples/wilson/global"
	"github.com/sluice-hpc/sluice/examples/wilson/internal/single"
	"github.com/sluice-hpc/sluice/examples/wilson/philox"
	"github.com/sluice-hpc/sluice/examples/wilson/su3"
	"github.com/sluice-hpc/sluice/internal/test/need"
)

func random(seed uint64, n int) []float64 {
	s := philox.New(seed, 0, 0, 0)
	x := make([]float64, n)
	for i := range x {
		x[i], _ = s.Normal()
	}
	return x
}

func TestSums(t *testing.T) {
	comm := single.Comm(t)
	for _, n := range []int{0, 1, 2, 3, 4, 5, 42} {
		x, y := random(1, n*su3.Floats), random(2, n*su3.Floats)
		for _, kind := range global.Kinds {
			s := global.New(comm, kind)
			near := func(want, got float64) {
				if kind != global.Exact {
					require.InDelta(t, want, got, 1e-12*float64(n+1))
				} else {
					require.Equal(t, want, got)
				}
			}
			total, err := s.Total(x[:n])
			require.NoError(t, err)
			near(exact.Sum(x[:n]), total)
			var squares [2]float64
			require.NoError(t, s.Squares(squares[:1], y))
			near(exact.Dot(y, y), squares[0])
			require.NoError(t, s.Squares(squares[:], x, y))
			near(exact.Dot(x, x), squares[0])
			near(exact.Dot(y, y), squares[1])
			require.Equal(t, 4, s.Count)
			s.Reset()
			require.Zero(t, s.Count)
		}
	}
	// What cancels is lost to plain sums, not to exact ones.
	terms := []float64{1e100, 1, -1e100, 1}
	total, err := global.New(comm, global.Exact).Total(terms)
	require.NoError(t, err)
	require.Equal(t, 2.0, total)
}

func TestAllocs(t *testing.T) {
	need.NoRace(t, "it allocates")
	comm := single.Comm(t)
	x := random(1, 125*su3.Floats)
	for name, kind := range global.Kinds {
		require.Equal(t, name, kind.String())
		s := global.New(comm, kind)
		var squares [2]float64
		require.Zero(t, testing.AllocsPerRun(100, func() {
			if s.Squares(squares[:], x, x) != nil || math.IsNaN(squares[1]) {
				panic("failed")
			}
		}), name)
	}
}

func TestAgree(t *testing.T) {
	comm := single.Comm(t)
	s := global.New(comm, global.Exact)
	require.NoError(t, s.Agree(nil, 0))
	err := errors.New(strings.Repeat("long ", 1000))
	require.Same(t, err, s.Agree(err, 7))
	require.True(t, s.Primary())
	x := uint64(5)
	require.NoError(t, s.Words(&x))
	require.EqualValues(t, 5, x)
}
