package channel

import (
	"fmt"
	"reflect"
	"unsafe"

	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/collop"
	"github.com/sluice-hpc/sluice/internal/reduce"
)

// Operation is a collective with its arguments and the memory of this rank. It is made
// by [Barrier], [Broadcast] and the functions named like them, and executed by
// [Group.Run], or declared once and started many times ([Group.Declare]). Making an
// Operation does nothing and reports no errors; Run and Declare do.
//
// All members of a group call the same operations in the same order, with the same root
// and lengths. Dst comes before src, as in copy. The two may be the same memory where a
// function says so, and must not overlap otherwise.
type Operation = collop.Operation

// Op is a predefined operator of a reduction (MPI_Op; MPI 4.1, section 6.9.2).
type Op = reduce.Op

// The predefined operators. Sum and Product are defined over all types of [Number];
// Min and Max over the real ones (NaN if any operand is NaN, and -0 is less than +0);
// And, Or and Xor are bitwise, over the integers. MinLoc and MaxLoc are defined over
// [Pair]; of equal values, the one with the lower index wins.
const (
	Sum     = reduce.Sum
	Product = reduce.Product
	Min     = reduce.Min
	Max     = reduce.Max
	And     = reduce.And
	Or      = reduce.Or
	Xor     = reduce.Xor
	MinLoc  = reduce.MinLoc
	MaxLoc  = reduce.MaxLoc
)

// Number is the set of element types that can be added: int, int32, int64, uint, uint32, uint64,
// float32, float64, complex64 and complex128. An int or uint has the size that it has on this host:
// all members need the same.
type Number interface{ reduce.Number }

// Pair is the element of MinLoc and MaxLoc: the fields are Value, a float64, and Index, an int64.
type Pair = reduce.Pair

// Reduction defines how elements are combined. Reductions made by [Of] and [PairsOf]
// count as commutative, although a floating-point sum depends on the order. The order
// is the same for the same ranks, placement and settings, and the result has the same
// bits at every rank.
type Reduction = collop.Reduction

// Of returns a predefined operation over elements of T. If op is not defined over T,
// using the result is [ErrInvalid].
func Of[T Number](op Op) Reduction { return collop.Predefined(op, reduce.TypeOf[T]()) }

// PairsOf returns MinLoc or MaxLoc over [Pair].
func PairsOf(op Op) Reduction { return collop.Predefined(op, reduce.Float64Int64) }

// UserReduction returns a reduction by a function of the program, over elements of size
// bytes. Combine sets dst to a op b, for each of one or more elements; the three have
// the same length, and dst may be a or b. It must be associative. If it is not
// commutative (a op b differs from b op a), elements are combined in rank order. The
// goroutine that waits for the collective calls it, at most one at a time for one
// group; it must not use the group.
func UserReduction(size int, commutative bool, combine func(dst, a, b []byte)) Reduction {
	return collop.User(size, commutative, combine)
}

// bytesOf returns the memory of a slice, whose elements must not contain pointers.
func bytesOf[T any](s []T) []byte {
	var zero T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(zero)))
}

// moves makes an operation that moves elements of T without combining them.
func moves[T any](kind coll.Kind, root, count int, dst, src []T) (o Operation) {
	var zero T
	s := collop.Of(&o)
	s.Kind, s.Root, s.Elem, s.Count = kind, root, int(unsafe.Sizeof(zero)), count
	s.Dst, s.Src, s.Rule = bytesOf(dst), bytesOf(src), collop.Moved
	if t := reflect.TypeFor[T](); hasPointers(t) || s.Elem == 0 {
		s.Err = fmt.Errorf("%w: elements of type %v", ErrInvalid, t)
	}
	return o
}

// Barrier completes at a rank when all ranks have called it (MPI_Barrier).
func Barrier() (o Operation) {
	s := collop.Of(&o)
	s.Kind, s.Rule = coll.Barrier, collop.Moved
	return o
}

// Broadcast copies buf from the root to all other ranks (MPI_Bcast).
func Broadcast[T any](buf []T, root int) Operation {
	return moves(coll.Broadcast, root, len(buf), buf, nil)
}

// Reduce combines src of all ranks, element by element, into dst of the root
// (MPI_Reduce). Other ranks do not use dst. Dst may be src.
func Reduce[T Number](op Op, dst, src []T, root int) (o Operation) {
	collop.Of(&o).Reduces(coll.Reduce, root, collop.RuleOf(Of[T](op)), bytesOf(dst), bytesOf(src))
	return o
}

// ReduceBytes is [Reduce] over bytes.
func ReduceBytes(r Reduction, dst, src []byte, root int) (o Operation) {
	collop.Of(&o).Reduces(coll.Reduce, root, collop.RuleOf(r), dst, src)
	return o
}

// Allreduce combines src of all ranks, element by element, into dst of every rank
// (MPI_Allreduce), with the same bits everywhere. Dst may be src.
func Allreduce[T Number](op Op, dst, src []T) (o Operation) {
	collop.Of(&o).Reduces(coll.Allreduce, 0, collop.RuleOf(Of[T](op)), bytesOf(dst), bytesOf(src))
	collop.Of(&o).Even()
	return o
}

// AllreduceBytes is [Allreduce] over bytes.
func AllreduceBytes(r Reduction, dst, src []byte) (o Operation) {
	collop.Of(&o).Reduces(coll.Allreduce, 0, collop.RuleOf(r), dst, src)
	collop.Of(&o).Even()
	return o
}

