package coll

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// HeaderSize is the number of bytes in a header, which precedes the payload of every
// message.
const HeaderSize = 16

// Header says which collective a message belongs to. On the wire, little-endian:
//
//	uint32 sequence     number of collectives that the group has begun
//	uint32 fault        0, or 1 + the member at fault
//	uint64 signature    of the sender's call; with a fault, of that member's call
//
// With a fault the payload is meaningless: the sender has found an error, or has been told of
// one, and passes it on to the receivers that wait for it.
type Header struct {
	Sequence  uint32
	Fault     uint32
	Signature Signature
}

// AppendBinary appends the 16 bytes of the header.
func (h Header) AppendBinary(b []byte) ([]byte, error) {
	b = binary.LittleEndian.AppendUint32(b, h.Sequence)
	b = binary.LittleEndian.AppendUint32(b, h.Fault)
	return binary.LittleEndian.AppendUint64(b, uint64(h.Signature)), nil
}

// ErrShort means that a header has fewer than 16 bytes.
var ErrShort = errors.New("coll: short header")

// ParseHeader parses a header at the beginning of b. Any 16 bytes are a valid header.
func ParseHeader(b []byte) (Header, error) {
	if len(b) < HeaderSize {
		return Header{}, fmt.Errorf("%w: %d bytes", ErrShort, len(b))
	}
	return Header{
		Sequence:  binary.LittleEndian.Uint32(b),
		Fault:     binary.LittleEndian.Uint32(b[4:]),
		Signature: Signature(binary.LittleEndian.Uint64(b[8:])),
	}, nil
}

// Signature packs the facts that must be the same in the calls of all members of a collective, so
// that a member that receives another one can say what differs. From the highest bit:
//
//	 4  kind
//	 5  algorithm
//	 8  operation
//	 7  type of the elements
//	12  root modulo 4096
//	 1  the rest is a hash of the counts
//	27  bytes of Count elements, modulo 2^27; or a hash of all counts
//
// Operations and types are numbers that the caller defines. Counts that not all members know are
// left out: those of Gather and Scatter with Counts, unless Agreed, and those of Alltoall with
// counts by member.
type Signature uint64

const (
	countBits = 27
	countMask = 1<<countBits - 1
	countHash = 1 << countBits
)

// Sign makes the signature of a shape performed by the algorithm. The operation is taken modulo
// 256, the type modulo 128.
func Sign(s *Shape, a Algorithm, operation, elementType uint8) Signature {
	root := 0
	if s.Kind.Rooted() {
		root = s.Root
	}
	count := uint64(0)
	switch {
	case s.Kind == Barrier || s.SendCounts != nil || s.Counts != nil && (s.Kind == Gather || s.Kind == Scatter) && !s.Agreed:
	case s.Counts != nil:
		count = countHash | hashCounts(s.Counts, s.Elem)
	default:
		count = uint64(s.Count) * uint64(s.Elem) & countMask
	}
	return Signature(uint64(s.Kind)&15<<60 | uint64(a)&31<<55 | uint64(operation)<<47 | uint64(elementType)&127<<40 |
		uint64(root)&4095<<28 | count)
}

// hashCounts is FNV-1a, 64 bits, over the bytes of each block, folded to 27.
func hashCounts(counts []int, elem int) uint64 {
	h := uint64(14695981039346656037)
	for _, n := range counts {
		for v, i := uint64(n)*uint64(elem), 0; i < 8; i++ {
			h = (h ^ v&255) * 1099511628211
			v >>= 8
		}
	}
	return (h ^ h>>27 ^ h>>54) & countMask
}

// Kind returns the signed kind. Algorithm, Operation, Type and Root return the other facts.
func (s Signature) Kind() Kind           { return Kind(s >> 60) }
func (s Signature) Algorithm() Algorithm { return Algorithm(s >> 55 & 31) }
func (s Signature) Operation() uint8     { return uint8(s >> 47) }
func (s Signature) Type() uint8          { return uint8(s >> 40 & 127) }
func (s Signature) Root() int            { return int(s >> 28 & 4095) }

// Length returns the bytes of Count elements, modulo 2^27; false if there are counts by member.
func (s Signature) Length() (bytes int, ok bool) { return int(s & countMask), s&countHash == 0 }

