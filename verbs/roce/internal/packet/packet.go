// Package packet encodes and decodes the transport headers of RoCEv2, which are between the UDP
// header and the invariant CRC, and that CRC.
//
// Names are those of the InfiniBand architecture, volume 1, chapter 9; annex A17 describes what
// RoCEv2 adds.
package packet

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Port is the UDP destination port of RoCEv2 (annex A17.3.1).
const Port = 4791

// Opcode is the opcode of the BTH.
type Opcode uint8

// Opcodes of the reliable connection, and those that RoCEv2 and this library add.
const (
	SendFirst         Opcode = 0x00
	SendMiddle        Opcode = 0x01
	SendLast          Opcode = 0x02
	SendLastImm       Opcode = 0x03
	SendOnly          Opcode = 0x04
	SendOnlyImm       Opcode = 0x05
	WriteFirst        Opcode = 0x06
	WriteMiddle       Opcode = 0x07
	WriteLast         Opcode = 0x08
	WriteLastImm      Opcode = 0x09
	WriteOnly         Opcode = 0x0a
	WriteOnlyImm      Opcode = 0x0b
	ReadRequest       Opcode = 0x0c
	ReadFirst         Opcode = 0x0d
	ReadMiddle        Opcode = 0x0e
	ReadLast          Opcode = 0x0f
	ReadOnly          Opcode = 0x10
	Acknowledge       Opcode = 0x11
	AtomicAcknowledge Opcode = 0x12
	CompareSwap       Opcode = 0x13
	FetchAdd          Opcode = 0x14
	SendLastInv       Opcode = 0x16
	SendOnlyInv       Opcode = 0x17
	// CNP is the congestion notification of RoCEv2 (annex A17.9.3).
	CNP Opcode = 0x81
	// Selective is an acknowledgement of this library: an AETH with the syndrome of a
	// sequence error, and the packets that have arrived behind the missing one (see
	// [Header].Arrived). It is sent only to peers that are known to understand it. 0xc0 to
	// 0xff are the manufacturers' opcodes.
	Selective Opcode = 0xc0
	// ReadPart is an RDMA READ request of this library, for the first part of data read in
	// several parts. It also has the length of the whole, which the responder checks before
	// it responds. The other parts are ordinary requests.
	ReadPart Opcode = 0xc1
	// Gone is a reply of this library to a request: the immediate data is the number of the
	// request's QP, which is in ERR, has left the connection, or no longer exists. The PSN
	// is that of the request. DestQP is 0 if it is not known. Adapters send nothing in that
	// case, so their peers have to wait for their timers.
	Gone Opcode = 0xc2
	// carrying, added to the opcode of a SEND or RDMA WRITE, is this library's way to carry
	// an acknowledgement: 4 bytes follow the BTH, zero and the PSN up to which the packet's
	// sender has executed its peer's requests. See [Header].Carries.
	carrying Opcode = 0xe0
)

// lastCarrier is the last opcode that carrying can be added to.
const lastCarrier = WriteOnlyImm

// extension is a set of the headers after the BTH.
type extension uint16

const (
	hasRETH extension = 1 << iota
	hasAtomic
	hasAETH
	hasAtomicAck
	hasImm
	hasIETH
	hasArrived
	hasWhole
	hasCarried
	hasPayload
)

