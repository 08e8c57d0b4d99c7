// Package external32 packs and unpacks typed data in MPI's portable representation "external32"
// (MPI 4.1, section 14.5.2), which IMPI uses between processes with different memory layouts.
//
//	b = external32.Append(b, values)
//	rest, err := external32.Parse(values, b)
//	n := external32.Size[float64]()
//
// Integers are big-endian in two's complement, floats are big-endian IEEE 754, and a complex number
// is a real and an imaginary part. Elements follow each other without padding. The sizes are the same
// on every machine:
//
//	Go                  bytes   MPI
//	int8, uint8             1   SIGNED_CHAR, UNSIGNED_CHAR, CHAR, BYTE, INT8_T, UINT8_T
//	int16, uint16           2   SHORT, UNSIGNED_SHORT, INT16_T, UINT16_T, WCHAR
//	int32, uint32           4   INT, UNSIGNED, LONG, UNSIGNED_LONG, INT32_T, UINT32_T, INTEGER, LOGICAL
//	int64, uint64           8   LONG_LONG_INT, UNSIGNED_LONG_LONG, INT64_T, UINT64_T, AINT, COUNT, OFFSET
//	float32                 4   FLOAT, REAL
//	float64                 8   DOUBLE, DOUBLE_PRECISION
//	complex64            2 × 4  C_FLOAT_COMPLEX, COMPLEX
//	complex128           2 × 8  C_DOUBLE_COMPLEX, DOUBLE_COMPLEX
//
// LONG has 4 bytes whatever the size of C's long. LONG_DOUBLE, of 16 bytes, has no counterpart in
// Go. A peer may nevertheless send bytes as they lie in its memory: LAM/MPI does.
package external32

import (
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"unsafe"
)

// Element is a type that has a representation. int, uint and uintptr are excluded because their
// size depends on the machine.
type Element interface {
	~int8 | ~int16 | ~int32 | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~uint64 |
		~float32 | ~float64 | ~complex64 | ~complex128
}

// ErrShort is matched by every [*ShortError] in errors.Is.
var ErrShort = errors.New("not enough bytes")

// ShortError reports that the data ends before the elements to be read from it.
type ShortError struct {
	Have, Need int // bytes
}

// Error states both numbers.
func (e *ShortError) Error() string {
	return fmt.Sprintf("impi/external32: %v: %d of %d", ErrShort, e.Have, e.Need)
}

// Is reports whether target is ErrShort.
func (e *ShortError) Is(target error) bool { return target == ErrShort }

// Size returns the number of bytes of one element of T.
func Size[T Element]() int { return int(unsafe.Sizeof(*new(T))) }

// Append appends the elements of v to b. It allocates only if b lacks capacity.
func Append[T Element](b []byte, v []T) []byte {
	n := len(b)
	b = slices.Grow(b, len(v)*Size[T]())[:n+len(v)*Size[T]()]
	out := b[n:]
	switch word[T]() {
	case 1:
		copy(out, words[uint8](v))
	case 2:
		for i, w := range words[uint16](v) {
			binary.BigEndian.PutUint16(out[2*i:], w)
		}
	case 4:
		for i, w := range words[uint32](v) {
			binary.BigEndian.PutUint32(out[4*i:], w)
		}
	case 8:
		for i, w := range words[uint64](v) {
			binary.BigEndian.PutUint64(out[8*i:], w)
		}
	}
	return b
}

// Parse fills v with the elements at the beginning of b and returns the remaining bytes. The only
// error is a [*ShortError], after which v is unchanged and rest is b. It does not allocate unless
// it fails.
func Parse[T Element](v []T, b []byte) (rest []byte, err error) {
	n := len(v) * Size[T]()
	if len(b) < n {
		return b, &ShortError{Have: len(b), Need: n}
	}
	switch in := b[:n]; word[T]() {
	case 1:
		copy(words[uint8](v), in)
	case 2:
		out := words[uint16](v)
		for i := range out {
			out[i] = binary.BigEndian.Uint16(in[2*i:])
		}
	case 4:
		out := words[uint32](v)
		for i := range out {
			out[i] = binary.BigEndian.Uint32(in[4*i:])
		}
	case 8:
		out := words[uint64](v)
		for i := range out {
			out[i] = binary.BigEndian.Uint64(in[8*i:])
		}
	}
	return b[n:], nil
}

// word returns the number of bytes that are swapped as a unit: a part of a complex number,
// otherwise an element.
func word[T Element]() int {
	switch reflect.TypeFor[T]().Kind() {
	case reflect.Complex64, reflect.Complex128:
		return Size[T]() / 2
	}
	return Size[T]()
}

// words returns the memory of v as words. W is no larger than T, which is aligned for it: the words
// of complex numbers are their parts.
func words[W uint8 | uint16 | uint32 | uint64, T Element](v []T) []W {
	return unsafe.Slice((*W)(unsafe.Pointer(unsafe.SliceData(v))), len(v)*Size[T]()/int(unsafe.Sizeof(*new(W))))
}
