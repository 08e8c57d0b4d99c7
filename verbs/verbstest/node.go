package verbstest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/sluice-hpc/sluice/verbs"
)

// node is an open device and the objects made from it, by number. It is one end of a test;
// commands (see commands.go) operate on it, here or in another process.
type node struct {
	ctx    *verbs.Context
	cfg    verbs.Config // that it was opened with
	where  func(func() error) error
	pd     *verbs.PD
	other  *verbs.PD // a second domain, made when first asked for
	shared bool      // ctx belongs to another node
	last   int       // number of the newest object
	objs   map[int]object
	events *events
}

// events are the asynchronous events of a context that were read while looking
// for another one.
type events struct {
	mu   sync.Mutex
	kept []verbs.AsyncEvent
}

// object is a queue pair, region, queue or channel; the fields that do not apply
// are nil.
type object struct {
	mr   *verbs.MR
	free func() error // of mr's memory, if that is ours
	qp   *verbs.QP
	srq  *verbs.SRQ
	cq   *verbs.CQ
	ch   *verbs.CompChannel
	send *verbs.CQ // of qp
	recv *verbs.CQ // of qp
	yard *yard     // a context of its own
}

// openIn runs open where a [Suite] says.
func openIn(where func(func() error) error, open func() error) error {
	if where == nil {
		return open()
	}
	return where(open)
}

func openNode(device string, cfg verbs.Config, where func(func() error) error) (*node, error) {
	var ctx *verbs.Context
	err := openIn(where, func() error {
		dev, err := verbs.Find(device)
		if err != nil {
			return err
		}
		ctx, err = dev.Open(cfg)
		return err
	})
	if err != nil {
		return nil, err
	}
	n, err := newNode(ctx)
	if err != nil {
		return nil, errors.Join(err, ctx.Close())
	}
	n.cfg, n.where = cfg, where
	return n, nil
}

func newNode(ctx *verbs.Context) (*node, error) {
	pd, err := ctx.AllocPD()
	if err != nil {
		return nil, err
	}
	return &node{ctx: ctx, pd: pd, objs: map[int]object{}, events: &events{}}, nil
}

// beside makes a second node on the same context.
func (n *node) beside() (*node, error) {
	m, err := newNode(n.ctx)
	if err != nil {
		return nil, err
	}
	m.shared, m.events, m.cfg, m.where = true, n.events, n.cfg, n.where
	return m, nil
}

// close releases everything.
func (n *node) close() error {
	errs := []error{n.release(0)}
	if n.shared {
		for _, pd := range []*verbs.PD{n.pd, n.other} {
			if pd != nil {
				errs = append(errs, pd.Close())
			}
		}
	} else {
		errs = append(errs, n.ctx.Close())
	}
	return errors.Join(errs...)
}

func (n *node) add(o object) int {
	n.last++
	n.objs[n.last] = o
	return n.last
}

// release closes all objects with numbers above mark, dependents first; what a
// test has closed itself is passed over.
func (n *node) release(mark int) error {
	var errs []error
	end := func(err error) {
		if err != nil && !errors.Is(err, verbs.ErrClosed) {
			errs = append(errs, err)
		}
	}
	for _, closeKind := range []func(object){
		func(o object) {
			switch {
			case o.qp != nil:
				end(o.qp.Close())
			case o.yard != nil:
				end(o.yard.ctx.Close())
			}
		},
		func(o object) {
			switch {
			case o.srq != nil:
				end(o.srq.Close())
			case o.mr != nil:
				end(o.closeMR())
			case o.cq != nil:
				end(o.cq.Close())
			}
		},
		func(o object) {
			if o.ch != nil {
				end(o.ch.Close())
			}
		},
	} {
		for _, id := range n.above(mark) {
			closeKind(n.objs[id])
		}
	}
	for _, id := range n.above(mark) {
		delete(n.objs, id)
	}
	return errors.Join(errs...)
}

// closeMR closes the region and frees its memory.
func (o object) closeMR() error {
	err := o.mr.Close()
	if err == nil && o.free != nil {
		err = o.free()
	}
	return err
}

