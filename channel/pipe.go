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

// Alternatives in BenchmarkPipe on an EPYC: eight pieces of 16 KiB are some 10 % slower; eight
// of 32 KiB, eight of 64 KiB and four of 128 KiB are equal.
const (
	pipePiece  = 64 << 10
	pipePieces = 4
	pipeSize   = pipePiece * pipePieces
)

// pieces is the number of pieces of n bytes.
func pieces(n uint64) uint64 { return (n + pipePiece - 1) / pipePiece }

// piece is the memory of the i-th piece since the beginning.
func piece(pipe []byte, i uint64, n int) []byte {
	return pipe[i%pipePieces*pipePiece:][:min(n, pipePiece)]
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
	s.reserved += pieces(uint64(h.shape.length))
	s.sent.Packed++
	slot.setPacked(h.first, uint64(h.shape.length))
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

// pack fills free pieces, at most as many as the pipe holds, while there are messages to pack.
// The caller holds the lock, which pack releases while it copies.
func (s *sendStream) pack() {
	for range pipePieces {
		if s.busy != nil || len(s.packing) == 0 {
			return
		}
		h := s.packing[0]
		if h.moved == 0 {
			s.filled = h.first // skip the pieces of refused messages before it
		}
		if s.refused(h) { // or it would block the others until its user tests it
			s.settle(h)
			continue
		}
		if s.filled-atomic.LoadUint64(&s.r.emptied) >= pipePieces {
			return
		}
		b := piece(s.pipe, s.filled, h.shape.length-h.moved)
		s.busy = h
		s.lock.Unlock()
		h.shape.gather(b, h.moved)
		s.lock.Lock()
		s.busy = nil
		h.moved += len(b)
		s.filled++
		if h.moved == h.shape.length {
			s.forget(h)
			h.end(phaseSent)
		}
		atomic.StoreUint64(&s.r.filled, s.filled)
		s.peer.bell.ring()
	}
}

// served is what the engine knows of a stream with a pipe.
type served struct {
	filled uint64 // pieces, when it last looked
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
	if length != uint64(h.shape.length) {
		s.emptied = first + pieces(length)
		atomic.StoreUint64(&r.emptied, s.emptied)
		s.refuse(h, r, int(min(length, 1<<62)))
		s.peer.bell.ring()
		return
	}
	if h.moved == 0 && first != s.emptied {
		s.finish(h, h.broken("message begins with piece %d of the pipe, want %d", first, s.emptied))
		return
	}
	for pipe != nil && h.moved < h.shape.length && int64(atomic.LoadUint64(&r.filled)-s.emptied) > 0 {
		b := piece(*pipe, s.emptied, h.shape.length-h.moved)
		h.copying = true
		s.releases++
		s.lock.Unlock()
		h.shape.scatter(b, h.moved)
		s.lock.Lock()
		h.copying = false
		h.moved += len(b)
		s.emptied++
		atomic.StoreUint64(&r.emptied, s.emptied)
		s.peer.bell.ring()
	}
	switch {
	case h.moved == h.shape.length:
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
