package verbstest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/verbs"
)

// testModel runs random operations against a model of what they do.
//
// Each of three pairs of queue pairs carries two streams, one in each direction.
// A stream has its own memory at either end, so that its effects depend only on its own order: the
// model executes every operation when it is drawn, on the images of that memory. After each batch,
// the completions and every byte of all memory are compared.
//
//	           near                      far
//	        +--------+   stream →    +--------+
//	local → |  zone  | ------------> |  zone  |
//	        |  zone  | <------------ |  zone  | ← local
//	        +--------+   ← stream    +--------+
func testModel(t *testing.T, s *suite) {
	s.in(t, everywhere, func(w *world) {
		w.run("random", func(w *world) { newModel(w).batches(10 * s.Rounds) })
		if w.place == processes && canPause {
			w.run("random with pauses", func(w *world) {
				m := newModel(w)
				stop := w.pauses(w.far, s.Rounds)
				m.batches(10 * s.Rounds)
				stop()
			})
		}
	})
}

const (
	pairs      = 3
	zoneSize   = 96 << 10
	longestOp  = 60_000
	batchLimit = 16 // operations of a stream in a batch
)

type model struct {
	w       *world
	rng     *rand.Rand
	streams []*stream
	id      uint64
	opcodes []verbs.Opcode // of this batch
}

// stream is the operations of one end on the other.
type stream struct {
	*model
	from, to      *end
	local, remote []*mem // in from's and in to's memory

	// Of the batch that is being drawn.
	send     []verbs.SendWR
	recv     []verbs.RecvWR
	sent     []verbs.WC
	received []verbs.WC
	reading  bool // a READ may be outstanding
	adding   bool // an atomic may be outstanding
	hasRead  bool // this batch has had one of these
}

func newModel(w *world) *model {
	m := &model{w: w, rng: seeded(w.suite.Seed, w.t.Name())}
	most := min(4, w.suite.attr.MaxSGE)
	for range pairs {
		near, far := w.pair(qpSpec{SendWR: batchLimit, RecvWR: batchLimit, SendSGE: most, RecvSGE: most, Inline: min(64, w.suite.attr.MaxInlineData)}, patient)
		for _, ends := range [][2]*end{{near, far}, {far, near}} {
			st := &stream{model: m, from: ends[0], to: ends[1]}
			for _, k := range []kind{own, heap} {
				m.id++
				st.local = append(st.local, w.alloc(st.from.p, zoneSize, verbs.AccessAll, k).fill(m.id))
				m.id++
				st.remote = append(st.remote, w.alloc(st.to.p, zoneSize, verbs.AccessAll, k).fill(m.id))
			}
			m.streams = append(m.streams, st)
		}
	}
	return m
}

// patience limits the time that batches run: on an overloaded machine, the test runs fewer of them
// rather than fail.
const patience = bound / 3

func (m *model) batches(n int) {
	start := time.Now()
	for i := range n {
		if time.Since(start) > patience {
			m.w.t.Logf("%d of %d batches in %v", i, n, patience)
			return
		}
		m.batch(i)
	}
}

// step is one call of a batch: post to a queue pair.
type step struct {
	ID    int
	Sends []verbs.SendWR
	Recvs []verbs.RecvWR
}

// expect says how many completions a queue pair will have.
type expect struct {
	ID           int
	Sends, Recvs int
}

// batchCmd does all steps, then takes all completions. Each end posts everything that the other needs
// before it waits for anything.
type batchCmd struct {
	Steps   []step
	Expects []expect
}

type batchReply struct{ Sends, Recvs []verbs.WC }

