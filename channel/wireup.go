package channel

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/sluice-hpc/sluice/verbs"
)

// How two ranks get from a control connection to a queue pair. The lower rank
// chooses:
//
//	lower                            higher
//	  propose: endpoint          ──▶
//	                             ◀── answer: endpoint, or why not
//	         a write with immediate both ways
//	  probed                     ◀─▶ probed
//	  use, or not                ──▶
//	  node                       ◀─▶ node
//
// until an attempt succeeds or the lower rank has no provider left, which it says
// with attempt 0.

// How long an attempt may take where every rank has a CPU, and how often it is
// looked at: less and less often, for there may be many who wait.
const (
	probeTime     = time.Second
	probePauseMin = 20 * time.Microsecond
	probePauseMax = 5 * time.Millisecond
)

// probeTime is how long an attempt to reach a rank may take: a second, and more
// where it or this one waits for a CPU, but never all of the time for connecting.
func (n *Node) probeTime(rank int) time.Duration {
	d := probeTime
	for _, host := range []uint64{n.addresses[n.rank].host, n.addresses[rank].host} {
		if ranks, cpus := population(n.addresses, host); ranks > cpus && cpus > 0 {
			d = max(d, probeTime*time.Duration(ranks)/time.Duration(cpus))
		}
	}
	return max(probeTime, min(d, n.opt.connectTimeout/3))
}

// wireUp connects to the peer, so that what has been declared can be used.
func (p *peer) wireUp(conn net.Conn, r *bufio.Reader) error {
	n := p.node
	conn.SetDeadline(time.Now().Add(n.opt.connectTimeout))
	var l *link
	var err error
	if n.rank < p.rank {
		l, err = p.propose(conn, r)
	} else {
		l, err = p.respond(conn, r)
	}
	if err != nil {
		return err
	}
	theirs, err := p.introduce(conn, r, l)
	if err != nil {
		return errors.Join(err, l.close())
	}
	return p.up(l, theirs)
}

// propose tries one provider after the other, as the lower rank.
func (p *peer) propose(conn net.Conn, r *bufio.Reader) (*link, error) {
	n := p.node
	var refusals []error
	for i, provider := range n.preference(p.rank) {
		d, err := n.device(provider, conn, nil)
		var l *link
		if err == nil {
			l, err = p.tryPropose(conn, r, d, uint8(i+1))
		}
		if l != nil {
			p.used(l, uint8(i+1))
		}
		if l != nil || errors.Is(err, errBroken) {
			return l, err
		}
		p.notUsed(provider, err)
		refusals = append(refusals, fmt.Errorf("%s: %w", provider, err))
	}
	if _, err := conn.Write(frame(nil, kindUse, verdictBody(0, false))); err != nil {
		return nil, err
	}
	if len(refusals) == 0 {
		return nil, fmt.Errorf("%w: no provider has a device here", ErrUnreachable)
	}
	return nil, fmt.Errorf("%w: no provider works: %w", ErrUnreachable, errors.Join(refusals...))
}

// used tells of the attempt that has succeeded, the lower rank's first being 1.
func (p *peer) used(l *link, attempt uint8) {
	p.node.log.Debug("channel: provider used", "peer", p.rank, "provider", l.dev.provider(), "device", l.dev.ctx.Device().Name(), "attempts", attempt)
}

// notUsed tells, counts and remembers an attempt in vain.
func (p *peer) notUsed(provider string, why error) {
	p.retries.Add(1)
	p.mu.Lock()
	p.refused(provider, why.Error())
	p.mu.Unlock()
	p.node.log.Info("channel: provider not used", "peer", p.rank, "provider", provider, "reason", why)
}

// preference lists the providers to try towards a peer: what only reaches this
// host comes last where the peer does not look as if it were here, for to find
// that out takes the time of an attempt. An order that was asked for is kept.
func (n *Node) preference(rank int) []string {
	if len(n.opt.providers) > 0 || n.addresses[rank].host == n.addresses[n.rank].host {
		return n.providers
	}
	list := slices.Clone(n.providers)
	slices.SortStableFunc(list, func(a, b string) int { return order(!n.local(a), !n.local(b)) })
	return list
}

// local says whether a provider reaches this host only.
func (n *Node) local(provider string) bool {
	return slices.ContainsFunc(n.devices, func(d *device) bool { return d.provider() == provider })
}

