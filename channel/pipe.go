package channel

import (
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/sluice-hpc/sluice/internal/choice"
	"github.com/sluice-hpc/sluice/internal/layout"
	"github.com/sluice-hpc/sluice/internal/machine"
	"github.com/sluice-hpc/sluice/internal/wait"
	"github.com/sluice-hpc/sluice/verbs"
)

// A pipe carries the large messages of a stream whose memory the receiver cannot
// access: the sender packs them, piece by piece, into memory that the receiver can
// access, and the receiver unpacks them. Both copy at the same time.
//
// Letting the receiver read such memory with process_vm_readv is slower for every block
// size: 0.5 GB/s vs 36 for 192 bytes, 9 vs 40 for 4 KiB, 14 vs 40 for one block of 768
// KiB (BenchmarkForeign). Between processes it is too, even if both sides copy half of a
// message each, and most for a message that its sender has just written.
//
// Messages go through the pipe in the order of their starts. For a message longer than
// the pipe, the sender has to pack the rest later: Start, Test and Wait do so, and the
// engine while the program computes.

// A pipe is a ring of bytes; a message begins at a cache line. Its pieces are short at both ends of the
// message, where one side waits for the other, and grow between.
//
// A pipe has the size of machine.Ring. On an EPYC with second-level caches of 1 MiB half a round trip of
// 64 KiB, 256 KiB and 1 MiB takes 4, 11 and 36 µs, through a pipe of 256 KiB 9, 28 and 117. Only the first
// pipes of a node are large: several that are used together leave that cache by themselves, and if all are
// large the other caches as well. All faces of a halo of 16⁴ sites, 8 streams, go at 4.4 GB/s then, and at 5.7
// with two large ones.
const (
	pipeLeast  = machine.RingLeast
	pipeMost   = machine.RingMost
	pipesLarge = 2

	packMost = 256 << 10 // bytes that a call packs at once

	pieceMin = 8 << 10
	pieceMax = 64 << 10
	pipeLine = 64
)

// pipeLines is the length in the pipe of n bytes: whole cache lines.
func pipeLines(n uint64) uint64 { return (n + pipeLine - 1) &^ (pipeLine - 1) }

// piece is the memory of the next piece of a message of n bytes, of which some have been moved; at is
// its place in the bytes since the beginning of the pipe. Both sides cut a message in the same way.
func piece(pipe []byte, at uint64, moved, n int) []byte {
	left := n - moved
	size := min(max(min(moved, left)/2, pieceMin), pieceMax) &^ (pipeLine - 1)
	from := int(at % uint64(len(pipe)))
	return pipe[from:][:min(size, left, len(pipe)-from)]
}

// nextPiece is the next piece to pack, and its place; not ok if there is no room for it or no message. The
// caller holds the lock.
func (s *sendStream) nextPiece() (b []byte, at uint64, ok bool) {
	if len(s.packing) == 0 {
		return nil, 0, false
	}
	h := s.packing[0]
	if at = s.filled; h.moved == 0 {
		at = h.first // skip what was meant for refused messages before it
	}
	b = piece(s.pipe, at, h.moved, h.shape.Len())
	return b, at, at+pipeLines(uint64(len(b)))-atomic.LoadUint64(&s.r.emptied) <= uint64(len(s.pipe))
}

// pipeSize is the size of the next pipe.
func (n *Node) pipeSize() int {
	if size := machine.Ring(); n.piped.Load()+int64(size) <= pipesLarge*int64(size) {
		return size
	}
	return pipeLeast
}

// openPipe makes the pipe of a stream to a peer whose memory is mapped, unless it exists. The
// caller holds mu.
func (p *peer) openPipe(s *sendStream) error {
	if s.pipe != nil {
		return nil
	}
	size := p.node.pipeSize()
	mr, err := p.link.dev.pd.AllocMR(size, verbs.AccessAll)
	if size > pipeLeast && errors.Is(err, verbs.ErrNoMemory) {
		mr, err = p.link.dev.pd.AllocMR(pipeLeast, verbs.AccessAll)
	}
	if err != nil {
		return err
	}
	p.node.piped.Add(int64(mr.Len()))
	s.pipe = mr.Bytes()
	s.memory.pipe = mr
	p.announcePipe(s)
	appendTo(&p.node.pipes, s)
	return nil
}

func (p *peer) announcePipe(s *sendStream) {
	info := streamInfo{s.number, regionOf(s.memory.pipe)}
	p.tell(kindPipe, info.append(nil))
}

