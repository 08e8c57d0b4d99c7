package keepalive

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWithin(t *testing.T) {
	for d := time.Duration(0); d < 100*time.Second; d += 100 * time.Millisecond {
		k := Within(d)
		whole := k.Idle + time.Duration(k.Count)*k.Interval
		require.True(t, k.Enable && k.Idle >= time.Second && k.Interval >= time.Second && k.Count >= 1, "%v: %+v", d, k)
		require.LessOrEqual(t, whole, max(d, 2*time.Second), "%v", d)
		require.Greater(t, whole, d*8/10-time.Second, "%v", d)
	}
}