// errBroken: the control connection broke, or the peer broke the protocol.
var errBroken = errors.New("control connection")

func broken(err error) error { return fmt.Errorf("%w: %w", errBroken, err) }

func (p *peer) tryPropose(conn net.Conn, r *bufio.Reader, d *device, attempt uint8) (_ *link, err error) {
	l, err := d.newLink()
	if err != nil {
		return nil, err
	}
	used := false
	defer func() {
		if !used {
			err = errors.Join(err, l.close())
		}
	}()
	e, err := l.endpoint()
	if err != nil {
		return nil, err
	}
	o := offer{attempt: attempt, endpoint: e}
	body, err := o.append(nil)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Write(frame(nil, kindPropose, body)); err != nil {
		return nil, broken(err)
	}
	answer, err := expectOffer(r, kindAnswer, attempt)
	if err != nil {
		return nil, broken(err)
	}
	if answer.refusal != "" {
		return nil, fmt.Errorf("rank %d: %s", p.rank, answer.refusal)
	}
	theirs, err, xerr := p.try(conn, r, l, &answer)
	if xerr != nil {
		return nil, broken(xerr)
	}
	used = err == nil && theirs
	if _, err := conn.Write(frame(nil, kindUse, verdictBody(attempt, used))); err != nil {
		used = false
		return nil, broken(err)
	}
	switch {
	case err != nil:
		return nil, err
	case !theirs:
		return nil, fmt.Errorf("nothing has come through to rank %d", p.rank)
	}
	return l, nil
}

// respond follows what the lower rank proposes.
func (p *peer) respond(conn net.Conn, r *bufio.Reader) (*link, error) {
	for {
		k, body, err := readFrame(r)
		if err != nil {
			return nil, err
		}
		if k == kindUse {
			if a, ok, err := parseVerdict(k, body); err != nil || a != 0 || ok {
				return nil, fmt.Errorf("%w: %v of attempt %d", ErrProtocol, k, a)
			}
			return nil, fmt.Errorf("%w: rank %d has no provider that works", ErrUnreachable, p.rank)
		}
		if k != kindPropose {
			return nil, fmt.Errorf("%w: %v in place of a proposal", ErrProtocol, k)
		}
		o, err := parseOffer(k, body)
		if err != nil {
			return nil, err
		}
		if l, err := p.tryRespond(conn, r, &o); l != nil || err != nil {
			return l, err
		}
	}
}

// tryRespond answers one proposal; nil without an error means that the next is
// to be waited for.
func (p *peer) tryRespond(conn net.Conn, r *bufio.Reader, o *offer) (_ *link, err error) {
	answer := offer{attempt: o.attempt}
	var l *link
	d, err := p.node.device(o.endpoint.Provider, conn, &o.endpoint)
	if err == nil {
		l, err = d.newLink()
	}
	if err == nil {
		answer.endpoint, err = l.endpoint()
	}
	if err != nil {
		answer.refusal = err.Error()
	}
	used := false
	defer func() {
		if !used && l != nil {
			if err := l.close(); err != nil { // the next attempt is not affected
				p.node.log.Warn("channel: close of a link that is not used", "peer", p.rank, "error", err)
			}
		}
	}()
	body, err := answer.append(nil)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Write(frame(nil, kindAnswer, body)); err != nil {
		return nil, err
	}
	if answer.refusal != "" {
		p.notUsed(o.endpoint.Provider, errors.New(answer.refusal))
		return nil, nil
	}
	theirs, err, xerr := p.try(conn, r, l, o)
	switch {
	case xerr != nil:
		return nil, xerr
	case err != nil:
		p.notUsed(o.endpoint.Provider, err)
	case !theirs:
		p.notUsed(o.endpoint.Provider, fmt.Errorf("nothing has come through to rank %d", p.rank))
	}
	k, body, err := readFrame(r)
	if err != nil {
		return nil, err
	}
	if k != kindUse {
		return nil, fmt.Errorf("%w: %v in place of a decision", ErrProtocol, k)
	}
	a, use, err := parseVerdict(k, body)
	if err != nil || a != o.attempt {
		return nil, fmt.Errorf("%w: decision on attempt %d during %d", ErrProtocol, a, o.attempt)
	}
	if !use {
		return nil, nil
	}
	used = true
	p.used(l, o.attempt)
	return l, nil
}

