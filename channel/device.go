package channel

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sluice-hpc/sluice/verbs"
)

// device is an open device: what queue pairs and memory come from.
type device struct {
	node   *Node
	port   port // as it was asked for
	ctx    *verbs.Context
	pd     *verbs.PD
	mapped bool               // peers' memory is loaded and stored
	sges   int                // of one work request
	reads  int                // SGEs of one RDMA_READ; 0: not supported
	inline int                // bytes of one inline send
	events *verbs.CompChannel // of the CQs of queues
	pool   *receivePool       // of receives; nil: each queue has its own
	sends  *sendPool
	rdma   bool        // the program's settings for RDMA devices apply
	lost   atomic.Bool // the device is gone

	registered registry // user memory
	rings      ringPool // if it is mapped

	kicked   chan struct{} // capacity 1
	mu       sync.Mutex
	queues   map[*verbs.CQ]*queueView
	active   []*queueView         // for the engine's next survey
	surveyed []*queueView         // empty: the former memory of active, for reuse
	failed   map[*verbs.QP]*queue // that may hold receives of the pool
}

func (n *Node) openDevice(p port) (_ *device, err error) {
	cfg := verbs.Config{Secret: n.job.Secret(), Insecure: n.job.Secret() == nil, Job: n.job.ID(), Address: p.address, Port: p.number, PeerTimeout: n.opt.peerTimeout, Logger: n.log}
	ctx, err := p.Open(cfg)
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
	dev := &device{node: n, port: p, ctx: ctx, rdma: p.rdma, mapped: attr.LoadStore, sges: min(attr.MaxSGE, maxSGE), reads: min(attr.MaxSGERd, maxSGE), inline: attr.MaxInlineData, queues: map[*verbs.CQ]*queueView{}, failed: map[*verbs.QP]*queue{}, kicked: make(chan struct{}, 1)}
	if !dev.mapped {
		if err := dev.suits(nil, true); err != nil { // before it takes memory
			return nil, err
		}
	}
	if dev.pd, err = ctx.AllocPD(); err != nil {
		return nil, err
	}
	if dev.mapped {
		n.wg.Go(dev.watch)
		return dev, nil
	}
	if dev.events, err = ctx.CreateCompChannel(); err != nil {
		return nil, err
	}
	if attr.MaxSRQ > 0 && attr.MaxSRQWR >= 2*receiveSlab {
		if dev.pool, err = newReceivePool(dev.pd, dev.buffer(), attr); err != nil {
			return nil, err
		}
	}
	if dev.sends, err = newSendPool(dev.pd, dev.buffer()); err != nil {
		return nil, err
	}
	n.wg.Go(dev.engine)
	n.wg.Go(dev.listen)
	n.wg.Go(dev.watch)
	return dev, nil
}

// maxSGE is the most elements of one work request.
const maxSGE = 32

// inlineMost bounds what is sent inline over RDMA: the device need not fetch it, and work
// requests stay small.
const inlineMost = 220

// buffer is the length of the longest message that is sent or received.
func (d *device) buffer() int { return headerSize + max(d.crossovers().eager, addrSize) }

func (d *device) provider() string { return d.ctx.Device().Provider() }

