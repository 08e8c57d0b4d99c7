package main

import (
	"context"

	"github.com/sluice-hpc/sluice/channel"
)

const longChannel = `Each message has memory of its own, and a handle that is declared once and
started again and again.`

const longLocal = `What the calls cost when nothing has to come from another core: start the send and
the receive, test both until they are over.`

// Buffers begin at pages, and messages that have one together at cache lines.
const (
	pageBytes = 4096
	lineBytes = 64
)

func roundUp(n, to int) int { return (n + to - 1) / to * to }

// strideOf is how far apart the messages of a window are, whose memory is so long.
func strideOf(span int) int { return roundUp(span+guard, lineBytes) }

// declarations are handles that are declared, and closed, together.
type declarations struct {
	node    *channel.Node
	stream  int
	handles []*channel.Handle
}

func (d *declarations) send(l channel.Layout, rank int) *channel.Handle {
	return d.add(d.node.DeclareSend(l, rank, channel.OnStream(d.stream)))
}

func (d *declarations) receive(l channel.Layout, rank int) *channel.Handle {
	return d.add(d.node.DeclareReceive(l, rank, channel.OnStream(d.stream)))
}

func (d *declarations) add(h *channel.Handle, err error) *channel.Handle {
	must(err)
	d.handles = append(d.handles, h)
	return h
}

// close closes all handles, which must be idle.
func (d *declarations) close() {
	for _, h := range d.handles {
		must(h.Close())
	}
}

// neighbours are the ranks before and after this one on a ring.
func neighbours(n exchanger) (left, right int) {
	return (n.Rank() + n.Size() - 1) % n.Size(), (n.Rank() + 1) % n.Size()
}

// messages are those of one size that a rank sends and receives, each with memory of its own.
type messages struct {
	declarations
	extent        // of what is sent
	into   extent // of what is received
	op     string
	from   int      // whose messages arrive here
	outs   [][]byte // each with its guard
	ins    [][]byte // that messages arrive in, each with its guard
}

// newMessages takes memory for what this rank sends and receives, and declares nothing.
func newMessages(b *bed, m *measurement, from, sends, receives int) messages {
	s := messages{declarations: declarations{node: b.Node}, extent: m.extent(), into: m.into(), op: m.op, from: from}
	out, in := strideOf(s.span()), strideOf(s.into.span())
	outs, ins := b.memory(&m.spec, sends*out, receives*in)
	for i := range sends {
		s.outs = append(s.outs, outs[i*out:][:s.span()+guard])
	}
	for i := range receives {
		s.ins = append(s.ins, ins[i*in:][:s.into.span()+guard])
	}
	return s
}

// seed tells the messages of all ranks, and those of one, apart.
func (s *messages) seed(rank, i int) uint64 { return seedFor(rank, s.bytes, s.op) + uint64(i)<<32 }

func (s *messages) prepare() {
	for i, out := range s.outs {
		s.fill(out, s.seed(s.node.Rank(), i))
	}
	for _, in := range s.ins {
		fillGuard(in)
	}
}

func (s *messages) check() {
	for i := range s.ins {
		s.checkOne(i)
	}
}

func (s *messages) checkOne(i int) { must(s.into.check(s.op, s.ins[i], s.seed(s.from, i))) }

// Streams of messages, and of what is said of them.
const (
	streamMessages = iota
	streamNotes
)

// declareChannel declares what two ranks send each other, or one passes on.
func declareChannel(_ context.Context, b *bed, m *measurement) series {
	if m.windowed > 0 {
		return declareWindows(b, m)
	}
	t := declareToken(b, m)
	switch {
	case m.o.late:
		return declareLate(t)
	case b.Size() == 1:
		return &local{t}
	}
	return t
}

// token is one message that goes from rank to rank and comes back: to and fro between two,
// or round a ring of more.
//
//	rank 0                      the others
//	start send, receive         start receive
//	wait for both  ── token ──▶ wait for it
//	        ◀── token ───────── start send, and the next receive; wait for the send
type token struct {
	messages
	out, in *channel.Handle
	left    int // receives that are to be started
}