// addPipe handles the announcement of the pipe of a stream from the peer. If the stream has been left or closed
// here, the pipe may be gone already; if the stream is used again, it is announced again behind the ring.
func (p *peer) addPipe(info streamInfo) error {
	size := int(info.length)
	if info.length < pipeLeast || info.length > pipeMost || size&(size-1) != 0 {
		return fmt.Errorf("%w: pipe of %d bytes", ErrProtocol, info.length)
	}
	if p.ringed(info.number) == nil {
		return nil
	}
	mem, err := p.link.view(p.node.life, info.region, size)
	in := p.ringed(info.number)
	switch {
	case in == nil: // closed in between
		return nil
	case err != nil:
		return err
	}
	if !in.pipe.CompareAndSwap(nil, &mem) {
		return fmt.Errorf("%w: pipe of stream %d announced twice", ErrProtocol, info.number)
	}
	return nil
}

// ringed returns a stream from the peer, nil if it has no ring.
func (p *peer) ringed(number uint32) *receiveStream {
	p.mu.Lock()
	defer p.mu.Unlock()
	if in := p.receives[number]; in != nil && in.r.Load() != nil {
		return in
	}
	return nil
}

// publishPacked sends a message through the pipe: the slot says where it begins.
// The caller holds the lock.
func (s *sendStream) publishPacked(h *Handle, slot *slot) {
	h.packed, h.first, h.moved = true, s.reserved, 0
	s.reserved += pipeLines(uint64(h.shape.Len()))
	s.sent.Packed++
	slot.setPacked(h.first, uint64(h.shape.Len()))
	s.packs.begin(h, s.r, s.sent.Packed)
	kind := uint32(slotPacked << 8)
	if h.timed {
		kind |= 1
	}
	s.offer(h, slot, kind)
	s.packing = append(s.packing, h)
	s.unpacked.Store(true)
}

// packStarted packs what has been published, and leaves the rest to the engine. The caller
// holds the lock, which packStarted releases while it copies.
func (s *sendStream) packStarted() {
	if s.pack(); len(s.packing) > 0 && !s.served {
		s.served = true
		s.peer.node.serve(s)
	}
}

// drive packs as far as there is room, for a caller that waits for something else.
func (s *sendStream) drive() {
	if s.unpacked.Load() && s.lock.TryLock() {
		s.pack()
		s.lock.Unlock()
	}
}

// pack fills the room that there is, up to packMost, while there are messages to pack. The caller holds
// the lock, which pack releases while it copies.
func (s *sendStream) pack() {
	for packed := 0; packed < packMost; {
		if s.busy != nil || len(s.packing) == 0 {
			return
		}
		h := s.packing[0]
		if s.refused(h) { // or it would block the others until its user tests it
			s.settle(h)
			continue
		}
		b, at, ok := s.nextPiece()
		if !ok {
			return
		}
		s.busy = h
		s.lock.Unlock()
		h.movePiece(b)
		s.lock.Lock()
		s.busy = nil
		h.moved += len(b)
		packed += len(b)
		s.filled = at + pipeLines(uint64(len(b)))
		if h.moved == h.shape.Len() {
			s.packs.packed(h)
			s.forget(h)
			h.end(phaseSent)
		}
		atomic.StoreUint64(&s.r.filled, s.filled)
		s.peer.bell.ring()
	}
}

// packs chooses how messages are packed: with plain stores, or past the caches. The former is faster
// where the receiver's CPU shares a cache with this one, the latter where it is far: on an EPYC 64 KiB
// take 4 and 6 µs where it is near, 24 and 6 µs where it is far, and a hypervisor changes that while a
// program runs. Some messages are timed: both sides measure how long they copy, and the receiver
// tells the sender.
type packs struct {
	choice choice.Choice
	trial  trial
}

// trial is the timed message; k is 0 if there is none.
type trial struct {
	k     uint64
	way   int
	bytes uint64
	took  time.Duration // packing it; 0 until it is packed
}

// The ways to pack.
const (
	packPlain = iota
	packPast
	packWays
)

// packForced is the only way to pack, for tests, if it is not negative.
var packForced = -1

// timedEvery: one of so many messages is timed, unless another one still is.
const timedEvery = 8

// begin chooses how to pack a message, the n-th of its stream.
func (p *packs) begin(h *Handle, r *ring, n uint64) {
	way, size := max(packForced, 0), uint64(h.shape.Len())
	h.timed = false
	if packForced < 0 && layout.Past {
		p.end(r)
		if h.timed = p.trial.k == 0 && n%timedEvery == 0; h.timed {
			h.took, way = 0, p.choice.Next(packWays, size)
			p.trial = trial{k: h.k, way: way, bytes: size}
		} else {
			way = p.choice.Best(packWays, size)
		}
	}
	h.past = way == packPast
}

