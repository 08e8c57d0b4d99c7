package channel

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sluice-hpc/sluice/internal/rdmadev"
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
	inline int                // bytes of one inline send
	events *verbs.CompChannel // of the CQs of queues
	pool   *pool              // of receives; nil: each queue has its own
	rdma   bool               // what the program says of RDMA devices is for it
	lost   atomic.Bool        // the device is gone

	registered registry // user memory

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
	rdma := slices.Contains(rdmadev.Devices(), d.Name())
	cfg := verbs.Config{Secret: n.job.Secret(), Insecure: n.job.Secret() == nil, Job: n.job.ID(), Address: address, PeerTimeout: n.opt.peerTimeout, Logger: n.log}
	if rdma {
		cfg.Port = n.opt.connect.Port
	}
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
	dev := &device{node: n, ctx: ctx, rdma: rdma, mapped: attr.LoadStore, sges: min(attr.MaxSGE, maxSGE), reads: min(attr.MaxSGERd, maxSGE), inline: attr.MaxInlineData, queues: map[*verbs.CQ]*attended{}, kicked: make(chan struct{}, 1)}
	if dev.pd, err = ctx.AllocPD(); err != nil {
		return nil, err
	}
	if dev.mapped {
		return dev, nil
	}
	if dev.events, err = ctx.CreateCompChannel(); err != nil {
		return nil, err
	}
	if attr.MaxSRQ > 0 && attr.MaxSRQWR >= 2*poolSlab {
		if dev.pool, err = newPool(dev.pd, attr); err != nil {
			return nil, err
		}
	}
	n.wg.Go(dev.engine)
	n.wg.Go(dev.watch)
	return dev, nil
}

// maxSGE is the most elements of one work request.
const maxSGE = 32

// inlineMost is the most that is sent inline over RDMA: the device need not fetch it,
// and a work request stays small.
const inlineMost = 220

func (d *device) provider() string { return d.ctx.Device().Provider() }

// newLink makes a queue pair, with buffers if messages are to go through it.
func (d *device) newLink() (_ *link, err error) {
	l := &link{dev: d, buffer: headerSize + eagerQueued, pool: d.pool}
	cqe, limits := 4, verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}
	if !d.mapped {
		limits = verbs.QPCap{MaxSendWR: queueSends + queueWrites + queueReads, MaxRecvWR: queueRecvs + 1, MaxSendSGE: d.sges, MaxRecvSGE: 1}
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
		// A device may have its most SGEs with fewer work requests only.
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
	if l.sends, err = d.pd.AllocMR(queueSends*l.buffer, verbs.AccessLocalWrite); err != nil {
		return nil, err
	}
	for i := range queueSends {
		l.free = append(l.free, i)
	}
	return l, nil
}

// add has the engine look after a queue.
func (d *device) add(q *queue) {
	d.mu.Lock()
	d.queues[q.link.cq] = &attended{queue: q}
	d.mu.Unlock()
	d.kick()
}

// queueOf returns the queue of a queue pair; nil without one.
func (d *device) queueOf(qp *verbs.QP) *queue {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range d.queues {
		if a.link.qp == qp {
			return a.queue
		}
	}
	return nil
}

// watch acts upon what the device tells unasked.
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
				log.Warn("channel: no more receives", "error", err)
			}
		case verbs.EventQPFatal, verbs.EventQPReqErr, verbs.EventQPAccessErr:
			if q := d.queueOf(e.QP); q != nil {
				q.lock.lock()
				q.poll() // it may have more to say
				q.broken(fmt.Errorf("queue pair: event %v", e.Type))
				q.lock.unlock()
			}
		case verbs.EventQPLastWQEReached:
			if q := d.queueOf(e.QP); q != nil {
				q.lock.lock()
				if q.failed {
					q.drain()
				}
				q.lock.unlock()
			}
		case verbs.EventDeviceFatal, verbs.EventSRQErr:
			d.fatal(e.Type)
		}
	}
}

// fatal ends all that goes through the device, which is gone.
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

