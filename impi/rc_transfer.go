package impi

import (
	"fmt"
	"time"

	"github.com/sluice-hpc/sluice/impi/packet"
	"github.com/sluice-hpc/sluice/verbs"
)

// rcPieceMost is the most bytes of one write: the limit of verbs is 1 GiB.
const rcPieceMost = 1 << 30

// rcTransfer is the transfer of the rest of a long message: the user memory registered for it and,
// at the sender, its destination.
type rcTransfer struct {
	local  []keyed
	mrs    []*verbs.MR // registered for it
	remote []remote
	piece  int // of remote, and where in it
	within uint32
	known  bool // remote is Alloc memory
}

func (c *rcCarrier) rest(r *request) (counts, ok bool) {
	if r.transfer == throughStage && c.mapped() {
		ok = c.restStaged(r)
		return ok, ok
	}
	r.list.remove(r)
	if t := r.transfer; t != nil && t != throughStage {
		if t.local == nil && c.registerThen(t, r, r.length-r.moved, 0, func(ok bool) {
			if !ok {
				r.transfer = nil // in packets, then
			}
			r.pair.rest.push(r)
			r.pair.wake()
		}) {
			return false, true
		}
		if t.local != nil || c.registerNow(t, r, r.length-r.moved, 0) {
			c.write = r
			c.writeOn() // resume continues with what has no room now
			return true, true
		}
		r.transfer = nil // in packets, then
	}
	n := min(r.length-r.moved, uint64(c.l.packetLen))
	b := c.packet(int(n))
	h := rcPacket{t: packet.Data, flags: rcRest, dest: c.there(r.peer), src: c.here(r.comm.p), length: r.length, srqid: r.theirs}
	r.copyOut(b[rcHeader:])
	c.send(b, &h)
	if c.l.err == nil {
		c.l.written(r)
	}
	return true, true
}

// free deregisters the memory. throughStage, which all messages share, has none.
func (t *rcTransfer) free() {
	for _, mr := range t.mrs {
		mr.Close()
	}
	if len(t.mrs) > 0 {
		t.mrs = nil
	}
}

// writeOn posts as many writes of a long message as there is room for; false if there is no room
// now.
func (c *rcCarrier) writeOn() bool {
	r := c.write
	t := r.transfer
	i, off := 0, uint64(0) // where the next bytes are
	for done := c.gone(t); done > 0; {
		k := min(done, t.local[i].length-off)
		done -= k
		if off += k; off == t.local[i].length {
			i, off = i+1, 0
		}
	}
	for {
		if c.posted-c.done >= rcSends-2 {
			return false
		}
		if t.piece == len(t.remote) || i == len(t.local) { // all has been written
			c.wrs[0] = verbs.SendWR{Opcode: verbs.OpRDMAWriteWithImm, Imm: uint32(r.theirs)}
			c.write = nil
			c.post(r)
			return true
		}
		to := t.remote[t.piece]
		left := to.length - t.within
		wr := &c.wrs[0]
		*wr = verbs.SendWR{Opcode: verbs.OpRDMAWrite, RKey: to.rkey, RemoteAddr: to.addr + uint64(t.within)}
		c.sge = c.sge[:0]
		for left > 0 && len(c.sge) < c.d.sges && i < len(t.local) {
			from := &t.local[i]
			k := uint32(min(from.length-off, uint64(left)))
			c.sge = append(c.sge, verbs.SGE{Addr: from.addr + off, Length: k, LKey: from.lkey})
			left -= k
			t.within += k
			if off += uint64(k); off == from.length {
				i, off = i+1, 0
			}
		}
		if left == 0 {
			t.piece++
			t.within = 0
		}
		wr.SGList = c.sge
		if t.piece < len(t.remote) && i < len(t.local) || c.stores(t) {
			c.post(nil)
			if c.l.err != nil {
				return true
			}
			continue
		}
		wr.Opcode, wr.Imm = verbs.OpRDMAWriteWithImm, uint32(r.theirs)
		c.write = nil
		c.post(r)
		return true
	}
}

// stores says that writes without an immediate are better. If the device maps memory, these are
// plain stores to Alloc memory, whereas the payload of other writes is fetched by the peer, and by
// its kernel if it is not in Alloc memory.
func (c *rcCarrier) stores(t *rcTransfer) bool {
	return c.d.maps && t.known && len(t.mrs) > 0
}

