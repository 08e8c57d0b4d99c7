package channel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/sluice-hpc/sluice/verbs"
)

// device is an open device: what queue pairs and memory come from.
type device struct {
	node   *Node
	ctx    *verbs.Context
	pd     *verbs.PD
	mapped bool               // peers' memory is loaded and stored
	sges   int                // of one work request
	reads  int                // SGEs of one RDMA_READ; 0: there is none
	events *verbs.CompChannel // of the CQs of queues

	kicked chan struct{} // capacity 1
	mu     sync.Mutex
	queues map[*verbs.CQ]*attended
	cancel context.CancelFunc // ends what the engine waits in
}

// attended is a queue as the engine sees it.
type attended struct {
	*queue
	seen  uint64 // polls
	armed bool
}

func (n *Node) openDevice(d *verbs.Device, address string) (_ *device, err error) {
	cfg := verbs.Config{Secret: n.job.Secret(), Insecure: n.job.Secret() == nil, Job: n.job.ID(), Address: address, PeerTimeout: n.opt.peerTimeout, Logger: n.log}
	ctx, err := d.Open(cfg)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, ctx.Close())
		}
	}()
	attr, err := ctx.QueryDevice()
	if err != nil {
		return nil, err
	}
	dev := &device{node: n, ctx: ctx, mapped: attr.LoadStore, sges: min(attr.MaxSGE, maxSGE), reads: min(attr.MaxSGERd, maxSGE), queues: map[*verbs.CQ]*attended{}, kicked: make(chan struct{}, 1)}
	if dev.pd, err = ctx.AllocPD(); err != nil {
		return nil, err
	}
	if dev.mapped {
		return dev, nil
	}
	if dev.events, err = ctx.CreateCompChannel(); err != nil {
		return nil, err
	}
	n.wg.Go(dev.engine)
	return dev, nil
}

// maxSGE is the most elements of one work request.
const maxSGE = 32

func (d *device) provider() string { return d.ctx.Device().Provider() }

// newLink makes a queue pair, with buffers if messages are to go through it.
func (d *device) newLink() (_ *link, err error) {
	l := &link{dev: d, buffer: headerSize + eagerQueued}
	cqe, limits := 4, verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}
	if !d.mapped {
		limits = verbs.QPCap{MaxSendWR: queueSends + queueWrites + queueReads, MaxRecvWR: queueRecvs + 1, MaxSendSGE: d.sges, MaxRecvSGE: 1}
		cqe = limits.MaxSendWR + limits.MaxRecvWR
	}
	if l.cq, err = d.ctx.CreateCQ(cqe, d.events); err != nil {
		return nil, err
	}
	if l.qp, err = d.pd.CreateQP(verbs.QPInitAttr{SendCQ: l.cq, RecvCQ: l.cq, Cap: limits}); err != nil {
		return nil, errors.Join(err, l.cq.Close())
	}
	if d.mapped {
		return l, nil
	}
	if l.recvs, err = d.pd.AllocMR(queueRecvs*l.buffer, verbs.AccessLocalWrite); err != nil {
		return nil, errors.Join(err, l.qp.Close(), l.cq.Close())
	}
	if l.sends, err = d.pd.AllocMR(queueSends*l.buffer, verbs.AccessLocalWrite); err != nil {
		return nil, errors.Join(err, l.qp.Close(), l.cq.Close(), l.recvs.Close())
	}
	for i := range queueSends {
		l.free = append(l.free, i)
	}
	l.recvWRs, l.recvSGEs = make([]verbs.RecvWR, queueRecvs), make([]verbs.SGE, queueRecvs)
	return l, nil
}

// add has the engine look after a queue.
func (d *device) add(q *queue) {
	d.mu.Lock()
	d.queues[q.link.cq] = &attended{queue: q}
	d.mu.Unlock()
	d.kick()
}

// kick makes the engine look at once.
func (d *device) kick() {
	select {
	case d.kicked <- struct{}{}:
	default:
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cancel != nil {
		d.cancel()
	}
}

// engine moves queues on whose users do not: those that compute, and those that
// sleep. While somebody polls it only looks, every now and then, whether they
// still do.
func (d *device) engine() {
	life := d.node.life
	tick := time.NewTicker(engineTick)
	defer tick.Stop()
	for life.Err() == nil {
		if d.survey() {
			select {
			case <-tick.C:
			case <-d.kicked:
			case <-life.Done():
			}
			continue
		}
		ctx, cancel := context.WithCancel(life)
		d.mu.Lock()
		d.cancel = cancel
		d.mu.Unlock()
		var cq *verbs.CQ
		var err error
		select {
		case <-d.kicked: // between the look and now
		default:
			cq, err = d.events.Get(ctx)
		}
		cancel()
		switch {
		case errors.Is(err, verbs.ErrClosed):
			return
		case cq != nil && err == nil:
			d.fired(cq)
		}
	}
}

// survey arms the queues that nobody polls, and says whether there are others.
func (d *device) survey() bool {
	sleepers := d.node.sleepers() > 0
	busy := false
	var idle []*attended
	d.mu.Lock()
	for _, a := range d.queues {
		a.lock.lock()
		polls := a.polls
		a.lock.unlock()
		switch {
		case polls != a.seen && !sleepers:
			a.seen, busy = polls, true
		case !a.armed:
			idle = append(idle, a)
		}
	}
	d.mu.Unlock()
	for _, a := range idle {
		a.armed = a.link.cq.ReqNotify(false) == nil
		a.tend()
	}
	return busy
}

// fired looks after the queue whose event has come.
func (d *device) fired(cq *verbs.CQ) {
	d.mu.Lock()
	a := d.queues[cq]
	d.mu.Unlock()
	if a != nil {
		a.armed = false
		a.tend()
	}
}

// tend does what a user would do by testing.
func (a *attended) tend() {
	a.lock.lock()
	a.poll()
	a.lock.unlock()
	a.peer.node.bell.ring()
}

// device returns the open device of a provider for a peer at the other end of
// conn: where there are several, the one that conn goes through.
func (n *Node) device(provider string, conn net.Conn) (*device, error) {
	if names := n.opt.providers; len(names) > 0 && !slices.Contains(names, provider) {
		return nil, fmt.Errorf("provider %s is not among those to use, %q", provider, names)
	}
	for _, d := range n.devices {
		if d.provider() == provider {
			return d, nil
		}
	}
	all, unlisted := verbs.Devices()
	ip := conn.LocalAddr().(*net.TCPAddr).IP
	for _, v := range all {
		if v.Provider() != provider || v.Netdev() == "" || !hasAddress(v.Netdev(), ip) {
			continue
		}
		n.opening.Lock()
		defer n.opening.Unlock()
		key := v.Name() + " " + ip.String()
		if d := n.networks[key]; d != nil {
			return d, nil
		}
		if err := n.life.Err(); err != nil {
			return nil, ErrClosed
		}
		d, err := n.openDevice(v, ip.String())
		if err == nil {
			n.networks[key] = d
			n.engines.Store(new(append(slices.Clone(*n.engines.Load()), d)))
		}
		return d, err
	}
	return nil, errors.Join(fmt.Errorf("no device of provider %s has the address %v", provider, ip), unlisted)
}

// hasAddress says whether the network interface has the address.
func hasAddress(netdev string, ip net.IP) bool {
	i, err := net.InterfaceByName(netdev)
	if err != nil {
		return false
	}
	list, err := i.Addrs()
	if err != nil {
		return false
	}
	for _, a := range list {
		if a, ok := a.(*net.IPNet); ok && a.IP.Equal(ip) {
			return true
		}
	}
	return false
}
