package main

import (
	"github.com/sluice-hpc/sluice/channel"
)

// channelWindows starts many handles at once, one way or both, waits for all of
// them, and has the receiver say that it has all: the last byte counts.
type channelWindows struct {
	messages
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
	s := &channelWindows{messages: messages{declarations: declarations{node: n, stream: streamMessages}, extent: m.extent(), into: m.into(), op: m.op.name, from: other}}
	sends, receives := m.windowed, m.windowed
	switch {
	case m.pattern == patternBiBW:
	case n.Rank() == 0:
		receives = 0
	default:
		sends = 0
	}
	s.carve(arena, m.windowed, sends, receives)
	for _, out := range s.outs {
		s.sends = append(s.sends, s.send(s.layout(out), other))
	}
	for _, in := range s.ins {
		s.recvs = append(s.recvs, s.receive(s.into.layout(in), other))
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
