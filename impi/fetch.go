package impi

import "github.com/sluice-hpc/sluice/impi/packet"

// The send of a message of at most the agreed packet length completes whether or not the message is
// received. If a carrier's packets are shorter than that, the receiver fetches the rest of a
// message that no receive has matched: it sends SYNCACK, and the rest arrives in memory of the
// engine. A receive posted before then saves a copy, so the receiver fetches late: when a wait
// has taken some microseconds, or after some milliseconds in which the program only tests and probes. It
// fetches only while unexpected messages take less than half of Config.Unexpected, to keep room for
// first packets; sends beyond that complete when they are received.

// owedMost is how many messages may await fetching before all of them are fetched at once.
const owedMost = 1024

// owe marks a message to be fetched unless a receive matches it first.
func (e *engine) owe(m *message) {
	m.owed = true
	if e.owed = append(e.owed, m); len(e.owed) >= owedMost {
		e.fetchOwed()
	}
}

// fetchOverdue fetches messages that were owed at the previous call. A watcher calls it
// periodically: a program that only tests and probes never reaches the place where waiters fetch.
func (e *engine) fetchOverdue() {
	if e.overdue {
		e.fetchOwed()
	}
	e.overdue = len(e.owed) > 0
}

// fetchOwed fetches the messages that are owed and have still not been matched.
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

// fetch starts the transfer of the rest of a message, in DATA packets, to memory of the engine.
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

// fetched ends a request of fetch: its message is complete, or its link is lost. A receive that has
// matched the message in the meantime takes it now.
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
