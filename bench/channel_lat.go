package main

import "github.com/sluice-hpc/sluice/channel"

// token is one message that goes from rank to rank and comes back: to and fro
// between two, round a ring of more, and within one rank from one handle to
// another.
//
//	rank 0                      the others
//	start send, receive         start receive
//	wait for both  ── token ──▶ wait for it
//	        ◀── token ───────── start send, and the next receive; wait for the send
type token struct {
	messages
	out, in *channel.Handle
}

func declareToken(n *node, m *measurement, arena []byte) (*token, error) {
	left, right := (n.Rank()+n.Size()-1)%n.Size(), (n.Rank()+1)%n.Size()
	s := &token{messages: messages{declarations: declarations{node: n}, extent: m.extent(), into: m.into(), op: m.op.name, from: left}}
	s.carve(arena, 1, 1, 1)
	s.out = s.send(s.layout(s.outs[0]), right)
	s.in = s.receive(s.into.layout(s.ins[0]), left)
	return s, s.err
}

func (s *token) run(n int, samples []int64) error {
	switch {
	case s.node.Size() == 1:
		return s.keep(n, samples)
	case s.node.Rank() == 0:
		return s.lead(n, samples)
	}
	return s.pass(n, samples)
}

// lead is run at rank 0, where the token starts.
func (s *token) lead(n int, samples []int64) error {
	t := startLaps(samples)
	for i := range n {
		if err := s.out.Start(); err != nil {
			return err
		}
		if err := s.in.Start(); err != nil {
			return err
		}
		if err := s.out.Wait(); err != nil {
			return err
		}
		if err := s.in.Wait(); err != nil {
			return err
		}
		t.lap(i)
	}
	return nil
}

// pass is run at the other ranks.
func (s *token) pass(n int, samples []int64) error {
	if err := s.in.Start(); err != nil {
		return err
	}
	t := startLaps(samples)
	for i := range n {
		if err := s.in.Wait(); err != nil {
			return err
		}
		if err := s.out.Start(); err != nil {
			return err
		}
		if i+1 < n {
			if err := s.in.Start(); err != nil {
				return err
			}
		}
		if err := s.out.Wait(); err != nil {
			return err
		}
		t.lap(i)
	}
	return nil
}

// keep is run within one rank: both handles are started, and tested until both
// are over.
func (s *token) keep(n int, samples []int64) error {
	t := startLaps(samples)
	for i := range n {
		if err := s.out.Start(); err != nil {
			return err
		}
		if err := s.in.Start(); err != nil {
			return err
		}
		if err := testUntilOver(s.in); err != nil {
			return err
		}
		if err := testUntilOver(s.out); err != nil {
			return err
		}
		t.lap(i)
	}
	return nil
}

func testUntilOver(h *channel.Handle) error {
	for {
		if done, err := h.Test(); done {
			return err
		}
	}
}
