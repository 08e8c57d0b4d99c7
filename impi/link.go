package impi

import (
	"errors"
	"fmt"
	"slices"

	"github.com/sluice-hpc/sluice/impi/packet"
)

// link is the connection to another host. It carries the packets between all processes of the two
// hosts.
type link struct {
	e       *engine
	host    int
	foreign bool // another MPI implementation
	carrier carrier
	dialect packet.Dialect

	packetLen        uint32 // most bytes of user data in a packet
	first            uint32 // bytes of user data in the first packet of a longer message
	rest             uint32 // most bytes of user data in each of its other packets
	eager            uint32 // most bytes of a message whose send completes without being received, as agreed
	ackMark, hiWater uint32
	pairs            []*pair
	ready            []*pair // pairs that may have something to send, in turn
	next             int     // index in ready

	err  error // the link is lost, or the host has left
	left bool  // the peer has sent FINI
	fini bool  // we have sent FINI
	quit bool  // the peer has sent it first

	in sink
}

// carrier transports packets to and from the other host. It calls the link's methods: header and
// body (or packet), written, and lost.
type carrier interface {
	// room reports whether a packet can be taken now.
	room() bool
	// data sends the next n bytes of a send after a header of that type. When the bytes have left
	// the user's memory, at once or later, it calls link.written.
	data(r *request, t packet.Type, n uint64)
	// rest sends the rest of a matched message, or part of it. counts says that this was a packet
	// that counts for flow control; ok is false if there is no room now.
	rest(r *request) (counts, ok bool)
	// control sends a packet without data. The request is the receive that a SYNCACK is about.
	control(p *pair, t packet.Type, srqid uint64, r *request)
	// flush sends what has been held back to be sent together.
	flush()
	// fini sends FINI: no more packets will come.
	fini()
	close()
}

// pair is the state between a process here and one of another host, in both directions. The packets
// of each direction are counted (IMPI 0.0, section 3.7): at hiWater the sender stops until the
// receiver acknowledges ackMark of them.
type pair struct {
	link   *link
	local  *process
	remote int32 // rank in the job

	inFlight uint32 // packets sent and not acknowledged
	arrived  uint32 // packets received and not acknowledged
	acks     uint32 // acknowledgements to be sent
	held     int    // bytes of unmatched messages
	seq      uint64 // messages begun over TCP

	answers []answer // to be sent, in turn, from
	at      int      // on
	first   requests // sends whose first packet is to go
	rest    requests // matched sends with more to send
	turn    bool     // rest is to go next
	queued  bool     // in link.ready
}

// answer is a packet without data that counts for flow control.
type answer struct {
	t     packet.Type
	srqid uint64
	r     *request // of a SYNCACK to a long message
	gen   uint32
}

func (l *link) newPair(p *process, remote int32) *pair {
	q := &pair{link: l, local: p, remote: remote}
	l.pairs = append(l.pairs, q)
	return q
}

// wake makes the pair send what it can, now or in its turn.
func (p *pair) wake() {
	if p.link.err != nil {
		return
	}
	if !p.queued {
		p.queued = true
		p.link.ready = append(p.link.ready, p)
	}
}

// push sends what can be sent, a packet of each pair in turn. Nothing follows FINI.
func (l *link) push() {
	for l.err == nil && !l.fini {
		l.fill()
		if l.err == nil {
			l.carrier.flush()
		}
		if l.err != nil || len(l.ready) == 0 || !l.carrier.room() {
			return
		}
	}
}

// fill gives the carrier what it has room for.
func (l *link) fill() {
	for len(l.ready) > 0 && l.err == nil && l.carrier.room() {
		if l.next >= len(l.ready) {
			l.next = 0
		}
		p := l.ready[l.next]
		if p.step() {
			l.next++
			continue
		}
		if l.err != nil {
			return
		}
		p.queued = false
		l.ready = append(l.ready[:l.next], l.ready[l.next+1:]...)
	}
}