// gone returns how much of a transfer has been posted.
func (c *rcCarrier) gone(t *rcTransfer) uint64 {
	n := uint64(t.within)
	for _, p := range t.remote[:t.piece] {
		n += uint64(p.length)
	}
	return n
}

// invite registers the memory to which the rest of a message is to be written; nil if it must come
// in packets.
func (c *rcCarrier) invite(r *request) []remote {
	if c.d.maps && !r.known && !c.d.allocated(r) {
		if list, ok := c.announce(); ok {
			r.began, r.way = time.Now(), c.stage.chooseWay(r.length-r.moved)
			r.transfer = throughStage
			return list
		}
	}
	if r.moved >= r.total {
		return nil
	}
	t := r.transfer // registered already?
	if t == nil {
		t = &rcTransfer{}
		if !c.registerNow(t, r, min(r.length, r.total)-r.moved, verbs.AccessLocalWrite|verbs.AccessRemoteWrite) {
			return nil
		}
	}
	var list []remote
	for _, k := range t.local {
		for off := uint64(0); off < k.length; off += rcPieceMost {
			list = append(list, remote{k.addr + off, uint32(min(k.length-off, rcPieceMost)), k.rkey})
		}
	}
	if len(list) > maxRCPieces || len(list)*rcPiece > int(c.l.packetLen) {
		t.free()
		r.transfer = nil
		return nil
	}
	r.transfer = t
	return list
}

// invited records where the rest of a message is to be written.
func (c *rcCarrier) invited(a *arrival, b []byte, flags uint8) error {
	r := c.l.e.lookup(a.srqid)
	if r == nil || r.kind != sending || r.state != moving || r.pair == nil || r.pair.link != c.l || r.acked || r.transfer != nil {
		return fmt.Errorf("%w: SYNCACK for request %#x, which is not a send that waits for one", ErrProtocol, a.srqid)
	}
	list, err := parseRemotes(b)
	if err != nil {
		return err
	}
	if flags&rcStaged != 0 {
		r.transfer = throughStage
		if flags&rcPast != 0 {
			r.way = byPast
		}
		if len(list) > 0 {
			return c.announced(list)
		}
		return nil
	}
	total := uint64(0)
	for _, m := range list {
		if m.length == 0 || m.length > rcPieceMost {
			return fmt.Errorf("%w: SYNCACK with a piece of %d bytes", ErrProtocol, m.length)
		}
		total += uint64(m.length)
	}
	if total > r.length-r.moved {
		return fmt.Errorf("%w: SYNCACK with room for %d bytes, but only %d are left", ErrProtocol, total, r.length-r.moved)
	}
	r.transfer = &rcTransfer{remote: list, known: flags == rcKnown}
	return nil
}

// arriving records the end of a message that comes through the stage.
func (c *rcCarrier) arriving(a *arrival) {
	if r := c.l.e.lookup(a.drqid); r != nil && r.transfer == throughStage && r.length-r.moved == uint64(a.body) {
		c.stage.took(r, r.length-uint64(c.l.first))
	}
}

// unwritten: the peer cannot write a message and sends it in packets instead.
func (c *rcCarrier) unwritten(a *arrival) {
	r := c.l.e.lookup(a.drqid)
	if r == nil || r.kind != receiving || r.pair == nil || r.pair.link != c.l || r.transfer == nil || r.transfer == throughStage {
		return
	}
	r.transfer.free()
	r.transfer = nil
}

// landed: the rest of a message has been written.
func (c *rcCarrier) landed(imm uint32) error {
	l := c.l
	if uint64(imm) >= uint64(len(l.e.table)) {
		return fmt.Errorf("%w: write for unknown request %d", ErrProtocol, imm)
	}
	r := l.e.table[imm]
	if r.kind != receiving || r.state != moving || r.pair == nil || r.pair.link != l || r.transfer == nil || r.transfer == throughStage {
		return fmt.Errorf("%w: write for request %d, which expects none", ErrProtocol, imm)
	}
	if err := r.pair.received(); err != nil {
		return err
	}
	r.transfer.free()
	r.transfer = nil
	r.moved = r.length
	l.e.complete(r)
	return nil
}
