package main

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

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

func (s *lazy) run(int, []int64) error {
	if s.checks == 0 {
		s.in = s.out
	}
	return nil
}
func (s *lazy) over() error   { return nil }
func (s *lazy) finish() error { return nil }
func (s *lazy) close() error  { return nil }
func (s *lazy) prepare() {
	fillPattern(s.out[:], 1)
	fillGuard(s.in[:])
}
func (s *lazy) check() error {
	s.checks++
	return checkPattern("lazy", s.in[:], len(s.in), 1)
}

// What is timed is checked, too: not only the one move before.
func TestTimedMovesAreChecked(t *testing.T) {
	t.Parallel()
	m := newMeasurement(spec{pattern: patternLat, iters: 100, verify: true})
	s := &lazy{}
	var corrupt *CorruptError
	require.ErrorAs(t, takeChecked(t.Context(), alone{}, m, s), &corrupt)
	require.Equal(t, 2, s.checks)
	require.Equal(t, 0, corrupt.Offset)
	require.False(t, m.verified)
}

// Where nobody asks for a check the memory is written all the same.
func TestUncheckedMemoryIsWritten(t *testing.T) {
	t.Parallel()
	m := newMeasurement(spec{pattern: patternLat, iters: 100})
	s := &lazy{}
	require.NoError(t, takeChecked(t.Context(), alone{}, m, s))
	require.Zero(t, s.checks)
	require.False(t, m.verified)
	require.NoError(t, checkPattern("lazy", s.out[:], len(s.out), 1))
}
