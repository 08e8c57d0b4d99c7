package channel

import (
	"fmt"
	"reflect"
	"unsafe"

	"github.com/sluice-hpc/sluice/internal/layout"
)

// View returns memory, such as a [Memory], as a slice of a type without pointers: as
// many elements as fit, or nil once the memory is closed. The slice shares the memory
// that Bytes returns, and is valid for as long. View panics if the type has pointers,
// or if the memory is not aligned for it; [Node.Alloc] memory always is.
func View[E any](m interface{ Bytes() []byte }) []E {
	b, t := m.Bytes(), reflect.TypeFor[E]()
	if hasPointers(t) {
		panic(fmt.Sprintf("channel: View of []%v, which has pointers", t))
	}
	size := int(t.Size())
	if size == 0 || len(b) < size {
		return nil
	}
	p := unsafe.Pointer(unsafe.SliceData(b))
	if uintptr(p)%uintptr(t.Align()) != 0 {
		panic(fmt.Sprintf("channel: View of []%v of memory that is not aligned for it", t))
	}
	return unsafe.Slice((*E)(p), len(b)/size)
}

// Slice is the layout of all elements of s, in order: [Contiguous] for any type without
// pointers. It panics like [Bytes].
func Slice[E any](s []E) Layout { return Contiguous(Bytes(s)) }

// StridedSlice is [Strided] in units of elements of s (MPI_Type_vector): it has blocks
// blocks of blockLen elements each. The first begins at s[offset]; each further block
// begins stride elements after the start of the one before. [Layout.Err] counts elements; all that
// concerns messages counts bytes: [Layout.Len], the lengths in [Error], and blocks that overlap.
func StridedSlice[E any](s []E, offset, blockLen, blocks, stride int) Layout {
	size := int(reflect.TypeFor[E]().Size())
	p := layout.Part{Off: offset, Block: blockLen, Count: blocks, Stride: stride}
	if err := p.CheckIn("elements", len(s)); err != nil {
		var l Layout
		l.fail("%w", err)
		return l
	}
	return Strided(Bytes(s), offset*size, blockLen*size, blocks, stride*size)
}
