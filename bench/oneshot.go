package main

import (
	"context"
	"errors"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/qmp"
)

const longOneshot = `Half a round trip, of which each message is declared, started, waited for and closed
(declare); or declared once and given other memory before each start, by Handle.Rebase (rebase)
or through package qmp (address). Two buffers take turns.`

const (
	oneshotDeclare = "declare"
	oneshotRebase  = "rebase"
	oneshotAddress = "address"
)

// oneshot is the series: messages to and fro, each in the next of two buffers.
type oneshot struct {
	messages
	rank    int
	out, in func(memory []byte) (startable, error) // a handle of that memory
	once    bool                                   // it is closed when the message is over
	ends    []func() error
	turn    int // of the buffers
	since   int // turns since prepare
}

// startable is a handle of channel or of qmp.
type startable interface {
	Start() error
	Wait() error
	Close() error
}

func declareOneshot(_ context.Context, b *bed, m *measurement) (series, error) {
	all, err := newMessages(b, m, 1-b.Rank(), 2, 2)
	if err != nil {
		return nil, err
	}
	s := &oneshot{messages: all, rank: b.Rank()}
	return s, s.declareBy(b, m.kind)
}

// declareBy says what becomes of each message.
func (s *oneshot) declareBy(b *bed, kind string) error {
	other := 1 - s.rank
	if kind == oneshotDeclare {
		s.once = true
		s.out = func(x []byte) (startable, error) { return s.node.DeclareSend(channel.Contiguous(x), other) }
		s.in = func(x []byte) (startable, error) { return s.node.DeclareReceive(channel.Contiguous(x), other) }
		return nil
	}
	firstOut, firstIn := s.outs[0][:s.bytes], s.ins[0][:s.bytes]
	if kind == oneshotRebase {
		out, in := s.declarations.send(channel.Contiguous(firstOut), other), s.declarations.receive(channel.Contiguous(firstIn), other)
		s.out = func(b []byte) (startable, error) { return out, out.Rebase(b) }
		s.in = func(b []byte) (startable, error) { return in, in.Rebase(b) }
		return s.err
	}
	handle := func(memory []byte, declare func(*qmp.MsgMem, int, int) (*qmp.Handle, error)) (*qmp.Handle, error) {
		mem, err := qmp.DeclareMsgMem(memory)
		if err != nil {
			return nil, err
		}
		return declare(mem, other, qmp.DefaultPriority)
	}
	out, err := handle(firstOut, b.qmp.DefaultComm().DeclareSendTo)
	if err != nil {
		return err
	}
	in, err := handle(firstIn, b.qmp.DefaultComm().DeclareReceiveFrom)
	if err != nil {
		return err
	}
	s.out = func(b []byte) (startable, error) { return out, out.ChangeAddress(b) }
	s.in = func(b []byte) (startable, error) { return in, in.ChangeAddress(b) }
	s.ends = append(s.ends, out.Close, in.Close)
	return nil
}

func (s *oneshot) run(n int, samples []int64) error {
	t := startLaps(samples)
	for i := range n {
		at := s.turn % 2
		s.turn, s.since = s.turn+1, s.since+1
		if s.rank == 0 {
			if err := s.message(s.out, s.outs[at]); err != nil {
				return err
			}
		}
		if err := s.message(s.in, s.ins[at]); err != nil {
			return err
		}
		if s.rank != 0 {
			if err := s.message(s.out, s.outs[at]); err != nil {
				return err
			}
		}
		t.lap(i)
	}
	return nil
}

func (s *oneshot) message(declare func([]byte) (startable, error), memory []byte) error {
	h, err := declare(memory[:s.bytes])
	if err != nil {
		return err
	}
	if err := h.Start(); err != nil {
		return err
	}
	if err := h.Wait(); err != nil || !s.once {
		return err
	}
	return h.Close()
}

// turns: there are two buffers.
func (s *oneshot) turns() int { return 2 }

func (s *oneshot) prepare() {
	s.since = 0
	s.messages.prepare()
}

// check looks at the buffers that have had their turn since prepare.
func (s *oneshot) check() error {
	for k := range min(s.since, 2) {
		at := (s.turn - 1 - k) % 2
		if err := s.into.check(s.messages.op, s.ins[at], s.seed(s.from, at)); err != nil {
			return err
		}
	}
	return nil
}

func (s *oneshot) close() error {
	err := s.declarations.close()
	for _, end := range s.ends {
		err = errors.Join(err, end())
	}
	return err
}
