package main

import (
	"context"
	"fmt"

	"github.com/sluice-hpc/sluice/channel"
)

const longAhead = `Rank 0 starts the sends, each on a handle that is idle; where there is none it declares one
more. Only then rank 1 receives, all by one handle. start is the time of a start, handles how
many it took; the figure itself is the time of receiving a message.`

func measureAhead(ctx context.Context, b *bed, m *measurement) error {
	out, in, err := b.memory(&m.spec, m.bytes, m.bytes+guard)
	if err != nil {
		return err
	}
	s := ahead{declarations{node: b.Node}, m.many}
	seed := seedFor(0, m.bytes, m.op)
	fillPattern(out, seed)
	fillGuard(in)
	began := nanos()
	if b.Rank() == 0 {
		err = s.startAll(out)
		m.figure("start", float64(nanos()-began)/float64(m.many))
	}
	if err := barrier(ctx, b, err); err != nil {
		return err
	}
	began = nanos()
	if b.Rank() == 0 {
		err = s.waitAll(ctx)
	} else if err = s.receiveAll(ctx, in[:m.bytes]); err == nil {
		err = checkPattern(m.op, in, m.bytes, seed)
	}
	draining := nanos() - began
	all, err := share(ctx, b, draining, err)
	if err != nil {
		return err
	}
	m.add(float64(all[1]) / float64(m.many))
	m.figure("handles", float64(len(s.handles)))
	return s.close()
}

// ahead is the sends or receives of a rank.
type ahead struct {
	declarations
	count int
}

// startAll starts all sends of a message, of which some are over at once.
func (s *ahead) startAll(message []byte) error {
	var idle []*channel.Handle
	for i := range s.count {
		if len(idle) == 0 {
			if idle = append(idle, s.send(channel.Contiguous(message), 1)); s.err != nil {
				return s.err
			}
		}
		h := idle[len(idle)-1]
		if err := h.Start(); err != nil {
			return fmt.Errorf("start %d of %d: %w", i+1, s.count, err)
		}
		done, err := h.Test()
		if err != nil {
			return fmt.Errorf("send %d of %d: %w", i+1, s.count, err)
		}
		if !done {
			idle = idle[:len(idle)-1]
		}
	}
	return nil
}

// waitAll ends with the first error: the others may be as many as there are sends.
func (s *ahead) waitAll(ctx context.Context) error {
	for _, h := range s.handles {
		if err := h.WaitContext(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (s *ahead) receiveAll(ctx context.Context, message []byte) error {
	h := s.receive(channel.Contiguous(message), 0)
	if s.err != nil {
		return s.err
	}
	for i := range s.count {
		if err := h.Start(); err != nil {
			return fmt.Errorf("receive %d of %d: %w", i+1, s.count, err)
		}
		if err := h.WaitContext(ctx); err != nil {
			return fmt.Errorf("receive %d of %d: %w", i+1, s.count, err)
		}
	}
	return nil
}
