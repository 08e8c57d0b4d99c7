package fanout

import (
	"encoding/binary"
	"fmt"
)

// Tags of messages. The first three are those of CMPIFanoutTransport, and all there is
// between its programs and ours; the others are between processes of this package.
const (
	TagEnd     = 0 // supplier → worker, empty: there is no more
	TagData    = 1 // supplier → worker: a chunk, which is not empty
	TagRequest = 2 // worker → supplier, empty: one more, please

	TagLeave    = 16 // worker → supplier, empty: it will not ask again for now
	TagAsk      = 17 // worker → supplier: so many more, and what is acknowledged
	TagNumbered = 18 // supplier → worker: chunks with their numbers
	TagCollect  = 19 // collector → supplier: the numbers of what has been taken
	TagClosed   = 20 // worker → supplier, empty: what it has and has not acknowledged goes to others
	TagBegun    = 21 // worker → supplier: the number of a chunk that it now works on, of those that are watched

	// TagResult and the tagSpan-1 tags above it are those of results, by sequence number:
	// a collector that has no room for others can still receive the one that it waits for.
	TagResult = 1 << 10
	tagSpan   = 1 << 14
)

// resultTag is the tag of the result of a chunk.
func resultTag(seq uint64) int { return TagResult + int(seq%tagSpan) }

// An ask is, little-endian: the number of requests (32 bits), a version that is 0 (32
// bits), and the sequence number of each chunk that is acknowledged (64 bits).
const (
	askHeader = 8
	askMost   = 64 // acknowledgements in one message
)

// appendAsk appends an ask.
func appendAsk(b []byte, requests int, acks []uint64) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(requests))
	b = binary.LittleEndian.AppendUint32(b, 0)
	return appendNumbers(b, acks)
}

// parseAsk reads an ask; the rest is for nextNumber.
func parseAsk(b []byte) (requests int, acks []byte, err error) {
	if len(b) < askHeader || (len(b)-askHeader)%8 != 0 || len(b) > askHeader+8*askMost {
		return 0, nil, fmt.Errorf("ask of %d bytes", len(b))
	}
	if v := binary.LittleEndian.Uint32(b[4:]); v != 0 {
		return 0, nil, fmt.Errorf("ask of version %d", v)
	}
	n := binary.LittleEndian.Uint32(b)
	if n > maxWindow {
		return 0, nil, fmt.Errorf("ask for %d chunks, at most %d", n, maxWindow)
	}
	return int(n), b[askHeader:], nil
}

// appendNumbers appends sequence numbers.
func appendNumbers(b []byte, seqs []uint64) []byte {
	for _, s := range seqs {
		b = binary.LittleEndian.AppendUint64(b, s)
	}
	return b
}

// nextNumber takes a sequence number off b, which has one.
func nextNumber(b []byte) (uint64, []byte) { return binary.LittleEndian.Uint64(b), b[8:] }

// In a message with TagNumbered each chunk follows a header, little-endian: its sequence
// number (64 bits), its length in bytes (56 bits), and flags (8 bits).
const recordHeader = 16

// flags of a chunk with its number.
type flags uint8

const (
	// wantsAck: the supplier is to hear when the worker has done with the chunk.
	wantsAck flags = 1 << iota
	// unasked: the chunk comes with one that answers a request, and answers none itself.
	unasked
	// watched: the supplier is to hear when the worker begins with the chunk.
	watched

	allFlags = wantsAck | unasked | watched
)

func appendRecord(b []byte, seq uint64, length int, f flags) []byte {
	b = binary.LittleEndian.AppendUint64(b, seq)
	return binary.LittleEndian.AppendUint64(b, uint64(length)|uint64(f)<<56)
}

// parseRecord takes the first chunk off a message with TagNumbered.
func parseRecord(b []byte) (seq uint64, f flags, chunk, rest []byte, err error) {
	if len(b) < recordHeader {
		return 0, 0, nil, nil, fmt.Errorf("%d bytes where a header has %d", len(b), recordHeader)
	}
	seq = binary.LittleEndian.Uint64(b)
	n := binary.LittleEndian.Uint64(b[8:])
	f, n = flags(n>>56), n&(1<<56-1)
	b = b[recordHeader:]
	if n == 0 || n > uint64(len(b)) || f&^allFlags != 0 {
		return 0, 0, nil, nil, fmt.Errorf("chunk %d of %d bytes in %d, flags %#x", seq, n, len(b), f)
	}
	return seq, f, b[:n:n], b[n:], nil
}
