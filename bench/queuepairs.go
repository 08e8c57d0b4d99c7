package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-hpc/sluice/verbs"
)

const longCQ = `As many queue pairs are connected to as many others, with one queue at either side, and one
thread that posts and polls for both. The figure itself is half a round trip on one of them,
each in turn; poll is the time of looking at a queue with nothing in it; growth and
poll-growth are what they are of the same with one queue pair.`

// openCQ: what is measured is of the provider, not of channels.
func openCQ(_ context.Context, b *bed) {
	b.provider = cmp.Or(b.o.provider, providerSHM)
}

// side is one of the two that are connected, with all its queue pairs.
type side struct {
	ctx  *verbs.Context
	cq   *verbs.CQ
	mr   *verbs.MR
	qps  []*verbs.QP
	sent []int // on each
}

// One send in so many is signalled, of twice as many that a queue holds.
const cqSignal = 16

func openSide(provider string, bytes, count int) *side {
	s := &side{sent: make([]int, count), ctx: must1(must1(verbs.Find(provider)).Open(verbs.Config{Insecure: true}))}
	pd := must1(s.ctx.AllocPD())
	s.mr = must1(pd.AllocMR(bytes, verbs.AccessAll))
	s.cq = must1(s.ctx.CreateCQ(4*count, nil))
	each("queue pair", count, func() {
		s.qps = append(s.qps, must1(pd.CreateQP(verbs.QPInitAttr{SendCQ: s.cq, RecvCQ: s.cq, Cap: verbs.QPCap{MaxSendWR: 2 * cqSignal, MaxRecvWR: 2, MaxSendSGE: 1, MaxRecvSGE: 1}})))
	})
	return s
}

func measureCQ(_ context.Context, b *bed, m *measurement) {
	messages, polls := timeCQ(b.provider, m, m.many)
	m.addAll(messages)
	m.figure("poll", polls...)
	if m.many == 1 {
		return
	}
	one, onePoll := timeCQ(b.provider, m, 1)
	m.figure("growth", median(messages)/median(one))
	m.figure("poll-growth", median(polls)/median(onePoll))
}

// timeCQ connects so many queue pairs, and times messages over them, and looks at the queue.
func timeCQ(provider string, m *measurement, count int) (messages, polls []float64) {
	const descriptors = 8 // of a pair, at most, and some beside
	must(moreDescriptors(uint64(descriptors*count + 100)))
	var sides [2]*side
	for i := range sides {
		sides[i] = openSide(provider, m.bytes, count)
		defer sides[i].ctx.Close() // nothing is under way that could be lost
	}
	pingPong := func(k int) {
		sides[0].hop(sides[1], k)
		sides[1].hop(sides[0], k)
	}
	k := 0
	each("queue pair", count, func() {
		connectBoth(sides, k)
		pingPong(k) // that connects
		k++
	})
	for until, k := time.Now().Add(m.o.time), 0; time.Now().Before(until); k += 7 { // neighbours share cache lines
		began := nanos()
		pingPong(k % count)
		messages = append(messages, float64(nanos()-began)/2)
	}
	var wc [1]verbs.WC
	for until := time.Now().Add(m.o.time); time.Now().Before(until); {
		const looks = 100
		began := nanos()
		for range looks {
			if n, err := sides[1].cq.Poll(wc[:]); err != nil || n > 0 && wc[0].Opcode != verbs.WCSend {
				must(fmt.Errorf("%d completions of nothing: %w", n, err))
			}
		}
		polls = append(polls, float64(nanos()-began)/looks)
	}
	return messages, polls
}

// connectBoth connects queue pair k of two sides.
func connectBoth(sides [2]*side, k int) {
	for i, s := range sides {
		e := must1(sides[1-i].qps[k].Endpoint())
		must(s.qps[k].Connect(e, verbs.ConnectAttr{}))
	}
}

// hop sends a message on queue pair k, and polls until it has arrived.
func (s *side) hop(to *side, k int) {
	if n, err := to.qps[k].PostRecv([]verbs.RecvWR{{SGList: []verbs.SGE{to.mr.SGE(0, to.mr.Len())}}}); n != 1 || err != nil {
		must(errors.Join(err, errRecvFull))
	}
	wr := verbs.SendWR{Opcode: verbs.OpSend, SGList: []verbs.SGE{s.mr.SGE(0, s.mr.Len())}}
	if s.sent[k]%cqSignal == 0 {
		wr.Flags = verbs.SendSignaled
	}
	s.sent[k]++
	if n, err := s.qps[k].PostSend([]verbs.SendWR{wr}); n != 1 || err != nil {
		must(fmt.Errorf("post a send: took %d of 1: %w", n, err))
	}
	var wc [1]verbs.WC
	for {
		n := must1(to.cq.Poll(wc[:]))
		if n == 0 {
			continue
		}
		must(wc[0].Err())
		if wc[0].Opcode != verbs.WCSend { // those come late, and free what sends before have used
			return
		}
	}
}
