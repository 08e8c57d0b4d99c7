package verbs

import (
	"context"
	"io"
	"sync"

	"github.com/sluice-hpc/sluice/internal/machine"
	"github.com/sluice-hpc/sluice/internal/wait"
)

// CQ is a completion queue (struct ibv_cq).
type CQ struct {
	object
	prov    ProviderCQ
	channel *CompChannel
	cqe     int
	how     wait.Setting // of Wait
	once    sync.Once
	policy  *wait.Policy // from the first Wait on
}

// Cap returns the number of entries that the CQ was created with.
func (q *CQ) Cap() int { return q.cqe }

// Poll takes up to len(wcs) completions (ibv_poll_cq) and returns how many, 0 if the
// queue is empty. It never blocks. On a CQ with a channel, a count below len(wcs)
// means that the queue was empty; on a CQ without one, more completions may be ready.
// An error means that the queue itself is broken ([ErrCQOverrun]) or closed; a failed
// operation is a completion with a status.
func (q *CQ) Poll(wcs []WC) (int, error) {
	if q.closed.Load() {
		return 0, q.closedErr("poll CQ")
	}
	return q.prov.Poll(wcs)
}

// ReqNotify arms the CQ (ibv_req_notify_cq): the next completion to be added (with
// solicitedOnly, the next solicited or failed one) sends one event to the CQ's
// channel. Completions already in the queue send none: arm, poll once more, then
// block. On a CQ without a channel it returns [ErrInvalid].
func (q *CQ) ReqNotify(solicitedOnly bool) error {
	if q.closed.Load() {
		return q.closedErr("request notification")
	}
	if q.channel == nil {
		return q.ctx.errorf("request notification", ErrInvalid, "the CQ was created without a completion channel")
	}
	return q.prov.ReqNotify(solicitedOnly)
}

// Wait polls until there is a completion, the queue breaks, or ctx ends. It returns
// what Poll returns, or the error of ctx. It spins for as long as earlier waits show that it
// pays, at most a millisecond, then sleeps; a process with one CPU yields instead of spinning, and
// SLUICE_WAIT may say otherwise. It is only for CQs without a channel; with one, block in
// [CompChannel.Get].
func (q *CQ) Wait(ctx context.Context, wcs []WC) (int, error) {
	if q.channel != nil {
		return 0, q.ctx.errorf("wait for completion", ErrInvalid, "the CQ has a completion channel; call CompChannel.Get instead")
	}
	if len(wcs) == 0 {
		return 0, q.ctx.errorf("wait for completion", ErrInvalid, "no room for completions")
	}
	q.once.Do(func() {
		q.policy = wait.NewPolicy(q.how, waitBatches, twoProcesses())
	})
	glances := q.policy.Glances()
	w := q.policy.Begin()
	defer w.End()
	for {
		looks := spinLooks
		if q.policy.Sharing() == wait.Crowded {
			looks = 1
		}
		if n, err := q.PollSpin(wcs, looks); n > 0 || err != nil {
			return n, err
		}
		if glances--; glances > 0 || w.Spinning() {
			continue
		}
		step := w.Check()
		wait.LetRun() // the other end may be a goroutine of this process
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		switch step {
		case wait.GiveWay:
			w.GiveWay()
		case wait.Sleep:
			if err := q.prov.Block(ctx); err != nil {
				return 0, err
			}
			w.Woken()
		}
	}
}

// PollSpin polls up to looks times, until Poll would return a completion or an error.
// If calling the provider costs more than a poll, as with libibverbs, all looks are
// one call, and concurrent polls of the queue wait for it.
func (q *CQ) PollSpin(wcs []WC, looks int) (int, error) {
	if s, ok := q.prov.(SpinPoller); ok {
		if q.closed.Load() {
			return 0, q.closedErr("poll CQ")
		}
		return s.PollSpin(wcs, looks)
	}
	for range looks {
		if n, err := q.Poll(wcs); n > 0 || err != nil {
			return n, err
		}
		wait.Pause(1)
	}
	return 0, nil
}

// spinLooks is how often a provider polls within one call: a few microseconds, so that
// neither concurrent polls nor the garbage collector wait for long.
const spinLooks = 128

// twoProcesses is what a queue knows of the CPUs of this process and of the other end, which may most
// likely run on the same ones.
var twoProcesses = sync.OnceValue(func() *wait.CPUs {
	self := machine.Self()
	return wait.NewCPUs(machine.Population{self, self}.Sharing)
})

// waitBatches is how often Wait polls so often in a row before it lets goroutines run.
const waitBatches = 8

// Close destroys the queue (ibv_destroy_cq). It returns [ErrBusy] while queue pairs use it.
func (q *CQ) Close() error { return end("close CQ", q) }

func (q *CQ) rank() int           { return rankCQ }
func (q *CQ) provider() io.Closer { return q.prov }

func (q *CQ) letGo() {
	if q.channel != nil {
		q.channel.users--
	}
}

func (q *CQ) closedErr(op string) error { return q.ctx.errorf(op, ErrClosed, "CQ") }

// CompChannel is a completion event channel (struct ibv_comp_channel): armed CQs
// send their events to it.
type CompChannel struct {
	object
	prov ProviderCompChannel
}

// FD returns a descriptor, for epoll or poll, that is readable while an event is
// pending. Do not read from it: call Get. It is valid until Close. If the platform
// has no such descriptor, the error wraps [ErrNotSupported].
func (ch *CompChannel) FD() (int, error) {
	if ch.closed.Load() {
		return -1, ch.ctx.errorf("completion channel descriptor", ErrClosed, "")
	}
	return ch.prov.FD()
}

// Get waits for an event and returns the CQ that sent it (ibv_get_cq_event), which is
// then no longer armed. It fails with the error of ctx or with [ErrClosed]. It skips
// events of CQs closed in the meantime.
func (ch *CompChannel) Get(ctx context.Context) (*CQ, error) {
	for {
		if ch.closed.Load() {
			return nil, ch.ctx.errorf("get completion event", ErrClosed, "")
		}
		pc, err := ch.prov.Get(ctx)
		if err != nil {
			return nil, err
		}
		o, _ := ch.ctx.byProv.Load(pc)
		cq, ok := o.(*CQ)
		if ok {
			return cq, nil
		}
	}
}

// Close destroys the channel (ibv_destroy_comp_channel). It returns [ErrBusy] while CQs
// use it.
func (ch *CompChannel) Close() error { return end("close completion channel", ch) }

func (ch *CompChannel) rank() int           { return rankChannel }
func (ch *CompChannel) provider() io.Closer { return ch.prov }
func (ch *CompChannel) letGo()              {}
