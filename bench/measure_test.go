package main

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// measurementOf is the first measurement of a pattern, of two ranks, with flags: names and values.
func measurementOf(t *testing.T, layer, command string, flags ...string) *measurement {
	t.Helper()
	given := map[string]string{}
	for i := 0; i < len(flags); i += 2 {
		given[flags[i]] = flags[i+1]
	}
	w := newWork(findPattern(layer, command), given)
	m := newMeasurement(w.pattern.specs(w.o, 2)[0])
	m.begin()
	return m
}

// alone is a job of one.
type alone struct{}

func (alone) Rank() int { return 0 }
func (alone) Size() int { return 1 }
func (alone) Exchange(_ context.Context, data []byte) ([][]byte, error) {
	return [][]byte{data}, nil
}

// lazy is a series that, once it has been looked at, does nothing any more.
type lazy struct {
	out, in [64]byte
	checks  int
}

func (s *lazy) run(int, []int64) {
	if s.checks == 0 {
		s.in = s.out
	}
}
func (s *lazy) close() {}
func (s *lazy) prepare() {
	fillPattern(s.out[:], 1)
	fillGuard(s.in[:])
}
func (s *lazy) check() {
	s.checks++
	must(checkPattern("lazy", s.in[:], len(s.in), 1))
}

// What is timed is checked, too: not only the one move before.
func TestTimedMovesAreChecked(t *testing.T) {
	t.Parallel()
	m := measurementOf(t, layerChannel, patternLat, "sizes", "64", "iters", "100")
	s := &lazy{}
	var corrupt *CorruptError
	require.ErrorAs(t, try(func() { m.takeChecked(t.Context(), alone{}, s) }), &corrupt)
	require.Equal(t, 2, s.checks)
	require.Equal(t, 0, corrupt.Offset)
	require.False(t, m.verified)
}

// The memory is written even without verification.
func TestUncheckedMemoryIsWritten(t *testing.T) {
	t.Parallel()
	m := measurementOf(t, layerChannel, patternLat, "sizes", "64", "iters", "100", "verify", "false")
	s := &lazy{}
	m.takeChecked(t.Context(), alone{}, s)
	require.Zero(t, s.checks)
	require.False(t, m.verified)
	require.NoError(t, checkPattern("lazy", s.out[:], len(s.out), 1))
}
