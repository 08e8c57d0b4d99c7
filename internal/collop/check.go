package collop

import (
	"fmt"
	"unsafe"

	"github.com/sluice-hpc/sluice/internal/coll"
)

// addressOf is where a slice begins.
func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// Check says what is wrong with an operation at a member of so many, with [ErrInvalid].
func (o *Spec) Check(me, size int) error {
	switch {
	case o.Err != nil:
		return o.Err
	case o.Rule == nil:
		return fmt.Errorf("%w: no operation", ErrInvalid)
	case o.Kind.Rooted() && (o.Root < 0 || o.Root >= size):
		return fmt.Errorf("%w: there is no root %d in a group of %d: want 0 to %d", ErrInvalid, o.Root, size, size-1)
	}
	atRoot := me == o.Root
	all := o.Count * o.Elem * size
	dst, src := -1, -1 // bytes; -1: any
	switch o.Kind {
	case coll.Reduce:
		if atRoot {
			dst = len(o.Src)
		}
	case coll.Gather:
		if atRoot {
			dst = all
		}
	case coll.Scatter:
		if atRoot {
			src = all
		}
	case coll.Allgather:
		dst = all
	case coll.ReduceScatter:
		src = all
	case coll.Alltoall:
		if o.Count < 0 {
			if o.Count = len(o.Src) / size / o.Elem; o.Count*o.Elem*size != len(o.Src) {
				return fmt.Errorf("%w: %d elements for %d ranks", ErrInvalid, len(o.Src)/o.Elem, size)
			}
		}
		dst, src = len(o.Src), -1
	}
	if o.Uneven || o.Counts != nil {
		var err error
		if dst, src, err = o.checkCounts(me, size); err != nil {
			return err
		}
	}
	if dst >= 0 && len(o.Dst) != dst || src >= 0 && len(o.Src) != src {
		return fmt.Errorf("%w: %v of %d bytes into %d bytes; it needs %s into %s", ErrInvalid, o.Kind, len(o.Src), len(o.Dst), orAny(src), orAny(dst))
	}
	return o.checkOverlap(me)
}

func orAny(n int) string {
	if n < 0 {
		return "any number"
	}
	return fmt.Sprint(n)
}

// checkCounts returns how long the buffers have to be where blocks differ.
func (o *Spec) checkCounts(me, size int) (dst, src int, err error) {
	dst, src = -1, -1
	total := func(counts []int) int {
		sum := 0
		for _, n := range counts {
			if n < 0 || n > (1<<62-sum)/o.Elem {
				err = fmt.Errorf("%w: block of %d elements", ErrInvalid, n)
				return 0
			}
			sum += n
		}
		if len(counts) != size {
			err = fmt.Errorf("%w: %d counts for %d ranks", ErrInvalid, len(counts), size)
			return 0
		}
		return sum * o.Elem
	}
	switch o.Kind {
	case coll.Alltoall:
		dst, src = total(o.Counts), total(o.From)
		return dst, src, err
	case coll.Gather, coll.Scatter:
		if me != o.Root {
			return dst, src, nil
		}
	}
	sum := total(o.Counts)
	if err != nil {
		return 0, 0, err
	}
	own := o.Counts[me] * o.Elem
	switch o.Kind {
	case coll.Gather, coll.Allgather:
		return sum, own, nil
	}
	return own, sum, nil // Scatter, ReduceScatter
}

// checkOverlap allows dst and src to be the same where nothing is lost by it.
func (o *Spec) checkOverlap(me int) error {
	d, s := addressOf(o.Dst), addressOf(o.Src)
	if len(o.Dst) == 0 || len(o.Src) == 0 || d+uintptr(len(o.Dst)) <= s || s+uintptr(len(o.Src)) <= d {
		return nil
	}
	own := uintptr(me * o.Count * o.Elem)
	if o.Counts != nil {
		own = 0
		for _, n := range o.Counts[:min(me, len(o.Counts))] {
			own += uintptr(n * o.Elem)
		}
	}
	switch o.Kind {
	case coll.Reduce, coll.Allreduce, coll.Scan, coll.Exscan:
		if d == s || o.Kind == coll.Reduce && me != o.Root {
			return nil
		}
	case coll.Gather, coll.Allgather:
		if s == d+own || o.Kind == coll.Gather && me != o.Root {
			return nil
		}
	case coll.Scatter:
		if d == s+own || me != o.Root {
			return nil
		}
	}
	return fmt.Errorf("%w: dst and src of %v overlap", ErrInvalid, o.Kind)
}
