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
	holder uint32 // value in locks held by this seat
	socket int
	mem    []byte
	ctl    control
	leave  func()

	rx, fill *ring
	read     uint32 // next of rx; the user has the packets from its consumer to here
	whole    []byte // room for packets that came in several frames
	used     int

	tx, comp *ring
	next     uint32 // of tx: from its producer to here framed, not sent
	last     int    // frames of the last packet
	base     int    // the seat's first frame to send from
	cursor   int    // next of these

	// Full counts how often Frame had no room: the kernel had all frames, or the interface is
	// down. It belongs to the sender.
	Full uint64
}

// NewSeat makes a seat of a grant. It calls leave when the seat is closed, or at once if NewSeat
// fails.
func NewSeat(g *Grant, leave func()) (_ *Seat, err error) {
	s := &Seat{shape: g.Shape, holder: uint32(g.Number + 1), socket: g.Socket, leave: leave}
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
		return nil, fmt.Errorf("seat number is %d, the port has %d seats", g.Number, s.shape.Seats)
	}
	s.base = s.shape.frames() + g.Number*s.shape.Ring
	var st unix.Stat_t
	if err := unix.Fstat(g.Memory, &st); err != nil || st.Size < int64(s.shape.bytes()) {
		return nil, errors.New("the port's memory is smaller than its seats need")
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

// FD returns the descriptor that is readable for poll(2) when packets have arrived.
func (s *Seat) FD() int { return s.socket }

// Shape returns the layout of the memory.
func (s *Seat) Shape() Shape { return s.shape }

// Begin ends the use of all packets that Next has returned.
func (s *Seat) Begin() {
	s.used = 0
	from := atomic.LoadUint32(s.rx.cons)
	if from == s.read || !tryLock(s.ctl.fill, s.holder) {
		return // next time: the ring still has room
	}
	s.shape.give(s.fill, s.rx, from, s.read)
	atomic.StoreUint32(s.rx.cons, s.read)
	unlock(s.ctl.fill, s.holder)
	if s.fill.wakeup() {
		wake(s.socket)
	}
}

// Next returns the next packet that has arrived, or nil. It is valid until the next Begin.
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

// bytes returns the memory of a descriptor.
func (s *Seat) bytes(d *unix.XDPDesc) ([]byte, bool) {
	a, n := d.Addr, uint64(d.Len)
	if a >= uint64(s.shape.sendBase()) || a&uint64(s.shape.Chunk-1)+n > uint64(s.shape.Chunk) {
		return nil, false
	}
	return s.mem[a : a+n : a+n], true
}

// join copies a packet in several frames to contiguous memory. It returns false if there is no
// room before the next Begin, or the packet is not complete yet.
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

// aligned is the offset in a packet's first frame of what follows its headers.
const aligned = 64

// Frame returns room for a packet of lead bytes of headers and n bytes after them, or nil. It is
// valid until Flush.
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

// room says whether the next count frames are free and contiguous.
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

// few is the number of frames after which a burst starts again with the first one, if the
// kernel has none of them: those are still in the caches.
const few = 16

// rewind makes the first frame the next one, if all frames up to the cursor are free. The frames
// after them are not affected.
func (s *Seat) rewind() {
	for i := range s.cursor {
		if atomic.LoadUint32(&s.ctl.busy[s.base+i-s.shape.frames()]) != 0 {
			return
		}
	}
	s.cursor = 0
}

// Cancel revokes the last Frame.
func (s *Seat) Cancel() {
	s.next -= uint32(s.last)
	s.cursor -= s.last
	for i := range s.last {
		atomic.StoreUint32(&s.ctl.busy[s.base+s.cursor+i-s.shape.frames()], 0)
	}
	s.last = 0
}

// sendTries limits the system calls for a burst: the kernel takes 32 packets at a time
// (TX_BATCH_SIZE of net/xdp/xsk.c), and now and then none.
const sendTries = 256

// Flush sends all packets framed since the last Flush.
func (s *Seat) Flush() {
	if s.next == atomic.LoadUint32(s.tx.cons) {
		return // nothing to send, nor left from an earlier Flush
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
			return // the interface is down or gone; packets wait in the ring
		}
	}
}

// reap processes the completion ring, for all seats.
func (s *Seat) reap() {
	if !tryLock(s.ctl.comp, s.holder) {
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
	unlock(s.ctl.comp, s.holder)
}

// Close releases the seat. No call to receive or send may be running.
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
