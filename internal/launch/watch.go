package launch

import (
	"context"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"sync"
	"time"
)

// child is the process of one rank.
type child struct {
	cmd *exec.Cmd

	mu     sync.Mutex
	reaped bool // its number may belong to somebody else
}

// exit says that a rank has ended.
type exit struct{ rank, status int }

// wait returns the exit status of the child when it has ended, and ends what
// is left of its group.
func (c *child) wait() int {
	c.reap()
	return exitStatus(c.cmd.ProcessState)
}

// signal sends s to the group of the child, if the child is still there.
func (c *child) signal(s os.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.reaped {
		signalGroup(c.cmd.Process, s)
	}
}

// watch decides what happens to the ranks of a job.
type watch struct {
	*job
	exits   chan exit
	signals chan os.Signal

	ending   bool
	requests int // signals that mean to end the program
	deadline *time.Timer
}

// newWatch takes over the signals that are to be forwarded. One that this
// process was told to ignore, as by nohup(1), stays ignored.
func newWatch(j *job) *watch {
	w := &watch{
		job:      j,
		exits:    make(chan exit, j.Size),
		signals:  make(chan os.Signal, 16),
		deadline: time.NewTimer(0),
	}
	w.deadline.Stop()
	for _, s := range j.Signals {
		if signal.Ignored(s) {
			continue
		}
		signal.Notify(w.signals, s)
		if slices.Contains(stopSignals, s) {
			signal.Notify(w.signals, continueSignals...)
		}
	}
	return w
}

func (w *watch) close() {
	signal.Stop(w.signals)
	w.deadline.Stop()
}

// untilAllEnded returns when no rank is left. The error is that of ctx.
func (w *watch) untilAllEnded(ctx context.Context) (err error) {
	canceled, aborted := ctx.Done(), w.server.Aborted()
	for alive := len(w.children); alive > 0; {
		select {
		case e := <-w.exits:
			alive--
			w.server.Ended(e.rank)
			w.result.Status[e.rank] = e.status
			if e.status != 0 {
				w.failed(e.rank)
			}
		case s := <-w.signals:
			w.forward(s)
		case <-aborted:
			aborted = nil
			w.end()
		case <-canceled:
			canceled = nil
			err = ctx.Err()
			w.end()
		case <-w.deadline.C:
			w.signal(os.Kill)
		}
	}
	return err
}

func (w *watch) failed(rank int) {
	if w.ending && w.requests < 2 {
		return // it is our own doing, and there is another reason to tell
	}
	if w.result.First < 0 {
		w.result.First = rank
	}
	if w.OnFailure == Kill {
		w.end()
	}
}

func (w *watch) signal(s os.Signal) {
	for _, c := range w.children {
		c.signal(s)
	}
}

// end asks the ranks to end, and makes them after KillGrace.
func (w *watch) end() {
	if w.ending {
		return
	}
	w.ending = true
	if w.KillGrace < 0 {
		w.signal(os.Kill)
		return
	}
	w.signal(terminate)
	for _, s := range continueSignals {
		w.signal(s) // one that is stopped would not hear
	}
	w.deadline.Reset(w.KillGrace)
}

// forward passes a signal on. The first that means to end the program is for
// the ranks to react to; who sends a second one has waited long enough, and a
// third one does not want to wait at all.
func (w *watch) forward(s os.Signal) {
	if !slices.Contains(endSignals, s) {
		w.signal(s)
		if slices.Contains(stopSignals, s) {
			stopSelf()
		}
		return
	}
	w.requests++
	switch w.requests {
	case 1:
		w.signal(s)
	case 2:
		w.end()
	default:
		w.signal(os.Kill)
	}
}