// close ends the device. One that is gone has nothing left to end.
func (d *device) close() error {
	err := d.ctx.Close()
	if err != nil && d.lost.Load() {
		d.node.log.Info("channel: closed a device that is gone", "device", d.ctx.Device().Name(), "error", err)
		return nil
	}
	return err
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
// sleep. While somebody polls others it looks, every now and then, whether they
// still do.
func (d *device) engine() {
	life := d.node.life
	for life.Err() == nil {
		ctx, cancel := context.WithCancel(life)
		if d.survey() {
			cancel()
			ctx, cancel = context.WithTimeout(life, engineTick)
		}
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
		case err == nil && cq != nil:
			d.fired(cq)
		case err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded):
			d.node.log.Warn("channel: no more events of completions", "device", d.ctx.Device().Name(), "error", err)
			d.fatal(verbs.EventDeviceFatal)
			return
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

// device returns the open device of a provider for a peer at the other end of conn,
// which has proposed remote unless that is nil. An RDMA device must have an active
// port of the peer's link layer.
func (n *Node) device(provider string, conn net.Conn, remote *verbs.Endpoint) (*device, error) {
	if names := n.opt.providers; len(names) > 0 && !slices.Contains(names, provider) {
		return nil, fmt.Errorf("provider %s is not among those to use, %q", provider, names)
	}
	for _, d := range n.devices {
		if d.provider() == provider {
			return d, nil
		}
	}
	ip := conn.LocalAddr().(*net.TCPAddr).IP
	list, err := n.candidates(provider, ip)
	if len(list) == 0 {
		return nil, errors.Join(fmt.Errorf("no device of provider %s has the address %v", provider, ip), err)
	}
	n.opening.Lock()
	defer n.opening.Unlock()
	var errs []error
	for _, c := range list {
		d, err := n.network(c)
		if err == nil {
			err = d.suits(remote)
		}
		if err == nil || n.life.Err() != nil {
			return d, err
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// candidate is a device that a peer may be reached through, and the address to use
// of it; empty: its best.
type candidate struct {
	*verbs.Device
	address string
}

// candidates lists the devices of a provider for a control connection with this
// address here: those whose network interface has it, and then the other RDMA
// devices, which need no address in common with it, those nearest to the CPUs of
// this process first. If the program names devices, these in their order.
func (n *Node) candidates(provider string, ip net.IP) ([]candidate, error) {
	all, err := verbs.Devices()
	names := n.opt.devices
	byName := map[string]candidate{}
	var same, rdma []string
	for _, v := range all {
		isRDMA := slices.Contains(rdmadev.Devices(), v.Name())
		if v.Provider() != provider || isRDMA && len(names) > 0 && !slices.Contains(names, v.Name()) {
			continue
		}
		switch {
		case v.Netdev() != "" && hasAddress(v.Netdev(), ip):
			byName[v.Name()] = candidate{v, ip.String()}
			same = append(same, v.Name())
		case isRDMA:
			byName[v.Name()] = candidate{v, ""}
			rdma = append(rdma, v.Name())
		}
	}
	order := append(same, rdmadev.Nearest(rdma, rdmadev.CPUs())...)
	if len(names) > 0 {
		slices.SortStableFunc(order, func(a, b string) int { return slices.Index(names, a) - slices.Index(names, b) })
	}
	list := make([]candidate, len(order))
	for i, name := range order {
		list[i] = byName[name]
	}
	return list, err
}

// network returns the open device of a candidate. The caller holds opening.
func (n *Node) network(c candidate) (*device, error) {
	key := c.Name() + " " + c.address
	if d := n.networks[key]; d != nil {
		return d, nil
	}
	if n.life.Err() != nil {
		return nil, ErrClosed
	}
	d, err := n.openDevice(c.Device, c.address)
	if err == nil {
		n.networks[key] = d
		n.engines.Store(new(append(slices.Clone(*n.engines.Load()), d)))
	}
	return d, err
}

// suits says why the device cannot reach the peer's endpoint, as far as that can be
// told from its ports.
func (d *device) suits(remote *verbs.Endpoint) error {
	if d.lost.Load() {
		return fmt.Errorf("device %s is gone", d.ctx.Device().Name())
	}
	attr, err := d.ctx.QueryDevice()
	if err != nil {
		return err
	}
	first, last := 1, attr.PhysPortCnt
	if port := d.node.opt.connect.Port; port != 0 && d.rdma {
		first, last = port, port
	}
	var errs []error
	for port := first; port <= last; port++ {
		p, err := d.ctx.QueryPort(port)
		switch name := d.ctx.Device().Name(); {
		case err != nil:
			errs = append(errs, err)
		case p.State != verbs.PortActive:
			errs = append(errs, fmt.Errorf("port %d of %s is %v", port, name, p.State))
		case remote != nil && p.LinkLayer != remote.LinkLayer:
			errs = append(errs, fmt.Errorf("port %d of %s is of %v, the peer's of %v", port, name, p.LinkLayer, remote.LinkLayer))
		default:
			return nil
		}
	}
	return errors.Join(errs...)
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