// packed notes that a message is packed.
func (p *packs) packed(h *Handle) {
	if h.timed {
		p.trial.took = h.took
	}
}

// end ends the trial if its message has been received.
func (p *packs) end(r *ring) {
	t := &p.trial
	if t.k == 0 || atomic.LoadUint64(&r.acks[t.k%ringSlots])>>1 < t.k {
		return
	}
	if v := atomic.LoadUint64(&r.unpacked); t.took > 0 && v>>32 == t.k&math.MaxUint32 { // otherwise it was refused
		p.choice.Note(t.way, t.bytes, t.took+time.Duration(v&math.MaxUint32))
	}
	t.k = 0
}

// movePiece packs or unpacks the next piece of a message.
func (h *Handle) movePiece(b []byte) {
	began := h.clock()
	switch {
	case h.kind == kindReceive:
		h.shape.Scatter(b, h.moved)
	case h.past:
		h.shape.GatherPast(b, h.moved)
	default:
		h.shape.Gather(b, h.moved)
	}
	h.took += h.clock() - began
}

// clock is read only for a message that is timed.
func (h *Handle) clock() time.Duration {
	if !h.timed {
		return 0
	}
	return sinceStart()
}

// served is what the engine knows of a stream with a pipe.
type served struct {
	filled uint64 // bytes, when it last looked
	idle   int    // how often there was nothing to do
}

// idleLooks is how often the engine finds nothing to do before it stops looking.
const idleLooks = 100

// packAhead packs if the program computes, which is assumed if it has packed nothing since the
// engine last looked. It says whether that made progress, and whether the engine should look
// again. The caller holds the lock.
func (s *sendStream) packAhead(a *served) (useful, again bool) {
	before := s.filled
	switch {
	case len(s.packing) == 0 || s.peer.state.Load() >= peerFailed:
		a.idle++
	case before == a.filled:
		s.pack()
		useful = s.filled != before
		fallthrough
	default:
		a.idle = 0
	}
	a.filled = s.filled
	s.served = a.idle < idleLooks
	return useful, s.served
}

// takePacked receives the available part of a message that comes through the pipe. The caller
// holds the lock, which takePacked releases while it copies.
func (s *receiveStream) takePacked(h *Handle, r *ring, slot *slot, timed, failed bool) {
	for k := h.k; s.first != h; { // those before it come first
		g := s.first
		if s.advance(g); s.first == g || h.k != k || h.phase.Load() != phaseWaiting {
			return
		}
	}
	pipe := s.pipe.Load()
	if h.copying || pipe == nil && !failed {
		return
	}
	first, length := slot.packed()
	if length != uint64(h.shape.Len()) {
		s.emptied = first + pipeLines(length)
		atomic.StoreUint64(&r.emptied, s.emptied)
		s.refuse(h, r, int(min(length, 1<<62)))
		s.peer.bell.ring()
		return
	}
	if h.moved == 0 {
		if first != s.emptied {
			s.finish(h, h.broken("message begins at byte %d of the pipe, want %d", first, s.emptied))
			return
		}
		h.timed, h.took = timed, 0
	}
	for pipe != nil && h.moved < h.shape.Len() {
		b := piece(*pipe, s.emptied, h.moved, h.shape.Len())
		next := s.emptied + pipeLines(uint64(len(b)))
		if int64(atomic.LoadUint64(&r.filled)-next) < 0 {
			break
		}
		h.copying = true
		s.releases++
		s.lock.Unlock()
		h.movePiece(b)
		s.lock.Lock()
		h.copying = false
		h.moved += len(b)
		s.emptied = next
		atomic.StoreUint64(&r.emptied, s.emptied)
		s.peer.bell.ring()
	}
	switch {
	case h.moved == h.shape.Len():
		if h.timed {
			wait.StoreRelease64(&r.unpacked, h.k<<32|uint64(min(h.took, math.MaxUint32)))
		}
		s.acknowledge(h.k, r, 0)
		s.received.add(h)
		s.received.Packed++
		s.finish(h, nil)
	case r.matches[h.k%ringSlots].verdict(h.k) == verdictWithdrawn:
		s.finish(h, s.peer.withdrawn("receive", s.number, h.k))
	case failed:
		s.finish(h, s.peer.opError("receive", s.number, h.k))
	}
}
