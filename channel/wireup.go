package channel

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/sluice-hpc/sluice/internal/limits"
	"github.com/sluice-hpc/sluice/internal/machine"
	"github.com/sluice-hpc/sluice/internal/wait"
	"github.com/sluice-hpc/sluice/verbs"
)

// This file takes two ranks from a control connection to a queue pair. The lower rank chooses:
//
//	lower                            higher
//	  propose: endpoint          ──▶
//	                                 connects, and posts receives
//	                             ◀── answer: endpoint, or why not
//	  connects, and posts receives
//	  connected, or not          ──▶
//	         a write with immediate both ways
//	  probed                     ◀─▶ probed, twice if only one of both has seen the write
//	  use, or not                ──▶
//	  node                       ◀─▶ node
//
// until an attempt succeeds or the lower rank has nothing left to propose, which it signals with
// attempt 0. Neither writes before both have connected: a write to a queue pair that is not ready
// costs a local ACK timeout, or fails.
//
// Of a provider for RDMA devices, each suitable pair of ports is tried until one works: the lower
// rank proposes one port after the other, each as long as the higher rank has a port that it has
// not tried with it yet. At first, the ports of a pair must be in one subnet.

// probeTime is how long an attempt may take if every rank has a CPU.
const probeTime = time.Second

// probeTime is how long an attempt to reach a rank may take: a second, and longer if that rank or
// this one waits for a CPU. Both poll for the other's write, so a rank without a CPU would mistake a
// working network for a broken one. Of RDMA devices there may be more to try, and their time to
// acknowledge follows from it: at most a third of the connect timeout.
func (d *device) probeTime(rank int) time.Duration {
	n, t := d.node, probeTime
	for _, ranks := range []machine.Population{n.ranks, population(n.addresses, rank)} {
		if ranks, cpus := len(ranks), ranks.Count(); ranks > cpus && cpus > 0 {
			t = max(t, probeTime*time.Duration(ranks)/time.Duration(cpus))
		}
	}
	if d.rdma {
		t = max(probeTime, min(t, n.opt.connectTimeout/3))
	}
	return t
}

