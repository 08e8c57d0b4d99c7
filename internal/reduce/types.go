package reduce

import "unsafe"

// Type is the type of an element.
type Type uint8

// The element types, in the memory layout of their Go types.
const (
	Int32 Type = iota
	Int64
	Uint32
	Uint64
	Float32
	Float64
	Complex64
	Complex128
	// Float64Int64 is a [Pair], for MinLoc and MaxLoc.
	Float64Int64

	types = iota
)

var typeSizes = [types]int{4, 8, 4, 8, 4, 8, 8, 16, int(unsafe.Sizeof(Pair{}))}

var typeNames = [types]string{
	"int32", "int64", "uint32", "uint64", "float32", "float64", "complex64", "complex128", "float64 with int64",
}

// Valid says whether t is one of the constants above.
func (t Type) Valid() bool { return t < types }

// Size returns the size of an element in bytes; 0 if t is not valid.
func (t Type) Size() int {
	if !t.Valid() {
		return 0
	}
	return typeSizes[t]
}

// String returns the name of the Go type.
func (t Type) String() string {
	if !t.Valid() {
		return "unknown type"
	}
	return typeNames[t]
}

// Pair is the element of MinLoc and MaxLoc: a value and its index.
type Pair struct {
	Value float64
	Index int64
}

// Number is the set of element types that have a sum and a product.
type Number interface {
	int | int32 | int64 | uint | uint32 | uint64 | float32 | float64 | complex64 | complex128
}

// TypeOf returns the type of the elements of a []T: of int and uint, that of their size.
func TypeOf[T Number]() Type {
	var zero T
	switch any(zero).(type) {
	case int:
		if unsafe.Sizeof(zero) == 4 {
			return Int32
		}
		return Int64
	case uint:
		if unsafe.Sizeof(zero) == 4 {
			return Uint32
		}
		return Uint64
	case int32:
		return Int32
	case int64:
		return Int64
	case uint32:
		return Uint32
	case uint64:
		return Uint64
	case float32:
		return Float32
	case float64:
		return Float64
	case complex64:
		return Complex64
	}
	return Complex128
}
