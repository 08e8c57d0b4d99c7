package shm

import (
	"sync/atomic"
	"time"

	"github.com/sluice-hpc/sluice/internal/wait"
)

// engineTick is how long a CQ may go without being polled before the engine
// takes care of it. While somebody polls, the engine wakes that often and does
// nothing: about 0.5 % of a CPU.
const engineTick = time.Millisecond

// engine moves what nobody polls for. It sleeps on the doorbell of the context;
// a peer rings it after writing to an inbox that is armed, which the engine does
// for the QPs whose CQs nobody attends. Arming, then a barrier, then looking
// once more, then sleeping: no message is missed. While no inbox is armed it sleeps on a
// timer: a system call that lasts keeps the runtime's monitor looking every 20 µs, on a CPU
// that who polls could have.
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

// survey finds out which CQs somebody polls, and says whether any.
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

// watch decides whether the engine takes care of the QP: if neither of its CQs
// is polled, for polling one of them moves all of the QP, or if somebody waits
// for an event. It tells the peer whether its messages are to wake the engine,
// and says whether they newly are.
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
		if atomic.LoadUint64(&in.attend)&attendWake != 0 {
			atomic.AndUint64(&in.attend, ^uint64(attendWake))
		}
		return false
	}
	return atomic.OrUint64(&in.attend, attendWake)&attendWake == 0
}