func (n *node) above(mark int) []int {
	var ids []int
	for id := range n.objs {
		if id > mark {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// domain returns the node's own protection domain, or its other one.
func (n *node) domain(other bool) (*verbs.PD, error) {
	if !other {
		return n.pd, nil
	}
	if n.other == nil {
		pd, err := n.ctx.AllocPD()
		if err != nil {
			return nil, err
		}
		n.other = pd
	}
	return n.other, nil
}

// qpSpec says how a queue pair is made. Zero fields take what openQP says.
type qpSpec struct {
	SendWR, RecvWR, SendSGE, RecvSGE, Inline int
	CQE                                      int  // of each CQ made
	SigAll                                   bool // every send is signalled
	Events                                   bool // make the CQs with a completion channel
	SRQ                                      int  // number of an SRQ to receive through
	CQOf                                     int  // number of a QP whose CQs are used
	OneCQ                                    bool // make one CQ for both sides
}

// queueDepth is how many work requests the queues of a queue pair hold, and how
// many completions its CQs, unless the test says otherwise.
const queueDepth = 16

// openQP makes a queue pair, with a send CQ and a receive CQ of its own unless
// the spec names others.
func (n *node) openQP(s qpSpec) (int, error) {
	or := func(v *int, def int) {
		if *v == 0 {
			*v = def
		}
	}
	or(&s.SendWR, queueDepth)
	or(&s.RecvWR, queueDepth)
	or(&s.SendSGE, 1)
	or(&s.RecvSGE, 1)
	or(&s.CQE, max(s.SendWR, s.RecvWR, 1))
	var o object
	if s.CQOf != 0 {
		of := n.objs[s.CQOf]
		o.send, o.recv = of.send, of.recv
	} else {
		var ch *verbs.CompChannel
		if s.Events {
			var err error
			if ch, err = n.ctx.CreateCompChannel(); err != nil {
				return 0, err
			}
			n.add(object{ch: ch})
			o.ch = ch
		}
		for _, q := range []**verbs.CQ{&o.send, &o.recv} {
			if s.OneCQ && o.send != nil {
				o.recv = o.send
				break
			}
			cq, err := n.ctx.CreateCQ(s.CQE, ch)
			if err != nil {
				return 0, err
			}
			n.add(object{cq: cq})
			*q = cq
		}
	}
	qp, err := n.pd.CreateQP(verbs.QPInitAttr{
		SendCQ: o.send, RecvCQ: o.recv, SRQ: n.objs[s.SRQ].srq, SQSigAll: s.SigAll,
		Cap: verbs.QPCap{MaxSendWR: s.SendWR, MaxRecvWR: s.RecvWR, MaxSendSGE: s.SendSGE, MaxRecvSGE: s.RecvSGE, MaxInlineData: s.Inline},
	})
	if err != nil {
		return 0, err
	}
	o.qp = qp
	return n.add(o), nil
}

// connSpec is a verbs.ConnectAttr in which every value counts.
type connSpec struct {
	Access              verbs.AccessFlags
	Timeout, RNRTimer   uint8
	Retries, RNRRetries int
}

// usual waits long for the peer and for ever for its receives.
var usual = connSpec{Access: verbs.AccessAll, Timeout: 14, Retries: 7, RNRTimer: 1, RNRRetries: 7}

func (c connSpec) attr() verbs.ConnectAttr {
	return verbs.ConnectAttr{AccessFlags: c.Access, Timeout: c.Timeout, MinRNRTimer: c.RNRTimer,
		RetryCnt: verbs.Retries(c.Retries), RNRRetry: verbs.Retries(c.RNRRetries)}
}

// await takes count completions, or as many as come before ctx ends. It blocks in
// Wait where the CQ allows it, else it polls.
func await(ctx context.Context, cq *verbs.CQ, count int) ([]verbs.WC, error) {
	wcs := make([]verbs.WC, count)
	got := 0
	for got < count {
		n, err := cq.Wait(ctx, wcs[got:])
		if errors.Is(err, verbs.ErrInvalid) { // it has a channel
			runtime.Gosched()
			if n, err = cq.Poll(wcs[got:]); n == 0 && err == nil {
				err = ctx.Err()
			}
		}
		got += n
		if err != nil {
			return wcs[:got], fmt.Errorf("waiting for %d completions, got %d: %w", count, got, err)
		}
	}
	return wcs, nil
}

// event returns the next event that match accepts; the others are kept for
// later calls.
func (n *node) event(ctx context.Context, match func(verbs.AsyncEvent) bool) (verbs.AsyncEvent, error) {
	n.events.mu.Lock()
	defer n.events.mu.Unlock()
	if i := slices.IndexFunc(n.events.kept, match); i >= 0 {
		e := n.events.kept[i]
		n.events.kept = slices.Delete(n.events.kept, i, i+1)
		return e, nil
	}
	for {
		e, err := n.ctx.AsyncEvent(ctx)
		if err != nil {
			return e, fmt.Errorf("%w; other events: %v", err, n.events.kept)
		}
		if match(e) {
			return e, nil
		}
		n.events.kept = append(n.events.kept, e)
	}
}
