// Package collop describes collective operations, as programs hand them to the
// packages that carry them out: what a member gives and gets, and where its memory is.
// What package channel exports as Operation and Reduction are the types here, so that
// the other packages of the module can look into them and programs cannot.
package collop

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"github.com/sluice-hpc/sluice/internal/coll"
)

// ErrInvalid is an argument that is out of range.
var ErrInvalid = errors.New("invalid argument")

// Operation is a collective. Programs make it with the constructors of package
// channel; [Of] shows what it says.
type Operation struct{ spec Spec }

// Of returns what an operation says, which belongs to it.
func Of(o *Operation) *Spec { return &o.spec }

// Spec is what an operation says.
type Spec struct {
	Kind     coll.Kind
	Root     int
	Elem     int // bytes
	Count    int // elements: see coll.Shape; -1 in Alltoall: the length of Src divided by the members
	Dst, Src []byte
	Counts   []int // of blocks, in elements
	From     []int // Alltoallv: of Src
	Uneven   bool  // counts that not all members know
	Rule     *Rule // nil: the operation is none
	Err      error // it cannot be meant
}

// Comparable says whether [Spec.Same] can find the operation to be the same as another.
func (o *Spec) Comparable() bool { return o.Rule != nil && o.Err == nil && o.Rule.Op != UserOp }

// Same says whether two operations are the same, over the same memory.
func (o *Spec) Same(p *Spec) bool {
	return p.Comparable() && o.Kind == p.Kind && o.Root == p.Root && o.Elem == p.Elem && o.Rule.Op == p.Rule.Op && o.Rule.Type == p.Rule.Type &&
		len(o.Dst) == len(p.Dst) && len(o.Src) == len(p.Src) && unsafe.SliceData(o.Dst) == unsafe.SliceData(p.Dst) && unsafe.SliceData(o.Src) == unsafe.SliceData(p.Src) &&
		(p.Count < 0 || o.Count == p.Count) && o.Uneven == p.Uneven && sameCounts(o.Counts, p.Counts) && sameCounts(o.From, p.From)
}

func sameCounts(a, b []int) bool { return (a == nil) == (b == nil) && slices.Equal(a, b) }

// Reduces makes it an operation that reduces elements. It fills in what the caller
// returns: an operation is made for every call, and is not copied more than it must.
func (o *Spec) Reduces(kind coll.Kind, root int, r *Rule, dst, src []byte) {
	if r == nil {
		r = &Rule{Err: fmt.Errorf("%w: no reduction", ErrInvalid)}
	}
	o.Kind, o.Root, o.Elem, o.Dst, o.Src, o.Rule, o.Err = kind, root, r.Elem, dst, src, r, r.Err
	if r.Err == nil {
		if o.Count = len(src) / r.Elem; o.Count*r.Elem != len(src) {
			o.Err = fmt.Errorf("%w: %d bytes are no multiple of an element of %d", ErrInvalid, len(src), r.Elem)
		}
	}
}

// Even checks that Dst is as long as Src.
func (o *Spec) Even() {
	if o.Err == nil && len(o.Dst) != len(o.Src) {
		o.Err = fmt.Errorf("%w: %v of %d bytes into %d", ErrInvalid, o.Kind, len(o.Src), len(o.Dst))
	}
}

// Unit is the bytes that may not be cut: members may move the same bytes as other
// elements.
func (o *Spec) Unit() int {
	if o.Kind.Reduces() {
		return o.Elem
	}
	return 1
}
