//go:build unix

package netpoll_test

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/leak"
	"github.com/sluice-hpc/sluice/internal/netpoll"
)

func TestMain(m *testing.M) { leak.Main(m) }

// TestLook: where there is one CPU for Go, what has come runs within a few calls; more while a thread of this
// process that has taken it waits for a CPU.
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
	looks := 0
	for i := range int64(1000) {
		_, err := w.Write([]byte{1})
		require.NoError(t, err)
		for ; read.Load() == i; looks++ {
			netpoll.Look()
		}
	}
	require.Less(t, looks, 1_000_000) // the scheduler looks by itself after some 80,000 yields
	require.NoError(t, w.Close())
	wg.Wait()
	require.NoError(t, r.Close())
}

// TestBeside: a call returns although another goroutine is always ready to run.
func TestBeside(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var yields int
	var over atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for ; !over.Load(); yields++ {
			runtime.Gosched()
		}
	})
	for range 20 {
		netpoll.Look()
	}
	over.Store(true)
	wg.Wait()
	require.Less(t, yields, 200_000) // there are 60,000 to 100,000 until the scheduler looks by itself, each time
}

// TestWithoutDescriptors: a call that could not open the pipe does nothing, and a later one opens it.
func TestWithoutDescriptors(t *testing.T) {
	var limit syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	none := limit
	none.Cur = 0
	var d netpoll.Doorbell
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none))
	d.Look()
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit))
	require.False(t, d.Ready())
	d.Look()
	require.True(t, d.Ready())
	require.NoError(t, d.Close())
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
