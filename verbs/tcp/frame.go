package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// kind is the kind of a frame; the numbers are on the wire.
type kind uint8

// Kinds. The first four are the handshake, see handshake.go.
const (
	kindOpen     kind = 1  // dialer: both QP numbers, and the terms
	kindOpened   kind = 2  // acceptor: the same for its QP
	kindRefused  kind = 3  // acceptor: no, or not yet
	kindConfirm  kind = 4  // dialer: the QPs are connected now
	kindStart    kind = 5  // the request stream begins, or its terms change
	kindSend     kind = 6  // SEND, first frame
	kindWrite    kind = 7  // RDMA_WRITE, first frame
	kindRead     kind = 8  // RDMA_READ
	kindAtomic   kind = 9  // either atomic
	kindMore     kind = 10 // SEND or RDMA_WRITE, further frames
	kindResponse kind = 11 // to RDMA_READ or an atomic
	kindAck      kind = 12
	kindNak      kind = 13 // request msn failed with status; no later request is executed
	kindRNR      kind = 14 // no receive was posted for request msn; it and all later ones were dropped
	kindReady    kind = 15 // a receive is posted now
	kindResume   kind = 16 // reply to kindReady: the requests follow again, starting at msn
	kindDown     kind = 17 // this QP is in ERR: it executes and sends nothing any more
	kindBye      kind = 18 // this QP is gone
	kindEnd      kind = 19
)

var kindNames = [kindEnd]string{"kind 0", "OPEN", "OPENED", "REFUSED", "CONFIRM", "START", "SEND", "WRITE", "READ", "ATOMIC",
	"MORE", "RESPONSE", "ACK", "NAK", "RNR", "READY", "RESUME", "DOWN", "BYE"}

