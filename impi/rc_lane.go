package impi

import (
	"fmt"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/sluice-hpc/sluice/impi/packet"
	"github.com/sluice-hpc/sluice/internal/parts"
	"github.com/sluice-hpc/sluice/internal/wait"
	"github.com/sluice-hpc/sluice/verbs"
)

// A lane is memory of the receiver to which the sender writes short messages by plain stores, if
// the device maps memory. Each message is one cache line, with the data of all but the shortest in
// a second ring, and neither side posts anything for it. A message that finds no room, or is
// longer, goes through the queue pair.
//
// All packets of a link keep the order in which they were sent: a line states how many packets have
// gone through the queue pair before it, and a packet how many lines.
//
//	line 0  receiver: whether it is asleep, whether writers need a fence
//	line 2  receiver: lines taken
//	lines   sender
//	data    sender
type lane struct {
	asleep uint32 // 1: the writer of a line sets 0 and wakes the receiver
	fenced uint32 // 1: the writer needs a fence before it reads asleep
	_      [120]byte
	taken  uint32
	_      [124]byte
	lines  [laneLines]laneLine
	data   [laneData]byte
}

// laneLine is a message. The word is stored last. Its number counts lines from 1 over all laps, so
// a line left over from an earlier lap is never taken for the next.
type laneLine struct {
	word  uint64 // number 32 | bytes 16 | packets by the queue pair 16
	dest  uint16 // as in a packet
	src   uint16
	tag   int32
	cid   uint32
	at    uint32 // of the data, if they are more than fit the line
	srqid uint64
	data  [laneInline]byte
}

const (
	laneInline = 32
	laneMost   = 16 << 10 // bytes of a message
	// laneShort: a longer message takes the lane only if the peer has sent something since the last that
	// did. Alone it arrives sooner than by the queue pair, which copies it once more; but a burst is
	// faster there, because its packets are the sender's memory and a lane is in the other CPU's cache.
	laneShort = 4<<10 + 128 // 4 KiB, and what a layer above puts before them
	laneLines = 256
	laneData  = parts.Len
	laneSize  = int(unsafe.Sizeof(lane{}))
	// laneAhead: the line that far ahead is prefetched for writing, because obtaining it costs as
	// much as the rest of a message.
	laneAhead = 8
	// laneFetch: while messages come quickly, the line that far ahead is prefetched for reading.
	// Otherwise that would only take it away from the writer.
	laneFetch = 4
	// laneTell: the receiver publishes its progress after that many lines, or that many bytes of data.
	laneTell     = laneLines / 4
	laneTellData = 4 << 10
)

// lanes is the pair of lanes of a queue pair.
type lanes struct {
	own    *verbs.MR
	in     *lane
	seen   uint32 // lines taken
	many   bool   // messages come faster than the lane is polled
	trail  parts.Trail
	long   uint32 // bytes of the last message that was not in its line
	told   uint32 // how many of them the peer knows of
	untold uint32 // bytes of data since then
	qpSeen uint16 // packets that have come by the queue pair
	head   rcPacket

	at     remote // the peer's
	tries  uint32 // to map it
	out    *lane  // nil: not mapped
	fence  bool
	sent   uint32     // lines written
	room   uint32     // may be written up to here
	lines  uint64     // written, like sent, which has fewer bits
	data   parts.Area // of out
	heard  laneHeard  // when the last message longer than laneShort was written
	asked  laneHeard  // when the place of a message was prepared last
	qpSent uint16     // packets that have gone by the queue pair
}

// laneHeard is how many lines and packets of the peer have come.
type laneHeard struct {
	lines   uint32
	packets uint16
}

// rcWake is the type of a packet that only wakes the peer. It does not count for flow control.
const rcWake = rcCredit + 1

// openLane makes the lane that the peer may write to and returns its address; a zero address means
// no lane: all packets go through the queue pair.
func (c *rcCarrier) openLane() remote {
	mr, err := c.d.pd.AllocMR(laneSize, verbs.AccessAll)
	if err != nil {
		c.l.e.log.Debug("impi: no lane", "peer", c.l.host, "error", err)
		return remote{}
	}
	c.lanes.own = mr
	c.lanes.in = (*lane)(unsafe.Pointer(unsafe.SliceData(mr.Bytes())))
	if wait.RegisterBarrier() != nil {
		c.lanes.in.fenced = 1
	}
	c.d.lanes = append(c.d.lanes, c)
	return remote{mr.Addr(), uint32(mr.Len()), mr.RKey()}
}