// layouts has the layouts of the known opcodes; the others are zero.
var layouts = func() (l [256]struct {
	ext   extension
	size  uint8 // of BTH and extensions
	known bool
}) {
	for op, e := range map[Opcode]extension{
		SendFirst: hasPayload, SendMiddle: hasPayload, SendLast: hasPayload, SendLastImm: hasImm | hasPayload,
		SendOnly: hasPayload, SendOnlyImm: hasImm | hasPayload,
		SendLastInv: hasIETH | hasPayload, SendOnlyInv: hasIETH | hasPayload,
		WriteFirst: hasRETH | hasPayload, WriteMiddle: hasPayload, WriteLast: hasPayload, WriteLastImm: hasImm | hasPayload,
		WriteOnly: hasRETH | hasPayload, WriteOnlyImm: hasRETH | hasImm | hasPayload,
		ReadRequest: hasRETH,
		ReadFirst:   hasAETH | hasPayload, ReadMiddle: hasPayload, ReadLast: hasAETH | hasPayload, ReadOnly: hasAETH | hasPayload,
		Acknowledge: hasAETH, AtomicAcknowledge: hasAETH | hasAtomicAck,
		CompareSwap: hasAtomic, FetchAdd: hasAtomic,
		CNP:       0,
		Selective: hasAETH | hasArrived,
		ReadPart:  hasRETH | hasWhole,
		Gone:      hasImm,
	} {
		n := bthLen
		for _, x := range []struct {
			e extension
			n int
		}{{hasRETH, 16}, {hasAtomic, 28}, {hasAETH, 4}, {hasAtomicAck, 8}, {hasImm, 4}, {hasIETH, 4}, {hasArrived, arrivedLen}, {hasWhole, 4}} {
			if e&x.e != 0 {
				n += x.n
			}
		}
		if op == CNP {
			n += cnpReserved
		}
		l[op].ext, l[op].size, l[op].known = e, uint8(n), true
		if op <= lastCarrier {
			l[carrying+op].ext, l[carrying+op].size, l[carrying+op].known = e|hasCarried, uint8(n+carriedLen), true
		}
	}
	return l
}()

// Lengths in bytes.
const (
	bthLen     = 12
	arrivedLen = 32
	carriedLen = 4
	// cnpReserved is the length of the reserved bytes of a CNP (annex A17.9.3).
	cnpReserved = 16
	// MaxHeader is the longest header.
	MaxHeader = bthLen + 4 + arrivedLen
	// ICRCLen is the length of the CRC at the end.
	ICRCLen = 4
)

// Known reports whether the opcode is one of those above.
func (o Opcode) Known() bool { return layouts[o].known }

// HeaderLen returns the number of bytes before the payload.
func (o Opcode) HeaderLen() int { return int(layouts[o].size) }

// Len returns the number of bytes that Append appends.
func (h *Header) Len() int {
	if h.Carries {
		return int(layouts[h.Opcode+carrying].size)
	}
	return int(layouts[h.Opcode].size)
}

// CanCarry reports whether packets of the opcode can carry an acknowledgement.
func (o Opcode) CanCarry() bool { return o <= lastCarrier }

// Response reports whether packets of the opcode go from the responder to the requester.
func (o Opcode) Response() bool {
	return o >= ReadFirst && o <= AtomicAcknowledge || o == Selective || o == Gone
}

// Syndromes of the AETH (table 44): the two bits below the topmost are the kind, the lower five
// are a value.
const (
	SyndromeKind = 0x60
	// SyndromeACK is an ACK with the value 0x1f: credits are not counted.
	SyndromeACK = 0x1f
	// SyndromeRNR has the code of the delay as its value.
	SyndromeRNR        = 0x20
	SyndromeSequence   = 0x60
	SyndromeInvalid    = 0x61
	SyndromeAccess     = 0x62
	SyndromeOperation  = 0x63
	SyndromeValue      = 0x1f
	SyndromeKindACK    = 0x00
	SyndromeKindNAK    = 0x60
	DefaultPKey        = 0xffff
	PKeyFull           = 1 << 15 // of a P_Key: full member; the rest names the partition
	numberMask         = 1<<24 - 1
	becnBit, fecnBit   = 0x40, 0x80
	maskedByte         = 4 // of the BTH: FECN, BECN, reserved
	solicitedBit       = 0x80
	migratedBit        = 0x40
	ackReqBit          = 0x80
	padShift, tverMask = 4, 0x0f
)

// Header is the BTH and the further headers of the opcode; fields of other headers are ignored.
// Append and Parse are inverses of each other.
type Header struct {
	Opcode    Opcode
	Solicited bool
	Migrated  bool  // MigReq; without path migration it is set
	Pad       uint8 // bytes after the payload, up to the next multiple of four
	FECN      bool
	BECN      bool
	AckReq    bool
	PKey      uint16
	DestQP    uint32 // 24 bits
	PSN       uint32 // 24 bits

	VA     uint64 // RETH, AtomicETH
	RKey   uint32 // RETH, AtomicETH
	Length uint32 // RETH: bytes of the whole message; of RDMA READ those requested
	// Carries says that a packet of a SEND or RDMA WRITE carries an acknowledgement up to
	// Carried, 24 bits.
	Carries bool
	Carried uint32
	// WholeLength is the length of the whole in bytes, for ReadPart.
	WholeLength uint32
	SwapAdd     uint64 // AtomicETH
	Compare     uint64 // AtomicETH
	Syndrome    uint8  // AETH
	MSN         uint32 // AETH, 24 bits
	Original    uint64 // AtomicAckETH
	Imm         uint32 // ImmDt
	InvRKey     uint32 // IETH
	// Arrived is for Selective: bit i of word w stands for the packet PSN + 1 + 64w + i.
	Arrived [4]uint64
}

