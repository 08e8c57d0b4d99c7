package main

import (
	"context"
	"slices"

	"github.com/sluice-hpc/sluice/channel"
)

const longChannel = `Each message has memory of its own, and a handle that is declared once and
started again and again.`

const longLocal = `Measures the calls alone, when nothing has to come from another core: start the send and
the receive, test both until they are complete.`

// Buffers begin at pages, and messages within a buffer at cache lines.
const (
	pageBytes = 4096
	lineBytes = 64
)

func roundUp(n, to int) int { return (n + to - 1) / to * to }

// strideOf returns the distance between the messages of a window.
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
	rank   int
	from   int      // whose messages arrive here
	outs   [][]byte // each with its guard
	ins    [][]byte // that messages arrive in, each with its guard
}

// newMessages takes memory for the messages of this rank, and declares nothing.
func newMessages(b *bed, m *measurement, from, sends, receives int) messages {
	s := messages{declarations: declarations{node: b.Node}, rank: b.Rank(), extent: m.extent(), into: m.into(), op: m.op, from: from}
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

// seed distinguishes the messages of all ranks, and those of one.
func (s *messages) seed(rank, i int) uint64 { return seedFor(rank, s.bytes, s.op) + uint64(i)<<32 }

func (s *messages) prepare() {
	for i, out := range s.outs {
		s.fill(out, s.seed(s.rank, i))
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

// Streams of messages, and of notes about them.
const (
	streamMessages = iota
	streamNotes
)

// declareChannel declares the messages that two ranks exchange, or that one passes on.
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

// token is one message that goes from rank to rank and comes back: a ping-pong between two, or
// a ring of more.
//
//	rank 0                      the others
//	start send, receive         start receive
//	wait for both  ── token ──▶ wait for it
//	        ◀── token ───────── start send, and the next receive; wait for the send
type token struct {
	messages
	out, in *channel.Handle
	left    int // receives still to be started
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

// late is a ping-pong between two ranks. Each starts its receive after a note that the message has
// been sent, so the receiver always comes second, and reads the message if it can.
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

// startable is a handle of channel or of qmp.
type startable interface {
	Start() error
	Wait() error
	Close() error
}

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

// windows starts many handles at once, in one direction or both, waits for all of them, and waits
// until rank 1 reports that it has all: the last byte counts.
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

// The lattice of a rank: latticeSide sites along each of four axes, x fastest,
// siteBytes each (a spinor of twelve complex numbers in double precision).
const (
	latticeSide = 16
	latticeDims = 4
	siteBytes   = 192
	fieldBytes  = latticeSide * latticeSide * latticeSide * latticeSide * siteBytes
	faceBytes   = fieldBytes / latticeSide
)

const longHalo = `Each rank has a lattice of 16×16×16×16 sites of 192 bytes, x fastest. It sends
both faces of an axis to its neighbours, straight from the lattice, and receives
theirs: for x 4096 blocks of 192 bytes, for y 256 of 3 KiB, for z 16 of 48 KiB, for
t one of 768 KiB. One exchange is one start and one wait of a multiple of all its
messages. MB/s are those that one rank sends.`

// Axes of exchanges: all is the other four at once. half, only for qmp, is the halo of
// examples/wilson, whose sites send contiguous half spinors of 96 bytes along t.
var (
	axes    = []string{"x", "y", "z", "t", axisAll}
	qmpAxes = append(slices.Clone(axes), axisHalf)
)

const (
	axisAll   = "all"
	axisHalf  = "half"
	halfBytes = faceBytes / 2
)

// axisBytes returns how many bytes a rank sends in an exchange.
func axisBytes(axis string) int {
	if axis == axisHalf {
		return 2 * halfBytes
	}
	return 2 * len(axesOf(axis)) * faceBytes
}

// checkAxes: only package qmp has half faces.
func checkAxes(o *options) { parseList("axis", o.axis, axes...) }

// axesOf lists the numbers of the axes that a name stands for.
func axesOf(name string) []int {
	switch name {
	case axisAll:
		return []int{0, 1, 2, 3}
	case axisHalf:
		return []int{3}
	}
	return []int{slices.Index(axes, name)}
}

// How a face is received.
const (
	haloPacked  = "packed"
	haloStrided = "strided"
)

// blockOf returns the size of the contiguous blocks of a face: all sites along the faster axes.
func blockOf(axis int) int {
	block := siteBytes
	for range axis {
		block *= latticeSide
	}
	return block
}

// face is the layout of the sites whose coordinate along an axis is at.
func face(field []byte, axis, at int) channel.Layout {
	block := blockOf(axis)
	return channel.Strided(field, at*block, block, faceBytes/block, latticeSide*block)
}

// haloExchange sends the faces of one or all axes to both neighbours on a ring of
// ranks, which is the same for each axis, and receives theirs. There is a stream for
// each axis and direction: between two ranks, which are both neighbours of each
// other, they would not be told apart otherwise.
type haloExchange struct {
	declarations
	spec
	field []byte
	faces []haloFace
	all   startable // a multiple of all messages
}

// haloFace is a face that is received.
type haloFace struct {
	axis, at int    // of the face on the sending rank
	from, to int    // that rank, and the one that this rank's face goes to
	into     []byte // the memory that it is received into, and its surroundings
	packed   bool
}

// newHalo takes memory for the field and for the received faces: if packed, a buffer for each
// face; if strided, a field for each axis, as the faces of different axes overlap in the corners.
func newHalo(b *bed, m *measurement) *haloExchange {
	n := len(axesOf(m.axis))
	in, each := 2*n*strideOf(faceBytes), strideOf(faceBytes)
	if m.halo == haloStrided {
		in, each = n*fieldBytes, 0
	}
	field, into := b.memory(&m.spec, fieldBytes, in)
	s := &haloExchange{declarations: declarations{node: b.Node}, spec: m.spec, field: field}
	left, right := neighbours(b)
	for i, axis := range axesOf(m.axis) {
		for up, at := range []int{0, latticeSide - 1} { // down, then up
			f := haloFace{axis: axis, at: at, from: []int{right, left}[up], to: []int{left, right}[up], packed: m.halo != haloStrided}
			if f.packed {
				f.into = into[(2*i+up)*each:][:m.faceLen()+guard]
			} else {
				f.into = into[i*fieldBytes:][:fieldBytes]
			}
			s.faces = append(s.faces, f)
		}
	}
	return s
}

// faceLen are the bytes of a face.
func (s *spec) faceLen() int { return s.bytes / 2 / len(axesOf(s.axis)) }

func declareHalo(_ context.Context, b *bed, m *measurement) series {
	s := newHalo(b, m)
	for i, f := range s.faces {
		s.stream = i
		into := channel.Contiguous(f.into[:min(len(f.into), faceBytes)])
		if !f.packed {
			into = face(f.into, f.axis, f.at)
		}
		s.send(face(s.field, f.axis, f.at), f.to)
		s.receive(into, f.from)
	}
	s.all = must1(b.Multiple(s.handles...))
	return s
}

func (s *haloExchange) run(n int, samples []int64) {
	repeat(n, samples, func() { move(s.all) })
}

func (s *haloExchange) close() {
	must(s.all.Close())
	s.declarations.close()
}

func (s *haloExchange) prepare() {
	fillPattern(s.field, s.seed(s.node.Rank()))
	for _, f := range s.faces {
		fillGuard(f.into)
	}
}

func (s *haloExchange) seed(rank int) uint64 { return seedFor(rank, s.bytes, s.op+s.axis) }

// check compares the received bytes, and those around them, with the expected ones.
func (s *haloExchange) check() {
	theirs, from := make([]byte, fieldBytes), -1
	want := make([]byte, fieldBytes)
	for i, f := range s.faces {
		if f.from != from {
			from = f.from
			fillPattern(theirs, s.seed(from))
		}
		want := want[:len(f.into)]
		if f.packed || i == 0 || s.faces[i-1].axis != f.axis { // both faces of an axis are received into one field
			fillGuard(want)
		}
		copyFace(want, theirs, f)
		if !f.packed && (i+1 < len(s.faces) && s.faces[i+1].axis == f.axis) {
			continue
		}
		compareBytes("face "+axes[f.axis]+" of "+s.op, f.into, want, faceBytes)
	}
}

// copyFace copies a face of a field to where a rank receives it.
func copyFace(to, field []byte, f haloFace) {
	block := blockOf(f.axis)
	at := 0
	if f.packed {
		to = to[:len(to)-guard]
	}
	for off := f.at * block; off < fieldBytes; off += latticeSide * block {
		if !f.packed {
			at = off
		}
		copy(to[at:min(at+block, len(to))], field[off:]) // of half a face, half a block
		at += block
	}
}