// ReduceScatter combines src of all ranks, element by element, and gives block i of the
// result to rank i (MPI_Reduce_scatter). Counts holds the number of elements in each
// block; if it is nil, all blocks are as long as dst.
func ReduceScatter[T Number](op Op, dst, src []T, counts []int) Operation {
	return ReduceScatterBytes(Of[T](op), bytesOf(dst), bytesOf(src), counts)
}

// ReduceScatterBytes is [ReduceScatter] over bytes.
func ReduceScatterBytes(r Reduction, dst, src []byte, counts []int) (o Operation) {
	collop.Of(&o).Reduces(coll.ReduceScatter, 0, collop.RuleOf(r), dst, src)
	s := collop.Of(&o)
	if s.Counts = counts; s.Err == nil {
		s.Count = len(dst) / s.Elem
	}
	return o
}

// Scan combines src of ranks 0 to i, element by element, into dst of rank i (MPI_Scan).
// Dst may be src.
func Scan[T Number](op Op, dst, src []T) (o Operation) {
	collop.Of(&o).Reduces(coll.Scan, 0, collop.RuleOf(Of[T](op)), bytesOf(dst), bytesOf(src))
	collop.Of(&o).Even()
	return o
}

// ScanBytes is [Scan] over bytes.
func ScanBytes(r Reduction, dst, src []byte) (o Operation) {
	collop.Of(&o).Reduces(coll.Scan, 0, collop.RuleOf(r), dst, src)
	collop.Of(&o).Even()
	return o
}

// Exscan combines src of ranks 0 to i-1, element by element, into dst of rank i
// (MPI_Exscan). On rank 0 dst is not written. Dst may be src.
func Exscan[T Number](op Op, dst, src []T) (o Operation) {
	collop.Of(&o).Reduces(coll.Exscan, 0, collop.RuleOf(Of[T](op)), bytesOf(dst), bytesOf(src))
	collop.Of(&o).Even()
	return o
}

// ExscanBytes is [Exscan] over bytes.
func ExscanBytes(r Reduction, dst, src []byte) (o Operation) {
	collop.Of(&o).Reduces(coll.Exscan, 0, collop.RuleOf(r), dst, src)
	collop.Of(&o).Even()
	return o
}

// Gather concatenates src of all ranks, in rank order, in dst of the root (MPI_Gather).
// Other ranks do not use dst. At the root, src may be its own block of dst.
func Gather[T any](dst, src []T, root int) Operation {
	return moves(coll.Gather, root, len(src), dst, src)
}

// Gatherv is [Gather] for blocks of different lengths (MPI_Gatherv, without
// displacements): at the root, counts holds the number of elements in each block. Other
// ranks do not use counts.
func Gatherv[T any](dst []T, counts []int, src []T, root int) Operation {
	o := moves(coll.Gather, root, 0, dst, src)
	s := collop.Of(&o)
	s.Counts, s.Uneven = counts, true
	return o
}

// Scatter copies block i of src of the root to dst of rank i (MPI_Scatter). Other ranks
// do not use src. At the root, dst may be its own block of src.
func Scatter[T any](dst, src []T, root int) Operation {
	return moves(coll.Scatter, root, len(dst), dst, src)
}

// Scatterv is [Scatter] for blocks of different lengths (MPI_Scatterv, without
// displacements): at the root, counts holds the number of elements in each block. Other
// ranks do not use counts.
func Scatterv[T any](dst, src []T, counts []int, root int) Operation {
	o := moves(coll.Scatter, root, 0, dst, src)
	s := collop.Of(&o)
	s.Counts, s.Uneven = counts, true
	return o
}

// Allgather concatenates src of all ranks, in rank order, in dst of every rank
// (MPI_Allgather). Src may be its own block of dst.
func Allgather[T any](dst, src []T) Operation {
	return moves(coll.Allgather, 0, len(src), dst, src)
}

// Allgatherv is [Allgather] for blocks of different lengths (MPI_Allgatherv, without
// displacements): counts, the same at all ranks, holds the number of elements in each
// block.
func Allgatherv[T any](dst []T, counts []int, src []T) Operation {
	o := moves(coll.Allgather, 0, 0, dst, src)
	collop.Of(&o).Counts = counts
	return o
}

// Alltoall sends block i of src to rank i and receives the block from rank i into block
// i of dst (MPI_Alltoall). If the blocks have layouts of their own (MPI_Alltoallw), or the exchange is
// repeated, declare a send and a receive for each rank and start them as one: [Node.Multiple].
func Alltoall[T any](dst, src []T) Operation {
	o := moves(coll.Alltoall, 0, 0, dst, src)
	collop.Of(&o).Count = -1 // their length divided by the number of ranks
	return o
}

// Alltoallv is [Alltoall] for blocks of different lengths (MPI_Alltoallv, without
// displacements): dstCounts holds the number of elements from each rank, srcCounts the
// number to each rank.
func Alltoallv[T any](dst []T, dstCounts []int, src []T, srcCounts []int) Operation {
	o := moves(coll.Alltoall, 0, 0, dst, src)
	s := collop.Of(&o)
	s.Counts, s.From, s.Uneven = dstCounts, srcCounts, true
	return o
}
