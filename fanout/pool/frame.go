package pool

import (
	"encoding/binary"
	"fmt"
)

// kind of a frame.
type kind uint8

// Kinds of frames. A worker sends kindAsk, kindResult, kindLeave and kindBegun, a supplier
// kindChunk and kindEnd.
const (
	kindAsk    kind = 1 + iota // no body
	kindResult                 // the result of the chunk with that number; it may be empty
	kindLeave                  // no body: the worker asks for no more
	kindChunk                  // the chunk with that number, not empty
	kindEnd                    // no body: no more chunks
	kindBegun                  // no body: the worker has begun with the chunk with that number
)

// header begins a frame, little-endian: its kind (8 bits), whether the worker must report when
// it begins with the chunk (8 bits: 0 or 1), zeroes (16 bits), how many chunks it asks for (32
// bits; from workers), the number of a chunk and the length of the body that follows (64 bits
// each).
type header struct {
	kind    kind
	watched bool
	asks    uint32
	seq     uint64
	length  uint64
}

const headerLen = 24

func (h header) append(b []byte) []byte {
	b = append(b, byte(h.kind), 0, 0, 0)
	if h.watched {
		b[len(b)-3] = 1
	}
	b = binary.LittleEndian.AppendUint32(b, h.asks)
	b = binary.LittleEndian.AppendUint64(b, h.seq)
	return binary.LittleEndian.AppendUint64(b, h.length)
}

// parseHeader parses a header of headerLen bytes. The body of its frame has at most most
// bytes.
func parseHeader(b []byte, most int) (header, error) {
	h := header{kind(b[0]), b[1] == 1, binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:])}
	if h.length > uint64(most) {
		return header{}, fmt.Errorf("%w: a frame of kind %d has a body of %d bytes, more than MaxBytes, %d", ErrProtocol, h.kind, h.length, most)
	}
	ok := b[1]&^1|b[2]|b[3] == 0 && (!h.watched || h.kind == kindChunk)
	switch h.kind {
	case kindAsk, kindLeave:
		ok = ok && h.seq == 0 && h.length == 0
	case kindResult:
	case kindChunk:
		ok = ok && h.asks == 0 && h.length > 0
	case kindEnd:
		ok = ok && h.asks == 0 && h.seq == 0 && h.length == 0
	case kindBegun:
		ok = ok && h.asks == 0 && h.length == 0
	default:
		ok = false
	}
	if !ok {
		return header{}, fmt.Errorf("%w: invalid frame header %x", ErrProtocol, b[:headerLen])
	}
	return h, nil
}