// Append appends the encoding, without payload.
func (h *Header) Append(b []byte) []byte {
	op := h.Opcode
	if h.Carries {
		op += carrying
	}
	l := &layouts[op]
	var flags, bits, ack byte
	if h.Solicited {
		flags = solicitedBit
	}
	if h.Migrated {
		flags |= migratedBit
	}
	flags |= h.Pad & 3 << padShift
	if h.FECN {
		bits = fecnBit
	}
	if h.BECN {
		bits |= becnBit
	}
	if h.AckReq {
		ack = ackReqBit
	}
	b = append(b, byte(op), flags, byte(h.PKey>>8), byte(h.PKey))
	b = binary.BigEndian.AppendUint32(b, uint32(bits)<<24|h.DestQP&numberMask)
	b = binary.BigEndian.AppendUint32(b, uint32(ack)<<24|h.PSN&numberMask)
	if h.Carries {
		b = binary.BigEndian.AppendUint32(b, h.Carried&numberMask)
	}
	if l.ext&hasRETH != 0 {
		b = binary.BigEndian.AppendUint64(b, h.VA)
		b = binary.BigEndian.AppendUint32(b, h.RKey)
		b = binary.BigEndian.AppendUint32(b, h.Length)
	}
	if l.ext&hasWhole != 0 {
		b = binary.BigEndian.AppendUint32(b, h.WholeLength)
	}
	if l.ext&hasAtomic != 0 {
		b = binary.BigEndian.AppendUint64(b, h.VA)
		b = binary.BigEndian.AppendUint32(b, h.RKey)
		b = binary.BigEndian.AppendUint64(b, h.SwapAdd)
		b = binary.BigEndian.AppendUint64(b, h.Compare)
	}
	if l.ext&hasAETH != 0 {
		b = binary.BigEndian.AppendUint32(b, uint32(h.Syndrome)<<24|h.MSN&numberMask)
	}
	if l.ext&hasAtomicAck != 0 {
		b = binary.BigEndian.AppendUint64(b, h.Original)
	}
	if l.ext&hasImm != 0 {
		b = binary.BigEndian.AppendUint32(b, h.Imm)
	}
	if l.ext&hasIETH != 0 {
		b = binary.BigEndian.AppendUint32(b, h.InvRKey)
	}
	if l.ext&hasArrived != 0 {
		for _, w := range h.Arrived {
			b = binary.BigEndian.AppendUint64(b, w)
		}
	}
	if h.Opcode == CNP {
		b = append(b, make([]byte, cnpReserved)...)
	}
	return b
}

// Errors of Parse.
var (
	ErrShort   = errors.New("packet is too short")
	ErrOpcode  = errors.New("unknown opcode")
	ErrVersion = errors.New("unknown transport version")
	ErrPad     = errors.New("more padding than payload")
	ErrPayload = errors.New("payload after an opcode without payload")
	ErrAlign   = errors.New("length is not a multiple of four")
)

