package tcp

import (
	"sync"
	"sync/atomic"

	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/internal/soft"
)

// srq is a shared receive queue.
type srq struct {
	q      soft.RecvQueue
	pd     *soft.PD
	events *soft.Events

	stalled atomic.Int32 // QPs with a message that waits for a receive
	mu      sync.Mutex
	waiting []*qp // those QPs, longest waiting first
}

// CreateSRQ creates a shared receive queue.
func (p *pd) CreateSRQ(attr verbs.SRQAttr) (verbs.ProviderSRQ, error) {
	s := &srq{pd: &p.PD, events: p.a.events}
	s.q.Init(p.a.device, attr.MaxWR, attr.MaxSGE, s, p.a.events)
	return s, s.q.SetLimit(attr.Limit)
}

// PostRecv posts receives, and resumes QPs that waited for one.
func (s *srq) PostRecv(wrs []verbs.RecvWR) (int, error) {
	n, err := s.q.Post(wrs)
	// A read-modify-write, for the same reason as in qp.PostRecv.
	if s.stalled.Add(0) > 0 {
		s.mu.Lock()
		waiting := append([]*qp(nil), s.waiting...)
		s.mu.Unlock()
		for _, q := range waiting {
			q.received()
		}
	}
	return n, err
}

// stall and unstall note that q's next message waits for a receive, or no longer does.
func (s *srq) stall(q *qp) {
	s.mu.Lock()
	s.waiting = append(s.waiting, q)
	s.mu.Unlock()
	s.stalled.Add(1)
}

func (s *srq) unstall(q *qp) {
	s.mu.Lock()
	for i := range s.waiting {
		if s.waiting[i] == q {
			s.waiting = append(s.waiting[:i], s.waiting[i+1:]...)
			break
		}
	}
	s.mu.Unlock()
	s.stalled.Add(-1)
}

// Modify arms the limit event.
func (s *srq) Modify(limit int) error { return s.q.SetLimit(limit) }

// Query returns the attributes.
func (s *srq) Query() (verbs.SRQAttr, error) { return s.q.Attr(), nil }

// Close ends the queue, which no QP uses any more.
func (s *srq) Close() error {
	s.events.Forget(s)
	return nil
}
