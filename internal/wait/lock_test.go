package wait

import (
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Two locks, of which each is taken alone and both with one instruction: what either
// guards is one goroutine's at a time.
func TestTwoLocks(t *testing.T) {
	const mark, each = 7, 20000
	var first, second Lock
	var ofFirst, ofSecond int
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for n := 0; n < each; {
				if !first.TryLockAs(mark) {
					runtime.Gosched()
					continue
				}
				if !second.Held() {
					ofFirst++
					ofSecond++
					n++
				}
				first.Unlock()
			}
		})
		wg.Go(func() {
			for range each {
				second.Lock()
				first.Avoid(mark)
				ofSecond++
				second.Unlock()
			}
		})
		wg.Go(func() {
			for range each {
				first.Lock()
				ofFirst++
				first.Unlock()
			}
		})
	}
	wg.Wait()
	require.Equal(t, 4*each, ofFirst)
	require.Equal(t, 4*each, ofSecond)
	require.False(t, first.Held() || second.Held())
}