func (c batchCmd) run(ctx context.Context, n *node) (any, error) {
	for _, s := range c.Steps {
		qp := n.objs[s.ID].qp
		if err := postAll(qp, s.Sends...); err != nil {
			return nil, err
		}
		if k, err := qp.PostRecv(s.Recvs); k != len(s.Recvs) || err != nil {
			return nil, fmt.Errorf("QP took %d of %d receives: %w", k, len(s.Recvs), err)
		}
	}
	var replies []batchReply
	for _, e := range c.Expects {
		o := n.objs[e.ID]
		sends, err := await(ctx, o.send, e.Sends)
		recvs, err2 := await(ctx, o.recv, e.Recvs)
		replies = append(replies, batchReply{sends, recvs})
		if err := errors.Join(err, err2); err != nil {
			return replies, fmt.Errorf("QP %#x: %w; got %v", o.qp.QPNum(), err, replies)
		}
	}
	return replies, nil
}

func (m *model) batch(number int) {
	t := m.w.t
	cmds := map[*peer]*batchCmd{m.w.near: {}, m.w.far: {}}
	m.choose(number)
	for _, s := range m.streams {
		s.draw()
	}
	// Posting in pieces, the streams of one peer mixed, some receives after the
	// sends that they are for.
	for p, c := range cmds {
		var queues [][]step
		for _, s := range m.streams {
			if s.from.p == p {
				queues = append(queues, s.sendSteps())
			}
			if s.to.p == p {
				queues = append(queues, s.recvSteps())
			}
		}
		for len(queues) > 0 {
			k := m.rng.IntN(len(queues))
			c.Steps = append(c.Steps, queues[k][0])
			if queues[k] = queues[k][1:]; len(queues[k]) == 0 {
				queues = slices.Delete(queues, k, k+1)
			}
		}
	}
	// The streams of a pair are neighbours: what one sends on a queue pair, and
	// what the other receives there.
	for i, out := range m.streams {
		in := m.streams[i^1]
		c := cmds[out.from.p]
		c.Expects = append(c.Expects, expect{out.from.ID, len(out.sent), len(in.received)})
	}
	far := m.w.far.begin(m.w.ctx, *cmds[m.w.far])
	replies := map[*peer][]batchReply{}
	var nearErr error
	replies[m.w.near], nearErr = try[[]batchReply](m.w, m.w.near, *cmds[m.w.near])
	v, farErr := far()
	replies[m.w.far], _ = v.([]batchReply) // what there was before an error
	// The cause before its consequences, whichever end they are at.
	for p, rs := range replies {
		for _, r := range rs {
			for _, wc := range append(r.Sends, r.Recvs...) {
				if wc.Status != verbs.WCSuccess && wc.Status != verbs.WCWRFlushErr && wc.Status != verbs.WCRetryExcErr {
					require.NoError(t, wc.Err(), "%s end, batch %d", p.name, number)
				}
			}
		}
	}
	require.NoError(t, nearErr, "near end, batch %d", number)
	require.NoError(t, farErr, "far end, batch %d", number)
	for i, out := range m.streams {
		in := m.streams[i^1]
		r := replies[out.from.p][0]
		replies[out.from.p] = replies[out.from.p][1:]
		for j := range out.sent {
			out.from.same(sends, out.sent[j], r.Sends[j], fmt.Sprintf("batch %d, %s end, send completion %d", number, out.from.p.name, j))
		}
		for j := range in.received {
			out.from.same(recvs, in.received[j], r.Recvs[j], fmt.Sprintf("batch %d, %s end, receive completion %d", number, out.from.p.name, j))
		}
	}
	m.w.verify("batch %d", number)
}

// choose sets what a batch is made of.
func (m *model) choose(number int) {
	answered := []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead}
	if m.w.suite.attr.AtomicCap != verbs.AtomicNone {
		answered = append(answered, verbs.OpAtomicCmpAndSwp, verbs.OpAtomicFetchAndAdd)
	}
	received := []verbs.Opcode{verbs.OpSend, verbs.OpSendWithImm, verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm}
	switch {
	case !m.w.suite.Deviations.NoReadsAcrossRNR:
		m.opcodes = append(received, answered[1:]...)
	case number%2 == 0:
		m.opcodes = received
	default:
		m.opcodes = answered
	}
}

