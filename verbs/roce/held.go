package roce

import (
	"sync"

	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/internal/soft"
	"github.com/sluice-hpc/sluice/verbs/roce/internal/packet"
)

// held holds request packets that arrived before one that is missing. They are reported to peers
// that know [packet.Selective], which then resend only missing packets. The memory is held only
// while packets are missing, and comes from the adapter's pool, which is limited: if it is empty,
// everything is resent.
type held struct {
	pool *pool
	buf  *buffer // nil: nothing is held
	n    int
}

// slot is a held packet, indexed by PSN modulo windowPackets.
type slot struct {
	set  bool
	psn  uint32
	h    packet.Header
	size int
}

// buffer holds the packets: their payloads are in b, one slot after the other.
type buffer struct {
	slots [windowPackets]slot
	b     []byte
}

// hold keeps a packet; false: it cannot.
func (q *qp) hold(psn uint32, h *packet.Header, payload []byte) bool {
	p := &q.rsp
	d := psn - p.expect
	if d >= windowPackets || len(payload) > q.mtu {
		return false
	}
	hd := &p.held
	if hd.buf == nil {
		hd.pool = &q.a.pool
		if hd.buf = hd.pool.get(windowPackets * q.mtu); hd.buf == nil {
			return false
		}
	}
	i := psn % windowPackets
	sl := &hd.buf.slots[i]
	if !sl.set {
		sl.set, sl.psn, sl.h, sl.size = true, psn, *h, len(payload)
		copy(hd.buf.b[int(i)*q.mtu:], payload)
		hd.n++
	}
	return true
}

// unhold executes the held packets that are next now.
func (q *qp) unhold(s *soft.Sink) {
	p := &q.rsp
	hd := &p.held
	for hd.n > 0 && q.State() != verbs.QPErr {
		i := p.expect % windowPackets
		sl := &hd.buf.slots[i]
		if !sl.set {
			var bits [4]uint64
			if hd.tell(&bits, p.expect); bits == [4]uint64{} {
				break // what is left is outdated
			}
			// More packets are missing: report that again.
			p.naked, p.nakDue, p.nak = true, true, packet.SyndromeSequence
			return
		}
		sl.set = false
		hd.n--
		if sl.psn != p.expect {
			continue
		}
		at := p.expect
		q.execute(s, &sl.h, hd.buf.b[int(i)*q.mtu:][:sl.size])
		if p.expect == at {
			break // not ready, or refused
		}
	}
	hd.release()
}

// tell sets the bits of the packets held behind psn.
func (hd *held) tell(bits *[4]uint64, psn uint32) {
	if hd.n == 0 {
		return
	}
	for d := range uint32(windowPackets) {
		if sl := &hd.buf.slots[(psn+1+d)%windowPackets]; sl.set && sl.psn == psn+1+d {
			bits[d/64] |= 1 << (d % 64)
		}
	}
}

// release drops all packets and returns the memory.
func (hd *held) release() {
	if hd.buf == nil {
		return
	}
	if hd.n > 0 {
		for i := range hd.buf.slots {
			hd.buf.slots[i].set = false
		}
		hd.n = 0
	}
	hd.pool.put(hd.buf)
	hd.buf = nil
}

// pool lends a limited number of buffers for held packets.
type pool struct {
	mu   sync.Mutex
	free []*buffer
	lent int
}

// heldBuffers is the number of QPs of a context that may hold packets at once, at most 1 MiB each.
const heldBuffers = 64

func (p *pool) get(size int) *buffer {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lent == heldBuffers {
		return nil
	}
	p.lent++
	if n := len(p.free); n > 0 {
		b := p.free[n-1]
		p.free = p.free[:n-1]
		if len(b.b) >= size {
			return b
		}
	}
	return &buffer{b: make([]byte, size)}
}

func (p *pool) put(b *buffer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lent--
	p.free = append(p.free, b)
}
