package channel

import (
	"fmt"
	"reflect"
	"unsafe"

	"github.com/sluice-hpc/sluice/internal/layout"
)

// Layout describes the bytes of a message and their order: blocks of one or several
// slices. It is a value and owns no memory.
//
// The constructors do not fail; they record the first error, and [Layout.Err] and every
// declaration return it. The zero Layout is a message of no bytes.
type Layout struct {
	shape layout.Shape
	err   error
}

func init() {
	layout.Of = func(l any) (*layout.Shape, error) {
		m := l.(Layout)
		return &m.shape, m.err
	}
}

// Bytes returns the memory of s as bytes, so that a slice of any type without pointers
// can be the base of a layout. It panics if the type has pointers, because the garbage
// collector would not see what a peer writes.
func Bytes[E any](s []E) []byte {
	t := reflect.TypeFor[E]()
	if hasPointers(t) {
		panic(fmt.Sprintf("channel: Bytes of []%v, which has pointers", t))
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(t.Size()))
}

// hasPointers says whether values of type t hold anything that the garbage
// collector follows.
func hasPointers(t reflect.Type) bool {
	switch k := t.Kind(); {
	case k >= reflect.Bool && k <= reflect.Complex128:
		return false
	case k == reflect.Array:
		return t.Len() > 0 && hasPointers(t.Elem())
	case k == reflect.Struct:
		for i := range t.NumField() {
			if hasPointers(t.Field(i).Type) {
				return true
			}
		}
		return false
	}
	return true
}

// Contiguous is the layout of all bytes of b, in order (QMP_declare_msgmem).
func Contiguous(b []byte) Layout { return Layout{shape: layout.Flat(b)} }

// Vector is one part of [StridedArray]; the fields are the arguments of [Strided].
type Vector struct {
	Base      []byte
	Offset    int // of the first block in Base, in bytes
	BlockSize int // bytes
	Blocks    int // number of blocks
	Stride    int // bytes from the start of a block to the start of the next; may be negative
}

// Strided is the layout of equally spaced blocks (MPI_Type_vector in bytes,
// QMP_declare_strided_msgmem). The first block begins at offset of base; each further
// block begins stride bytes after the start of the one before. A stride may be negative
// as long as every block lies in base.
func Strided(base []byte, offset, blockSize, blocks, stride int) Layout {
	var l Layout
	if err := l.shape.Add(layout.Part{Base: base, Off: offset, Block: blockSize, Count: blocks, Stride: stride}); err != nil {
		l.fail("%w", err)
	}
	return l
}

// StridedArray is the layout of several vectors, one after the other
// (QMP_declare_strided_array_msgmem).
func StridedArray(vectors ...Vector) Layout {
	var l Layout
	for i, v := range vectors {
		if err := l.shape.Add(layout.Part{Base: v.Base, Off: v.Offset, Block: v.BlockSize, Count: v.Blocks, Stride: v.Stride}); err != nil {
			l.fail("vector %d: %w", i, err)
		}
	}
	return l
}

// Indexed is the layout of blocks anywhere in base (MPI_Type_indexed,
// QMP_declare_indexed_msgmem): block i has lengths[i] elements and begins at element
// indices[i]. An element has elemSize bytes.
func Indexed(base []byte, elemSize int, lengths, indices []int) Layout {
	var l Layout
	if len(lengths) != len(indices) {
		l.fail("%d lengths for %d indices", len(lengths), len(indices))
		return l
	}
	if elemSize <= 0 {
		l.fail("elements of %d bytes", elemSize)
		return l
	}
	elems := len(base) / elemSize
	for i, n := range lengths {
		at := indices[i]
		if n < 0 || at < 0 || at > elems || n > elems-at {
			l.fail("block %d: %d elements at %d reach outside a slice of %d elements of %d bytes", i, n, at, elems, elemSize)
			return l
		}
		if err := l.shape.Add(layout.Part{Base: base, Off: at * elemSize, Block: n * elemSize, Count: 1}); err != nil {
			l.fail("block %d: %w", i, err)
		}
	}
	return l
}

func (l *Layout) fail(format string, args ...any) {
	if l.err == nil {
		l.err = fmt.Errorf("%w: "+format, append([]any{ErrLayout}, args...)...)
	}
}

// Err returns nil, or an error that wraps [ErrLayout] and says what is wrong.
func (l Layout) Err() error { return l.err }

// Len returns the number of bytes in a message.
func (l Layout) Len() int { return l.shape.Len() }

// Blocks returns the number of blocks; adjacent blocks count as one.
func (l Layout) Blocks() int { return l.shape.Blocks() }
