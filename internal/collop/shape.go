package collop

import (
	"encoding/binary"

	"github.com/sluice-hpc/sluice/internal/coll"
)

// Shape is the operation as algorithms between all members see it, at one of them. The
// operation is right ([Spec.Check]).
func (o *Spec) Shape(me, size int) coll.Shape {
	s := coll.Shape{Kind: o.Kind, Rank: me, Size: size, Root: o.Root, Elem: o.Unit(), Ordered: o.Rule.Ordered}
	bytes := max(o.Elem, 1) / s.Elem // units of an element
	scaled := func(counts []int) (list []int) {
		for _, n := range counts {
			list = append(list, n*bytes)
		}
		return list
	}
	s.Count = o.Count * bytes
	switch {
	case o.Kind == coll.Alltoall && o.Uneven:
		s.RecvCounts, s.SendCounts = scaled(o.Counts), scaled(o.From)
	case o.Uneven && me != o.Root: // only its own is right
		s.Counts = make([]int, s.Size)
		s.Counts[me] = len(o.Dst)
		if o.Kind == coll.Gather {
			s.Counts[me] = len(o.Src)
		}
	default:
		s.Counts = scaled(o.Counts)
	}
	return s
}

// Sign is what all members must call alike, if they carry it out by the algorithm.
func (o *Spec) Sign(size int, a coll.Algorithm) coll.Signature {
	s := coll.Shape{Kind: o.Kind, Size: size, Root: o.Root, Elem: max(o.Elem, 1), Count: o.Count, Ordered: o.Rule.Ordered}
	switch {
	case o.Uneven:
		s.Counts = noCounts
		s.SendCounts = nil
		if o.Kind == coll.Alltoall {
			s.Counts, s.SendCounts = nil, noCounts
		}
	default:
		s.Counts = o.Counts
	}
	return coll.Sign(&s, a, o.Rule.Op, o.Rule.Type)
}

var noCounts = []int{}

// AppendKey appends what is the same for operations that one plan is good for.
func (o *Spec) AppendKey(b []byte) []byte {
	uneven := byte(0)
	if o.Uneven {
		uneven = 1
	}
	b = append(b, byte(o.Kind), o.Rule.Op, o.Rule.Type, uneven)
	for _, v := range [...]int{o.Root, o.Elem, o.Count, len(o.Dst), len(o.Src), len(o.Counts), len(o.From)} {
		b = binary.AppendVarint(b, int64(v))
	}
	for _, counts := range [...][]int{o.Counts, o.From} {
		for _, v := range counts {
			b = binary.AppendVarint(b, int64(v))
		}
	}
	return b
}