// Parse decodes a packet from the BTH to the last byte before the ICRC, and returns the payload
// without padding, which is a part of b. It ignores reserved bits, as the architecture requires
// (9.2).
func (h *Header) Parse(b []byte) (payload []byte, err error) {
	if len(b) < bthLen {
		return nil, ErrShort
	}
	l := &layouts[b[0]]
	switch {
	case !h.ParseBTH(b):
		return nil, ErrOpcode
	case len(b) < int(l.size):
		return nil, ErrShort
	case len(b)%4 != 0:
		return nil, ErrAlign
	case b[1]&tverMask != 0:
		return nil, ErrVersion
	}
	h.Solicited, h.Migrated, h.Pad = b[1]&solicitedBit != 0, b[1]&migratedBit != 0, b[1]>>padShift&3
	h.PKey = binary.BigEndian.Uint16(b[2:])
	h.FECN, h.BECN = b[maskedByte]&fecnBit != 0, b[maskedByte]&becnBit != 0
	h.AckReq = b[8]&ackReqBit != 0
	x := b[bthLen:]
	if h.Carries {
		h.Carried = binary.BigEndian.Uint32(x) & numberMask
		x = x[carriedLen:]
	}
	if l.ext&hasRETH != 0 {
		h.VA, h.RKey, h.Length = binary.BigEndian.Uint64(x), binary.BigEndian.Uint32(x[8:]), binary.BigEndian.Uint32(x[12:])
		x = x[16:]
	}
	if l.ext&hasWhole != 0 {
		h.WholeLength = binary.BigEndian.Uint32(x)
		x = x[4:]
	}
	if l.ext&hasAtomic != 0 {
		h.VA, h.RKey = binary.BigEndian.Uint64(x), binary.BigEndian.Uint32(x[8:])
		h.SwapAdd, h.Compare = binary.BigEndian.Uint64(x[12:]), binary.BigEndian.Uint64(x[20:])
		x = x[28:]
	}
	if l.ext&hasAETH != 0 {
		h.Syndrome, h.MSN = x[0], binary.BigEndian.Uint32(x)&numberMask
		x = x[4:]
	}
	if l.ext&hasAtomicAck != 0 {
		h.Original = binary.BigEndian.Uint64(x)
		x = x[8:]
	}
	if l.ext&hasImm != 0 {
		h.Imm = binary.BigEndian.Uint32(x)
		x = x[4:]
	}
	if l.ext&hasIETH != 0 {
		h.InvRKey = binary.BigEndian.Uint32(x)
		x = x[4:]
	}
	if l.ext&hasArrived != 0 {
		for i := range h.Arrived {
			h.Arrived[i] = binary.BigEndian.Uint64(x[8*i:])
		}
		x = x[arrivedLen:]
	}
	if h.Opcode == CNP {
		x = x[cnpReserved:]
	}
	switch {
	case l.ext&hasPayload == 0 && len(x) > 0:
		return nil, ErrPayload
	case int(h.Pad) > len(x):
		return nil, ErrPad
	}
	return x[:len(x)-int(h.Pad)], nil
}

// ParseBTH decodes the opcode, the destination and the PSN of a packet that may be truncated. It
// returns false if b is too short for that, or the opcode is unknown.
func (h *Header) ParseBTH(b []byte) bool {
	if len(b) < bthLen || !layouts[b[0]].known {
		return false
	}
	h.Opcode = Opcode(b[0])
	if h.Carries = layouts[b[0]].ext&hasCarried != 0; h.Carries {
		h.Opcode -= carrying
	}
	h.DestQP = binary.BigEndian.Uint32(b[4:]) & numberMask
	h.PSN = binary.BigEndian.Uint32(b[8:]) & numberMask
	return true
}

// PadOf returns the padding that n bytes of payload need.
func PadOf(n int) uint8 { return uint8(-n & 3) }

var names = map[Opcode]string{
	SendFirst: "SEND first", SendMiddle: "SEND middle", SendLast: "SEND last", SendLastImm: "SEND last with immediate",
	SendOnly: "SEND only", SendOnlyImm: "SEND only with immediate",
	WriteFirst: "RDMA WRITE first", WriteMiddle: "RDMA WRITE middle", WriteLast: "RDMA WRITE last",
	WriteLastImm: "RDMA WRITE last with immediate", WriteOnly: "RDMA WRITE only", WriteOnlyImm: "RDMA WRITE only with immediate",
	ReadRequest: "RDMA READ request", ReadFirst: "RDMA READ response first", ReadMiddle: "RDMA READ response middle",
	ReadLast: "RDMA READ response last", ReadOnly: "RDMA READ response only",
	Acknowledge: "ACK", AtomicAcknowledge: "ATOMIC ACK", CompareSwap: "CmpSwap", FetchAdd: "FetchAdd",
	SendLastInv: "SEND last with invalidate", SendOnlyInv: "SEND only with invalidate", CNP: "CNP", Selective: "selective ACK", ReadPart: "RDMA READ request, first part", Gone: "gone",
}

// String returns the architecture's name of the opcode.
func (o Opcode) String() string {
	if s, ok := names[o]; ok {
		return s
	}
	return fmt.Sprintf("opcode %#02x", uint8(o))
}
