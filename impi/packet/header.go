// Package packet encodes and decodes the packet header of IMPI 0.0, Interoperable MPI (draft of 22
// March 1999, chapter 3, Data Transfer Protocol): the packets that the hosts of a job exchange once
// package startup has brought them together.
//
//	h := packet.Header{Type: packet.Data, Len: n, Src: src, Dest: dest}
//	h.Put(&b, packet.Revised)                  // b is an array; or Append to a slice
//	err := packet.Parse(&h, &b, packet.Revised)
//	n := h.Body()                              // so many bytes follow
//
// A packet is a big-endian header of 128 bytes. In DATA and DATASYNC only, it is followed by the
// bytes of user data that the header announces:
//
//	 0  type      Uint4            72  length of the message   Uint8
//	 4  length    Uint4            80  rank and tag, see [Dialect]
//	 8  source    16-byte host     88  context id              Uint8
//	              id, Int8 pid     96  number of the message   Uint8
//	32  destination, likewise     104  count                   Int8
//	56  source's request    Uint8 112  datatype                Uint8
//	64  destination's       Uint8 120  reserved                Uint8
//
// The package does not interpret packets. All its functions are safe for concurrent use on
// different memory.
package packet

import (
	"encoding/binary"

	"github.com/sluice-hpc/sluice/impi/startup"
)

// HeaderLen is the length of every header, in bytes.
const HeaderLen = 128

// Offsets of the fields of a header (IMPI 0.0, IMPI_Packet).
const (
	offType     = 0
	offLen      = 4
	offSrc      = 8
	offDest     = 32
	offSRQID    = 56
	offDRQID    = 64
	offMsgLen   = 72
	offLSRank   = 80 // Revised
	offTag      = 84 // Revised
	offTag1999  = 80 // Draft1999
	offCID      = 88
	offSeq      = 96
	offCount    = 104
	offDType    = 112
	offReserved = 120

	hostLen = 16 // of a Proc, before its pid
)

// Proc identifies a process of a job, as announced in startup (IMPI_Proc).
type Proc struct {
	Host startup.HostID // host that it runs on
	PID  int64          // unique among the processes with that host id; startup announces the same 8 bytes
}

// Header is the beginning of every packet. The Type decides which fields have a meaning; Append and
// Parse copy all of them.
type Header struct {
	Type Type
	// Len is the number of bytes of user data behind the header in Data and DataSync. In all other
	// packets it is meaningless and peers write arbitrary values: use Body.
	Len       uint32
	Src, Dest Proc   // the two processes; swapped in an answer
	SRQID     uint64 // request of the sender of the message, echoed by SyncAck, Cancel, CancelYes and CancelNo
	DRQID     uint64 // request of its receiver: announced by SyncAck, repeated by later Data packets
	MsgLen    uint64 // bytes of the whole message, in Data and DataSync
	LSRank    int32  // rank of the source in its communicator; Revised only
	Tag       int64  // of the message; Revised has its low 32 bits, as an Int4
	CID       uint64 // context id of the communicator
	Seq       uint64 // number of the message, in all its packets; peers may count differently
	Count     int64  // elements of the message
	DType     uint64 // datatype of the sender, opaque
	Reserved  uint64
}

// Body returns how many bytes of user data follow the header: Len in Data and DataSync, 0 in all
// other packets. The value is the peer's claim: the caller must check it against the agreed packet
// length.
func (h *Header) Body() uint32 {
	if h.Type == Data || h.Type == DataSync {
		return h.Len
	}
	return 0
}

// Append appends the HeaderLen bytes of h to b, in dialect d.
func (h *Header) Append(b []byte, d Dialect) []byte {
	n := len(b)
	b = append(b, make([]byte, HeaderLen)...)
	h.Put((*[HeaderLen]byte)(b[n:]), d)
	return b
}

// Put writes h into b, in dialect d. It does not allocate.
func (h *Header) Put(b *[HeaderLen]byte, d Dialect) {
	be := binary.BigEndian
	be.PutUint32(b[offType:], uint32(h.Type))
	be.PutUint32(b[offLen:], h.Len)
	h.Src.put(b[offSrc:])
	h.Dest.put(b[offDest:])
	be.PutUint64(b[offSRQID:], h.SRQID)
	be.PutUint64(b[offDRQID:], h.DRQID)
	be.PutUint64(b[offMsgLen:], h.MsgLen)
	if d == Draft1999 {
		be.PutUint64(b[offTag1999:], uint64(h.Tag))
	} else {
		be.PutUint32(b[offLSRank:], uint32(h.LSRank))
		be.PutUint32(b[offTag:], uint32(h.Tag))
	}
	be.PutUint64(b[offCID:], h.CID)
	be.PutUint64(b[offSeq:], h.Seq)
	be.PutUint64(b[offCount:], uint64(h.Count))
	be.PutUint64(b[offDType:], h.DType)
	be.PutUint64(b[offReserved:], h.Reserved)
}

// Parse decodes b, in dialect d, into h: all fields, with LSRank 0 in Draft1999. It does not
// allocate unless it fails. The only error is a [*TypeError]; the fields are set in that case too.
func Parse(h *Header, b *[HeaderLen]byte, d Dialect) error {
	be := binary.BigEndian
	h.Type = Type(be.Uint32(b[offType:]))
	h.Len = be.Uint32(b[offLen:])
	h.Src.get(b[offSrc:])
	h.Dest.get(b[offDest:])
	h.SRQID = be.Uint64(b[offSRQID:])
	h.DRQID = be.Uint64(b[offDRQID:])
	h.MsgLen = be.Uint64(b[offMsgLen:])
	if d == Draft1999 {
		h.LSRank = 0
		h.Tag = int64(be.Uint64(b[offTag1999:]))
	} else {
		h.LSRank = int32(be.Uint32(b[offLSRank:]))
		h.Tag = int64(int32(be.Uint32(b[offTag:])))
	}
	h.CID = be.Uint64(b[offCID:])
	h.Seq = be.Uint64(b[offSeq:])
	h.Count = int64(be.Uint64(b[offCount:]))
	h.DType = be.Uint64(b[offDType:])
	h.Reserved = be.Uint64(b[offReserved:])
	if h.Type > Fini {
		return &TypeError{h.Type}
	}
	return nil
}

func (p *Proc) put(b []byte) {
	copy(b[:hostLen], p.Host[:])
	binary.BigEndian.PutUint64(b[hostLen:], uint64(p.PID))
}

func (p *Proc) get(b []byte) {
	p.Host = startup.HostID(b[:hostLen])
	p.PID = int64(binary.BigEndian.Uint64(b[hostLen:]))
}
