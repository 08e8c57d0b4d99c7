package wait

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// No pause at all is over at once, and not after as many as a counter holds.
func TestPause(t *testing.T) {
	for _, n := range []uint32{0, 1, 10} {
		Pause(n)
	}
}

func TestStores(t *testing.T) {
	var long uint64
	var short [2]uint32
	StoreRelease64(&long, 1<<40)
	require.EqualValues(t, 1<<40, atomic.LoadUint64(&long))
	StoreRelaxed64(&long, 1<<41)
	require.EqualValues(t, 1<<41, atomic.LoadUint64(&long))
	StoreRelease32(&short[0], 1<<31)
	require.Equal(t, [2]uint32{1 << 31, 0}, short, "its neighbour is not written")
	StoreRelaxed32(&short[0], 1<<30)
	require.Equal(t, [2]uint32{1 << 30, 0}, short)
}