// wireUp connects to the peer, so that declared handles can be used.
func (p *peer) wireUp(conn net.Conn, r *bufio.Reader) (err error) {
	n := p.node
	var gone error
	answered := n.silent.watch(p, func(why error) {
		gone = why
		conn.SetDeadline(time.Unix(1, 0))
	})
	defer func() {
		if answered(); gone != nil && err != nil {
			err = gone
		}
	}()
	w := &wiring{peer: p, conn: conn, r: r}
	var l *link
	if n.rank < p.rank {
		l, err = w.propose()
	} else {
		l, err = w.respond()
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

// wiring is the wire-up of a peer.
type wiring struct {
	*peer
	conn    net.Conn
	r       *bufio.Reader
	attempt uint8
	tried   []pair  // by the higher rank
	refused []error // by it: why proposals have failed
}

// pair is a port of this rank and one that the peer proposes, by its number.
type pair struct {
	provider string
	theirs   uint8
	device   string
	port     int
}

// maxAttempts bounds the proposals of the lower rank.
const maxAttempts = 255

// propose tries one provider after the other, as the lower rank.
func (w *wiring) propose() (*link, error) {
	n := w.node
	var refusals []error
	// The time limit for further pairs of a provider; then the next provider is tried.
	within, cancel := wait.Patience(n.life, n.opt.connectTimeout/2)
	defer cancel()
	for _, provider := range n.preference(w.rank) {
		l, err := w.proposeProvider(within, provider)
		if l != nil || errors.Is(err, errBroken) {
			return l, err
		}
		refusals = append(refusals, fmt.Errorf("%s: %w", provider, err))
	}
	if _, err := w.conn.Write(frame(nil, kindUse, verdictBody(0, false))); err != nil {
		return nil, err
	}
	if len(refusals) == 0 {
		return nil, fmt.Errorf("%w: no provider has a device here", ErrUnreachable)
	}
	return nil, fmt.Errorf("%w: no provider works: %w", ErrUnreachable, errors.Join(refusals...))
}

// What is left to try after a failed attempt.
type vain int

const (
	pairVain     vain = iota // the next port of the peer's
	portVain                 // the next port of this rank
	deadVain                 // the same, and this one never again
	providerVain             // the next provider
)

// descriptorsOfPeer is how many descriptors connecting to a peer needs at least, beside the control
// connection.
const descriptorsOfPeer = 3

// descriptors returns an error if there are too few to connect to the peer.
func (w *wiring) descriptors() error {
	if left, ok := limits.FilesLeft(descriptorsOfPeer); ok && left < descriptorsOfPeer {
		return limits.Files(fmt.Errorf("%w: %d descriptors are left, and rank %d needs %d to connect to rank %d",
			limits.ErrFiles, max(left, 0), w.node.rank, descriptorsOfPeer, w.rank))
	}
	return nil
}

// proposeProvider tries the ports of a provider.
func (w *wiring) proposeProvider(within context.Context, provider string) (*link, error) {
	ports, err := w.node.ports(provider, w.conn)
	if err != nil {
		err = limits.Files(err)
		w.notUsed(Refusal{Provider: provider, Reason: err.Error()})
		return nil, err
	}
	var refusals []error
	dead := make([]bool, len(ports))
	for _, far := range []bool{false, true} {
		for i := 0; i < len(ports); i++ {
			if dead[i] {
				continue
			}
			l, v, err := w.tryPropose(ports[i], uint8(i), far)
			if l != nil || errors.Is(err, errBroken) {
				return l, err
			}
			refusals = append(refusals, err)
			switch {
			case v == providerVain || w.attempt == maxAttempts || ports[i].rdma && within.Err() != nil:
				return nil, errors.Join(refusals...)
			case v == deadVain:
				dead[i] = true
			case v == pairVain && ports[i].rdma:
				i--
			}
		}
		if !ports[0].rdma {
			break
		}
	}
	return nil, errors.Join(refusals...)
}

// used logs the successful attempt; the lower rank's first is 1.
func (p *peer) used(l *link, attempt uint8) {
	p.node.log.Debug("channel: provider used", "peer", p.rank, "provider", l.dev.provider(), "device", l.dev.port.Name(), "attempts", attempt)
}

// notUsed logs, counts and records a failed attempt.
func (p *peer) notUsed(r Refusal) {
	p.retries.Add(1)
	p.mu.Lock()
	p.refused(r)
	p.mu.Unlock()
	p.node.log.Info("channel: provider not used", "peer", p.rank, "provider", r.Provider, "reason", r.Reason, "device", r.Device)
}

// preference lists the providers to try for a peer. Those that only reach this host come last if
// the peer appears to be elsewhere, because a failed attempt takes time. An order set by the
// program is kept.
func (n *Node) preference(rank int) []string {
	if len(n.opt.providers) > 0 && n.opt.source == "" || n.addresses[rank].host == n.addresses[n.rank].host {
		return n.providers
	}
	far := slices.DeleteFunc(slices.Clone(n.providers), n.local)
	near := slices.DeleteFunc(slices.Clone(n.providers), func(p string) bool { return !n.local(p) })
	return append(far, near...)
}

// local says whether a provider reaches this host only.
func (n *Node) local(provider string) bool {
	return slices.ContainsFunc(n.devices, func(d *device) bool { return d.provider() == provider })
}

// errBroken: the control connection broke, or the peer broke the protocol.
var errBroken = errors.New("control connection")

func broken(err error) error { return fmt.Errorf("%w: %w", errBroken, err) }

// tryPropose proposes a port; if it fails, it returns what is left to try, and why.
func (w *wiring) tryPropose(from port, number uint8, far bool) (_ *link, _ vain, err error) {
	v := deadVain
	used, said := false, ""
	var l *link
	defer func() {
		if !used && l != nil {
			err = errors.Join(err, l.close())
		}
		err = limits.Files(err)
		if !used && said != noOther && !errors.Is(err, errBroken) {
			w.notUsed(Refusal{from.Provider(), from.Name(), err.Error()})
		}
	}()
	d, err := w.node.device(from)
	if err == nil {
		err = w.descriptors()
	}
	if err != nil {
		return nil, v, err
	}
	if l, err = d.newLink(from.address); err != nil {
		return nil, v, err
	}
	e, err := l.endpoint()
	if err != nil {
		return nil, v, err
	}
	w.attempt++
	o := offer{attempt: w.attempt, port: number, far: far, endpoint: e}
	body, err := o.append(nil)
	if err != nil {
		return nil, v, err
	}
	if _, err := w.conn.Write(frame(nil, kindPropose, body)); err != nil {
		return nil, v, broken(err)
	}
	answer, err := expectOffer(w.r, kindAnswer, w.attempt)
	if err != nil {
		return nil, v, broken(err)
	}
	if said = answer.refusal; said != "" {
		v = portVain
		if answer.final {
			v = providerVain
		}
		return nil, v, fmt.Errorf("rank %d: %s", w.rank, answer.refusal)
	}
	v = pairVain
	bound := d.probeTime(w.rank)
	cerr := l.connect(answer.endpoint, bound)
	if _, err := w.conn.Write(frame(nil, kindConnected, verdictBody(w.attempt, cerr == nil))); err != nil {
		return nil, v, broken(err)
	}
	if cerr != nil {
		return nil, v, fmt.Errorf("to %v: %w", answer.endpoint.GID.Addr(), cerr)
	}
	theirs, perr, err := w.try(l, bound)
	if err != nil {
		return nil, v, broken(err)
	}
	use := perr == nil && theirs
	if _, err := w.conn.Write(frame(nil, kindUse, verdictBody(w.attempt, use))); err != nil {
		return nil, v, broken(err)
	}
	if !use {
		return nil, v, w.noProbe(perr, &answer.endpoint)
	}
	used = true
	w.used(l, w.attempt)
	return l, v, nil
}

// noOther is the refusal of a higher rank that has tried all of its ports.
const noOther = "no other port"

// noProbe returns why an attempt has failed, here or at the peer.
func (w *wiring) noProbe(mine error, e *verbs.Endpoint) error {
	if mine == nil {
		mine = fmt.Errorf("no write with immediate has come through to rank %d", w.rank)
	}
	if e.LinkLayer == verbs.LinkLayerUnspecified {
		return mine
	}
	return fmt.Errorf("%w, with %v", mine, e.GID.Addr())
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

// verdict reads the peer's result of the attempt in progress.
func (w *wiring) verdict(want kind) (ok bool, err error) {
	k, body, err := readFrame(w.r)
	if err != nil {
		return false, err
	}
	if k != want {
		return false, fmt.Errorf("%w: %v in place of %v", ErrProtocol, k, want)
	}
	a, ok, err := parseVerdict(k, body)
	if err == nil && a != w.attempt {
		err = fmt.Errorf("%w: %v of attempt %d during %d", ErrProtocol, k, a, w.attempt)
	}
	return ok, err
}

// try probes a link that both have connected, and exchanges the results: theirs says whether the
// peer succeeded, mine why this rank did not. If only one of both did, the other may have been held
// up: what the one has failed to see in time is on its way, so it probes once more. If the control
// connection breaks in between, the peer has died and the probe ends.
func (w *wiring) try(l *link, bound time.Duration) (theirs bool, mine, err error) {
	ctx, cancel := context.WithCancelCause(w.node.life)
	defer cancel(nil)
	spoke := make(chan struct{})
	go func() {
		defer close(spoke)
		if _, err := w.r.Peek(1); err != nil { // its next message is its verdict
			cancel(err)
		}
	}()
	got := 0
	if mine = l.post(); mine == nil {
		mine = l.probe(ctx, bound, &got)
	}
	_, err = w.conn.Write(frame(nil, kindProbed, verdictBody(w.attempt, mine == nil)))
	<-spoke
	if err != nil {
		return false, mine, err
	}
	theirs, err = w.verdict(kindProbed)
	switch {
	case err != nil:
	case theirs && mine != nil:
		if errors.Is(mine, context.DeadlineExceeded) {
			mine = l.probe(ctx, max(bound, probeTime), &got)
		}
		_, err = w.conn.Write(frame(nil, kindProbed, verdictBody(w.attempt, mine == nil)))
	case !theirs && mine == nil:
		theirs, err = w.verdict(kindProbed)
	}
	return theirs, mine, err
}

// introduce exchanges the nodes' information about each other.
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
		return nodeInfo{}, fmt.Errorf("%w: got %v, want an introduction", ErrProtocol, k)
	}
	return parseNode(body)
}

// up binds everything declared so far to the link.
func (p *peer) up(l *link, theirs nodeInfo) (err error) {
	var b *wait.Bell
	if l.dev.mapped {
		mem, err := l.view(p.node.life, theirs.bell, bellSize)
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
	if l.dev.mapped {
		p.bell.bell, p.fenced = b, theirs.fenced || p.node.fenced
	} else if p.queue, err = newQueue(p, l); err != nil {
		return errors.Join(err, l.close())
	}
	p.link = l
	if p.queue != nil {
		l.dev.add(p.queue)
	}
	p.state.Store(peerUp)
	if l.dev.mapped && l.qp.State() == verbs.QPErr {
		p.node.wg.Go(p.unmapped) // its event may have come before there was a link
	}
	var rings map[*sendStream]*ring // announced before the pipes
	if p.queue == nil {
		if rings, err = p.openRings(); err != nil {
			return err
		}
	}
	for h := range p.handles {
		if err := h.bind(p); err != nil {
			h.bindErr.Store(&err) // other handles are not affected
		}
	}
	for _, s := range p.sends {
		if p.queue != nil {
			p.queue.adoptSend(s)
		} else {
			s.begin(rings[s], p.fenced)
		}
	}
	if p.queue != nil {
		for _, s := range p.receives {
			p.queue.adoptReceive(s)
		}
	}
	p.node.sleepers.WakeAll()
	return nil
}

// openRings makes the rings of all streams to the peer, and announces them; or none, since one that is announced
// must not be freed. The caller holds mu.
func (p *peer) openRings() (map[*sendStream]*ring, error) {
	places := map[*sendStream]ringPlace{}
	for _, s := range p.sends {
		place, err := p.link.dev.rings.take(p.link.dev.pd)
		if err != nil {
			err = fmt.Errorf("%w: stream %d: %w", ErrUnreachable, s.number, err)
			for _, place := range places {
				err = errors.Join(err, place.give())
			}
			return nil, err
		}
		places[s] = place
	}
	rings := map[*sendStream]*ring{}
	for s, place := range places {
		rings[s] = p.placeRing(s, place)
	}
	return rings, nil
}

// openRing makes the ring of a stream to the peer, and announces it. The caller holds mu.
func (p *peer) openRing(s *sendStream) (*ring, error) {
	place, err := p.link.dev.rings.take(p.link.dev.pd)
	if err != nil {
		return nil, err
	}
	return p.placeRing(s, place), nil
}

func (p *peer) placeRing(s *sendStream, place ringPlace) *ring {
	s.memory.ring = place
	r := newRing(place.bytes())
	p.announceRing(s)
	return r
}

func (p *peer) announceRing(s *sendStream) {
	info := streamInfo{s.number, s.memory.ring.region()}
	p.tell(kindStream, info.append(nil))
}

func regionOf(mr *verbs.MR) region {
	return region{mr.RKey(), mr.Addr(), uint64(mr.Len())}
}