// sendSteps cuts the sends of the stream into calls, recvSteps the receives.
func (s *stream) sendSteps() []step {
	var l []step
	for rest := s.send; len(rest) > 0; {
		n := 1 + s.rng.IntN(len(rest))
		l = append(l, step{ID: s.from.ID, Sends: rest[:n]})
		rest = rest[n:]
	}
	return append(l, step{ID: s.from.ID})
}

func (s *stream) recvSteps() []step {
	var l []step
	for rest := s.recv; len(rest) > 0; {
		n := 1 + s.rng.IntN(len(rest))
		l = append(l, step{ID: s.to.ID, Recvs: rest[:n]})
		rest = rest[n:]
	}
	return append(l, step{ID: s.to.ID})
}

// draw draws the operations of a batch, and executes them on the images.
func (s *stream) draw() {
	s.send, s.recv, s.sent, s.received = nil, nil, nil, nil
	s.reading, s.adding, s.hasRead = false, false, false
	n := 1 + s.rng.IntN(batchLimit)
	for i := range n {
		s.drawOne(i == n-1)
	}
}

func (s *stream) drawOne(last bool) {
	ops := s.opcodes
	s.id++
	wr := verbs.SendWR{WRID: s.id, Opcode: ops[s.rng.IntN(len(ops))], Imm: s.rng.Uint32()}
	if last || s.rng.IntN(2) == 0 {
		wr.Flags |= verbs.SendSignaled
	}
	if s.rng.IntN(4) == 0 {
		wr.Flags |= verbs.SendSolicited
	}
	n := s.length()
	done := sent(wr.WRID, wr.Opcode)
	switch wr.Opcode {
	case verbs.OpRDMARead:
		dst := s.pieces(s.local, n)
		src := s.place(s.remote, n)
		wr = onto(wr, src.m, src.off)
		wr.SGList = elements(dst)
		scattered(dst, gathered([]piece{src}))
		done.ByteLen = uint32(n)
		s.order(&wr, s.adding)
		s.reading, s.hasRead = true, true
	case verbs.OpAtomicCmpAndSwp, verbs.OpAtomicFetchAndAdd:
		s.atomic(&wr)
		done.ByteLen = 8
		s.order(&wr, s.reading)
		s.adding, s.hasRead = true, true
	default:
		data := s.payload(&wr, n)
		if wr.Opcode == verbs.OpRDMAWrite || wr.Opcode == verbs.OpRDMAWriteWithImm {
			dst := s.place(s.remote, n)
			wr = onto(wr, dst.m, dst.off)
			scattered([]piece{dst}, data)
		}
		if wr.Opcode != verbs.OpRDMAWrite {
			s.receive(wr, data)
		}
		s.order(&wr, s.reading || s.adding)
	}
	s.send = append(s.send, wr)
	if wr.Flags&verbs.SendSignaled != 0 {
		s.sent = append(s.sent, done)
	}
}

// order fences wr where it must, else now and then. Without a fence an operation
// may write what a read before it still reads, and gather what that has yet to
// bring (InfiniBand architecture, table 76).
func (s *stream) order(wr *verbs.SendWR, must bool) {
	if must || s.rng.IntN(8) == 0 {
		wr.Flags |= verbs.SendFence
		s.reading, s.adding = false, false
	}
}

// length draws the length of a message: nothing, little, or anything.
func (s *stream) length() int {
	switch s.rng.IntN(8) {
	case 0:
		return 0
	case 1, 2:
		return s.rng.IntN(longestOp)
	case 3:
		return s.rng.IntN(5000)
	default:
		return s.rng.IntN(100)
	}
}

// place draws a place for n bytes.
func (s *stream) place(ms []*mem, n int) piece {
	return piece{ms[s.rng.IntN(len(ms))], s.rng.IntN(zoneSize - n + 1), n}
}

