package channel

import (
	"fmt"
	"reflect"
	"unsafe"

	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/collop"
	"github.com/sluice-hpc/sluice/internal/reduce"
)

// Operation is a collective: what a rank gives and gets, and where its memory is. It
// is made by [Barrier], [Broadcast] and the functions named like it, and carried out
// by [Group.Run], or declared once and started often ([Group.Declare]). Making one
// does nothing; what is wrong with it Run and Declare say.
//
// All members of a group call the same operations in the same order, with the same
// root and lengths. Dst comes before src, as in copy. The two may be the same memory
// where that is said, and must not overlap otherwise.
type Operation = collop.Operation

// Op is a predefined operation of a reduction (MPI 4.1, section 6.9.2).
type Op = reduce.Op

// The predefined operations. Sums and products are over all types of [Number], Min
// and Max over the real ones (NaN if any is NaN, and -0 is less than +0), And, Or and
// Xor bitwise over the integers. MinLoc and MaxLoc are over [Pair]: of equal values
// the one with the lower index.
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

// Number is a type of elements that can be added.
type Number interface{ reduce.Number }

// Pair is the element of MinLoc and MaxLoc: a value, and where it is from.
type Pair = reduce.Pair

// Reduction says how elements are combined. Those of [Of] and [PairsOf] count as
// commutative, although sums of floating-point numbers depend on the order: it is the
// same for the same ranks, placement and settings, and the result has the same bits
// at every rank.
type Reduction = collop.Reduction

// Of is a predefined operation over elements of T. One that is not defined over them
// is [ErrInvalid] when it is used.
func Of[T Number](op Op) Reduction { return collop.Predefined(op, reduce.TypeOf[T]()) }

// PairsOf is MinLoc or MaxLoc.
func PairsOf(op Op) Reduction { return collop.Predefined(op, reduce.Float64Int64) }

// UserReduction is a function of the program's over elements of size bytes: combine
// sets dst to a op b, for each of one or more elements; the three have the same
// length, and dst may be a or b. It is associative; if it is not commutative
// (a op b is not b op a) elements are combined in the order of the ranks. It is called by
// whoever waits for the collective, by no more than one goroutine at a time for one
// group, and must not call anything of this group.
func UserReduction(size int, commutative bool, combine func(dst, a, b []byte)) Reduction {
	return collop.User(size, commutative, combine)
}

// bytesOf is the memory of a slice, of which the elements must be free of pointers.
func bytesOf[T any](s []T) []byte {
	var zero T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(zero)))
}

// moves makes an operation that moves elements of T.
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

// Barrier is over at a rank when all have called it (MPI_Barrier).
func Barrier() (o Operation) {
	s := collop.Of(&o)
	s.Kind, s.Rule = coll.Barrier, collop.Moved
	return o
}

// Broadcast copies buf of the root to buf of all others (MPI_Bcast).
func Broadcast[T any](buf []T, root int) Operation {
	return moves(coll.Broadcast, root, len(buf), buf, nil)
}

// Reduce combines src of all ranks, element by element, into dst of the root
// (MPI_Reduce). Elsewhere dst is not used. Dst may be src.
func Reduce[T Number](op Op, dst, src []T, root int) (o Operation) {
	collop.Of(&o).Reduces(coll.Reduce, root, collop.RuleOf(Of[T](op)), bytesOf(dst), bytesOf(src))
	return o
}

// ReduceBytes is [Reduce] over bytes.
func ReduceBytes(r Reduction, dst, src []byte, root int) (o Operation) {
	collop.Of(&o).Reduces(coll.Reduce, root, collop.RuleOf(r), dst, src)
	return o
}

// Allreduce combines src of all ranks, element by element, into dst of all
// (MPI_Allreduce): the same bits everywhere. Dst may be src.
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

// ReduceScatter combines src of all ranks, element by element, and gives the i-th
// block of the result to rank i (MPI_Reduce_scatter). Counts are the elements of each
// block; nil: all are as long as dst.
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

// Scan combines src of ranks 0 to i, element by element, into dst of rank i
// (MPI_Scan). Dst may be src.
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
// (MPI_Exscan). That of rank 0 is not written. Dst may be src.
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

// Gather collects src of all ranks in dst of the root, one behind the other
// (MPI_Gather). Elsewhere dst is not used. Src of the root may be where it goes in
// dst.
func Gather[T any](dst, src []T, root int) Operation {
	return moves(coll.Gather, root, len(src), dst, src)
}

// Gatherv is [Gather] of blocks of different lengths: counts, at the root, are their
// elements (MPI_Gatherv, blocks one behind the other). Elsewhere counts are not used.
func Gatherv[T any](dst []T, counts []int, src []T, root int) Operation {
	o := moves(coll.Gather, root, 0, dst, src)
	s := collop.Of(&o)
	s.Counts, s.Uneven = counts, true
	return o
}

// Scatter gives the i-th block of src of the root to rank i (MPI_Scatter). Elsewhere
// src is not used. Dst of the root may be where it is in src.
func Scatter[T any](dst, src []T, root int) Operation {
	return moves(coll.Scatter, root, len(dst), dst, src)
}

// Scatterv is [Scatter] of blocks of different lengths: counts, at the root, are their
// elements (MPI_Scatterv, blocks one behind the other). Elsewhere counts are not used.
func Scatterv[T any](dst, src []T, counts []int, root int) Operation {
	o := moves(coll.Scatter, root, 0, dst, src)
	s := collop.Of(&o)
	s.Counts, s.Uneven = counts, true
	return o
}

// Allgather collects src of all ranks in dst of all, one behind the other
// (MPI_Allgather). Src may be where it goes in dst.
func Allgather[T any](dst, src []T) Operation {
	return moves(coll.Allgather, 0, len(src), dst, src)
}

// Allgatherv is [Allgather] of blocks of different lengths: counts, the same at all
// ranks, are their elements (MPI_Allgatherv, blocks one behind the other).
func Allgatherv[T any](dst []T, counts []int, src []T) Operation {
	o := moves(coll.Allgather, 0, 0, dst, src)
	collop.Of(&o).Counts = counts
	return o
}

// Alltoall gives the i-th block of src to rank i, and gets the block that rank i has
// for this one as the i-th of dst (MPI_Alltoall).
func Alltoall[T any](dst, src []T) Operation {
	o := moves(coll.Alltoall, 0, 0, dst, src)
	collop.Of(&o).Count = -1 // their length divided by the number of ranks
	return o
}

// Alltoallv is [Alltoall] of blocks of different lengths: dstCounts are the elements
// that come from each rank, srcCounts those that go to each (MPI_Alltoallv, blocks
// one behind the other).
func Alltoallv[T any](dst []T, dstCounts []int, src []T, srcCounts []int) Operation {
	o := moves(coll.Alltoall, 0, 0, dst, src)
	s := collop.Of(&o)
	s.Counts, s.From, s.Uneven = dstCounts, srcCounts, true
	return o
}
