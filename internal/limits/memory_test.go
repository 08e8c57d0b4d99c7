package limits

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Small allocations share what a look has found; a large one is allocated a piece at a time.
func TestCharge(t *testing.T) {
	set := func(bytes uint64, seen time.Time) {
		piece.Lock()
		defer piece.Unlock()
		piece.bytes, piece.seen = bytes, seen
	}
	left := func(size int) uint64 {
		at := 0
		require.NoError(t, Charge(size, func(from, to int) error {
			require.Equal(t, at, from)
			require.LessOrEqual(t, to-from, mostPiece)
			at = to
			return nil
		}))
		require.Equal(t, size, at)
		piece.Lock()
		defer piece.Unlock()
		return piece.bytes
	}
	const before = 1 << 40 // no look finds so much
	later := time.Now().Add(time.Hour)
	set(before, later)
	require.EqualValues(t, before-4096, left(4096))
	set(4096, later)
	require.Zero(t, left(4096))
	require.Positive(t, left(4096), "has looked")
	set(before, time.Now().Add(-2*pieceLife))
	require.LessOrEqual(t, left(4096), uint64(mostPiece), "has looked")
	set(0, time.Time{})
	left(2*mostPiece + 1)
}
