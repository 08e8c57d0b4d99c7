package impi

import (
	"runtime"
	"time"
)

// How long nobody must have looked before a watcher does.
const (
	watchFirst = time.Millisecond
	watchMost  = 4 * time.Millisecond
)

// watch moves on what comes from a source while no user does. It leaves the source
// alone as long as some user looks: a watcher that is asleep in the kernel costs
// every message a wake-up.
func (e *engine) watch(s eventSource, kick chan struct{}) {
	var seen uint64
	pause := watchFirst
	told := false
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		timer.Reset(pause)
		select {
		case <-e.life.Done():
			return
		case <-kick: // somebody sleeps
		case <-timer.C:
		}
		e.lock.Lock()
		looked := e.polls != seen
		seen = e.polls
		asleep := e.sleepers > 0
		e.fetchOverdue()
		e.lock.Unlock()
		if looked && !asleep {
			pause = min(2*pause, watchMost)
			continue
		}
		pause = watchFirst
		if err := e.attend(s, &seen); err != nil {
			// Without an event to wait for it is polled every so often.
			if !told {
				e.log.Error("impi: cannot wait for packets", "error", err)
			}
			told, pause = true, watchMost
		}
	}
}

// attend polls a source whenever there is something, until a user looks who does not
// sleep. It returns the error of a source that cannot be waited for.
func (e *engine) attend(s eventSource, seen *uint64) error {
	for {
		e.lock.Lock()
		for e.life.Err() == nil && s.poll() { // a user who looks comes in between
			e.lock.Unlock()
			runtime.Gosched()
			e.lock.Lock()
		}
		away := e.polls == *seen || e.sleepers > 0
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
