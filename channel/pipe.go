package channel

import (
	"fmt"
	"sync/atomic"

	"github.com/sluice-hpc/sluice/verbs"
)

// A pipe carries the large messages of a stream whose memory the receiver cannot
// access: the sender packs them, piece by piece, into memory that the receiver can
// access, and the receiver unpacks them. Both copy at the same time, and the pieces are
// few so that they stay in the caches.
//
// Letting the receiver read such memory with process_vm_readv is slower for every block
// size: 0.5 GB/s vs 36 for 192 bytes, 9 vs 40 for 4 KiB, 14 vs 40 for one block of 768
// KiB (BenchmarkForeign).
//
// Messages go through the pipe in the order of their starts. For a message longer than
// the pipe, the sender has to pack the rest later: Start, Test and Wait do so, and the
// engine while the program computes.

// A pipe is a ring of bytes; a message begins at a cache line. Its pieces are short at both ends of the
// message, where one side waits for the other, and grow between.
const (
	pipeSize = 256 << 10
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
	from := int(at % pipeSize)
	return pipe[from:][:min(size, left, pipeSize-from)]
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
	return b, at, at+pipeLines(uint64(len(b)))-atomic.LoadUint64(&s.r.emptied) <= pipeSize
}

// openPipe makes the pipe of a stream to a peer whose memory is mapped, unless it exists. The
// caller holds mu.
func (p *peer) openPipe(s *sendStream) error {
	if s.pipe != nil {
		return nil
	}
	mr, err := p.link.dev.pd.AllocMR(pipeSize, verbs.AccessAll)
	if err != nil {
		return err
	}
	info := streamInfo{s.number, regionOf(mr)}
	p.tell(kindPipe, info.append(nil))
	s.pipe = mr.Bytes()
	s.memory = append(s.memory, mr)
	appendTo(&p.node.pipes, s)
	return nil
}

// addPipe handles the announcement of the pipe of a stream from the peer.
func (p *peer) addPipe(info streamInfo) error {
	if p.closedHere(info.number) {
		return nil
	}
	mem, err := p.link.view(p.node.life, info.region, pipeSize)
	switch {
	case err != nil && p.closedHere(info.number): // closed in between
		return nil
	case err != nil:
		return err
	}
	in, err := p.receiveOf(info.number)
	if err != nil {
		return err
	}
	if !in.pipe.CompareAndSwap(nil, &mem) {
		return fmt.Errorf("%w: pipe of stream %d announced twice", ErrProtocol, info.number)
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
	s.offer(h, slot, slotPacked)
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

// pack fills the room that there is, at most once, while there are messages to pack. The caller holds
// the lock, which pack releases while it copies.
func (s *sendStream) pack() {
	for packed := 0; packed < pipeSize; {
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
		h.shape.Gather(b, h.moved)
		s.lock.Lock()
		s.busy = nil
		h.moved += len(b)
		packed += len(b)
		s.filled = at + pipeLines(uint64(len(b)))
		if h.moved == h.shape.Len() {
			s.forget(h)
			h.end(phaseSent)
		}
		atomic.StoreUint64(&s.r.filled, s.filled)
		s.peer.bell.ring()
	}
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
func (s *receiveStream) takePacked(h *Handle, r *ring, slot *slot, failed bool) {
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
	if h.moved == 0 && first != s.emptied {
		s.finish(h, h.broken("message begins at byte %d of the pipe, want %d", first, s.emptied))
		return
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
		h.shape.Scatter(b, h.moved)
		s.lock.Lock()
		h.copying = false
		h.moved += len(b)
		s.emptied = next
		atomic.StoreUint64(&r.emptied, s.emptied)
		s.peer.bell.ring()
	}
	switch {
	case h.moved == h.shape.Len():
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
