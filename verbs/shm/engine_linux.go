package shm

import (
	"sync/atomic"
	"time"

	"github.com/sluice-hpc/sluice/internal/wait"
)

// engineTick is how long a CQ may go without being polled before the engine serves it.
// While a CQ is being polled, the engine wakes that often and does nothing: about 0.5 % of
// a CPU.
const engineTick = time.Millisecond

// engine makes progress on the QPs that the program does not poll. It arms their inboxes and sleeps on
// the context's doorbell, which a peer rings after writing to an armed inbox. It arms,
// executes a barrier, checks once more, then sleeps, so it misses no message. While no inbox
// is armed it sleeps on a timer: a long system call makes the runtime's monitor wake every
// 20 µs, on a CPU that a polling goroutine could use.
func (c *Context) engine() {
	nap := time.NewTimer(engineTick)
	defer nap.Stop()
	for {
		bell := atomic.LoadUint32(&c.ctrl.doorbell)
		select {
		case <-c.closing:
			return
		default:
		}
		attended := c.survey()
		sleep := time.Duration(0)
		if attended {
			sleep = engineTick
		}
		again := false
		qps := *c.allQPs.Load()
		armed, watched := false, false
		for _, q := range qps {
			armed = q.watch() || armed
		}
		if armed && !c.fenced {
			wait.Barrier()
		}
		for _, q := range qps {
			if !q.watched.Load() {
				continue
			}
			watched = true
			q.Lock.Lock()
			q.progress(nil)
			again = again || q.todo.Load() == todoNow
			q.Unlock()
		}
		now := c.now()
		for _, q := range qps {
			d := q.deadline.Load()
			if d == 0 {
				continue
			}
			if d <= now {
				q.expire(now)
				continue
			}
			if left := time.Duration(d - now); sleep == 0 || left < sleep {
				sleep = left
			}
		}
		switch {
		case again:
		case attended && !watched:
			nap.Reset(sleep)
			select {
			case <-c.kicked:
			case <-nap.C:
			}
		default:
			wait.FutexWait(&c.ctrl.doorbell, bell, sleep)
		}
	}
}

// survey finds out which CQs are being polled, and says whether any is.
func (c *Context) survey() bool {
	attended := false
	for _, q := range *c.allCQs.Load() {
		p := q.Polls()
		q.polled = p != q.lastPolls
		q.lastPolls = p
		attended = attended || q.polled
	}
	return attended
}

// watch decides whether the engine serves the QP. It does if neither CQ is being polled
// (polling either one makes progress on all of the QP), or if one is armed. watch sets in the
// inbox whether the peer's messages must wake the engine, and says whether that is new.
func (q *QP) watch() bool {
	watched := !q.scq.polled && !q.rcq.polled || q.scq.Armed() || q.rcq.Armed()
	q.watched.Store(watched)
	q.Lock.Lock()
	defer q.Unlock()
	in := q.in.Load()
	if in == nil {
		return false
	}
	if !watched {
		if atomic.LoadUint64(&in.notify)&notifyWake != 0 {
			atomic.AndUint64(&in.notify, ^uint64(notifyWake))
		}
		return false
	}
	return atomic.OrUint64(&in.notify, notifyWake)&notifyWake == 0
}
