package impi

import "github.com/sluice-hpc/sluice/impi/packet"

// A message of at most the packet length that was agreed is complete at its sender whether or
// not it is received, also where a carrier's packets are shorter: the receiver then has the rest
// of it come that no receive has met. It does so late, for a receive that is posted meanwhile
// saves the copy: when it is about to let go of the CPU, or, while its user looks for something
// else, some milliseconds later. It does so only while what waits takes less than half of
// Config.Unexpected, so that the first packets of others have room; what is left out then is
// complete when it is received.

// owedMost is how many messages are remembered before they are fetched at once.
const owedMost = 1024

// owe takes note of a message whose sender counts on its being taken.
func (e *engine) owe(m *message) {
	m.owed = true
	if e.owed = append(e.owed, m); len(e.owed) >= owedMost {
		e.fetchOwed()
	}
}

// fetchOverdue fetches what was owed when it was called last, while somebody looks who does not
// wait.
func (e *engine) fetchOverdue() {
	if e.overdue {
		e.fetchOwed()
	}
	e.overdue = len(e.owed) > 0
}

// fetchOwed has come what is owed and still waits.
func (e *engine) fetchOwed() {
	e.overdue = false
	for i, m := range e.owed {
		e.owed[i] = nil
		if m.owed {
			m.owed = false
			e.fetch(m)
		}
	}
	e.owed = e.owed[:0]
}

// fetch has the rest of a message come, in packets, to memory of the engine.
func (e *engine) fetch(m *message) {
	p, rest := m.pair, int(m.length)-len(m.data)
	if p.link.err != nil || p.held+rest > e.unexpected/2 {
		return
	}
	b := e.room.get(int(m.length))
	r := e.newRequest()
	r.kind, r.state, r.pair, r.peer, r.tag, r.length = receiving, moving, p, m.src, m.tag, m.length
	r.setMemory(b, nil)
	r.copyIn(m.data)
	e.room.put(m.data)
	m.data, m.sync, m.acked, m.fetch, r.fetched = b, false, true, r, m
	p.held += rest
	p.answer(packet.SyncAck, m.srqid, r)
	p.link.push()
}

// fetched is the end of a request that fetch has made. A receive may have met the message
// meanwhile, and takes it now.
func (e *engine) fetched(r *request) {
	m := r.fetched
	if r.moved < r.length { // its link is lost
		m.pair.held -= len(m.data) - int(r.moved)
		m.data = m.data[:r.moved]
	}
	r.fetched, r.vec, r.one[0], m.fetch = nil, nil, nil, nil
	e.release(r)
	if q := m.taker; q != nil {
		if q.gen == m.takerGen && q.state == moving {
			e.receive(q, m)
			return
		}
		m.pair.held -= m.cost()
		e.room.drop(m)
	}
}