func (k kind) String() string {
	if k < kindEnd {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Flags of a frame.
const (
	flagImm       = 1 << 0 // SEND, WRITE: imm is valid; a WRITE consumes a receive
	flagSolicited = 1 << 1 // SEND, WRITE
	flagSwap      = 1 << 2 // ATOMIC: compare and swap; without it fetch and add
	flagFinal     = 1 << 3 // OPEN, OPENED: the sender is in RTS, its PSN will not change
	// flagTrailer, on frames with payload: one byte follows the payload. It is not 0 if
	// the payload is void because its memory was deregistered while the frame was being
	// sent.
	flagTrailer = 1 << 4
)

const (
	headerSize    = 16
	maxExtension  = 32
	maxHeader     = headerSize + maxExtension
	maxPayload    = 256 << 10 // of a frame
	handshakeSize = headerSize + openSize
	openSize      = 24
)

// layout describes the frames of a kind.
type layout struct {
	extension int // bytes between header and payload
	flags     uint8
	payload   bool
}

var layouts = [kindEnd]layout{
	kindOpen:     {openSize, flagFinal, false},
	kindOpened:   {openSize, flagFinal, false},
	kindRefused:  {openSize, 0, false},
	kindConfirm:  {openSize, 0, false},
	kindStart:    {8, 0, false},
	kindSend:     {8, flagImm | flagSolicited | flagTrailer, true},
	kindWrite:    {24, flagImm | flagSolicited | flagTrailer, true},
	kindRead:     {16, 0, false},
	kindAtomic:   {32, flagSwap, false},
	kindMore:     {0, flagTrailer, true},
	kindResponse: {0, flagTrailer, true},
	kindAck:      {0, 0, false},
	kindNak:      {8, 0, false},
	kindRNR:      {0, 0, false},
	kindReady:    {0, 0, false},
	kindResume:   {0, 0, false},
	kindDown:     {0, 0, false},
	kindBye:      {0, 0, false},
}

// frame is the header of a frame of any kind, with its extension. The package comment
// shows the layout.
type frame struct {
	kind  kind
	flags uint8
	size  uint32 // bytes of payload that follow
	ack   uint32 // requests of the receiver of this frame executed so far
	msn   uint32 // number of the request that the frame is, or refers to

	total      uint32 // SEND, WRITE, READ: bytes of the message
	imm        uint32 // SEND, WRITE
	rkey       uint32 // WRITE, READ, ATOMIC
	addr       uint64 // WRITE, READ, ATOMIC
	operand    uint64 // ATOMIC: value to compare with, or to add
	swap       uint64 // ATOMIC
	status     uint32 // NAK: a verbs.WCStatus; REFUSED: a refusal
	psn        uint32 // START, OPEN, OPENED: the sender's first PSN
	rnrRetry   uint8  // START
	dst, src   uint32 // handshake: QP numbers
	expectPSN  uint32 // OPEN, OPENED: the first PSN expected from the other end
	maxAnswers uint8  // OPEN, OPENED: RDMA_READs and atomics that the sender executes at once
}

// errFrame: the peer violates the protocol, or has lost its place in the stream.
var errFrame = errors.New("malformed frame")

// Append appends the header and the extension to b.
func (f *frame) Append(b []byte) []byte {
	be := binary.BigEndian
	b = append(b, byte(f.kind), f.flags, 0, 0)
	b = be.AppendUint32(b, f.size)
	b = be.AppendUint32(b, f.ack)
	b = be.AppendUint32(b, f.msn)
	switch f.kind {
	case kindSend:
		b = be.AppendUint32(b, f.total)
		b = be.AppendUint32(b, f.imm)
	case kindWrite:
		b = be.AppendUint64(b, f.addr)
		b = be.AppendUint32(b, f.rkey)
		b = be.AppendUint32(b, f.total)
		b = be.AppendUint32(b, f.imm)
		b = be.AppendUint32(b, 0)
	case kindRead:
		b = be.AppendUint64(b, f.addr)
		b = be.AppendUint32(b, f.rkey)
		b = be.AppendUint32(b, f.total)
	case kindAtomic:
		b = be.AppendUint64(b, f.addr)
		b = be.AppendUint32(b, f.rkey)
		b = be.AppendUint32(b, 0)
		b = be.AppendUint64(b, f.operand)
		b = be.AppendUint64(b, f.swap)
	case kindNak:
		b = be.AppendUint32(b, f.status)
		b = be.AppendUint32(b, 0)
	case kindStart:
		b = be.AppendUint32(b, f.psn)
		b = append(b, f.rnrRetry, 0, 0, 0)
	case kindOpen, kindOpened, kindRefused, kindConfirm:
		b = be.AppendUint32(b, f.dst)
		b = be.AppendUint32(b, f.src)
		b = be.AppendUint32(b, f.psn)
		b = be.AppendUint32(b, f.expectPSN)
		b = append(b, f.maxAnswers, 0, 0, 0)
		b = be.AppendUint32(b, f.status)
	}
	return b
}

// Parse reads the header and the extension of a frame from the front of b and returns
// their length, or 0 if b is too short to tell. It sets only the fields of the frame's
// kind. An error wraps errFrame.
func (f *frame) Parse(b []byte) (int, error) {
	if len(b) < headerSize {
		return 0, nil
	}
	be := binary.BigEndian
	k := kind(b[0])
	if k == 0 || k >= kindEnd {
		return 0, fmt.Errorf("%w: %v", errFrame, k)
	}
	l := &layouts[k]
	size := be.Uint32(b[4:])
	if b[1]&^l.flags != 0 || b[2]|b[3] != 0 || size > maxPayload || size > 0 && !l.payload || size == 0 && b[1]&flagTrailer != 0 {
		return 0, fmt.Errorf("%w: %v with flags %#x, reserved %#x, %d bytes of payload", errFrame, k, b[1], b[2:4], size)
	}
	n := headerSize + l.extension
	if len(b) < n {
		return 0, nil
	}
	f.kind, f.flags, f.size = k, b[1], size
	f.ack, f.msn = be.Uint32(b[8:]), be.Uint32(b[12:])
	x := b[headerSize:n]
	zero := uint32(0)
	switch k {
	case kindSend:
		f.total, f.imm = be.Uint32(x), be.Uint32(x[4:])
	case kindWrite:
		f.addr, f.rkey, f.total, f.imm = be.Uint64(x), be.Uint32(x[8:]), be.Uint32(x[12:]), be.Uint32(x[16:])
		zero = be.Uint32(x[20:])
	case kindRead:
		f.addr, f.rkey, f.total = be.Uint64(x), be.Uint32(x[8:]), be.Uint32(x[12:])
	case kindAtomic:
		f.addr, f.rkey, zero = be.Uint64(x), be.Uint32(x[8:]), be.Uint32(x[12:])
		f.operand, f.swap = be.Uint64(x[16:]), be.Uint64(x[24:])
	case kindNak:
		f.status, zero = be.Uint32(x), be.Uint32(x[4:])
	case kindStart:
		f.psn, f.rnrRetry, zero = be.Uint32(x), x[4], uint32(x[5]|x[6]|x[7])
	case kindOpen, kindOpened, kindRefused, kindConfirm:
		f.dst, f.src, f.psn, f.expectPSN = be.Uint32(x), be.Uint32(x[4:]), be.Uint32(x[8:]), be.Uint32(x[12:])
		f.maxAnswers, zero, f.status = x[16], uint32(x[17]|x[18]|x[19]), be.Uint32(x[20:])
	}
	if zero != 0 {
		return 0, fmt.Errorf("%w: %v with reserved bytes %#x", errFrame, k, zero)
	}
	return n, nil
}
