package fanout

import (
	"encoding/binary"
	"fmt"
)

// Tags of messages. The first three are those of CMPIFanoutTransport, and the only ones that
// its programs exchange with ours; the others are between processes of this package.
const (
	TagEnd     = 0 // supplier → worker, empty: there are no more chunks
	TagData    = 1 // supplier → worker: a chunk, which is not empty
	TagRequest = 2 // worker → supplier, empty: it asks for one chunk

	TagLeave    = 16 // worker → supplier, empty: it will not ask again for now
	TagAsk      = 17 // worker → supplier: how many chunks it asks for, and acknowledgements
	TagNumbered = 18 // supplier → worker: chunks with their sequence numbers
	TagCollect  = 19 // collector → supplier: the sequence numbers of the results that were taken
	TagClosed   = 20 // worker → supplier, empty: its unacknowledged chunks go to others
	TagBegun    = 21 // worker → supplier: the number of a watched chunk that it now works on

	// TagResult and the tagSpan-1 tags above it are the tags of results, by sequence number:
	// a collector that has no room for other results can still receive the one it waits for.
	TagResult = 1 << 10
	tagSpan   = 1 << 14
)

// resultTag returns the tag of the result of a chunk.
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

// parseAsk parses an ask; nextNumber reads the acknowledgements.
func parseAsk(b []byte) (requests int, acks []byte, err error) {
	if len(b) < askHeader || (len(b)-askHeader)%8 != 0 || len(b) > askHeader+8*askMost {
		return 0, nil, fmt.Errorf("an ask of %d bytes has an invalid length", len(b))
	}
	if v := binary.LittleEndian.Uint32(b[4:]); v != 0 {
		return 0, nil, fmt.Errorf("the ask has version %d, not 0", v)
	}
	n := binary.LittleEndian.Uint32(b)
	if n > maxWindow {
		return 0, nil, fmt.Errorf("it asks for %d chunks, more than %d", n, maxWindow)
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
	// wantsAck: the worker reports when it has processed the chunk.
	wantsAck flags = 1 << iota
	// unasked: the chunk comes with one that answers a request, and answers none itself.
	unasked
	// watched: the worker reports when it begins with the chunk.
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
		return 0, 0, nil, nil, fmt.Errorf("%d bytes are left, too few for a header of %d", len(b), recordHeader)
	}
	seq = binary.LittleEndian.Uint64(b)
	n := binary.LittleEndian.Uint64(b[8:])
	f, n = flags(n>>56), n&(1<<56-1)
	b = b[recordHeader:]
	if n == 0 || n > uint64(len(b)) || f&^allFlags != 0 {
		return 0, 0, nil, nil, fmt.Errorf("chunk %d has an invalid length or flags: %d bytes, of which %d are there, flags %#x", seq, n, len(b), f)
	}
	return seq, f, b[:n:n], b[n:], nil
}
