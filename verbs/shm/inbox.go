//go:build linux

package shm

import (
	"sync/atomic"
	"unsafe"

	"github.com/sluice-hpc/sluice/internal/parts"
)

// An inbox holds the messages to one QP. The peer writes it, the owner reads it; the
// owner writes only the words of the first line.
//
//	line 0     owner: what the peer may access directly, and must do after writing
//	line 2     peer: the owner's region that it is accessing now
//	line 4     peer: how far it has read its own inbox, i.e. what we sent
//	slots      peer: a ring of cache lines, each a message, or a piece of one
//	bytes      peer: payload that does not fit its slot, see internal/parts
//
// Lines that different sides write are 128 bytes apart, because the CPU fetches
// lines in pairs (Intel SDM, "spatial prefetcher").
type inbox struct {
	notify uint64 // owner: what the peer must do after writing here, see notifyWake; 0: nothing
	access uint32 // owner: what the peer may do through this QP, verbs.AccessFlags
	pd     uint32 // owner: PD of this QP
	left   uint32 // owner: 1 if its QP is in ERR, reset or closed: flushed sends must not be fetched
	_      [128 - 20]byte

	hazard uint64 // peer: index of a region + 1 while the peer copies from or to it
	_      [128 - 8]byte

	ack      uint64 // peer: slots consumed (low half), status that refuses the next message (high half)
	rnrRetry uint32 // peer: its RNR retry counter
	writer   uint32 // peer: the incarnation of its QP that writes here
	_        [128 - 16]byte

	slots [slotCount]slot
	bytes [payloadLen]byte
}

// leave tells the peer that the owner has left.
func (b *inbox) leave() {
	atomic.StoreUint32(&b.left, 1)
	atomic.StoreUint32(&b.access, 0)
}

const (
	slotCount  = 128
	slotMask   = slotCount - 1
	payloadLen = parts.Len
	inboxSize  = 3*128 + slotCount*64 + payloadLen
)

// slot is one cache line. The flag is written last, with release. Its number counts slots
// from 1 over all laps, so an old flag never matches.
type slot struct {
	flag   uint64 // number 32 | op 8 | bits 8 | inline bytes 16
	ack    uint32 // slots that the writer has consumed of its own inbox
	imm    uint32
	length uint32 // inline payload of SEND begins here
	rkey   uint32
	raddr  uint64
	body   [32]byte // inline payload of WRITE; packed; pull; atomic
}

// Payload bytes that fit a slot.
const (
	inlineSend  = 48
	inlineWrite = 32
)

// Operations beyond the requests, which have the numbers of verbs.Opcode.
const (
	opMore       = 16 // next bytes of a packed message: body is a packed
	opReadBytes  = 17 // response to an RDMA_READ: body is a packed
	opAtomicDone = 18 // response to an atomic: raddr is the old value
)

// Bits of a slot.
const (
	bitSolicited = 1 << iota
	bitPacked    // body is a packed: the first bytes of the payload
	bitPull      // body is a pull: the receiver fetches the payload
)

// packed says where in the bytes of the inbox a piece of payload is.
type packed struct{ pos, n uint32 }

// pull names the payload in the sender's memory: one piece here, or a list of
// count pieces in the bytes of the inbox.
type pull struct {
	count uint32
	pos   uint32
	first piece
}

// piece is an SGE as the peer sees it; key is of the sender's region.
type piece struct {
	addr   uint64
	length uint32
	key    uint32
}

// atomicArgs are the operands of an atomic.
type atomicArgs struct{ compareAdd, swap uint64 }

func flagOf(number uint32, op, bits uint8, inline int) uint64 {
	return uint64(number) | uint64(op)<<32 | uint64(bits)<<40 | uint64(inline)<<48
}

// sendPayload returns the place of the inline payload of SEND, writePayload that of WRITE.
func (s *slot) sendPayload() *[inlineSend]byte {
	return (*[inlineSend]byte)(unsafe.Pointer(&s.length))
}

func (s *slot) packed() *packed         { return (*packed)(unsafe.Pointer(&s.body)) }
func (s *slot) pull() *pull             { return (*pull)(unsafe.Pointer(&s.body)) }
func (s *slot) atomicArgs() *atomicArgs { return (*atomicArgs)(unsafe.Pointer(&s.body)) }

// arrived says whether slot number n is written, and returns its flag.
func (b *inbox) arrived(n uint32) (uint64, bool) {
	f := atomic.LoadUint64(&b.slots[(n-1)&slotMask].flag)
	return f, uint32(f) == n
}

// outbox is the sending side of a peer's inbox: the ring positions. The QP's
// lock guards it.
type outbox struct {
	*inbox
	sent      uint32     // slots written
	acked     uint32     // slots that the peer has consumed
	slotsSent uint64     // sent, which has fewer bits
	payload   parts.Area // of bytes; consuming a slot frees its payload
	asked     uint32     // slots of the peer that had been consumed when the place of a payload was prepared last
}

// room says whether another slot may be written.
func (o *outbox) room() bool { return o.sent-o.acked < slotCount }

// next is the slot to write; its number is o.sent+1.
func (o *outbox) next() *slot { return &o.slots[o.sent&slotMask] }

// take returns n bytes for the payload of the next slot, and where they are; false if there is no room.
func (o *outbox) take(n uint32) (pos uint32, b []byte, ok bool) {
	if n == 0 {
		return 0, nil, true
	}
	k := o.slotsSent + 1
	if pos, ok = o.payload.Next(k, n); !ok {
		if pos, ok = o.payload.Enter(k, n, o.taken()); !ok {
			return 0, nil, false
		}
	}
	return pos, o.bytes[pos : pos+n], true
}

// taken is how many slots the peer has consumed.
func (o *outbox) taken() uint64 { return o.slotsSent - uint64(o.sent-o.acked) }

// prepare prepares the place of the next payload, of n bytes like the last, if the peer answers each: seen
// slots of it have been consumed.
func (o *outbox) prepare(n, seen uint32) {
	if seen != o.asked {
		o.asked = seen
		o.payload.Touch(o.bytes[:], n, o.taken())
	}
}

// advance counts the next slot, which is complete but for its flag.
func (o *outbox) advance() {
	o.sent++
	o.slotsSent++
}

// consumed accepts the peer's count of consumed slots. It returns false if the count is
// impossible: more than sent, or less than before.
func (o *outbox) consumed(n uint32) bool {
	if n-o.acked > o.sent-o.acked {
		return false
	}
	o.acked = n
	return true
}
