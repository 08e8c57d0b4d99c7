package gauge

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/examples/wilson/philox"
)

// Moments of a0 against integrals of its density, for both methods and where they meet,
// and of the direction, which is no particular one.
func TestDrawSU2(t *testing.T) {
	n := 100_000.0
	if testing.Short() {
		n = 10_000
	}
	for i, b := range []float64{0, 1e-9, 0.1, 1, smallB - 1e-9, smallB, 3, 10, 200} {
		var norm, mean, square float64
		const steps = 20_000
		for k := range steps {
			angle := math.Pi * (float64(k) + 0.5) / steps // a0 = cos angle
			sin, cos := math.Sincos(angle)
			w := math.Exp(b*(cos-1)) * sin * sin
			norm += w
			mean += w * cos
			square += w * cos * cos
		}
		mean, square = mean/norm, square/norm
		deviation := math.Sqrt(square - mean*mean)

		s := philox.New(11, uint32(i), 0, 0)
		var sum, squares float64
		var direction, directions [3]float64
		for range int(n) {
			a := drawSU2(&s, b)
			require.InDelta(t, 1, a.Norm(), 1e-12)
			sum += a[0]
			squares += (a[0] - mean) * (a[0] - mean)
			for k := range 3 {
				direction[k] += a[k+1]
				directions[k] += a[k+1] * a[k+1]
			}
		}
		require.InDelta(t, mean, sum/n, 6*deviation/math.Sqrt(n), "b = %v", b)
		require.InDelta(t, 1, squares/n/(deviation*deviation), 20/math.Sqrt(n), "b = %v", b)
		for k := range 3 {
			third := (1 - square) / 3
			require.InDelta(t, 0, direction[k]/n, 6*math.Sqrt(third/n), "b = %v", b)
			require.InDelta(t, 1, directions[k]/n/third, 20/math.Sqrt(n), "b = %v", b)
		}
	}
}