// swapLanes exchanges the addresses of the two lanes.
func swapLanes(conn net.Conn, mine remote) (theirs remote, err error) {
	var b [rcPiece]byte
	if _, err := conn.Write(mine.append(nil)); err != nil {
		return theirs, err
	}
	if _, err := io.ReadFull(conn, b[:]); err != nil {
		return theirs, err
	}
	list, err := parseRemotes(b[:])
	if err == nil && list[0].length != 0 && list[0].length != uint32(laneSize) {
		err = fmt.Errorf("%w: lane of %d bytes", ErrProtocol, list[0].length)
	}
	return list[0], err
}

// closeLane closes the lanes of both directions.
func (c *rcCarrier) closeLane() {
	if c.lanes.own != nil {
		c.d.kept = append(c.d.kept, c.lanes.own)
		c.d.lanes = slices.DeleteFunc(slices.Clone(c.d.lanes), func(o *rcCarrier) bool { return o == c }) // a poll may be iterating over them
	}
	if i := slices.Index(c.d.hot[:], c); i >= 0 {
		c.d.hot[i] = nil
	}
	c.lanes, c.waking = lanes{}, false
}

// laneMap maps the peer's lane, which may not be available at once.
func (c *rcCarrier) laneMap() bool {
	s := &c.lanes
	if s.tries++; s.at.length == 0 || s.tries%16 != 1 {
		return false
	}
	mem, err := c.qp.Map(s.at.rkey, s.at.addr, laneSize)
	if err != nil {
		c.l.e.log.Debug("impi: lane is not there yet", "peer", c.l.host, "error", err)
		return false
	}
	s.out = (*lane)(unsafe.Pointer(unsafe.SliceData(mem)))
	s.fence = wait.RegisterBarrier() != nil || atomic.LoadUint32(&s.out.fenced) != 0
	s.room = laneLines
	return true
}

// lane returns the line for the next message of n bytes, and the memory for its data; nil: use the
// queue pair.
func (c *rcCarrier) lane(n int) (*laneLine, []byte) {
	s := &c.lanes
	if n > laneMost || s.out == nil && !c.laneMap() {
		return nil, nil
	}
	h := laneHeard{s.seen, s.qpSeen}
	if n > laneShort && h == s.heard || s.sent == s.room && !c.laneRoom() {
		return nil, nil
	}
	b := &s.out.lines[s.sent%laneLines]
	if n <= laneInline {
		return b, b.data[:n]
	}
	at, ok := s.data.Next(s.lines+1, uint32(n))
	if !ok {
		if !c.laneRoom() {
			return nil, nil
		}
		if at, ok = s.data.Enter(s.lines+1, uint32(n), s.taken()); !ok {
			return nil, nil
		}
	}
	if n > laneShort {
		s.heard = h
	}
	b.at = at
	return b, s.out.data[at:][:n]
}

// taken is the number of the last line that the peer is known to have taken.
func (s *lanes) taken() uint64 { return s.lines - uint64(s.sent+laneLines-s.room) }

// laneRoom reads the peer's progress; false if there is no room for a line.
func (c *rcCarrier) laneRoom() bool {
	s := &c.lanes
	taken := atomic.LoadUint32(&s.out.taken)
	if n := s.sent - taken; n > laneLines || n > s.sent-(s.room-laneLines) {
		c.l.lost(fmt.Errorf("%w: the peer claims to have taken %d lines of %d", ErrProtocol, taken, s.sent))
		return false
	}
	s.room = taken + laneLines
	return s.sent != s.room
}

// sendLine sends a message in a line whose n bytes of data are in place.
func (c *rcCarrier) sendLine(b *laneLine, p *pair, tag int32, cid, srqid uint64, n int) {
	s := &c.lanes
	b.dest, b.src, b.tag, b.cid, b.srqid = c.there(p.remote), c.here(p.local), tag, uint32(cid), srqid
	s.sent++
	s.lines++
	word := uint64(s.sent) | uint64(n)<<32 | uint64(s.qpSent)<<48
	if s.fence {
		atomic.StoreUint64(&b.word, word)
	} else {
		wait.StoreRelease64(&b.word, word)
	}
	wait.PrefetchWrite(&s.out.lines[(s.sent+laneAhead)%laneLines].word)
	if atomic.LoadUint32(&s.out.asleep) != 0 {
		c.wake()
	}
	if h := (laneHeard{s.seen, s.qpSeen}); n > laneInline && h != s.asked && s.out != nil {
		s.asked = h
		if s.data.Room(uint32(n)) || c.laneRoom() {
			s.data.Touch(s.out.data[:], uint32(n), s.taken())
		}
	}
}

