package coll

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// LogGP describes a network and its machines, all members alike. Alexandrov et al.,
// LogGP: Incorporating Long Messages into the LogP Model, 1995. P is that of the
// shape.
type LogGP struct {
	Latency  time.Duration // L: of a message, without what follows
	Overhead time.Duration // o: of a processor, to send or to receive a message
	Gap      time.Duration // g: between two messages of one member, each way
	PerByte  float64       // G: nanoseconds of a byte on the way
	Combine  float64       // nanoseconds to combine a byte with another
	Copy     float64       // nanoseconds to copy a byte
}

// Estimate is the time from when all members begin until the last is through: the
// schedules of all members, with their headers, carried out as the parameters say. A
// send is over when its bytes are on the way, so this is a carrier which does not
// wait for the receiver. A member sends one message at a time, and receives one at a
// time; between the members there is room for all. It takes memory for all
// messages of the collective: 1024 members round a ring, 200 MB.
//
// Errors: those of [Build]; [ErrShape] for Alltoall with counts by member, and for
// parameters below 0.
func (m LogGP) Estimate(a Algorithm, s *Shape) (time.Duration, error) {
	if m.Latency < 0 || m.Overhead < 0 || m.Gap < 0 || !(min(m.PerByte, m.Combine, m.Copy) >= 0) {
		return 0, fmt.Errorf("%w: negative parameters %+v", ErrShape, m)
	}
	if s.SendCounts != nil || !s.known() {
		return 0, fmt.Errorf("%w: the time of counts that nobody knows", ErrShape)
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

// simulated is one member: its schedule in short, and how far it is. Times are
// nanoseconds.
type simulated struct {
	events   []event
	at       int       // event with which the round begins
	next     int       // event to look at: what is before it has been received
	posted   bool      // the sends of the round are on the way
	now      float64   // when the round begins
	cpu      float64   // when the processor has nothing more to do, but to receive
	gone     float64   // when the last send is over
	sendFree float64   // when the next message can leave
	takeFree float64   // when the link is through with the message received last
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

// arrival is a message that is received: when its last byte would be there if the
// link were free, and how long the link is busy with it.
type arrival struct{ last, busy float64 }

// estimate carries all members on as far as they can go, in any order: the times do
// not depend on it.
type estimate struct {
	LogGP
	members []simulated
	under   map[[2]int]*queue
}

// take puts down the schedule of a member in short.
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

// post sends the messages of the round. Who may wait for one is ready.
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

// receive takes the messages of the round, as far as they are on the way, and says
// whether these are all and the round is over.
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
