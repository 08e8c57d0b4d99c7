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
// so does what waits for the network, once that is due.
func TestLetRun(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	r, w, err := os.Pipe()
	require.NoError(t, err)
	var ran, read atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		ran.Store(true)
		r.Read(make([]byte, 1))
		read.Store(true)
	})
	for range 2 { // the scheduler prefers what has yielded once in 61 times
		LetRun()
	}
	require.True(t, ran.Load())
	require.NoError(t, w.Close())
	for range 2 { // the first may only make ready
		looked.Store(now() - lookEvery)
		LetRun()
	}
	require.True(t, read.Load())
	wg.Wait()
	require.NoError(t, r.Close())
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
