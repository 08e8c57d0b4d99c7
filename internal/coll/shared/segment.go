package shared

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"unsafe"

	"github.com/sluice-hpc/sluice/internal/wait"
)

// Sizes of a segment.
const (
	// Inline is the largest input, in bytes, that travels in the line of its flag.
	Inline = 48
	// DataSize is the largest input, in bytes, that is published in one piece.
	DataSize = 16 << 10

	slots   = 8 // operations that a member may be ahead of another
	buffers = 3 // pieces of a long operation that a member may be ahead

	// A buffer has leastBuffer to mostBuffer bytes, and the buffers of all members of a host together
	// have allBuffers, if that is between: see bufferSize. A segment has at most 1 MiB, so that it fits
	// into the smallest arena of verbs/shm.
	leastBuffer = 32 << 10
	mostBuffer  = 256 << 10
	allBuffers  = 6 << 20

	lastCalls = 64 // operations whose signatures a member keeps
)

// line is one cache line that its owner writes and others read.
type line struct {
	payload   [Inline]byte
	signature uint64 // of the call
	word      uint64 // stamp<<16 | flags<<8 | distance of the owner's done behind it; stored last
}

// Flags of a line.
const (
	flagInline    = 1 << iota // the part is in the line
	flagLong                  // the payload is an offer: the part is longer than DataSize, or may be
	flagGives                 // with flagLong: the others can read what the owner gives
	flagGets                  // with flagLong: the others can write to where the owner gets its result
	flagWorking               // of a down line: the owner is working in memory of others
	flagWithdrawn             // the owner has cancelled: no other member may begin to work in its memory
)

// pair is two lines that are fetched together: CPUs prefetch the other line of 128
// bytes (Intel 64 and IA-32 Architectures Optimization Reference Manual, 3.7.3).
type pair struct{ up, down line }

// Segment is the memory of one member.
type Segment struct {
	magic, version, slotCount, dataSize uint32
	bufferSize                          uint64
	life                                uint64 // random; changes when the memory is freed
	closed                              uint64 // not 0: the owner reads no other segment any more
	_                                   [88]byte
	done                                uint64 // all operations up to this one are complete here
	_                                   [120]byte
	taken                               uint64 // the last piece of a long operation that was taken here
	_                                   [120]byte
	signatures                          [lastCalls]uint64 // signatures, by number: read when calls differ

	lines  [slots]pair
	pieces [buffers]pair
	data   [slots][DataSize]byte
	// The buffers of pieces follow.
}

// SegmentSize is the memory that each of up to so many members provides, in bytes.
func SegmentSize(members int) int { return segmentHead + buffers*bufferSize(members) }

// bufferSize is the bytes of a buffer for pieces. Large ones save meetings of the members, which are
// what a long operation takes where members share CPUs. They are smaller where there are many
// members, because those that all write at a time should stay in the caches of a host, and what they
// occupy is never given back.
func bufferSize(members int) int {
	if members < 2 {
		return leastBuffer // no piece goes through it
	}
	return min(max(allBuffers/buffers/members&^4095, leastBuffer), mostBuffer)
}

const (
	segmentHead = int(unsafe.Sizeof(Segment{}))
	magic       = 0x53_4c_43_4f // "SLCO"
	version     = 8
)

// ErrSegment: the memory is not a segment of this version.
var ErrSegment = errors.New("bad segment")

// NewSegment makes a segment for up to so many members in mem, which must be zeroed, have SegmentSize
// bytes and be aligned to 128 bytes.
func NewSegment(mem []byte, members int) *Segment {
	s := (*Segment)(unsafe.Pointer(unsafe.SliceData(mem[:SegmentSize(members)])))
	s.magic, s.version, s.slotCount, s.dataSize, s.bufferSize = magic, version, slots, DataSize, uint64(bufferSize(members))
	s.life = rand.Uint64() | 1
	return s
}

// ViewSegment returns the segment that another of up to so many members has made in mem, or
// [ErrSegment].
func ViewSegment(mem []byte, members int) (*Segment, error) {
	if want := SegmentSize(members); len(mem) != want || uintptr(unsafe.Pointer(unsafe.SliceData(mem)))%128 != 0 {
		return nil, fmt.Errorf("%w: %d bytes, want %d", ErrSegment, len(mem), want)
	}
	s := (*Segment)(unsafe.Pointer(unsafe.SliceData(mem)))
	if s.life == 0 || s.magic != magic || s.version != version || s.slotCount != slots || s.dataSize != DataSize || s.bufferSize != uint64(bufferSize(members)) {
		return nil, fmt.Errorf("%w: %#x version %d with %d slots of %d bytes and buffers of %d", ErrSegment, s.magic, s.version, s.slotCount, s.dataSize, s.bufferSize)
	}
	return s, nil
}

// buffer is buffer number b of a segment, n bytes, which must be what it was made with.
func (s *Segment) buffer(b uint64, n int) []byte {
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(s), segmentHead+int(b)*n)), n)
}

// Done returns the number of the last operation up to which all are complete at the owner.
func (s *Segment) Done() uint64 { return atomic.LoadUint64(&s.done) }

// stamp is the number in a line, modulo 2^32, and a hash of the calls before it.
func stamp(number uint64, before uint16) uint64 { return number<<16 | uint64(before) }

// publish writes a stamp into a line.
func (l *line) publish(signature, stamp uint64, flags, lag uint8) {
	l.signature = signature
	wait.StoreRelease64(&l.word, stamp<<16|uint64(flags)<<8|uint64(lag))
}

// read returns the flags of operation number; not ok while the line belongs to an older one.
func (l *line) read(number uint64) (flags uint8, ok bool) {
	w := atomic.LoadUint64(&l.word)
	return uint8(w >> 8), says(w, number)
}

// says reports whether the word of a line belongs to operation number.
func says(word, number uint64) bool { return uint32(word>>32) == uint32(number) }
