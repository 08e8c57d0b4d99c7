package reduce

import (
	"fmt"
	"unsafe"
)

// Func computes dst[i] = a[i] op b[i] for whole elements. All three must have the same length, a
// multiple of the element's size, or the Func panics. dst may be a, or b, or both; with any other
// overlap the result is undefined. A Func may be called concurrently; it reads a and b and writes
// dst without synchronisation, and is done when it returns.
type Func func(dst, a, b []byte)

// FoldFunc computes dst = srcs[0] op srcs[1] op ... from left to right, with the rules of [Fold]
// for memory.
type FoldFunc func(dst []byte, srcs [][]byte)

// kernel is an operation in assembly, over two operands of n bytes, and over k >= 2 sources, n
// bytes from off on. Nothing need be aligned; n may be 0.
type kernel struct {
	binary func(dst, a, b *byte, n int)
	fold   func(dst *byte, srcs *[]byte, k, off, n int)
}

// kernels holds the kernels of one instruction set; an entry may be empty.
type kernels [ops][types]kernel

// stretch bounds the bytes of the result that a kernel computes in one call, which takes some
// microseconds. The Go runtime cannot preempt a goroutine in assembly, and garbage collection
// waits for all goroutines.
const stretch = 64 << 10

// Lookup returns the fastest function for o over elements of type t on this CPU; false if o is not
// [Defined] over t.
func Lookup(o Op, t Type) (Func, bool) { return lookup(native, o, t) }

// LookupFold returns a function that folds any number of sources by o. For more than two it is
// faster than [Fold] with the result of Lookup.
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
		panic(fmt.Sprintf("reduce: operands have %d and %d bytes, dst has %d, elements have %d", len(a), len(b), len(dst), size))
	}
}
