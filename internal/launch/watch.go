package launch

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"sync"
	"time"

	"github.com/sluice-hpc/sluice/internal/reap"
)

// child is the process of one rank.
type child struct {
	index int       // of its job
	far   *agent    // which has it; nil: this process
	cmd   *exec.Cmd // nil if far

	mu     sync.Mutex
	reaped bool // its number may soon belong to another process
}

// exit reports that a rank has ended.
type exit struct {
	rank, status int
	lost         error // with its host; the same of all ranks there
}

// signal sends s to the group of the child, if the child is still there.
func (c *child) signal(s os.Signal) {
	if c.far != nil {
		c.far.signal(c.index, s)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.reaped {
		signalGroup(c.cmd.Process, s)
	}
}

// ended ends what is left of the group of the child, which has ended.
func (c *child) ended() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reaped = true
	signalGroup(c.cmd.Process, os.Kill)
}

// watch decides what happens to the ranks of a job.
//
//	starting ──(all started)──→ running ──(end)──→ ending ──(KillGrace)──→ killing
//	   └───────────────(end, or a signal that means it)──────↗                ↑
//	                                 running ──(SIGTERM)──(KillGrace)─────────┘
//
// In every state, it finishes when all ranks that were started have ended and no others will be
// started.
type watch struct {
	*job
	orders  chan ranks // to fork
	started chan batch // by fork; one for each order
	exits   chan exit
	signals chan os.Signal
	fleet   *fleet // in place of fork; nil: none

	ordered  int         // ranks that have been started, or are being
	busy     int         // batches to come: of fork, or at least one of each agent
	held     []os.Signal // for all ranks, while some have not been started
	ending   bool
	killing  bool
	expiring bool // SIGTERM has been forwarded, and KillGrace runs
	requests int  // signals that mean to end the program
	deadline *time.Timer
	patience *time.Timer // with output, once a signal has asked for the end
}

