package impi

import (
	"runtime"
	"time"
)

// How long no caller must have polled before a watcher polls.
const (
	watchFirst = time.Millisecond
	watchMost  = 4 * time.Millisecond
)

// watch makes progress on a source while no caller does. Unless something is awaited by what does not
// poll, it leaves the source alone as long as any caller polls, because a watcher asleep in the kernel
// costs a wake-up for every message.
func (e *engine) watch(s eventSource, kick chan struct{}) {
	var seen uint64
	pause := watchFirst
	logged := false
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		timer.Reset(pause)
		select {
		case <-e.life.Done():
			return
		case <-kick: // something is awaited that is not polled for
		case <-timer.C:
		}
		e.lock.Lock()
		looked := e.polls != seen
		seen = e.polls
		asleep := e.asleep()
		e.fetchOverdue()
		e.unpackAll()
		e.lock.Unlock()
		if looked && !asleep {
			pause = min(2*pause, watchMost)
			continue
		}
		pause = watchFirst
		if err := e.pollUntilCalled(s, &seen); err != nil {
			// A source that cannot be waited for is polled periodically.
			if !logged {
				e.log.Error("impi: cannot wait for packets, polling instead", "error", err)
			}
			logged, pause = true, watchMost
		}
	}
}

// pollUntilCalled polls a source whenever it has something, until a caller that does not sleep polls. It
// returns the error of a source that cannot be waited for.
func (e *engine) pollUntilCalled(s eventSource, seen *uint64) error {
	for {
		e.lock.Lock()
		for e.life.Err() == nil && e.pollSource(s) { // lets a caller poll in between
			if e.closing { // Close waits for more than requests
				e.ring()
			}
			e.lock.Unlock()
			runtime.Gosched()
			e.lock.Lock()
		}
		away := e.polls == *seen || e.asleep()
		if away {
			e.fetchOwed()
		}
		*seen = e.polls
		e.lock.Unlock()
		if !away || e.life.Err() != nil {
			return nil
		}
		if err := s.block(e.life); err != nil {
			if e.life.Err() != nil {
				return nil
			}
			return err
		}
	}
}
