package wait

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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

// A waiter gets the lock although another goroutine takes it again as soon as it has released
// it, and holds it for longer than a waiter sleeps at a time.
func TestLockIsOwed(t *testing.T) {
	const rounds = 3000
	var l Lock
	var round atomic.Int32
	held := make(chan struct{})
	got := make(chan int32, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		<-held
		l.Lock()
		got <- round.Load()
		l.Unlock()
	})
	for round.Load() < rounds && len(got) == 0 {
		if !l.TryLock() {
			l.Lock()
		}
		if round.Add(1) == 1 {
			close(held)
		}
		time.Sleep(time.Millisecond)
		l.Unlock()
	}
	wg.Wait()
	require.Less(t, <-got, int32(rounds))
	require.True(t, l.TryLock(), "owed after all have had it")
	l.Unlock()
}
