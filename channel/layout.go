package channel

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"unsafe"

	"github.com/sluice-hpc/sluice/internal/span"
)

// Layout describes the bytes of a message and their order: blocks of one or several
// slices. It is a value and owns no memory; declaring a handle with it pins the memory.
//
// The constructors do not fail; they record the first error, and [Layout.Err] and every
// declaration return it. The zero Layout is a message of no bytes.
type Layout struct {
	parts  []part
	length int
	blocks int
	err    error
}

// part is count blocks of size block, the first at offset off of base and each
// stride bytes after the one before it.
type part struct {
	base                      []byte
	off, block, count, stride int
}

// extent returns the range of base that the part lies in.
func (p *part) extent() (from, to int) {
	last := p.off + (p.count-1)*p.stride
	return min(p.off, last), max(p.off, last) + p.block
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
func Contiguous(b []byte) Layout {
	var l Layout
	l.add(part{base: b, block: len(b), count: 1})
	return l
}

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
	return StridedArray(Vector{base, offset, blockSize, blocks, stride})
}

// StridedArray is the layout of several vectors, one after the other
// (QMP_declare_strided_array_msgmem).
func StridedArray(vectors ...Vector) Layout {
	var l Layout
	for i, v := range vectors {
		switch {
		case v.BlockSize < 0, v.Blocks < 0:
			l.fail("vector %d: %d blocks of %d bytes", i, v.Blocks, v.BlockSize)
		case v.BlockSize == 0 || v.Blocks == 0:
			if v.Offset < 0 || v.Offset > len(v.Base) {
				l.fail("vector %d: offset %d in a slice of %d bytes", i, v.Offset, len(v.Base))
			}
		default:
			l.addVector(i, v)
		}
	}
	return l
}

func (l *Layout) addVector(i int, v Vector) {
	stride := v.Stride
	if v.Blocks == 1 {
		stride = 0
	}
	span, over := mul(v.Blocks-1, stride)
	n, tooMany := mul(v.BlockSize, v.Blocks)
	last := v.Offset + span // of an offset that is checked first
	switch {
	case over || tooMany || v.Offset > 0 && span > math.MaxInt-v.Offset:
		l.fail("vector %d: %d blocks of %d bytes, stride %d, at offset %d overflow", i, v.Blocks, v.BlockSize, v.Stride, v.Offset)
	case v.Offset < 0 || v.Offset > len(v.Base)-v.BlockSize || last < 0 || last > len(v.Base)-v.BlockSize:
		l.fail("vector %d: %d blocks of %d bytes, stride %d, at offset %d reach outside a slice of %d bytes",
			i, v.Blocks, v.BlockSize, v.Stride, v.Offset, len(v.Base))
	case stride == v.BlockSize:
		l.add(part{base: v.Base, off: v.Offset, block: n, count: 1})
	default:
		l.add(part{base: v.Base, off: v.Offset, block: v.BlockSize, count: v.Blocks, stride: stride})
	}
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
		if n > 0 {
			l.add(part{base: base, off: at * elemSize, block: n * elemSize, count: 1})
		}
	}
	return l
}

// add appends a part, joined to the one before it where the bytes follow on.
func (l *Layout) add(p part) {
	if p.block == 0 {
		return
	}
	if p.block*p.count > math.MaxInt-l.length {
		l.fail("the lengths of the parts overflow")
		return
	}
	l.length += p.block * p.count
	if n := len(l.parts); n > 0 && p.count == 1 {
		q := &l.parts[n-1]
		if q.count == 1 && sameBase(q.base, p.base) && q.off+q.block == p.off {
			q.block += p.block
			return
		}
	}
	l.blocks += p.count
	l.parts = append(l.parts, p)
}

func sameBase(a, b []byte) bool {
	return unsafe.SliceData(a) == unsafe.SliceData(b) && len(a) == len(b)
}

func (l *Layout) fail(format string, args ...any) {
	if l.err == nil {
		l.err = fmt.Errorf("%w: "+format, append([]any{ErrLayout}, args...)...)
	}
}

// Err returns nil, or an error that wraps [ErrLayout] and says what is wrong.
func (l Layout) Err() error { return l.err }

// Len returns the number of bytes in a message.
func (l Layout) Len() int { return l.length }

// Blocks returns the number of blocks; adjacent blocks count as one.
func (l Layout) Blocks() int { return l.blocks }

// checkDisjoint fails if two blocks share a byte, because what is received there would depend on
// the order of the copies.
func (l *Layout) checkDisjoint() error {
	var whole []span.Span // of the parts
	for i := range l.parts {
		p := &l.parts[i]
		if p.count > 1 && max(p.stride, -p.stride) < p.block {
			return fmt.Errorf("%w: blocks of %d bytes with stride %d overlap, in a layout to receive into", ErrLayout, p.block, p.stride)
		}
		at := uintptr(unsafe.Pointer(unsafe.SliceData(p.base)))
		from, to := p.extent()
		whole = append(whole, span.Span{From: at + uintptr(from), To: at + uintptr(to)})
	}
	meet := func(s []span.Span) bool {
		slices.SortFunc(s, func(a, b span.Span) int {
			switch {
			case a.From < b.From:
				return -1
			case a.From > b.From:
				return 1
			}
			return 0
		})
		for i := 1; i < len(s); i++ {
			if s[i].From < s[i-1].To {
				return true
			}
		}
		return false
	}
	if !meet(whole) {
		return nil
	}
	// The extents of parts overlap: check the blocks themselves.
	blocks := make([]span.Span, 0, l.blocks)
	for i := range l.parts {
		p := &l.parts[i]
		at := uintptr(unsafe.Pointer(unsafe.SliceData(p.base)))
		for j := range p.count {
			from := at + uintptr(p.off+j*p.stride)
			blocks = append(blocks, span.Span{From: from, To: from + uintptr(p.block)})
		}
	}
	if meet(blocks) {
		return fmt.Errorf("%w: blocks overlap in a layout to receive into", ErrLayout)
	}
	return nil
}

// bases returns the distinct slices that the layout lies in, in order of first use.
func (l *Layout) bases() [][]byte {
	var list [][]byte
	for i := range l.parts {
		b := l.parts[i].base
		if !slices.ContainsFunc(list, func(c []byte) bool { return sameBase(b, c) }) {
			list = append(list, b)
		}
	}
	return list
}

// mul multiplies and says whether that overflows.
func mul(a, b int) (int, bool) {
	if a == 0 || b == 0 {
		return 0, false
	}
	c := a * b
	return c, c/b != a || a == -1 && b == math.MinInt || b == -1 && a == math.MinInt
}