// wake wakes the peer with a completion, as soon as the queue pair has room.
func (c *rcCarrier) wake() {
	switch {
	case c.l.err != nil || c.l.fini || atomic.LoadUint32(&c.lanes.out.asleep) == 0:
		c.waking = false
	case !c.room():
		c.waking = true
	default:
		c.waking = false
		if atomic.CompareAndSwapUint32(&c.lanes.out.asleep, 1, 0) {
			c.send(c.packet(0), &rcPacket{t: rcWake})
		}
	}
}

// pollLane takes the messages that have arrived.
func (c *rcCarrier) pollLane() bool {
	s := &c.lanes
	taken := 0
	for ; taken < laneLines/2; taken++ {
		if s.in == nil { // the link is lost
			break
		}
		if s.many {
			wait.Prefetch(&s.in.lines[(s.seen+laneFetch)%laneLines].word)
		}
		b := &s.in.lines[s.seen%laneLines]
		word := atomic.LoadUint64(&b.word)
		if uint32(word) != s.seen+1 || uint16(word>>48) != s.qpSeen {
			break // a packet of the queue pair comes first
		}
		if !s.many && uint16(word>>32) > laneInline && s.long > 0 {
			s.trail.Fetch(s.in.data[:], s.long)
		}
		if err := c.takeLine(b, word); err != nil {
			c.l.lost(err)
			return true
		}
	}
	s.many = taken >= laneFetch
	return taken > 0
}

// lastLines takes what the peer has sent before its queue pair ended: everything in the lane.
func (c *rcCarrier) lastLines() {
	for range 3 {
		if c.l.err != nil || !c.pollLane() {
			return
		}
	}
}

// drainLane takes the messages that were sent before a packet, which states their number.
func (c *rcCarrier) drainLane(sent uint16) error {
	s := &c.lanes
	for uint16(s.seen) != sent {
		if s.in == nil {
			return fmt.Errorf("%w: a packet counts %d lines, but there is no lane", ErrProtocol, sent)
		}
		b := &s.in.lines[s.seen%laneLines]
		word := atomic.LoadUint64(&b.word)
		if uint32(word) != s.seen+1 || uint16(word>>48) != s.qpSeen {
			return fmt.Errorf("%w: line %d is missing from the lane, %d were sent", ErrProtocol, s.seen+1, sent)
		}
		if err := c.takeLine(b, word); err != nil {
			return err
		}
	}
	return nil
}

// takeLine takes the message of the next line.
func (c *rcCarrier) takeLine(b *laneLine, word uint64) error {
	s, l := &c.lanes, c.l
	n := uint32(uint16(word >> 32))
	h := &s.head // field by field: a copy would wait for the stores
	h.t, h.flags, h.dest, h.src, h.tag, h.cid, h.length, h.srqid = packet.Data, 0, b.dest, b.src, b.tag, b.cid, uint64(n), b.srqid
	data := b.data[:]
	if n > laneInline {
		at := b.at
		if n > laneMost || at > laneData-n {
			return fmt.Errorf("%w: %d bytes at offset %d of a lane", ErrProtocol, n, at)
		}
		data = s.in.data[at:]
		s.untold += n
		s.long = n
		s.trail.Follow(at, n)
	}
	data = data[:n]
	if int(h.dest) >= len(l.e.processes) || int(h.src) >= len(c.peers) || l.left {
		return fmt.Errorf("%w: line from process %d of IMPI host %d to process %d, one of which does not exist", ErrProtocol, h.src, l.host, h.dest)
	}
	err := error(nil)
	if c.quick(h, data) {
		err = l.in.pair.received()
	} else {
		err = c.deliver(h, data)
	}
	s.seen++
	if (s.seen-s.told >= laneTell || s.untold >= laneTellData) && s.in != nil {
		s.told, s.untold = s.seen, 0
		wait.StoreRelease32(&s.in.taken, s.seen)
	}
	return err
}

// sleepLanes publishes in all lanes whether writers must wake this process. A writer that has not
// seen it has written before: see [wait.Barrier].
func (d *rcDevice) sleepLanes(asleep bool) {
	for _, c := range d.lanes {
		v := uint32(0)
		if asleep {
			v = 1
		}
		atomic.StoreUint32(&c.lanes.in.asleep, v)
	}
	if asleep && len(d.lanes) > 0 {
		wait.Barrier() // if it fails, writers use fences
	}
}
