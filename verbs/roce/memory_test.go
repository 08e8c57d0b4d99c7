package roce

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/roce/internal/packet"
)

// network is what wires in memory are joined by, in virtual time: nothing happens
// but in step.
//
//	adapter --- memory ---.
//	                       network (drops, doubles, delays, breaks)
//	adapter --- memory ---'
type network struct {
	now    int64
	rng    *rand.Rand
	faults faults
	wires  map[netip.AddrPort]*memory
	nodes  []*adapter
	flying flight
	order  int      // of sending, so that packets of the same time stay in order
	away   *adapter // has no CPU
	back   int64    // until then

	sent, dropped int
	lose          int // the number, in sent, of a packet that is dropped
}

// faults of a network: probabilities of a packet, and times.
type faults struct {
	drop, double, reorder, corrupt, mark float64
	delay                                time.Duration
	bytesPerSecond                       float64 // 0: no limit
	queue                                time.Duration
	// foreign makes the ends not know of each other that they are of this library. Then their
	// wires show identifications, as raw ones do: an end that has to find them by the CRC
	// takes one broken packet in 2^16, unless the peer is of this library.
	foreign bool
}

// flight is the packets on their way, by their time of arrival.
type flight []flying

type flying struct {
	at    int64
	order int
	to    *memory
	src   netip.AddrPort
	b     []byte
	id    uint16
	ce    bool
}

func (f flight) Len() int { return len(f) }
func (f flight) Less(i, j int) bool {
	return f[i].at < f[j].at || f[i].at == f[j].at && f[i].order < f[j].order
}
func (f flight) Swap(i, j int) { f[i], f[j] = f[j], f[i] }
func (f *flight) Push(x any)   { *f = append(*f, x.(flying)) }
func (f *flight) Pop() any {
	x := (*f)[len(*f)-1]
	*f = (*f)[:len(*f)-1]
	return x
}

func newNetwork(seed uint64, f faults) *network {
	return &network{now: 1, rng: rand.New(rand.NewPCG(seed, 0)), faults: f, wires: map[netip.AddrPort]*memory{}}
}

// memory is a wire of a network.
type memory struct {
	net   *network
	addr  netip.AddrPort
	out   []flying // framed
	flows []*flow
	inbox []flying
	held  []flying // what recv returned last
	route packet.Route
	free  int64 // when the link has sent what it was given
}

// node adds an adapter.
func (n *network) node() *adapter {
	addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(len(n.nodes) + 1)}), packet.Port)
	w := &memory{net: n, addr: addr}
	n.wires[addr] = w
	a := newAdapter("memory", "", verbs.Config{}, w, func() int64 { return n.now })
	n.nodes = append(n.nodes, a)
	return a
}

func (m *memory) local() netip.AddrPort        { return m.addr }
func (m *memory) maxMTU() int                  { return 4096 }
func (m *memory) window() int                  { return 1 << 20 }
func (m *memory) gone() (netip.AddrPort, bool) { return netip.AddrPort{}, false }
func (m *memory) rest() bool                   { return false }
func (m *memory) close()                       { delete(m.net.wires, m.addr) }

func (m *memory) frame(f *flow, n int) []byte {
	b := make([]byte, n, n+packet.ICRCLen)
	m.out = append(m.out, flying{b: b})
	m.flows = append(m.flows, f)
	return b
}

func (m *memory) cancel() { m.out, m.flows = m.out[:len(m.out)-1], m.flows[:len(m.flows)-1] }

func (m *memory) flush() {
	n := m.net
	for i, p := range m.out {
		f := m.flows[i]
		id := uint16(n.rng.IntN(mostID))
		b := f.route.Seal(p.b, id)
		n.sent++
		to := n.wires[f.remote]
		if to == nil || n.sent == n.lose || n.chance(n.faults.drop) {
			n.dropped++
			continue
		}
		start := max(n.now, m.free)
		if n.faults.bytesPerSecond > 0 {
			if n.faults.queue > 0 && start-n.now > int64(n.faults.queue) {
				n.dropped++ // the queue is full
				continue
			}
			start += int64(float64(len(b)+46) / n.faults.bytesPerSecond * 1e9)
			m.free = start
		}
		if n.chance(n.faults.corrupt) {
			b[n.rng.IntN(len(b))] ^= byte(1 + n.rng.IntN(255))
		}
		copies := 1
		if n.chance(n.faults.double) {
			copies = 2
		}
		for range copies {
			at := start + int64(n.faults.delay)
			if n.chance(n.faults.reorder) {
				at += int64(n.rng.IntN(100_000))
			}
			n.order++
			heap.Push(&n.flying, flying{at: at, order: n.order, to: to, src: m.addr, b: b, id: id, ce: n.chance(n.faults.mark)})
		}
	}
	m.out, m.flows = m.out[:0], m.flows[:0]
}

// burstTime is how long an adapter takes to send a burst of what it has left to send.
const burstTime = int64(20 * time.Microsecond)

func (n *network) chance(p float64) bool { return p > 0 && n.rng.Float64() < p }

func (m *memory) recv(into []arrival) int {
	k := 0
	m.held = m.held[:0]
	for len(m.inbox) > 0 && k < len(into) {
		p := m.inbox[0]
		m.inbox = m.inbox[1:]
		m.route.Set(p.src, m.addr)
		id, ok := m.route.Check(p.b, p.id, m.net.faults.foreign)
		if !ok {
			continue
		}
		m.held = append(m.held, p)
		into[k] = arrival{pkt: p.b[:len(p.b)-packet.ICRCLen], src: p.src, id: id, ce: p.ce}
		k++
	}
	return k
}

// step lets everything happen that happens now, and then moves the clock to when
// something happens next. It returns false if nothing ever will.
func (n *network) step() bool {
	n.deliver()
	for _, a := range n.nodes {
		if !n.stalls(a) {
			a.drive()
			a.expire(n.now)
		}
	}
	if n.now < n.back {
		n.now += 5000
		return true
	}
	next := int64(math.MaxInt64)
	if len(n.flying) > 0 {
		next = n.flying[0].at
	}
	for _, a := range n.nodes {
		if next = min(next, a.nextDue.Load()); a.late.Load() {
			next = min(next, n.now+burstTime)
		}
	}
	if next == math.MaxInt64 {
		return false
	}
	n.now = max(n.now, next)
	return true
}

// stalls says whether an adapter has no CPU now.
func (n *network) stalls(a *adapter) bool { return a == n.away && n.now < n.back }

// deliver has those packets arrive whose time has come.
func (n *network) deliver() {
	for len(n.flying) > 0 && n.flying[0].at <= n.now {
		p := heap.Pop(&n.flying).(flying)
		p.to.inbox = append(p.to.inbox, p)
	}
}

// describe tells how far everybody is.
func (n *network) describe() (s string) {
	for _, a := range n.nodes {
		for _, q := range *a.list.Load() {
			r, p := &q.req, &q.rsp
			s += fmt.Sprintf("\nQP %#x %v: una %#x nxt %+d max %+d cur %d of %d to %d, asked %v, reads %d, resend at %d, RNR until %d, window %.1f; expects %#x, %d answers, %d held, due %v %v %v",
				q.Num, q.State(), r.una, int32(r.nxt-r.una), int32(r.max-r.una), r.cur, q.SQ.Head(), q.SQ.Next(), r.asked[:r.askedN], r.reads,
				r.resendAt, r.rnrUntil, r.pace.window, p.expect, p.answers.n, p.held.n, p.ackDue, p.nakDue, p.naked)
		}
	}
	return s
}
