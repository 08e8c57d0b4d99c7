package channel

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// arenas counts the arenas of this process.
func arenas(t *testing.T) (count int) {
	descriptors, err := filepath.Glob("/proc/self/fd/*")
	require.NoError(t, err)
	for _, d := range descriptors {
		if name, err := os.Readlink(d); err == nil && strings.HasPrefix(name, "/memfd:sluice-arena") {
			count++
		}
	}
	return count
}

// TestAllocHoldsNobodyUp: what needs the node goes on while memory is allocated,
// which takes as long as the system takes to clear it.
func TestAllocHoldsNobodyUp(t *testing.T) {
	nodes := join(t, 2, WithProviders("shm"))
	n := nodes[0]
	held := func() bool {
		done := make(chan error, 1)
		before := arenas(t)
		go func() {
			_, err := n.Alloc(64 << 20)
			done <- err
		}()
		for arenas(t) == before { // from here on it is being cleared
			select {
			case err := <-done:
				require.NoError(t, err)
				return true
			default:
			}
		}
		for range 1000 {
			n.Stats()
		}
		select {
		case err := <-done:
			require.NoError(t, err)
			return true
		default:
			require.NoError(t, <-done)
			return false
		}
	}
	for try := 1; held(); try++ {
		require.Less(t, try, 10)
	}
}