// newLink makes a queue pair that uses the address, with buffers if messages go through it.
func (d *device) newLink(address string) (_ *link, err error) {
	l := &link{dev: d, buffer: d.buffer(), pool: d.pool}
	if l.gid = d.node.opt.connect.SGIDIndex; l.gid == 0 || !d.rdma {
		l.gid, _ = d.gid(address)
	}
	cqe, limits := 4, verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}
	if !d.mapped {
		limits = verbs.QPCap{MaxSendWR: queueSends + queueWrites + queueReads + 1, MaxRecvWR: queueRecvs + 1, MaxSendSGE: d.sges, MaxRecvSGE: 1}
		cqe = limits.MaxSendWR + limits.MaxRecvWR
		if d.rdma {
			limits.MaxInlineData = min(d.inline, inlineMost)
		}
	}
	if l.cq, err = d.ctx.CreateCQ(cqe, d.events); err != nil {
		return nil, err
	}
	init := verbs.QPInitAttr{SendCQ: l.cq, RecvCQ: l.cq, Cap: limits}
	if d.pool != nil {
		init.SRQ, init.Cap.MaxRecvWR, init.Cap.MaxRecvSGE = d.pool.srq, 0, 0
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	for l.qp, err = d.pd.CreateQP(init); err != nil; l.qp, err = d.pd.CreateQP(init) {
		// A device may support its maximum of SGEs only with fewer work requests.
		if init.Cap.MaxSendSGE == 1 || errors.Is(err, verbs.ErrClosed) {
			return nil, err
		}
		init.Cap.MaxSendSGE /= 2
	}
	if d.mapped {
		return l, nil
	}
	if d.pool == nil {
		if l.recvs, err = d.pd.AllocMR(queueRecvs*l.buffer, verbs.AccessLocalWrite); err != nil {
			return nil, err
		}
		for i := range queueRecvs {
			l.again(i)
		}
	}
	return l, nil
}

// watch handles the asynchronous events of the device.
func (d *device) watch() {
	log := d.node.log.With("device", d.ctx.Device().Name())
	for {
		e, err := d.ctx.AsyncEvent(d.node.life)
		if err != nil {
			return
		}
		level := slog.LevelDebug
		switch e.Type {
		case verbs.EventPortErr, verbs.EventPortActive, verbs.EventDeviceFatal, verbs.EventSRQErr:
			level = slog.LevelInfo
		}
		log.Log(d.node.life, level, "channel: event of a device", "event", e.Type, "port", e.Port)
		switch e.Type {
		case verbs.EventSRQLimitReached:
			if err := d.pool.grow(); err != nil {
				log.Warn("channel: cannot add receives to the pool", "error", err)
			}
		case verbs.EventQPFatal, verbs.EventQPReqErr, verbs.EventQPAccessErr:
			if q := d.queueOf(e.QP); q != nil {
				q.lock.Lock()
				q.poll() // it may have more to say
				q.broken(q.link.explain(fmt.Errorf("queue pair: event %v", e.Type)))
				q.lock.Unlock()
			} else if p := d.node.peerOf(e.QP); d.mapped && p != nil {
				p.unmapped()
				p.node.sleepers.WakeAll() // it may be what ends the messages of a peer that has failed
			}
		case verbs.EventQPLastWQEReached:
			if q := d.queueOf(e.QP); q != nil {
				q.lock.Lock()
				if q.failed {
					q.drain()
				}
				q.lock.Unlock()
				d.mu.Lock()
				delete(d.failed, e.QP)
				d.mu.Unlock()
			}
		case verbs.EventDeviceFatal, verbs.EventSRQErr:
			d.fatal(e.Type)
		}
	}
}

// peerOf returns the peer of a queue pair; nil without one.
func (n *Node) peerOf(qp *verbs.QP) *peer {
	n.mu.Lock()
	all := n.allPeers()
	n.mu.Unlock()
	for _, p := range all {
		p.mu.Lock()
		is := p.link != nil && p.link.qp == qp
		p.mu.Unlock()
		if is {
			return p
		}
	}
	return nil
}

// fatal fails all peers connected through the device, which is gone.
func (d *device) fatal(e verbs.EventType) {
	d.lost.Store(true)
	d.mu.Lock()
	list := slices.Collect(maps.Values(d.queues))
	d.mu.Unlock()
	for _, a := range list {
		d.node.wg.Go(func() {
			a.peer.fail(fmt.Errorf("%w: device %s: event %v", ErrUnreachable, d.ctx.Device().Name(), e))
		})
	}
}

// close closes the device. Errors of a device that is gone are only logged.
func (d *device) close() error {
	err := d.ctx.Close()
	if err != nil && d.lost.Load() {
		d.node.log.Info("channel: closing a device that is gone failed", "device", d.ctx.Device().Name(), "error", err)
		return nil
	}
	return err
}