// newWatch intercepts the signals that are to be forwarded. A signal that this process was told to
// ignore, as by nohup(1), stays ignored.
func newWatch(j *job) *watch {
	w := &watch{
		job:      j,
		orders:   make(chan ranks),
		started:  make(chan batch),
		exits:    make(chan exit, j.Size),
		signals:  make(chan os.Signal, 16),
		deadline: time.NewTimer(0),
	}
	w.deadline.Stop()
	w.patience = time.AfterFunc(time.Hour, j.out.abandon)
	w.patience.Stop()
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

// untilAllEnded starts the ranks and returns when none is left. The error is that of the start,
// joined with that of ctx.
func (w *watch) untilAllEnded(ctx context.Context) (err error) {
	canceled, aborted := ctx.Done(), (<-chan struct{})(nil)
	if w.server != nil {
		aborted = w.server.Aborted()
	}
	if w.fleet != nil {
		w.ordered, w.busy = w.Size, len(w.fleet.agents)
	}
	for alive := 0; w.busy > 0 || alive > 0 || w.starting(); {
		// While a batch is being started, start no more ranks, which may no longer be wanted, and
		// forward no signals, because not all recipients are known.
		var orders chan<- ranks
		signals := w.signals
		next := ranks{w.ordered, min(w.ordered+batchSize, w.Size)}
		switch {
		case w.fleet != nil:
		case w.busy > 0:
			signals = nil
		case w.starting() && len(w.signals) == 0 && ctx.Err() == nil:
			orders = w.orders
		}
		select {
		case orders <- next:
			w.busy, w.ordered = 1, next.end
		case b := <-w.started:
			if !b.more {
				w.busy--
			}
			alive += len(b.children)
			w.adopt(b.children)
			if w.part != nil {
				w.part.started(w, b)
				continue
			}
			if b.err != nil {
				err = errors.Join(err, b.err)
				w.end()
			}
			w.forwardHeld()
		case e := <-w.exits:
			alive--
			if e.lost != nil && !w.ending && !errors.Is(err, e.lost) {
				err = errors.Join(err, e.lost)
			}
			w.result.Status[e.rank] = e.status
			w.gone(e.rank, e.lost)
			if e.status != 0 {
				w.failed(e.rank)
			}
		case o := <-w.part.orders():
			w.part.obey(w, o)
		case s := <-signals:
			w.forward(s)
		case <-aborted:
			aborted = nil
			w.end()
		case <-canceled:
			canceled = nil
			err = errors.Join(err, ctx.Err())
			w.end()
		case <-w.deadline.C:
			w.kill()
		}
	}
	for rank, c := range w.children {
		if c == nil {
			w.gone(rank, nil)
		}
	}
	return err
}

// gone tells the rendezvous, or the launcher of an agent, that a process has ended, or that its host has
// been lost.
func (w *watch) gone(index int, lost error) {
	switch {
	case w.part != nil:
		w.part.exited(w, index)
	case lost != nil:
		w.server.Lost(index, lost)
	default:
		w.server.Ended(index)
	}
}

// starting says whether there are ranks still to be started.
func (w *watch) starting() bool {
	return (w.ordered < w.Size || w.fleet != nil && w.busy > 0) && !w.ending && !w.part.stopped()
}

// adopt records ranks that have been started. If the others are ending, these end at once.
func (w *watch) adopt(children []*child) {
	for _, c := range children {
		w.children[c.index] = c
		if c.far == nil {
			go func() { w.exits <- exit{c.index, exitStatus(reap.Wait(c.cmd, c.ended)), nil} }()
		}
		switch {
		case w.killing:
			c.signal(os.Kill)
		case w.ending:
			c.dismiss()
		}
	}
}

// dismiss asks the child to end.
func (c *child) dismiss() {
	c.signal(terminate)
	for _, s := range continueSignals {
		c.signal(s) // a stopped process would not notice
	}
}

func (w *watch) failed(rank int) {
	if w.ending && w.requests < 2 {
		return // we ended it ourselves: another failure is the reason to report
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
		if c != nil {
			c.signal(s)
		}
	}
}

// end asks the ranks to end, and kills them after KillGrace. No more are started.
func (w *watch) end() {
	if w.ending {
		return
	}
	w.ending = true
	w.fleet.stop()
	if w.expiring {
		return // they have been asked
	}
	if w.KillGrace < 0 {
		w.kill()
		return
	}
	for _, c := range w.children {
		if c != nil {
			c.dismiss()
		}
	}
	w.deadline.Reset(w.KillGrace)
}

func (w *watch) kill() {
	w.killing = true
	w.signal(os.Kill)
	w.fleet.kill()
}

// forwardHeld forwards the signals that arrived during the start.
func (w *watch) forwardHeld() {
	if w.starting() {
		return
	}
	for _, s := range w.held {
		w.forward(s)
	}
	w.held = nil
}

// forward passes a signal on. The ranks may react to the first signal that means to end the
// program, to SIGTERM for as long as KillGrace, unless it comes before all ranks are there: an incomplete job cannot react. A second one
// means that the user has waited long enough, and a third one that the user does not want to wait
// at all.
func (w *watch) forward(s os.Signal) {
	if !slices.Contains(endSignals, s) {
		if w.starting() {
			w.held = append(w.held, s)
			return
		}
		w.signal(s)
		if slices.Contains(stopSignals, s) {
			w.fleet.flush() // a process that is stopped writes nothing
			stopSelf()
		}
		return
	}
	if w.requests++; w.requests == 1 && w.starting() {
		w.result.Interrupted = s
		w.requests++
	}
	switch w.requests {
	case 1:
		w.signal(s)
		if s == terminate { // it comes from a batch system or a service manager, which kills this process next
			w.expiring = true
			w.patience.Reset(max(w.KillGrace, 0) + settle)
			w.deadline.Reset(max(w.KillGrace, 0))
		}
	case 2:
		if !w.expiring {
			w.patience.Reset(max(w.KillGrace, 0) + settle)
		}
		w.end()
	default:
		w.kill()
	}
}