func declareToken(b *bed, m *measurement) *token {
	left, right := neighbours(b)
	s := &token{messages: newMessages(b, m, left, 1, 1)}
	s.out = s.declarations.send(s.layout(s.outs[0]), right)
	s.in = s.declarations.receive(s.into.layout(s.ins[0]), left)
	return s
}

func (s *token) run(n int, samples []int64) {
	s.left = n
	if s.node.Rank() != 0 {
		s.left--
		must(s.in.Start())
	}
	pingpong(s, s.node.Rank() == 0, n, samples)
}

func (s *token) send() {
	must(s.out.Start())
	if s.left > 0 {
		s.left--
		must(s.in.Start())
	}
	must(s.out.Wait())
}

func (s *token) receive() { must(s.in.Wait()) }

// local is a token within one rank: both handles are started, and tested until both are over.
type local struct{ *token }

func (s *local) run(n int, samples []int64) { pingpong(s, true, n, samples) }
func (s *local) send()                      { startAll(s.out, s.in) }

func (s *local) receive() {
	for _, h := range [...]*channel.Handle{s.in, s.out} {
		for !must1(h.Test()) {
		}
	}
}

// late is a message that goes to and fro between two ranks, each of which starts its
// receive when it has been told that the message has been sent: so the receiver is always
// the second, and reads the message where it may.
//
//	start send ── message ──▶
//	start note ── 1 byte ───▶ wait for it
//	                          start receive, wait
//	wait for the send
type late struct {
	*token
	told, tell *channel.Handle
}

func declareLate(t *token) series {
	s := &late{token: t}
	s.stream = streamNotes
	s.tell = s.declarations.send(channel.Contiguous(make([]byte, 1)), s.from)
	s.told = s.declarations.receive(channel.Contiguous(make([]byte, 1)), s.from)
	return s
}

func (s *late) run(n int, samples []int64) { pingpong(s, s.node.Rank() == 0, n, samples) }

func (s *late) send() {
	startAll(s.out, s.tell)
	waitAll(s.tell, s.out)
}

func (s *late) receive() {
	move(s.told)
	move(s.in)
}

// move starts a message, and waits for it.
func move(h startable) {
	must(h.Start())
	must(h.Wait())
}

func startAll(list ...*channel.Handle) {
	for _, h := range list {
		must(h.Start())
	}
}

func waitAll(list ...*channel.Handle) {
	for _, h := range list {
		must(h.Wait())
	}
}

// windows starts many handles at once, one way or both, waits for all of them, and has rank 1
// say that it has all: the last byte counts.
type windows struct {
	messages
	sends, recvs []*channel.Handle
	note         *channel.Handle
}

// directions says which of a window's messages this rank sends and receives.
func (m *measurement) directions(rank int) (sends, receives int) {
	switch {
	case m.name == patternBiBW:
		return m.windowed, m.windowed
	case rank == 0:
		return m.windowed, 0
	}
	return 0, m.windowed
}

func declareWindows(b *bed, m *measurement) series {
	other := 1 - b.Rank()
	sends, receives := m.directions(b.Rank())
	s := &windows{messages: newMessages(b, m, other, sends, receives)}
	for _, out := range s.outs {
		s.sends = append(s.sends, s.send(s.layout(out), other))
	}
	for _, in := range s.ins {
		s.recvs = append(s.recvs, s.receive(s.into.layout(in), other))
	}
	s.stream = streamNotes
	note := channel.Contiguous(make([]byte, 1))
	if b.Rank() == 0 {
		s.note = s.receive(note, other)
	} else {
		s.note = s.send(note, other)
	}
	return s
}

func (s *windows) run(n int, _ []int64) {
	for range n {
		startAll(s.recvs...)
		startAll(s.sends...)
		waitAll(s.sends...)
		waitAll(s.recvs...)
		move(s.note)
	}
}
