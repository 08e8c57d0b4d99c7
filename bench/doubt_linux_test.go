package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestParseCPUTimes(t *testing.T) {
	t.Parallel()
	got, ok := parseCPUTimes("cpu  100 20 30 400 50 6 7 8 90 10\ncpu0 1 2 3\n")
	require.True(t, ok)
	require.Equal(t, cpuTimes{busy: 1630 * time.Millisecond, steal: 80 * time.Millisecond, total: 6210 * time.Millisecond}, got)
	for _, bad := range []string{"", "cpu 1 2 3", "cpu0 1 2 3 4 5 6 7 8", "cpu 1 2 3 x 5 6 7 8", "cpu 1 2 3 -4 5 6 7 8"} {
		_, ok := parseCPUTimes(bad)
		require.False(t, ok, bad)
	}
	_, ok = readCPUTimes()
	require.True(t, ok)
}
