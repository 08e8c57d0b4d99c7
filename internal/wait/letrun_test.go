//go:build unix

package wait

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLetRun: where there is one CPU for Go, what is ready runs at the second call at the latest, and
// what waits for the network within a few calls that are due.
func TestLetRun(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	r, w, err := os.Pipe()
	require.NoError(t, err)
	var ran atomic.Bool
	var read atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		ran.Store(true)
		for b := make([]byte, 1); ; read.Add(1) {
			if _, err := r.Read(b); err != nil {
				return
			}
		}
	})
	for range 2 { // the scheduler prefers what has yielded once in 61 times
		LetRun()
	}
	require.True(t, ran.Load())
	calls := 0
	for i := range int64(200) {
		_, err := w.Write([]byte{1})
		require.NoError(t, err)
		for ; read.Load() == i; calls++ {
			looked.Store(now() - lookEvery)
			LetRun()
		}
	}
	require.Less(t, calls, 1_000_000) // the scheduler looks by itself after some 80,000 yields
	require.NoError(t, w.Close())
	wg.Wait()
	require.NoError(t, r.Close())
}

// TestLetRunTogether: a caller does not keep the scheduler from the look of another.
func TestLetRunTogether(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var runs atomic.Int64
	var over atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for ; !over.Load(); runs.Add(1) {
			LetRun()
		}
	})
	for range 100 {
		looked.Store(now() - lookEvery)
		before := runs.Load()
		LetRun()
		require.Less(t, runs.Load()-before, int64(20))
	}
	over.Store(true)
	wg.Wait()
}

// TestTested: one test in a batch lets others run where there is one CPU for Go, and none elsewhere.
func TestTested(t *testing.T) {
	for _, one := range []bool{true, false} {
		p := NewPolicy(Setting{}, 64, nil)
		p.one = one
		due := now() - lookEvery
		looked.Store(due)
		for range 63 {
			p.Tested()
		}
		require.Equal(t, due, looked.Load())
		p.Tested()
		require.Equal(t, one, looked.Load() != due)
	}
}
