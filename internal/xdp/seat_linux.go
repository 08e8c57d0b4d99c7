package xdp

import (
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// Seat sends and receives Ethernet packets through a port. One goroutine at a time may
// receive ([Seat.Begin], [Seat.Next]), and one may send ([Seat.Frame], [Seat.Cancel],
// [Seat.Flush]). None of these allocates or blocks.
type Seat struct {
	shape  Shape
	who    uint32 // in locks
	socket int
	mem    []byte
	ctl    control
	leave  func()

	rx, fill *ring
	read     uint32 // next of rx; from its consumer to here the packets are the user's
	whole    []byte // of packets that came in several frames
	used     int

	tx, comp *ring
	next     uint32 // of tx: from its producer to here framed, not sent
	last     int    // frames of the last packet
	base     int    // the first frame that is the seat's to send from
	cursor   int    // next of these

	// Full counts how often Frame had no room: the kernel had all frames, or the interface
	// is down. Of the sender.
	Full uint64
}

// NewSeat takes a grant, and calls leave when it is closed, or at once if it fails.
func NewSeat(g *Grant, leave func()) (_ *Seat, err error) {
	s := &Seat{shape: g.Shape, who: uint32(g.Number + 1), socket: g.Socket, leave: leave}
	defer func() {
		unix.Close(g.Rings)
		unix.Close(g.Memory)
		if err != nil {
			s.Close()
		}
	}()
	if err := s.shape.check(); err != nil {
		return nil, err
	}
	if g.Number < 0 || g.Number >= s.shape.Seats {
		return nil, fmt.Errorf("seat %d of %d", g.Number, s.shape.Seats)
	}
	s.base = s.shape.frames() + g.Number*s.shape.Ring
	var st unix.Stat_t
	if err := unix.Fstat(g.Memory, &st); err != nil || st.Size < int64(s.shape.bytes()) {
		return nil, errors.New("memory is too small")
	}
	if s.mem, err = unix.Mmap(g.Memory, 0, s.shape.bytes(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE); err != nil {
		return nil, fmt.Errorf("map memory of %d bytes: %w", s.shape.bytes(), err)
	}
	s.ctl = s.shape.control(s.mem)
	for _, r := range []struct {
		to   **ring
		kind kind
		fd   int
		n    int
	}{
		{&s.rx, rxRing, g.Socket, s.shape.Ring}, {&s.tx, txRing, g.Socket, s.shape.Ring},
		{&s.fill, fillRing, g.Rings, s.shape.frames()}, {&s.comp, compRing, g.Rings, s.shape.frames()},
	} {
		if *r.to, err = mapRing(r.fd, r.kind, r.n); err != nil {
			return nil, err
		}
	}
	if s.shape.Multi {
		s.whole = make([]byte, 64*s.shape.MaxPacket())
	}
	return s, nil
}

// FD is the descriptor that poll(2) says of when something has come.
func (s *Seat) FD() int { return s.socket }

// Shape tells how the memory is divided.
func (s *Seat) Shape() Shape { return s.shape }

// Begin ends the use of all packets that Next has returned.
func (s *Seat) Begin() {
	s.used = 0
	from := atomic.LoadUint32(s.rx.cons)
	if from == s.read || !tryLock(s.ctl.fill, s.who) {
		return // the next time: there is more room in the ring
	}
	s.shape.give(s.fill, s.rx, from, s.read)
	atomic.StoreUint32(s.rx.cons, s.read)
	unlock(s.ctl.fill, s.who)
	if s.fill.wakeup() {
		wake(s.socket)
	}
}

// Next returns the next packet that has come, nil if there is none. It is valid until
// the next Begin.
func (s *Seat) Next() []byte {
	end := atomic.LoadUint32(s.rx.prod)
	for s.read != end {
		d := s.rx.packet(s.read)
		if d.Options&unix.XDP_PKT_CONTD != 0 {
			b, ok := s.join(end)
			if !ok || len(b) > 0 {
				return b
			}
			continue
		}
		s.read++
		if b, ok := s.bytes(d); ok {
			return b
		}
	}
	return nil
}

// bytes are what a descriptor describes.
func (s *Seat) bytes(d *unix.XDPDesc) ([]byte, bool) {
	a, n := d.Addr, uint64(d.Len)
	if a >= uint64(s.shape.sendBase()) || a&uint64(s.shape.Chunk-1)+n > uint64(s.shape.Chunk) {
		return nil, false
	}
	return s.mem[a : a+n : a+n], true
}

// join copies a packet that is in several frames to one place. It returns false if
// there is no room before the next Begin, or the packet is not whole yet.
func (s *Seat) join(end uint32) ([]byte, bool) {
	n, sound := 0, true
	for i := s.read; i != end; i++ {
		d := s.rx.packet(i)
		b, ok := s.bytes(d)
		sound = sound && ok && n+len(b) <= s.shape.MaxPacket()
		if sound {
			if s.used+n+len(b) > len(s.whole) {
				return nil, false
			}
			copy(s.whole[s.used+n:], b)
			n += len(b)
		}
		if d.Options&unix.XDP_PKT_CONTD == 0 {
			s.read = i + 1
			if !sound {
				return nil, true
			}
			s.used += n
			return s.whole[s.used-n : s.used : s.used], true
		}
	}
	return nil, false
}

// aligned is where in its first frame a packet has what follows its headers.
const aligned = 64

// Frame returns room for a packet of lead bytes of headers and n bytes behind them, nil
// if there is none. It is valid until Flush.
func (s *Seat) Frame(lead, n int) []byte {
	first := aligned - lead
	count := (aligned + n + s.shape.Chunk - 1) / s.shape.Chunk
	if lead > aligned || count > 1 && (!s.shape.Multi || lead+n > s.shape.MaxPacket()) {
		return nil
	}
	if s.cursor >= few && s.next == atomic.LoadUint32(s.tx.prod) {
		s.reap()
		s.rewind()
	}
	if !s.room(count) {
		s.Flush()
		if s.reap(); !s.room(count) {
			s.Full++
			return nil
		}
	}
	at := s.base + s.cursor
	off, left := uint64(at*s.shape.Chunk+first), uint32(lead+n)
	start := off
	for i := range count {
		d := s.tx.packet(s.next)
		m := min(left, uint32(s.shape.Chunk)-uint32(off)&uint32(s.shape.Chunk-1))
		*d = unix.XDPDesc{Addr: off, Len: m}
		if left -= m; left > 0 {
			d.Options = unix.XDP_PKT_CONTD
		}
		off += uint64(m)
		atomic.StoreUint32(&s.ctl.busy[at+i-s.shape.frames()], 1)
		s.next++
	}
	s.cursor += count
	s.last = count
	return s.mem[start : start+uint64(lead+n) : start+uint64(lead+n)]
}

// room says whether the next frames are there, one behind the other.
func (s *Seat) room(count int) bool {
	if s.next+uint32(count)-atomic.LoadUint32(s.tx.cons) > s.tx.mask+1 {
		return false
	}
	if s.cursor+count > s.shape.Ring {
		s.cursor = 0
	}
	for i := range count {
		if atomic.LoadUint32(&s.ctl.busy[s.base+s.cursor+i-s.shape.frames()]) != 0 {
			return false
		}
	}
	return true
}

// few is after how many frames a burst begins with the first one again, if the kernel has none
// of them: those are still in the caches.
const few = 16

// rewind has the first frame used next, if all up to the next one are free: then what comes behind
// these is the same as before.
func (s *Seat) rewind() {
	for i := range s.cursor {
		if atomic.LoadUint32(&s.ctl.busy[s.base+i-s.shape.frames()]) != 0 {
			return
		}
	}
	s.cursor = 0
}

// Cancel takes back the last Frame.
func (s *Seat) Cancel() {
	s.next -= uint32(s.last)
	s.cursor -= s.last
	for i := range s.last {
		atomic.StoreUint32(&s.ctl.busy[s.base+s.cursor+i-s.shape.frames()], 0)
	}
	s.last = 0
}

// sendTries bounds how often the kernel is called for a burst: it takes 32 packets at
// a time (TX_BATCH_SIZE of net/xdp/xsk.c), and now and then none.
const sendTries = 256

// Flush sends all that was framed.
func (s *Seat) Flush() {
	if s.next == atomic.LoadUint32(s.tx.cons) {
		return // what could not be sent before is tried again
	}
	atomic.StoreUint32(s.tx.prod, s.next)
	s.last = 0
	if !s.tx.wakeup() {
		return
	}
	for range sendTries {
		errno := kick(s.socket)
		if atomic.LoadUint32(s.tx.cons) == s.next {
			return
		}
		switch errno {
		case 0, syscall.EAGAIN, syscall.EBUSY, syscall.ENOBUFS, syscall.EINTR:
			s.reap()
		default:
			return // the interface is down or gone; what is in the ring waits
		}
	}
}

// reap takes what the completion ring has, for all seats.
func (s *Seat) reap() {
	if !tryLock(s.ctl.comp, s.who) {
		return
	}
	from, end := atomic.LoadUint32(s.comp.cons), atomic.LoadUint32(s.comp.prod)
	if end-from > s.comp.mask+1 {
		from = end
	}
	for ; from != end; from++ {
		if i := *s.comp.addr(from)/uint64(s.shape.Chunk) - uint64(s.shape.frames()); i < uint64(len(s.ctl.busy)) {
			atomic.StoreUint32(&s.ctl.busy[i], 0)
		}
	}
	atomic.StoreUint32(s.comp.cons, end)
	unlock(s.ctl.comp, s.who)
}

// Close gives the seat back. Neither receiving nor sending may go on.
func (s *Seat) Close() {
	if s.comp != nil {
		s.Begin()
		s.reap()
	}
	for _, r := range []*ring{s.rx, s.tx, s.fill, s.comp} {
		r.close()
	}
	if s.mem != nil {
		unix.Munmap(s.mem)
	}
	unix.Close(s.socket)
	s.leave()
}