func expectOffer(r *bufio.Reader, want kind, attempt uint8) (offer, error) {
	k, body, err := readFrame(r)
	if err != nil {
		return offer{}, err
	}
	if k != want {
		return offer{}, fmt.Errorf("%w: %v in place of %v", ErrProtocol, k, want)
	}
	o, err := parseOffer(k, body)
	if err == nil && o.attempt != attempt {
		err = fmt.Errorf("%w: %v of attempt %d during %d", ErrProtocol, k, o.attempt, attempt)
	}
	return o, err
}

// try probes a link to the peer's endpoint and exchanges with the peer whether
// that succeeded: theirs says so of the peer, mine is why it did not here. A
// control connection that breaks meanwhile ends the probe: the peer has died.
func (p *peer) try(conn net.Conn, r *bufio.Reader, l *link, o *offer) (theirs bool, mine, err error) {
	ctx, cancel := context.WithCancelCause(p.node.life)
	defer cancel(nil)
	spoke := make(chan struct{})
	go func() {
		defer close(spoke)
		if _, err := r.Peek(1); err != nil { // the next that it says is its verdict
			cancel(err)
		}
	}()
	mine = l.probe(ctx, o.endpoint, p.node.probeTime(p.rank))
	_, err = conn.Write(frame(nil, kindProbed, verdictBody(o.attempt, mine == nil)))
	<-spoke
	if err != nil {
		return false, mine, err
	}
	k, body, err := readFrame(r)
	if err != nil {
		return false, mine, err
	}
	if k != kindProbed {
		return false, mine, fmt.Errorf("%w: %v in place of a probe's result", ErrProtocol, k)
	}
	a, theirs, err := parseVerdict(k, body)
	if err == nil && a != o.attempt {
		err = fmt.Errorf("%w: result of attempt %d during %d", ErrProtocol, a, o.attempt)
	}
	return theirs, mine, err
}

// introduce exchanges what the nodes have to know of each other.
func (p *peer) introduce(conn net.Conn, r *bufio.Reader, l *link) (nodeInfo, error) {
	n := p.node
	mine := nodeInfo{fenced: n.fenced}
	if l.dev.mapped {
		mine.bell = regionOf(n.bellMR)
	}
	if _, err := conn.Write(frame(nil, kindNode, mine.append(nil))); err != nil {
		return nodeInfo{}, err
	}
	k, body, err := readFrame(r)
	if err != nil {
		return nodeInfo{}, err
	}
	if k != kindNode {
		return nodeInfo{}, fmt.Errorf("%w: %v in place of an introduction", ErrProtocol, k)
	}
	return parseNode(body)
}

