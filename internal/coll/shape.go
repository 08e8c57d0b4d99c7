package coll

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
)

// ErrShape means that a shape is invalid.
var ErrShape = errors.New("coll: invalid shape")

// ErrAlgorithm means that the kind, the number of members, the counts or the order of the reduction
// does not allow the algorithm.
var ErrAlgorithm = errors.New("coll: algorithm not possible")

// Shape is one collective as one member of a group sees it. The shapes of all members are equal
// except for Rank, and where the fields say so.
//
// The blocks of several members are concatenated in member order. The buffers hold:
//
//	Broadcast               Out: the vector, at the root before and at all members after
//	Reduce                  In: the vector; Out: the result, only at the root
//	Allreduce, Scan         In, Out: a vector
//	Exscan                  In, Out: a vector; Out of member 0 is not written
//	ReduceScatter           In: all blocks; Out: the own block
//	Gather                  In: the own block; Out: all blocks, only at the root
//	Scatter                 In: all blocks, only at the root; Out: the own block
//	Allgather               In: the own block; Out: all blocks
//	Alltoall                In: a block for each member; Out: one from each
//
// In place: In and Out may be the same memory in Reduce, Allreduce, Scan and Exscan; in Gather,
// Scatter, Allgather and ReduceScatter the own block may be its place among all blocks. Otherwise
// the two must not overlap. Memory that is not both is treated as follows: In is never written,
// Out is written before it is read.
type Shape struct {
	Kind  Kind
	Rank  int // this member
	Size  int // members
	Root  int // for kinds that have one
	Elem  int // bytes of an element
	Count int // elements of the vector, or of each member's block
	// Counts are the elements of each member's block, instead of Count, in
	// ReduceScatter, Gather, Scatter and Allgather. All members have all of them, except
	// that in Gather and Scatter, unless Agreed, only its own entry needs to be right at a
	// member that is not the root.
	Counts []int
	// Agreed: in Gather and Scatter all members have all of Counts, or none has them, so
	// that messages may pass through other members.
	Agreed bool
	// SendCounts and RecvCounts are the elements for and from each member, instead of
	// Count, in Alltoall. Each member knows only its own.
	SendCounts, RecvCounts []int
	// Ordered: the reduction is not commutative, and combines in rank order.
	Ordered bool
	// Segment is the bytes of a segment of [Pipeline], or more if there would be too many
	// segments; 0 means [DefaultSegment].
	Segment int
}

// DefaultSegment is the bytes of a segment of [Pipeline] if the shape specifies none.
const DefaultSegment = 32 << 10

// Check returns an error that wraps [ErrShape] if the shape is invalid.
func (s *Shape) Check() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: %v: %s", ErrShape, s.Kind, fmt.Sprintf(format, args...))
	}
	switch {
	case int(s.Kind) >= kinds:
		return bad("no such kind")
	case s.Size < 1 || s.Rank < 0 || s.Rank >= s.Size:
		return bad("member %d of %d", s.Rank, s.Size)
	case s.Kind.Rooted() && (s.Root < 0 || s.Root >= s.Size):
		return bad("root %d of %d members", s.Root, s.Size)
	case s.Segment < 0:
		return bad("segments of %d bytes", s.Segment)
	case s.Kind == Barrier:
		return nil
	case s.Elem < 1:
		return bad("elements of %d bytes", s.Elem)
	case s.Count < 0:
		return bad("%d elements", s.Count)
	case s.Counts != nil && !s.Kind.blocks():
		return bad("counts by member")
	case (s.SendCounts != nil || s.RecvCounts != nil) && s.Kind != Alltoall:
		return bad("counts to send and to receive")
	case (s.SendCounts == nil) != (s.RecvCounts == nil):
		return bad("counts of one direction alone")
	}
	for _, counts := range [][]int{s.Counts, s.SendCounts, s.RecvCounts} {
		if counts == nil {
			continue
		}
		if len(counts) != s.Size {
			return bad("%d counts for %d members", len(counts), s.Size)
		}
		if s.Kind != Alltoall && !s.known() {
			counts = counts[s.Rank : s.Rank+1]
		}
		if i := slices.IndexFunc(counts, func(n int) bool { return n < 0 }); i >= 0 {
			return bad("%d elements", counts[i])
		}
		if !s.fits(counts...) {
			return bad("more bytes than fit into memory")
		}
	}
	if s.SendCounts != nil && s.SendCounts[s.Rank] != s.RecvCounts[s.Rank] {
		return bad("%d elements to itself and %d from itself", s.SendCounts[s.Rank], s.RecvCounts[s.Rank])
	}
	n := s.Count
	if s.Kind.blocks() || s.Kind == Alltoall {
		hi, lo := bits.Mul64(uint64(n), uint64(s.Size))
		if hi != 0 || lo > math.MaxInt {
			return bad("more bytes than fit into memory")
		}
		n = int(lo)
	}
	if !s.fits(n) {
		return bad("more bytes than fit into memory")
	}
	return nil
}

// fits says whether a buffer of so many elements, and some scratch of that size, is addressable.
func (s *Shape) fits(counts ...int) bool {
	const most = math.MaxInt / 256
	total := 0
	for _, n := range counts {
		if n > (most-total)/s.Elem {
			return false
		}
		total += n * s.Elem
	}
	return true
}

// blocks says whether each member has a block of its own, of its count in Counts.
func (k Kind) blocks() bool {
	return k == ReduceScatter || k == Gather || k == Scatter || k == Allgather
}

// known says whether this member knows the counts of all.
func (s *Shape) known() bool {
	return s.Counts == nil || s.Agreed || (s.Kind != Gather && s.Kind != Scatter) || s.Rank == s.Root
}

// allowed returns an error that wraps [ErrAlgorithm] if the algorithm cannot perform the shape. It
// uses only what is equal at all members.
func (a Algorithm) allowed(s *Shape) error {
	no := func(why string) error {
		return fmt.Errorf("%w: %v by %v: %s", ErrAlgorithm, s.Kind, a, why)
	}
	switch {
	case !slices.Contains(algorithmsOf[s.Kind], a):
		return no("not known")
	case s.Kind.Reduces() && s.Ordered && !a.keepsOrder():
		return no("does not keep the order of ranks")
	case s.Kind == Allgather && a == RecursiveDoubling && s.Size&(s.Size-1) != 0:
		return no("the number of members is not a power of two")
	case (s.Kind == Gather || s.Kind == Scatter) && a == Binomial && s.Counts != nil && !s.Agreed:
		return no("only the root knows the counts")
	case s.Kind == Alltoall && a == Bruck && s.SendCounts != nil:
		return no("counts by member")
	}
	return nil
}

// keepsOrder says whether a reduction by the algorithm combines in rank order.
func (a Algorithm) keepsOrder() bool {
	return a != Rabenseifner && a != Ring && a != RecursiveHalving
}

// log2 is the number of times that n can be halved: the exponent of the largest
// power of two up to n.
func log2(n int) int { return bits.Len(uint(n)) - 1 }

// ceilLog2 is the exponent of the smallest power of two from n on.
func ceilLog2(n int) int { return bits.Len(uint(n - 1)) }
