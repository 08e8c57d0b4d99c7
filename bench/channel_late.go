package main

import "github.com/sluice-hpc/sluice/channel"

// announced is a message that goes to and fro between two ranks, each of which starts its
// receive when it has been told that the message has been sent: so the receiver is always
// the second, and reads the message where it may.
//
//	start send ── message ──▶
//	start note ── 1 byte ───▶ wait for it
//	                          start receive, wait
//	wait for the send
type announced struct {
	token
	told, tell *channel.Handle
}

func declareAnnounced(n *node, m *measurement, arena []byte) (*announced, error) {
	t, err := declareToken(n, m, arena)
	if err != nil {
		return nil, err
	}
	s := &announced{token: *t}
	other := 1 - n.Rank()
	s.stream = streamAck
	s.tell = s.send(channel.Contiguous(make([]byte, 1)), other)
	s.told = s.receive(channel.Contiguous(make([]byte, 1)), other)
	return s, s.err
}

func (s *announced) run(n int, samples []int64) error {
	first, second := s.give, s.take
	if s.node.Rank() == 1 {
		first, second = second, first
	}
	t := startLaps(samples)
	for i := range n {
		if err := s.told.Start(); err != nil {
			return err
		}
		if err := first(); err != nil {
			return err
		}
		if err := second(); err != nil {
			return err
		}
		t.lap(i)
	}
	return nil
}

func (s *announced) give() error {
	for _, h := range [...]*channel.Handle{s.out, s.tell} {
		if err := h.Start(); err != nil {
			return err
		}
	}
	if err := s.tell.Wait(); err != nil {
		return err
	}
	return s.out.Wait()
}

func (s *announced) take() error {
	if err := s.told.Wait(); err != nil {
		return err
	}
	if err := s.in.Start(); err != nil {
		return err
	}
	return s.in.Wait()
}
