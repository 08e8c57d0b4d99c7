package channel

import (
	"fmt"
	"sync/atomic"

	"github.com/sluice-hpc/sluice/verbs"
)

// A pipe carries the large messages of a stream whose memory the receiver does not
// reach: the sender packs them, piece by piece, into memory that it does, and the
// receiver unpacks them. Both copy at the same time, and the pieces are few, so
// that they stay in the caches.
//
// Letting the receiver read such memory by process_vm_readv is slower for every
// size of block: 0.5 GB/s against 36 for 192 bytes, 9 against 40 for 4 KiB, 14
// against 40 for one block of 768 KiB (BenchmarkForeign).
//
// Messages go through the pipe in the order of their starts. A message may be
// longer than the pipe: then the sender has to come back for it. Start, Test and
// Wait do so, and for a user who computes the engine.

// BenchmarkPipe with other figures, on an EPYC: eight pieces of 16 KiB are some 10 %
// slower, eight of 32 KiB, eight of 64 KiB and four of 128 KiB the same.
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

// openPipe makes the pipe of a stream to a peer whose memory is mapped, if there is
// none. The caller holds mu.
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

// addPipe takes the pipe of a stream of the peer's.
func (p *peer) addPipe(info streamInfo) error {
	if p.closedHere(info.number) {
		return nil
	}
	mem, err := p.link.view(info.region, pipeSize)
	switch {
	case err != nil && p.closedHere(info.number): // meanwhile
		return nil
	case err != nil:
		return err
	}
	in, err := p.receiveOf(info.number)
	if err != nil {
		return err
	}
	if !in.pipe.CompareAndSwap(nil, &mem) {
		return fmt.Errorf("%w: pipe of stream %d twice", ErrProtocol, info.number)
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

// packStarted packs what has been published, and has the engine see to what is
// left. The caller holds the lock, which packStarted lets go of while it copies.
func (s *sendStream) packStarted() {
	if s.pack(); len(s.packing) > 0 && !s.attended {
		s.attended = true
		s.peer.node.attend(s)
	}
}

// drive packs what there is room for, for a user who waits for something else.
func (s *sendStream) drive() {
	if s.unpacked.Load() && s.lock.tryLock() {
		s.pack()
		s.lock.unlock()
	}
}

// pack fills pieces, as far as there are any and something to fill them with, but
// no more than the pipe holds. The caller holds the lock, which pack lets go of
// while it copies.
func (s *sendStream) pack() {
	for range pipePieces {
		if s.busy != nil || len(s.packing) == 0 {
			return
		}
		h := s.packing[0]
		if h.moved == 0 {
			s.filled = h.first // of those before it what was refused is left out
		}
		if s.refused(h) { // the others would wait until its user asks for it
			s.settle(h)
			continue
		}
		if s.filled-atomic.LoadUint64(&s.r.emptied) >= pipePieces {
			return
		}
		b := piece(s.pipe, s.filled, h.shape.length-h.moved)
		s.busy = h
		s.lock.unlock()
		h.shape.gather(b, h.moved)
		s.lock.lock()
		s.busy = nil
		h.moved += len(b)
		s.filled++
		if h.moved == h.shape.length {
			s.forget(h)
			h.setPhase(phaseSent)
		}
		atomic.StoreUint64(&s.r.filled, s.filled)
		s.peer.bell.ring()
	}
}

// attendance is what the engine knows of a stream with a pipe.
type attendance struct {
	filled uint64 // pieces, when it last looked
	idle   int    // how often there was nothing to be done
}

// idleLooks is how often the engine finds nothing to be done before it looks no
// more.
const idleLooks = 100

// attend packs for a user who is away: who has not moved a message on since the
// engine last looked. It says whether that was of use, and whether the engine is
// to look again. The caller holds the lock.
func (s *sendStream) attend(a *attendance) (useful, again bool) {
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
	s.attended = a.idle < idleLooks
	return useful, s.attended
}

// takePacked receives what there is of a message that comes through the pipe. The
// caller holds the lock, which takePacked lets go of while it copies.
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
		s.lock.unlock()
		h.shape.scatter(b, h.moved)
		s.lock.lock()
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
		s.finish(h, s.peer.opErrorOf("receive", s.number, h.k, ErrPeerLeft))
	case failed:
		s.finish(h, s.peer.opError("receive", s.number, h.k))
	}
}
