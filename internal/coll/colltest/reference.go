package colltest

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/sluice-hpc/sluice/internal/coll"
)

// Elem is the bytes of an element of a [Reference]: two of uint32 in the order of the machine.
const Elem = 8

// Reference is one collective as a whole: the input of each member, and the result of a serial
// computation. Its methods may be called concurrently.
type Reference struct {
	Kind    coll.Kind
	Size    int // members
	Root    int
	Count   int                    // elements of a vector, or of each block
	Counts  []int                  // elements of the block of each member; nil: Count
	Between func(from, to int) int // elements in an Alltoall; nil: Count
	Ordered bool                   // reduce by [Affine], else by [Sum]
	Combine func(dst, a, b []byte) // instead of these, if not nil
	InPlace bool                   // see Memory
	Seed    uint64                 // of the inputs
}

// String names the collective.
func (r *Reference) String() string {
	return fmt.Sprintf("%v: %d members, root %d, %d elements, counts %v, v %v, ordered %v, in place %v, seed %d",
		r.Kind, r.Size, r.Root, r.Count, r.Counts, r.Between != nil, r.Ordered, r.InPlace, r.Seed)
}

// Affine combines maps x -> m*x + c modulo 2^32, of which each element is m and c, to the one
// that applies a first: it is associative, and not commutative.
func Affine(dst, a, b []byte) {
	e := binary.NativeEndian
	for i := 0; i < len(dst); i += Elem {
		am, ac, bm, bc := e.Uint32(a[i:]), e.Uint32(a[i+4:]), e.Uint32(b[i:]), e.Uint32(b[i+4:])
		e.PutUint32(dst[i:], am*bm)
		e.PutUint32(dst[i+4:], am*bc+ac)
	}
}

// Sum adds integers modulo 2^32.
func Sum(dst, a, b []byte) {
	for i := 0; i < len(dst); i += 4 {
		binary.NativeEndian.PutUint32(dst[i:], binary.NativeEndian.Uint32(a[i:])+binary.NativeEndian.Uint32(b[i:]))
	}
}

// Combiner is the function of the reduction.
func (r *Reference) Combiner() func(dst, a, b []byte) {
	switch {
	case r.Combine != nil:
		return r.Combine
	case r.Ordered:
		return Affine
	}
	return Sum
}

// Of is the elements of a member's block.
func (r *Reference) Of(member int) int {
	if r.Counts != nil {
		return r.Counts[member]
	}
	return r.Count
}

// Begin is the element at which a member's block begins; that of member Size is the end.
func (r *Reference) Begin(member int) int {
	n := 0
	for i := range member {
		n += r.Of(i)
	}
	return n
}

// Pair is the elements that one member gives another in an Alltoall.
func (r *Reference) Pair(from, to int) int {
	if r.Between != nil {
		return r.Between(from, to)
	}
	return r.Count
}

// Pairs are the elements that a member gives and gets in an Alltoall.
func (r *Reference) Pairs(rank int) (give, get []int) {
	for i := range r.Size {
		give, get = append(give, r.Pair(rank, i)), append(get, r.Pair(i, rank))
	}
	return give, get
}

// Lengths returns the numbers of elements in the input and in the output of a member.
func (r *Reference) Lengths(rank int) (in, out int) {
	total := r.Begin(r.Size)
	atRoot := func(n int) int {
		if rank == r.Root {
			return n
		}
		return 0
	}
	switch r.Kind {
	case coll.Broadcast:
		return 0, r.Count // the input of the root is in out
	case coll.Reduce:
		return r.Count, atRoot(r.Count)
	case coll.Allreduce, coll.Scan, coll.Exscan:
		return r.Count, r.Count
	case coll.ReduceScatter:
		return total, r.Of(rank)
	case coll.Gather:
		return r.Of(rank), atRoot(total)
	case coll.Scatter:
		return atRoot(total), r.Of(rank)
	case coll.Allgather:
		return r.Of(rank), total
	case coll.Alltoall:
		for i := range r.Size {
			in, out = in+r.Pair(rank, i), out+r.Pair(i, rank)
		}
		return in, out
	}
	return 0, 0
}

