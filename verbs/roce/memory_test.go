package roce

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/roce/internal/packet"
)

// network connects wires in memory, in virtual time: everything happens in step.
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
	flying []flying // in the order in which they arrive
	spare  [][]byte // to send packets in
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
	// foreign hides from the ends that their peers are of this library. Then their wires show
	// identifications, as raw ones do: an end that has to find them by the CRC accepts one
	// corrupt packet in 2^16, unless the peer is of this library.
	foreign bool
}

// flying is a packet on its way.
type flying struct {
	at  int64
	to  *memory
	src netip.AddrPort
	b   []byte
	id  uint16
	ce  bool
}

// launch queues a packet after those that arrive no later.
func (n *network) launch(p flying) {
	i := len(n.flying)
	for i > 0 && n.flying[i-1].at > p.at {
		i--
	}
	n.flying = slices.Insert(n.flying, i, p)
}

// roomy is more than the length of any packet.
const roomy = 4096 + 256

// room returns size bytes, with capacity for the CRC.
func (n *network) room(size int) []byte {
	if last := len(n.spare) - 1; last >= 0 {
		b := n.spare[last]
		n.spare = n.spare[:last]
		if cap(b) >= size+packet.ICRCLen {
			return b[:size]
		}
	}
	return make([]byte, size, max(size+packet.ICRCLen, roomy))
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

// join adds a wire.
func (n *network) join(addr netip.Addr) *memory {
	w := &memory{net: n, addr: netip.AddrPortFrom(addr, packet.Port)}
	n.wires[w.addr] = w
	return w
}

// node adds an adapter.
func (n *network) node() *adapter {
	w := n.join(netip.AddrFrom4([4]byte{10, 0, 0, byte(len(n.nodes) + 1)}))
	a := newAdapter("memory", "", verbs.Config{}, w, func() int64 { return n.now })
	n.nodes = append(n.nodes, a)
	return a
}

func (m *memory) local() netip.AddrPort       { return m.addr }
func (m *memory) maxMTU() int                 { return 4096 }
func (m *memory) window() int                 { return 1 << 20 }
func (m *memory) unreachable() (report, bool) { return report{}, false }
func (m *memory) rest() bool                  { return false }
func (m *memory) close()                      { delete(m.net.wires, m.addr) }

func (m *memory) frame(f *flow, n int) []byte {
	b := m.net.room(n)
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
			n.spare = append(n.spare, b)
			continue
		}
		start := max(n.now, m.free)
		if n.faults.bytesPerSecond > 0 {
			if n.faults.queue > 0 && start-n.now > int64(n.faults.queue) {
				n.dropped++ // the queue is full
				n.spare = append(n.spare, b)
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
		for i := range copies {
			if i > 0 {
				b = append(n.room(0), b...)
			}
			at := start + int64(n.faults.delay)
			if n.chance(n.faults.reorder) {
				at += int64(n.rng.IntN(100_000))
			}
			n.launch(flying{at: at, to: to, src: m.addr, b: b, id: id, ce: n.chance(n.faults.mark)})
		}
	}
	m.out, m.flows = m.out[:0], m.flows[:0]
}

// burstTime is how long an adapter takes to send a burst of pending responses.
const burstTime = int64(20 * time.Microsecond)

func (n *network) chance(p float64) bool { return p > 0 && n.rng.Float64() < p }

func (m *memory) recv(into []arrival) int {
	for _, p := range m.held {
		m.net.spare = append(m.net.spare, p.b)
	}
	m.held = m.held[:0]
	k, taken := 0, 0
	for taken < len(m.inbox) && k < len(into) {
		p := m.inbox[taken]
		taken++
		m.route.Set(p.src, m.addr)
		id, ok := m.route.Check(p.b, p.id, m.net.faults.foreign)
		if !ok {
			m.net.spare = append(m.net.spare, p.b)
			continue
		}
		m.held = append(m.held, p)
		into[k] = arrival{pkt: p.b[:len(p.b)-packet.ICRCLen], src: p.src, id: id, ce: p.ce}
		k++
	}
	m.inbox = slices.Delete(m.inbox, 0, taken)
	return k
}

// step runs all events that are due, and then moves the clock to the next event. It returns false if
// there will be none.
func (n *network) step() bool {
	n.deliver()
	for _, a := range n.nodes {
		if !n.stalls(a) {
			a.drive()
			a.expire(n.now, math.MaxInt)
		}
	}
	next := int64(math.MaxInt64)
	if n.now < n.back {
		next = n.back
	}
	if len(n.flying) > 0 {
		next = min(next, n.flying[0].at)
	}
	for _, a := range n.nodes {
		if n.stalls(a) {
			continue
		}
		if next = min(next, a.deadlines.next.Load()); a.late.Load() {
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

// deliver delivers the packets whose time has come.
func (n *network) deliver() {
	k := 0
	for ; k < len(n.flying) && n.flying[k].at <= n.now; k++ {
		p := n.flying[k]
		p.to.inbox = append(p.to.inbox, p)
	}
	n.flying = slices.Delete(n.flying, 0, k)
}

// describe returns the state of all adapters.
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
