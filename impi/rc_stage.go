package impi

import (
	"fmt"
	"time"

	"github.com/sluice-hpc/sluice/impi/packet"
	"github.com/sluice-hpc/sluice/internal/choice"
	"github.com/sluice-hpc/sluice/internal/machine"
	"github.com/sluice-hpc/sluice/verbs"
)

// stage is memory of the receiver to which the sender writes by plain stores, if the device maps
// memory. The rest of long messages goes through it, a slot at a time, and both sides copy
// concurrently. Between two pieces of ordinary memory that is faster than registering both for
// every message and having the receiver's kernel copy, at every size: 64 messages of 64 KiB, 256 KiB and
// 1 MiB go at 14, 15 and 15 GB/s, and at 6, 10 and 10 GB/s by writes. It is a ring: all messages of a link use the slots in
// turn, and the receiver returns them in turn.
type stage struct {
	ways  choice.Choice // of incoming messages
	last  time.Time     // when the last of them arrived
	own   *verbs.MR     // the peer writes to it; nil before the first long message
	seen  uint32        // slots received
	given uint32        // how many of them have been returned

	at    remote // the peer's
	peers []byte // mapped
	head  uint32 // slots written
	tail  uint32 // how many of them have been returned
}

const (
	stageSlot = 16 << 10
	// From stagesMost bytes of stages on in a process further ones are small.
	stageLeast = machine.RingLeast
	stageMost  = machine.RingMost
	stagesMost = 16 << 20
	// stageBack is how many slots are returned at a time.
	stageBack = 4
)

// rcCredit is the type of the packet that returns slots; it does not count for flow control.
const rcCredit = packet.Fini + 1

// throughStage is the transfer of messages whose rest goes through the stage.
var throughStage = &rcTransfer{}

// The ways in which the rest of a message is stored in the stage: plainly, or past the sender's caches,
// which is faster where its CPU shares none with the receiver's.
const (
	byStage = iota
	byPast
	ways
)

// wayForced is the only way, for tests, if it is not negative.
var wayForced = -1

// chooseWay returns the way for the rest of a message, of n bytes.
func (s *stage) chooseWay(n uint64) int {
	if wayForced >= 0 {
		return wayForced
	}
	return s.ways.Next(ways, n)
}

// took notes that the rest of a message, of n bytes, has arrived. In a window it has taken the time since
// the one before it arrived.
func (s *stage) took(r *request, n uint64) {
	now := time.Now()
	from := r.began
	if s.last.After(from) {
		from = s.last
	}
	s.last = now
	s.ways.Note(r.way, n, now.Sub(from))
}

// announce returns our stage if the peer does not know it yet; false if there is none.
func (c *rcCarrier) announce() ([]remote, bool) {
	s := &c.stage
	if s.own != nil {
		return nil, true
	}
	size := machine.Ring()
	if c.l.e.stages+size > stagesMost {
		size = stageLeast
	}
	mr, err := c.d.pd.AllocMR(size, verbs.AccessAll)
	if err != nil && size > stageLeast {
		mr, err = c.d.pd.AllocMR(stageLeast, verbs.AccessAll)
	}
	if err != nil {
		c.l.e.log.Debug("impi: cannot make a stage", "peer", c.l.host, "error", err)
		return nil, false
	}
	s.own = mr
	c.l.e.stages += mr.Len()
	return []remote{{mr.Addr(), uint32(mr.Len()), mr.RKey()}}, true
}

// announced records the stage that the peer has announced.
func (c *rcCarrier) announced(list []remote) error {
	m := list[0]
	if len(list) != 1 || m.length < stageLeast || m.length > stageMost || m.length&(m.length-1) != 0 || c.stage.at.length != 0 {
		return fmt.Errorf("%w: stage of %d bytes", ErrProtocol, m.length)
	}
	c.stage.at = m
	return nil
}

// mapped says whether the peer's stage can be written. The peer's memory may not be mappable at
// once; until then the rest goes in packets.
func (c *rcCarrier) mapped() bool {
	s := &c.stage
	if s.peers == nil && s.at.length != 0 {
		var err error
		if s.peers, err = c.qp.Map(s.at.rkey, s.at.addr, int(s.at.length)); err != nil {
			c.l.e.log.Debug("impi: cannot map the stage yet", "peer", c.l.host, "error", err)
			s.peers = nil
		}
	}
	return s.peers != nil
}

// restStaged writes the next bytes of a long message to a slot; false if none is free.
func (c *rcCarrier) restStaged(r *request) bool {
	s := &c.stage
	slots := s.at.length / stageSlot
	if s.head-s.tail == slots {
		return false
	}
	r.list.remove(r)
	slot := s.head % slots
	s.head++
	n := min(r.length-r.moved, stageSlot)
	c.l.e.stats.Staged += n
	if at := s.peers[slot*stageSlot:][:n]; r.way == byPast {
		r.copyOutPast(at)
	} else {
		r.copyOut(at)
	}
	c.send(c.packet(0), &rcPacket{t: packet.Data, flags: rcRest | rcStaged, dest: c.there(r.peer), src: c.here(r.comm.p),
		tag: int32(slot), cid: uint32(n), length: r.length, srqid: r.theirs})
	if c.l.err == nil {
		c.l.written(r)
	}
	return true
}

// staged returns the bytes of a packet that lie in our stage.
func (c *rcCarrier) staged(h *rcPacket) ([]byte, error) {
	s := &c.stage
	slots := uint32(0)
	if s.own != nil {
		slots = uint32(s.own.Len()) / stageSlot
	}
	if s.own == nil || uint32(h.tag) != s.seen%slots || h.cid == 0 || h.cid > stageSlot || s.seen-s.given == slots {
		return nil, fmt.Errorf("%w: %d bytes in slot %d of a stage", ErrProtocol, h.cid, h.tag)
	}
	s.seen++
	c.l.e.stats.Staged += uint64(h.cid)
	return s.own.Bytes()[h.tag*stageSlot:][:h.cid], nil
}

// giveBack returns slots that have been read, if there are enough of them.
func (c *rcCarrier) giveBack() {
	s := &c.stage
	if n := s.seen - s.given; n >= stageBack && c.l.err == nil && !c.l.fini && c.room() {
		s.given = s.seen
		c.send(c.packet(0), &rcPacket{t: rcCredit, cid: n})
	}
}

// credited takes slots back.
func (c *rcCarrier) credited(n uint32) error {
	s := &c.stage
	if n < stageBack || n > s.head-s.tail {
		return fmt.Errorf("%w: the peer returned %d slots of %d in use", ErrProtocol, n, s.head-s.tail)
	}
	s.tail += n
	for _, p := range c.l.pairs {
		if p.rest.head != nil {
			p.wake()
		}
	}
	return nil
}