// Given returns the input of a member.
func (r *Reference) Given(rank int) []byte {
	n, _ := r.Lengths(rank)
	if r.Kind == coll.Broadcast && rank == r.Root {
		n = r.Count
	}
	b := make([]byte, n*Elem)
	x := (r.Seed<<16 + uint64(rank) + 1) * 0x9e3779b97f4a7c15
	for i := 0; i < len(b); i += Elem {
		x += 0xbf58476d1ce4e5b9
		binary.NativeEndian.PutUint64(b[i:], (x^x>>29)*0x94d049bb133111eb)
	}
	return b
}

// Memory returns the memory of a member: its input, and room for its output, filled with other
// bytes. With InPlace they overlap, if the collective supports that. A broadcast uses only out.
func (r *Reference) Memory(rank int, alloc func(n int) []byte) (in, out []byte) {
	_, n := r.Lengths(rank)
	own, given := r.Begin(rank)*Elem, r.Given(rank)
	give := func() []byte {
		b := alloc(len(given))
		copy(b, given)
		return b
	}
	room := func() []byte {
		b := alloc(n * Elem)
		copy(b, bytes.Repeat([]byte{0xA5}, len(b)))
		return b
	}
	switch {
	case r.Kind == coll.Broadcast:
		out = room()
		copy(out, given)
		return nil, out
	case !r.InPlace, r.Kind == coll.Alltoall, rank != r.Root && (r.Kind == coll.Gather || r.Kind == coll.Scatter || r.Kind == coll.Reduce):
		return give(), room()
	case r.Kind == coll.Gather, r.Kind == coll.Allgather:
		out = room()
		return out[own : own+copy(out[own:], given)], out
	case r.Kind == coll.Scatter, r.Kind == coll.ReduceScatter:
		in = give()
		return in, in[own:][:r.Of(rank)*Elem]
	}
	in = give()
	return in, in
}

// Want returns the expected output of a member; nil if it is undefined.
func (r *Reference) Want(rank int) []byte {
	return r.want(rank, r.Given, func(n int) []byte {
		acc := r.Given(0)
		for m := 1; m < n; m++ {
			r.Combiner()(acc, acc, r.Given(m))
		}
		return acc
	})
}

// Wanted returns the expected outputs of all members.
func (r *Reference) Wanted() [][]byte {
	given, folds := make([][]byte, r.Size), make([][]byte, r.Size+1)
	for m := range given {
		given[m] = r.Given(m)
		if folds[m+1] = bytes.Clone(given[m]); m > 0 && r.Kind.Reduces() {
			r.Combiner()(folds[m+1], folds[m], given[m])
		}
	}
	out := make([][]byte, r.Size)
	for m := range out {
		out[m] = r.want(m, func(m int) []byte { return given[m] }, func(n int) []byte { return folds[n] })
	}
	return out
}

// want is Want, from the inputs of members and from the results of folding the first n of them.
func (r *Reference) want(rank int, given, fold func(n int) []byte) (want []byte) {
	block := func(b []byte) []byte { return b[r.Begin(rank)*Elem:][:r.Of(rank)*Elem] }
	switch r.Kind {
	case coll.Broadcast:
		return given(r.Root)
	case coll.Allreduce:
		return fold(r.Size)
	case coll.Reduce:
		if rank == r.Root {
			return fold(r.Size)
		}
	case coll.ReduceScatter:
		return block(fold(r.Size))
	case coll.Scan:
		return fold(rank + 1)
	case coll.Exscan:
		if rank > 0 {
			return fold(rank)
		}
	case coll.Scatter:
		return block(given(r.Root))
	case coll.Gather, coll.Allgather:
		if r.Kind == coll.Allgather || rank == r.Root {
			want = []byte{}
			for m := range r.Size {
				want = append(want, given(m)...)
			}
		}
	case coll.Alltoall:
		want = []byte{}
		for from := range r.Size {
			at := 0
			for to := range rank {
				at += r.Pair(from, to)
			}
			want = append(want, given(from)[at*Elem:][:r.Pair(from, rank)*Elem]...)
		}
	}
	return want
}