// String returns all facts, as in "allreduce by ring, operation 1, type 9, 4096 bytes".
func (s Signature) String() string {
	text := fmt.Sprintf("%v by %v", s.Kind(), s.Algorithm())
	if s.Kind().Reduces() {
		text += fmt.Sprintf(", operation %d", s.Operation())
	}
	if s.Kind() == Barrier {
		return text
	}
	text += fmt.Sprintf(", type %d", s.Type())
	if s.Kind().Rooted() {
		text += fmt.Sprintf(", root %d", s.Root())
	}
	if bytes, ok := s.Length(); ok {
		return text + fmt.Sprintf(", %d bytes", bytes)
	}
	return text + fmt.Sprintf(", counts %07x", uint64(s&countMask))
}

// Names holds the caller's names of its operations and types. The zero value prints numbers.
type Names struct{ Operation, Type func(n uint8) string }

// Differ says what differs between two signatures, as in "root: rank 3 has 1, rank 4 has 2", where us and
// them name the two callers.
func (s Signature) Differ(theirs Signature, names Names, us, them string) string {
	word := func(name func(uint8) string, n uint8) any {
		if name == nil {
			return n
		}
		return name(n)
	}
	length := func(s Signature) any {
		if n, ok := s.Length(); ok {
			return n
		}
		return fmt.Sprintf("by member, hash %07x", uint64(s&countMask))
	}
	for _, f := range []struct {
		name string
		of   func(Signature) any
	}{
		{"collective", func(s Signature) any { return s.Kind() }},
		{"operation", func(s Signature) any { return word(names.Operation, s.Operation()) }},
		{"type", func(s Signature) any { return word(names.Type, s.Type()) }},
		{"root", func(s Signature) any { return s.Root() }},
		{"bytes", length},
		{"algorithm", func(s Signature) any { return s.Algorithm() }},
	} {
		a, b := f.of(s), f.of(theirs)
		_, plain := s.Length()
		_, also := theirs.Length()
		switch {
		case a == b:
		case f.name == "collective":
			return fmt.Sprintf("%s called %v, %s called %v", us, a, them, b)
		case f.name == "bytes" && plain && also:
			return fmt.Sprintf("%s passed %v bytes, %s passed %v", us, a, them, b)
		default:
			return fmt.Sprintf("%s: %s has %v, %s has %v", f.name, us, a, them, b)
		}
	}
	return "nothing differs"
}

// MismatchError reports a member whose call differs from this member's: another collective,
// operation, type, root or length, or one call more or fewer.
type MismatchError struct {
	From   int    // the member whose call differs, as far as known
	Via    int    // the member that reported it; From if its own message did
	Want   Header // of this member
	Got    Header // of From, as far as known
	Failed bool   // From met an error of the carrier; Got has no further information
}

func (e *MismatchError) Error() string {
	text := fmt.Sprintf("coll: %v: ", e.Want.Signature)
	if e.Failed {
		text += fmt.Sprintf("member %d has failed", e.From)
	} else {
		text += e.Difference(Names{}, "this member", fmt.Sprintf("member %d", e.From))
	}
	if e.Via != e.From {
		text += fmt.Sprintf(" (reported by member %d)", e.Via)
	}
	return text
}

// Difference says how the call of From, which them names, differs from that of this member, us.
func (e *MismatchError) Difference(names Names, us, them string) string {
	switch e.Got.Signature {
	case faultOther:
		return fmt.Sprintf("%s called %v, %s another", us, e.Want.Signature.Kind(), them)
	case e.Want.Signature:
		return fmt.Sprintf("%s is in call %d, %s in call %d", us, e.Want.Sequence, them, e.Got.Sequence)
	}
	return e.Want.Signature.Differ(e.Got.Signature, names, us, them)
}

// PeerError is an error of the carrier for a message.
type PeerError struct {
	Op   StepKind // Send or Receive
	Peer int
	Err  error
}

func (e *PeerError) Error() string {
	if e.Op == Send {
		return fmt.Sprintf("coll: send to member %d: %v", e.Peer, e.Err)
	}
	return fmt.Sprintf("coll: receive from member %d: %v", e.Peer, e.Err)
}

// Unwrap returns the carrier's error.
func (e *PeerError) Unwrap() error { return e.Err }

// Signatures in a fault that no call has.
const (
	faultUnknown Signature = math.MaxUint64 - iota // the member met an error of the carrier
	faultOther                                     // its call differs, but it is unknown how
)
