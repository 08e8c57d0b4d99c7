package impi

import "github.com/sluice-hpc/sluice/internal/wait"

// direct is the receive of a Recv that polls for its message with the lock held. It needs no
// request, because no other goroutine can post or cancel a receive meanwhile.
type direct struct {
	m   *matcher // nil: there is none
	src int32    // rank in the job; -1: any
	tag int32
	buf []byte
	st  Status
	got bool
}

// take takes a message that no request has matched, if it is the one looked for, fits, and is not
// behind another message from the same process.
func (d *direct) take(m *matcher, src, tag int32, b []byte) bool {
	if d.m != m || d.got || d.src >= 0 && d.src != src || !m.meets(d.tag, tag) || len(b) > len(d.buf) || m.from[src].arrived.head != nil {
		return false
	}
	copy(d.buf, b)
	d.st, d.got = Status{Source: m.comm.rankOf(src), Tag: int(tag), Len: len(b)}, true
	return true
}

// recvNow is the fast path of Recv for latency: it receives a short message that is there or
// arrives while it polls. If the path does not apply, it returns false and has done nothing. With all, a
// message that is there is not missed. The caller holds the lock.
func (c *Comm) recvNow(buf []byte, source, tag int, all bool) (st Status, ok bool) {
	e, m := c.e, c.match
	if e.broken != nil || c.check("receive", source, tag, true) != nil || e.usable(buf, nil) != nil {
		return st, false
	}
	src := int32(-1)
	if source >= 0 {
		src = c.ranks[source]
	}
	if m.all.head != nil {
		if msg := m.find(src, int32(tag)); msg != nil {
			return c.takeNow(msg, buf)
		}
	}
	if src < 0 && len(m.gone) > 0 {
		if _, mute := m.mute(); mute {
			return st, false
		}
	}
	if src >= 0 {
		if l := e.links[e.hostOf[src]]; l == nil || l.err != nil {
			return st, false
		}
	}
	d, newest := &e.direct, m.all.tail
	d.m, d.src, d.tag, d.buf = m, src, int32(tag), buf
	e.polls++
	e.poll(all)
	for n := e.policy.Glances(); !d.got && n > 1 && m.all.tail == newest && e.broken == nil; n-- {
		wait.Pause(1)
		e.poll(false)
	}
	if d.got {
		e.policy.Glanced()
	}
	st, ok = d.st, d.got
	*d = direct{}
	e.unpackAll()
	return st, ok
}

// takeNow receives a waiting message if it is complete, fits, and its sender waits for nothing.
func (c *Comm) takeNow(msg *message, buf []byte) (st Status, ok bool) {
	if msg.sender != nil || msg.sync || msg.fetch != nil || msg.length != uint64(len(msg.data)) || len(msg.data) > len(buf) {
		return st, false
	}
	st = Status{Source: c.rankOf(msg.src), Tag: int(msg.tag), Len: len(msg.data)}
	copy(buf, msg.data)
	c.match.takeMessage(msg)
	p, cost := msg.pair, msg.cost()
	c.e.room.drop(msg)
	if p == nil {
		c.p.waiting -= cost
	} else if p.held -= cost; p.queued {
		p.link.push()
	}
	return st, true
}
