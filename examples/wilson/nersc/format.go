package nersc

import (
	"encoding/binary"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/sluice-hpc/sluice/examples/wilson/su3"
)

// Format is a number format, a value of FLOATING_POINT.
type Format struct {
	Bits  int // 32 or 64, of IEEE 754
	Order Order
}

// Order is the order of the bytes of a number.
type Order int

const (
	Unsaid Order = iota // IEEE32 and IEEE64 do not name an order; the checksum decides
	Big
	Little
)

var formats = map[string]Format{
	"IEEE32": {32, Unsaid}, "IEEE32BIG": {32, Big}, "IEEE32LITTLE": {32, Little},
	"IEEE64": {64, Unsaid}, "IEEE64BIG": {64, Big}, "IEEE64LITTLE": {64, Little},
}

func formatNames() []string { return slices.Sorted(maps.Keys(formats)) }

// ParseFormat returns the format with a name such as IEEE64BIG, in upper or lower case.
func ParseFormat(name string) (Format, bool) {
	f, ok := formats[strings.ToUpper(name)]
	return f, ok
}

// String returns the name of the format, or "" if it has none.
func (f Format) String() string {
	for name, g := range formats {
		if g == f {
			return name
		}
	}
	return ""
}

func (o Order) bytes() binary.ByteOrder {
	if o == Little {
		return binary.LittleEndian
	}
	return binary.BigEndian
}

// tolerance returns how far rounding can take a link from SU(3), and an average from the header's
// beyond its last decimal: the rounding of the file's numbers, and for IEEE32 also that of
// averages that programs computed in that precision.
func (f Format) tolerance() (link, average float64) {
	if f.Bits == 32 {
		return 1e-5, 1e-5
	}
	return 1e-10, 1e-10
}

// linkBytes returns the size of a link of so many rows.
func (f Format) linkBytes(rows int) int { return rows * 3 * 2 * f.Bits / 8 }

// decode reads a link of so many rows; of two rows it computes the third.
func (f Format) decode(u *su3.Matrix, b []byte, rows int) {
	order, size := f.Order.bytes(), f.Bits/8
	number := func(k int) float64 {
		if f.Bits == 32 {
			return float64(math.Float32frombits(order.Uint32(b[k*size:])))
		}
		return math.Float64frombits(order.Uint64(b[k*size:]))
	}
	for i := range rows {
		for j := range 3 {
			k := 2 * (3*i + j)
			u[i][j] = complex(number(k), number(k+1))
		}
	}
	if rows == 2 {
		u.CompleteRows()
	}
}

// append appends so many rows of a link to b.
func (f Format) append(b []byte, u *su3.Matrix, rows int) []byte {
	order := f.Order.bytes().(binary.AppendByteOrder)
	number := func(x float64) {
		if f.Bits == 32 {
			b = order.AppendUint32(b, math.Float32bits(float32(x)))
		} else {
			b = order.AppendUint64(b, math.Float64bits(x))
		}
	}
	for i := range rows {
		for j := range 3 {
			number(real(u[i][j]))
			number(imag(u[i][j]))
		}
	}
	return b
}

// checksum returns the sum of the words of 32 bits of b, modulo 2^32.
func (o Order) checksum(b []byte) (sum uint32) {
	order := o.bytes()
	for ; len(b) >= 4; b = b[4:] {
		sum += order.Uint32(b)
	}
	return sum
}
