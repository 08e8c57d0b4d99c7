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
// once more, then sleeping: no message is missed.
func (c *Context) engine() {
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
		armed := false
		for _, q := range qps {
			armed = q.arm() || armed
		}
		if armed && !c.fenced {
			wait.Barrier()
		}
		for _, q := range qps {
			if !q.unattended() {
				continue
			}
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
		if !again {
			wait.FutexWait(&c.ctrl.doorbell, bell, sleep)
		}
	}
}

// survey finds out which CQs somebody polls, and says whether any.
func (c *Context) survey() bool {
	attended := false
	for _, q := range *c.allCQs.Load() {
		p := q.Polls()
		polled := p != q.lastPolls && !q.Armed()
		q.lastPolls = p
		q.unattended.Store(!polled)
		attended = attended || polled
	}
	return attended
}

// unattended says that completions of the QP go to a CQ that nobody polls.
func (q *QP) unattended() bool { return q.scq.unattended.Load() || q.rcq.unattended.Load() }

// arm tells the peer whether its messages are to wake the engine; it says
// whether they newly are.
func (q *QP) arm() bool {
	in := q.in.Load()
	if in == nil {
		return false
	}
	if !q.unattended() {
		if atomic.LoadUint32(&in.armed) != 0 {
			atomic.StoreUint32(&in.armed, 0)
		}
		return false
	}
	return atomic.CompareAndSwapUint32(&in.armed, 0, 1)
}