// pieces draws places for n bytes in several pieces that do not overlap.
func (s *stream) pieces(ms []*mem, n int) []piece {
	count := 1 + s.rng.IntN(min(s.from.Cap.MaxSendSGE, s.to.Cap.MaxRecvSGE))
	if n == 0 && s.rng.IntN(2) == 0 {
		return nil
	}
	// Cut up one place, then take the pieces in another order.
	at := s.place(ms, n)
	l := make([]piece, count)
	for i, size := range split(s.rng, n, count) {
		l[i] = piece{at.m, at.off, size}
		at.off += size
	}
	s.rng.Shuffle(count, func(i, j int) { l[i], l[j] = l[j], l[i] })
	return l
}

// payload gives wr its data, inline or not, and returns it.
func (s *stream) payload(wr *verbs.SendWR, n int) []byte {
	inline := s.from.spec.Inline > 0 && n <= s.from.spec.Inline && s.rng.IntN(2) == 0
	if inline {
		wr.Flags |= verbs.SendInline
		// Memory that a read of this batch writes is not up to date when posting.
		if s.hasRead || s.rng.IntN(2) == 0 {
			wr.Inline = patterned(n, wr.WRID)
			return wr.Inline
		}
	}
	src := s.pieces(s.local, n)
	wr.SGList = elements(src)
	return gathered(src)
}

// receive draws the receive that the message takes, and delivers it.
func (s *stream) receive(wr verbs.SendWR, data []byte) {
	s.id++
	room := len(data)
	if s.rng.IntN(3) == 0 {
		room += s.rng.IntN(zoneSize - longestOp)
	}
	dst := s.pieces(s.remote, room)
	s.recv = append(s.recv, receive(s.id, elements(dst)...))
	wc := received(s.id, len(data))
	if wr.Opcode == verbs.OpRDMAWriteWithImm {
		wc.Opcode = verbs.WCRecvRDMAWithImm
	} else {
		scattered(dst, data)
	}
	if wr.Opcode != verbs.OpSend {
		wc.Flags, wc.Imm = verbs.WCWithImm, wr.Imm
	}
	s.received = append(s.received, wc)
}

// atomic draws an atomic operation on an aligned word, and executes it.
func (s *stream) atomic(wr *verbs.SendWR) {
	word := s.place(s.remote, 8)
	word.off &^= 7
	result := s.place(s.local, 8)
	*wr = onto(*wr, word.m, word.off)
	wr.SGList = elements([]piece{result})
	before := slices.Clone(gathered([]piece{word}))
	was := binary.NativeEndian.Uint64(before)
	wr.CompareAdd, wr.Swap = s.rng.Uint64(), s.rng.Uint64()
	if s.rng.IntN(2) == 0 {
		wr.CompareAdd = was
	}
	switch {
	case wr.Opcode == verbs.OpAtomicFetchAndAdd:
		scattered([]piece{word}, nativeWord(was+wr.CompareAdd))
	case wr.CompareAdd == was:
		scattered([]piece{word}, nativeWord(wr.Swap))
	}
	scattered([]piece{result}, before)
}

// pauses stops and continues the process of a peer at random moments, at most n
// times, until the function that it returns is called.
func (w *world) pauses(p *peer, n int) (stop func()) {
	rng := seeded(w.suite.Seed, "pauses")
	quit, done := make(chan struct{}), make(chan error, 1)
	go func() {
		var err error
		for range n {
			select {
			case <-quit:
			case <-time.After(time.Duration(rng.IntN(5000)) * time.Microsecond):
				err = pause(p.child.cmd.Process)
				<-time.After(time.Duration(rng.IntN(20_000)) * time.Microsecond)
				err = errors.Join(err, resume(p.child.cmd.Process))
			}
			if err != nil {
				break
			}
		}
		done <- err
	}()
	var stopped bool
	stop = func() {
		if !stopped {
			stopped = true
			close(quit)
			require.NoError(w.t, <-done)
		}
	}
	w.t.Cleanup(stop)
	return stop
}
