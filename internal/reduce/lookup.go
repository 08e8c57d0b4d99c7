package reduce

import (
	"fmt"
	"unsafe"
)

// Func computes dst[i] = a[i] op b[i] for whole elements. The three are of one
// length, a multiple of the element's size: anything else is a bug of the caller,
// and panics. dst may be a, or b, or both; memory that overlaps in any other way
// gives no particular result. A Func may be called from several goroutines; it reads
// a and b and writes dst without synchronisation, and is done when it returns.
type Func func(dst, a, b []byte)

// FoldFunc computes dst = srcs[0] op srcs[1] op ... from left to right, as [Fold]
// does, with the same rules on memory.
type FoldFunc func(dst []byte, srcs [][]byte)

// kernel is an operation in assembly: of two operands of n bytes, and of k >= 2
// sources, n bytes from off on. Not one byte need be aligned; n may be 0.
type kernel struct {
	binary func(dst, a, b *byte, n int)
	fold   func(dst *byte, srcs *[]byte, k, off, n int)
}

// kernels are those of one instruction set; an entry may be empty.
type kernels [ops][types]kernel

// stretch is how many bytes of the result a kernel is given at once. The Go runtime
// cannot stop a goroutine inside of assembly, and a garbage collection waits for
// all: this much takes some microseconds.
const stretch = 64 << 10

// Lookup returns the fastest function for o over elements of type t on this CPU;
// false if there is none, see [Defined].
func Lookup(o Op, t Type) (Func, bool) { return lookup(native, o, t) }

// LookupFold returns the function that folds any number of sources by o, which for
// more than two is faster than [Fold] with what Lookup returns.
func LookupFold(o Op, t Type) (FoldFunc, bool) { return lookupFold(native, o, t) }

// lookup looks for o in set, which may be nil, then among the plain loops.
func lookup(set *kernels, o Op, t Type) (Func, bool) {
	if !Defined(o, t) {
		return nil, false
	}
	size := t.Size()
	if set == nil || set[o][t].binary == nil {
		loop := portable[o][t]
		return func(dst, a, b []byte) {
			check(dst, a, b, size)
			loop(dst, a, b)
		}, true
	}
	binary := set[o][t].binary
	return func(dst, a, b []byte) {
		check(dst, a, b, size)
		for len(dst) > stretch {
			binary(unsafe.SliceData(dst), unsafe.SliceData(a), unsafe.SliceData(b), stretch)
			dst, a, b = dst[stretch:], a[stretch:], b[stretch:]
		}
		binary(unsafe.SliceData(dst), unsafe.SliceData(a), unsafe.SliceData(b), len(dst))
	}, true
}

func lookupFold(set *kernels, o Op, t Type) (FoldFunc, bool) {
	f, ok := lookup(set, o, t)
	if !ok {
		return nil, false
	}
	size := t.Size()
	if set == nil || set[o][t].fold == nil {
		return func(dst []byte, srcs [][]byte) {
			checkSources(dst, srcs, size)
			fold(f, foldBlock, dst, srcs)
		}, true
	}
	kernel := set[o][t].fold
	return func(dst []byte, srcs [][]byte) {
		checkSources(dst, srcs, size)
		if len(srcs) == 1 {
			copy(dst, srcs[0])
			return
		}
		for off := 0; off < len(dst); off += stretch {
			kernel(unsafe.SliceData(dst), &srcs[0], len(srcs), off, min(stretch, len(dst)-off))
		}
	}, true
}

// check panics unless dst, a and b hold the same number of whole elements.
func check(dst, a, b []byte, size int) {
	if len(a) != len(dst) || len(b) != len(dst) || len(dst)%size != 0 {
		panic(fmt.Sprintf("reduce: %d and %d bytes into %d, of elements of %d", len(a), len(b), len(dst), size))
	}
}