// up makes everything that has been declared so far work.
func (p *peer) up(l *link, theirs nodeInfo) (err error) {
	var b *bell
	if l.dev.mapped {
		mem, err := l.view(theirs.bell, bellSize)
		if err == nil {
			b, err = viewBell(mem)
		}
		if err != nil {
			return errors.Join(err, l.close())
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state.Load() >= peerFailed {
		return errors.Join(*p.err.Load(), l.close())
	}
	p.link = l
	if l.dev.mapped {
		p.bell.bell, p.fenced = b, theirs.fenced || p.node.fenced
	} else {
		if p.queue, err = newQueue(p, l); err != nil {
			return errors.Join(err, l.close())
		}
		l.dev.add(p.queue)
	}
	p.state.Store(peerUp)
	for h := range p.handles {
		if err := h.bind(p); err != nil {
			h.bindErr.Store(&err) // the others are not affected
		}
	}
	for _, s := range p.sends {
		if p.queue != nil {
			p.queue.adoptSend(s)
		} else if err := p.openRing(s); err != nil {
			return fmt.Errorf("%w: stream %d: %w", ErrUnreachable, s.number, err)
		}
	}
	if p.queue != nil {
		for _, s := range p.receives {
			p.queue.adoptReceive(s)
		}
	}
	p.node.bell.strike()
	return nil
}

// openRing makes the ring of a stream to the peer. The caller holds mu.
func (p *peer) openRing(s *sendStream) error {
	mr, err := p.link.dev.pd.AllocMR(ringSize, verbs.AccessAll)
	if err != nil {
		return err
	}
	r := newRing(mr.Bytes())
	info := streamInfo{s.number, regionOf(mr)}
	p.tell(kindStream, info.append(nil))
	s.begin(r, p.fenced)
	return nil
}

func regionOf(mr *verbs.MR) region {
	return region{mr.RKey(), mr.Addr(), uint64(mr.Len())}
}

// resolveTime is how much later than this side the other may connect to it: so long
// the kernel asks for the address of a peer on Ethernet, in Connect.
const resolveTime = time.Second

// probe connects to the peer and sees that bytes go both ways: a write with
// immediate, of no bytes.
func (l *link) probe(ctx context.Context, e verbs.Endpoint, bound time.Duration) error {
	if err := l.qp.Connect(e, l.dev.connectAttr(bound)); err != nil {
		return err
	}
	if l.dev.rdma {
		bound += resolveTime
	}
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	if l.pool == nil {
		if _, err := l.qp.PostRecv([]verbs.RecvWR{{WRID: queueRecvs}}); err != nil {
			return err
		}
		if err := l.postRecvs(); err != nil {
			return err
		}
	}
	if _, err := l.qp.PostSend([]verbs.SendWR{{Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled}}); err != nil {
		return err
	}
	var wcs [2]verbs.WC
	pause := probePauseMin
	for got := 0; got < 2; {
		k, err := l.cq.Poll(wcs[:])
		if err != nil {
			return err
		}
		if k == 0 {
			select {
			case <-ctx.Done():
				return fmt.Errorf("no write with immediate has come through: %w", context.Cause(ctx))
			case <-time.After(pause):
			}
			pause = min(2*pause, probePauseMax)
		}
		var failed error
		for i := range wcs[:k] {
			if l.pool != nil && isReceive(&wcs[i]) {
				l.again(int(wcs[i].WRID))
			}
			failed = cmp.Or(failed, wcs[i].Err())
		}
		if err := cmp.Or(failed, l.postRecvs()); err != nil {
			return err
		}
		got += k
	}
	return nil
}

// connectAttr is how a link connects that is given the bound to prove itself.
func (d *device) connectAttr(bound time.Duration) verbs.ConnectAttr {
	var a verbs.ConnectAttr
	if d.rdma {
		a = d.node.opt.connect
		if a.RetryCnt == (verbs.RetryCount{}) {
			a.RetryCnt = verbs.Retries(tries - 1)
		}
	}
	if a.Timeout == 0 {
		a.Timeout = ackTimeout(bound, d.node.opt.peerTimeout)
	}
	return a
}

// tries is how often a message is sent to a peer that does not answer. Soft-RoCE takes
// the 7 retries that would be eight tries for no end of them.
const tries = 7

// ackTimeout is the code of a local ACK timeout, which passes tries times until a
// peer is given up. A device may take up to four times as long (IBA vol. 1,
// 9.7.6.1.3): that is still within most. Shorter than bound it is not in all, for the
// other side may take as long until it connects.
func ackTimeout(bound, most time.Duration) uint8 {
	code := uint8(1)
	for ; code < 31 && (tries*verbs.AckTimeout(code) < bound || 4*tries*verbs.AckTimeout(code+1) <= most); code++ {
	}
	return code
}

// endpoint is what the peer is told: with the GID that the program has chosen.
func (l *link) endpoint() (verbs.Endpoint, error) {
	e, err := l.qp.Endpoint()
	c := &l.dev.node.opt.connect
	if err != nil || c.SGIDIndex == 0 || !l.dev.rdma {
		return e, err
	}
	a, err := l.qp.Query()
	if err == nil {
		e.GID, err = l.dev.ctx.QueryGID(int(a.PortNum), c.SGIDIndex)
	}
	return e, err
}

// close ends a link, or as much of it as has been made.
func (l *link) close() error {
	var errs []error
	if l.qp != nil {
		if l.pool != nil && l.qp.State() != verbs.QPReset {
			errs = append(errs, l.qp.Modify(&verbs.QPAttr{QPState: verbs.QPErr}, verbs.MaskState), l.drain())
		}
		errs = append(errs, l.qp.Close())
	}
	errs = append(errs, l.cq.Close())
	for _, mr := range []*verbs.MR{l.recvs, l.sends} {
		if mr != nil {
			errs = append(errs, mr.Close())
		}
	}
	return errors.Join(errs...)
}
