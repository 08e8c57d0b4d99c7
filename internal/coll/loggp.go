package coll

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// LogGP describes a network of identical machines. Alexandrov et al., LogGP:
// Incorporating Long Messages into the LogP Model, 1995. P is taken from the shape.
type LogGP struct {
	Latency  time.Duration // L: of a message, without the times below
	Overhead time.Duration // o: of a processor, to send or to receive a message
	Gap      time.Duration // g: between two messages of one member, in each direction
	PerByte  float64       // G: nanoseconds to transmit a byte
	Combine  float64       // nanoseconds to combine a byte with another
	Copy     float64       // nanoseconds to copy a byte
}

// Estimate returns the time from when all members begin until the last one finishes, by
// simulating the schedules of all members, with their headers. A send completes when
// its bytes have left, so the model is of a carrier that does not wait for the
// receiver. A member sends one message at a time and receives one at a time; the
// network between members has no limit. Estimate needs memory for all messages of the
// collective: 200 MB for a ring of 1024 members.
//
// Errors: those of [Build]; [ErrShape] for Alltoall with counts by member, and for
// negative parameters.
func (m LogGP) Estimate(a Algorithm, s *Shape) (time.Duration, error) {
	if m.Latency < 0 || m.Overhead < 0 || m.Gap < 0 || !(min(m.PerByte, m.Combine, m.Copy) >= 0) {
		return 0, fmt.Errorf("%w: negative parameters %+v", ErrShape, m)
	}
	if s.SendCounts != nil || !s.known() {
		return 0, fmt.Errorf("%w: cannot estimate an alltoall whose counts no member knows", ErrShape)
	}
	e := estimate{LogGP: m, members: make([]simulated, max(s.Size, 0)), under: make(map[[2]int]*queue)}
	shape := *s
	for rank := range e.members {
		shape.Rank = rank
		schedule, err := Build(a, &shape)
		if err != nil {
			return 0, err
		}
		e.take(rank, schedule)
	}
	if len(e.members) == 0 {
		return 0, s.Check()
	}
	return e.run(), nil
}

// simulated is one member: its condensed schedule and its progress. Times are in nanoseconds.
type simulated struct {
	events   []event
	at       int       // event with which the round begins
	next     int       // next event: earlier ones have been received
	posted   bool      // the sends of the round have been posted
	now      float64   // when the round begins
	cpu      float64   // when the processor only has receives left
	gone     float64   // when the last send is complete
	sendFree float64   // when the next message can leave
	takeFree float64   // when the link has finished the last received message
	arrived  []arrival // in this round
}

// event is a step: a message, or all local steps of a round, which end it.
type event struct {
	amount float64 // of a message, bytes; of local steps, nanoseconds
	under  *queue  // of a message
	peer   int32
	kind   StepKind
}

// queue is when the messages from one member to another arrive.
type queue struct {
	times []float64
	taken int
}

// arrival is a received message: when its last byte would arrive on a free link, and how long it
// occupies the link.
type arrival struct{ last, busy float64 }

// estimate advances all members as far as possible, in any order: the times do not depend on it.
type estimate struct {
	LogGP
	members []simulated
	under   map[[2]int]*queue
}

// take condenses the schedule of a member.
func (e *estimate) take(rank int, s *Schedule) {
	m := &e.members[rank]
	m.takeFree = math.Inf(-1)
	steps := 0
	for _, round := range s.Rounds {
		steps += len(round) + 1
	}
	m.events = make([]event, 0, steps)
	for _, round := range s.Rounds {
		local := 0.0
		for i := range round {
			switch step := &round[i]; step.Kind {
			case Send:
				m.events = append(m.events, event{float64(step.A.Len + HeaderSize), e.queue(rank, step.Peer), int32(step.Peer), Send})
			case Receive:
				m.events = append(m.events, event{float64(step.Dst.Len + HeaderSize), e.queue(step.Peer, rank), int32(step.Peer), Receive})
			case Copy:
				local += e.Copy * float64(step.A.Len)
			case Combine:
				local += e.Combine * float64(step.A.Len)
			}
		}
		m.events = append(m.events, event{local, nil, -1, Combine})
	}
}

func (e *estimate) queue(from, to int) *queue {
	pair := [2]int{from, to}
	q := e.under[pair]
	if q == nil {
		q = &queue{}
		e.under[pair] = q
	}
	return q
}

func (e *estimate) run() time.Duration {
	ready := make([]int32, len(e.members))
	for i := range ready {
		ready[i] = int32(i)
	}
	last := 0.0
	for len(ready) > 0 {
		rank := ready[len(ready)-1]
		ready = ready[:len(ready)-1]
		m := &e.members[rank]
		for m.at < len(m.events) {
			if !m.posted {
				ready = e.post(m, ready)
			}
			if !e.receive(m) {
				break
			}
		}
		last = max(last, m.now)
	}
	return time.Duration(math.Round(last))
}

// post sends the messages of the round, and marks the members ready that may wait for one.
func (e *estimate) post(m *simulated, ready []int32) []int32 {
	m.posted, m.cpu, m.gone = true, m.now, m.now
	for _, ev := range m.events[m.at:] {
		if ev.kind == Combine {
			break
		}
		if ev.kind != Send {
			continue
		}
		begin := max(m.cpu, m.sendFree)
		m.cpu = begin + float64(e.Overhead)
		m.gone = m.cpu + ev.amount*e.PerByte
		m.sendFree = max(m.gone, begin+float64(e.Gap))
		ev.under.times = append(ev.under.times, m.gone+float64(e.Latency))
		ready = append(ready, ev.peer)
	}
	return ready
}

// receive takes the messages of the round that have been sent, and says whether these are all, so
// that the round is complete.
func (e *estimate) receive(m *simulated) bool {
	for ; m.events[m.next].kind != Combine; m.next++ {
		ev := &m.events[m.next]
		if ev.kind != Receive {
			continue
		}
		q := ev.under
		if q.taken == len(q.times) {
			return false
		}
		last := q.times[q.taken]
		if q.taken++; q.taken == len(q.times) {
			q.times, q.taken = q.times[:0], 0
		}
		m.arrived = append(m.arrived, arrival{last, max(ev.amount*e.PerByte, float64(e.Gap))})
	}
	slices.SortFunc(m.arrived, func(a, b arrival) int {
		return cmp.Or(cmp.Compare(a.last, b.last), cmp.Compare(a.busy, b.busy))
	})
	for _, a := range m.arrived {
		m.takeFree = max(a.last, m.takeFree+a.busy)
		m.cpu = max(m.cpu, m.takeFree) + float64(e.Overhead)
	}
	m.now = max(m.cpu, m.gone) + m.events[m.next].amount
	m.next++
	m.at, m.posted, m.arrived = m.next, false, m.arrived[:0]
	return true
}