// step sends one packet; false if there is none that may be sent.
func (p *pair) step() bool {
	c := p.link.carrier
	if p.acks > 0 {
		p.acks--
		c.control(p, packet.ProtoAck, 0, nil)
		return true
	}
	if p.inFlight >= p.link.hiWater {
		return false
	}
	if p.at < len(p.answers) {
		a := p.answers[p.at]
		if p.at++; p.at == len(p.answers) {
			p.answers, p.at = p.answers[:0], 0
		}
		if a.r != nil && (a.r.gen != a.gen || a.r.state != moving) {
			a.r = nil
		}
		if r := p.link.e.lookup(a.srqid); a.t == packet.Cancel && r != nil {
			r.asked = true
		}
		p.inFlight++
		c.control(p, a.t, a.srqid, a.r)
		return true
	}
	if r := p.rest.head; r != nil && (p.turn || p.first.head == nil) {
		p.turn = false
		counts, ok := c.rest(r)
		if counts {
			p.inFlight++
		}
		return ok
	}
	if r := p.first.head; r != nil {
		p.turn = true
		p.first.remove(r)
		p.sendFirst(r)
		return true
	}
	return false
}

// sendFirst sends the first packet of a message.
func (p *pair) sendFirst(r *request) {
	p.inFlight++
	r.state = moving
	n, t := r.length, packet.Data
	if r.sync {
		t = packet.DataSync
	}
	if n > uint64(p.link.packetLen) {
		n, t = uint64(p.link.first), packet.DataSync
	}
	p.link.carrier.data(r, t, n)
}

// open says whether a message can go at once.
func (p *pair) open() bool {
	l := p.link
	return !p.queued && p.first.head == nil && p.inFlight < l.hiWater && l.err == nil && !l.fini && l.carrier.room()
}

// send starts a send to another host.
func (p *pair) send(r *request) {
	l := p.link
	if l.err != nil {
		l.e.finish(r, l.err)
		return
	}
	if p.open() {
		p.sendFirst(r)
		if l.err == nil {
			l.carrier.flush()
		}
		return
	}
	p.first.push(r)
	p.wake()
}

// written records that bytes of a send have left the user's memory.
func (l *link) written(r *request) {
	if r.moved < r.length {
		if r.acked && r.list == nil {
			r.pair.rest.push(r)
			r.pair.wake()
		}
		return
	}
	if r.list != nil {
		r.list.remove(r)
	}
	l.settle(r)
}

// mild says that a send completes once it has been sent, whether or not it is received.
func (l *link) mild(r *request) bool { return !r.sync && r.length <= uint64(l.packetLen) }

// promised says that a send completes whether or not it is received; one longer than a packet
// completes when the receiver has fetched it.
func (l *link) promised(r *request) bool { return !r.sync && r.length <= uint64(l.eager) }

// settle completes a send whose data has been sent, once no more packets about it can arrive.
func (l *link) settle(r *request) {
	if r.moved >= r.length && (r.acked || l.mild(r)) && !r.cancelling {
		l.e.finish(r, nil)
	}
}

// answer sends a packet without data, in its turn.
func (p *pair) answer(t packet.Type, srqid uint64, r *request) {
	if p.link.err != nil {
		return
	}
	a := answer{t: t, srqid: srqid}
	if r != nil {
		a.r, a.gen = r, r.gen
	}
	if p.at > len(p.answers)/2 { // amortized, each is moved once
		p.answers, p.at = append(p.answers[:0], p.answers[p.at:]...), 0
	}
	p.answers = append(p.answers, a)
	p.wake()
}

// received counts an arrived packet.
func (p *pair) received() error {
	p.arrived++
	if p.arrived < p.link.ackMark && p.acks == 0 {
		return nil
	}
	if uint64(p.acks)*uint64(p.link.ackMark)+uint64(p.arrived) > uint64(p.link.hiWater) {
		return fmt.Errorf("%w: rank %[3]d has more than %[2]d packets in flight", ErrProtocol, p.link.hiWater, p.remote)
	}
	if p.arrived >= p.link.ackMark {
		p.arrived -= p.link.ackMark
		p.acks++
		p.wake()
	}
	return nil
}

