package main

import (
	"context"

	"github.com/sluice-hpc/sluice/channel"
)

// channelWindows starts many handles at once, one way or both, waits for all of
// them, and has the receiver say that it has all: the last byte counts.
type channelWindows struct {
	messages
	both  bool
	sends []*channel.Handle
	recvs []*channel.Handle
	ack   *channel.Handle
}

// Streams of messages and of their acknowledgement.
const (
	streamMessages = 0
	streamAck      = 1
)

func declareWindows(n *node, m *measurement, arena []byte) (*channelWindows, error) {
	other := 1 - n.Rank()
	s := &channelWindows{messages: messages{declarations: declarations{node: n, stream: streamMessages}, op: m.op.name, bytes: m.bytes, from: other},
		both: m.pattern == patternBiBW}
	s.carve(arena, m.windowed)
	for i := range m.windowed {
		if s.both || n.Rank() == 0 {
			s.sends = append(s.sends, s.send(s.layout(s.outs[i]), other))
		}
		if s.both || n.Rank() != 0 {
			s.recvs = append(s.recvs, s.receive(s.layout(s.ins[i]), other))
		}
	}
	s.stream = streamAck
	ack := channel.Contiguous(make([]byte, 1))
	if n.Rank() == 0 {
		s.ack = s.receive(ack, other)
	} else {
		s.ack = s.send(ack, other)
	}
	return s, s.err
}

func (s *channelWindows) verify(ctx context.Context) error {
	return s.verifyBy(ctx, s.run, len(s.recvs) > 0)
}

func (s *channelWindows) run(n int, _ []int64) error {
	for range n {
		for _, list := range [...][]*channel.Handle{s.recvs, s.sends} {
			for _, h := range list {
				if err := h.Start(); err != nil {
					return err
				}
			}
		}
		for _, list := range [...][]*channel.Handle{s.sends, s.recvs} {
			for _, h := range list {
				if err := h.Wait(); err != nil {
					return err
				}
			}
		}
		if err := s.ack.Start(); err != nil {
			return err
		}
		if err := s.ack.Wait(); err != nil {
			return err
		}
	}
	return nil
}
