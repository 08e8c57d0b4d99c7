//go:build unix

package netpoll_test

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/leak"
	"github.com/sluice-hpc/sluice/internal/netpoll"
)

func TestMain(m *testing.M) { leak.Main(m) }

// TestLook: where there is one CPU for Go, what has come runs before the second call has returned.
func TestLook(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	r, w, err := os.Pipe()
	require.NoError(t, err)
	var read atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		for b := make([]byte, 1); ; read.Add(1) {
			if _, err := r.Read(b); err != nil {
				return
			}
		}
	})
	for i := range int64(1000) {
		_, err := w.Write([]byte{1})
		require.NoError(t, err)
		for looks := 0; read.Load() == i; looks++ {
			require.Less(t, looks, 2)
			netpoll.Look()
		}
	}
	require.NoError(t, w.Close())
	wg.Wait()
	require.NoError(t, r.Close())
}

// TestTogether: goroutines that look at the same time do not disturb each other.
func TestTogether(t *testing.T) {
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				netpoll.Look()
			}
		})
	}
	wg.Wait()
}

func TestAllocs(t *testing.T) {
	require.Zero(t, testing.AllocsPerRun(100, netpoll.Look))
}