// acknowledged handles an acknowledgement.
func (p *pair) acknowledged() error {
	if p.inFlight < p.link.ackMark {
		return fmt.Errorf("%w: rank %[3]d acknowledged %[2]d packets, but only %[4]d are in flight to it", ErrProtocol, p.link.ackMark, p.remote, p.inFlight)
	}
	p.inFlight -= p.link.ackMark
	p.wake()
	return nil
}

// lost ends a link: everything that waits for its processes fails.
func (l *link) lost(err error) {
	if l.err != nil {
		return
	}
	switch {
	case errors.Is(err, ErrProtocol) || errors.Is(err, ErrOverflow):
	case l.e.closing:
		err = ErrClosed
	case l.left:
		err = ErrPeerLeft
	default:
		err = fmt.Errorf("%w: %w", ErrPeerDied, err)
	}
	if err != ErrClosed && err != ErrPeerLeft {
		l.e.log.Debug("impi: lost a host", "host", l.e.me, "peer", l.host, "error", err)
	}
	l.err = err
	if l.carrier != nil { // nil while the link is being connected
		l.carrier.close()
	}
	l.e.forget(l)
}

// forget ends everything that waits for the processes of a lost link.
func (e *engine) forget(l *link) {
	for _, r := range e.table {
		if (r.state == queued || r.state == moving) && !r.fencing {
			if r.pair != nil && r.pair.link == l || r.peer >= 0 && e.links[e.hostOf[r.peer]] == l {
				if r.list != nil {
					r.list.remove(r)
				}
				err := l.err
				if err == ErrClosed && l.quit && r.kind == sending { // not because this host closes, too
					err = ErrPeerLeft
				}
				if err == ErrPeerLeft && r.kind == sending && r.state == moving && l.promised(r) {
					err = nil // as any send that completes without being received
				}
				e.finish(r, err)
			}
		}
	}
	for _, p := range l.pairs {
		p.answers, p.at, p.acks, p.first, p.rest, p.queued = nil, 0, 0, requests{}, requests{}, false
	}
	l.ready = nil
	for _, p := range e.processes {
		for _, m := range p.matchers {
			for rank, h := range e.hostOf {
				if int(h) == l.host && m.has(int32(rank)) {
					m.lose(int32(rank), l.err)
				}
			}
			m.tell()
		}
	}
	e.ring()
}

// farewell notes that the peer has sent FINI.
func (l *link) farewell() {
	l.left, l.quit = true, !l.fini
	l.e.ring()
}

// has says whether the process is a member of the matcher's communicator.
func (m *matcher) has(rank int32) bool { return m.comm != nil && m.comm.rankOf(rank) >= 0 }

// lose records that a member is gone, and why.
func (m *matcher) lose(rank int32, err error) {
	if slices.Contains(m.gone, rank) {
		return
	}
	m.gone = append(m.gone, rank)
	if err != ErrPeerLeft || m.parts {
		m.untold = append(m.untold, rank)
	}
}

// mute returns a member that a receive from any source must report as gone: one that has died and has
// not been reported, or, if all other members are gone, the last one to go. Leaving is not a
// failure: as long as another member is there, it may send. A receive of fault notices, in the
// context of collectives, keeps waiting.
func (m *matcher) mute() (rank int32, ok bool) {
	switch {
	case len(m.untold) > 0:
		return m.untold[0], true
	case len(m.gone) > 0 && !m.parts && m == m.comm.match && len(m.gone) >= len(m.comm.ranks)-1:
		return m.gone[len(m.gone)-1], true
	}
	return 0, false
}

// told records that a receive from any source has reported what mute returned.
func (m *matcher) told() {
	if len(m.untold) > 0 {
		m.untold = m.untold[1:]
	}
}

// tell fails the receives from any source that must report the end of a member.
func (m *matcher) tell() {
	for m.wild.head != nil {
		rank, ok := m.mute()
		if !ok {
			return
		}
		m.told()
		r := m.wild.pop()
		r.peer = rank
		m.p.e.finish(r, m.p.e.links[m.p.e.hostOf[rank]].err)
	}
}
