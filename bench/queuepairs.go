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
func openCQ(_ context.Context, b *bed) error {
	b.provider = cmp.Or(b.o.provider, providerSHM)
	return nil
}

// DescriptorError: the process may not have so many descriptors.
type DescriptorError struct{ Want, Limit uint64 }

func (e *DescriptorError) Error() string {
	return fmt.Sprintf("%d descriptors: the limit is %d (ulimit -n)", e.Want, e.Limit)
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

func openSide(provider string, bytes, count int) (s *side, err error) {
	dev, err := verbs.Find(provider)
	if err != nil {
		return nil, err
	}
	s = &side{sent: make([]int, count)}
	if s.ctx, err = dev.Open(verbs.Config{Insecure: true}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.ctx.Close())
		}
	}()
	pd, err := s.ctx.AllocPD()
	if err != nil {
		return nil, err
	}
	if s.mr, err = pd.AllocMR(bytes, verbs.AccessAll); err != nil {
		return nil, err
	}
	if s.cq, err = s.ctx.CreateCQ(4*count, nil); err != nil {
		return nil, err
	}
	for range count {
		qp, err := pd.CreateQP(verbs.QPInitAttr{SendCQ: s.cq, RecvCQ: s.cq, Cap: verbs.QPCap{MaxSendWR: 2 * cqSignal, MaxRecvWR: 2, MaxSendSGE: 1, MaxRecvSGE: 1}})
		if err != nil {
			return nil, fmt.Errorf("queue pair %d of %d: %w", len(s.qps)+1, count, err)
		}
		s.qps = append(s.qps, qp)
	}
	return s, nil
}

func measureCQ(_ context.Context, b *bed, m *measurement) error {
	messages, polls, err := timeCQ(b.provider, m, m.many)
	if err != nil {
		return err
	}
	m.addAll(messages)
	m.figure("poll", polls...)
	if m.many == 1 {
		return nil
	}
	one, onePoll, err := timeCQ(b.provider, m, 1)
	if err != nil {
		return err
	}
	m.figure("growth", median(messages)/median(one))
	m.figure("poll-growth", median(polls)/median(onePoll))
	return nil
}

// timeCQ connects so many queue pairs, and times messages over them, and looks at the queue.
func timeCQ(provider string, m *measurement, count int) (messages, polls []float64, err error) {
	const each = 8 // descriptors of a pair, at most, and some beside
	if err := moreDescriptors(uint64(each*count + 100)); err != nil {
		return nil, nil, err
	}
	var sides [2]*side
	for i := range sides {
		if sides[i], err = openSide(provider, m.bytes, count); err != nil {
			return nil, nil, err
		}
		defer func() { err = errors.Join(err, sides[i].ctx.Close()) }()
	}
	for k := range count {
		if err := connectBoth(sides, k); err != nil {
			return nil, nil, fmt.Errorf("queue pair %d of %d: %w", k+1, count, err)
		}
	}
	pingPong := func(k int) error {
		return errors.Join(sides[0].hop(sides[1], k), sides[1].hop(sides[0], k))
	}
	for k := range count { // that connects
		if err := pingPong(k); err != nil {
			return nil, nil, fmt.Errorf("queue pair %d of %d: %w", k+1, count, err)
		}
	}
	for until, k := time.Now().Add(m.o.time), 0; time.Now().Before(until); k += 7 { // neighbours share cache lines
		began := nanos()
		if err := pingPong(k % count); err != nil {
			return nil, nil, err
		}
		messages = append(messages, float64(nanos()-began)/2)
	}
	var wc [1]verbs.WC
	for until := time.Now().Add(m.o.time); time.Now().Before(until); {
		const looks = 100
		began := nanos()
		for range looks {
			if n, err := sides[1].cq.Poll(wc[:]); err != nil || n > 0 && wc[0].Opcode != verbs.WCSend {
				return nil, nil, fmt.Errorf("%d completions of nothing: %w", n, err)
			}
		}
		polls = append(polls, float64(nanos()-began)/looks)
	}
	return messages, polls, nil
}

// connectBoth connects queue pair k of two sides.
func connectBoth(sides [2]*side, k int) error {
	for i, s := range sides {
		e, err := sides[1-i].qps[k].Endpoint()
		if err != nil {
			return err
		}
		if err := s.qps[k].Connect(e, verbs.ConnectAttr{}); err != nil {
			return err
		}
	}
	return nil
}

// hop sends a message on queue pair k, and polls until it has arrived.
func (s *side) hop(to *side, k int) error {
	if n, err := to.qps[k].PostRecv([]verbs.RecvWR{{SGList: []verbs.SGE{to.mr.SGE(0, to.mr.Len())}}}); n != 1 || err != nil {
		return errors.Join(err, errRecvFull)
	}
	wr := verbs.SendWR{Opcode: verbs.OpSend, SGList: []verbs.SGE{s.mr.SGE(0, s.mr.Len())}}
	if s.sent[k]%cqSignal == 0 {
		wr.Flags = verbs.SendSignaled
	}
	s.sent[k]++
	if n, err := s.qps[k].PostSend([]verbs.SendWR{wr}); n != 1 || err != nil {
		return fmt.Errorf("post a send: took %d of 1: %w", n, err)
	}
	var wc [1]verbs.WC
	for {
		n, err := to.cq.Poll(wc[:])
		if err != nil {
			return err
		}
		if n == 0 {
			continue
		}
		if err := wc[0].Err(); err != nil {
			return err
		}
		if wc[0].Opcode != verbs.WCSend { // those come late, and free what sends before have used
			return nil
		}
	}
}
