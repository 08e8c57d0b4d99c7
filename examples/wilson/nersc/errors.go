package nersc

import (
	"fmt"
	"math"

	"github.com/sluice-hpc/sluice/examples/wilson/lattice"
)

// SizeError is the error of a file that is longer or shorter than its header says.
type SizeError struct {
	Header     int64 // bytes of the header
	Have, Want int64 // bytes of the links
	Format     Format
	Dims       lattice.Dims
	Rows       int
}

func (e *SizeError) Error() string {
	return fmt.Sprintf("nersc: %d bytes follow the %d of the header, but %v sites with links of %d rows in %v take %d", e.Have, e.Header, e.Dims, e.Rows, e.Format, e.Want)
}

// ChecksumError is the error of links whose checksum differs from that of the header.
type ChecksumError struct {
	Have, Want uint32
}

func (e *ChecksumError) Error() string {
	return fmt.Sprintf("nersc: the checksum of the links is %08x, the header says %08x", e.Have, e.Want)
}

// LinkError is the error of a link that is not in SU(3).
type LinkError struct {
	Site      lattice.Dims // in the whole lattice
	Axis      int
	Offset    int64   // in the file, of its first byte
	Deviation float64 // from SU(3), see su3.Matrix.Deviation
	Tolerance float64

	damaged bool // the checksum is also wrong
}

func (e *LinkError) Error() string {
	todo := advice(e.Deviation)
	if e.damaged {
		todo = ""
	}
	return fmt.Sprintf("nersc: the link along %s of site (%d, %d, %d, %d), at byte %d, is not in SU(3): its deviation is %.2g, at most %.0e is allowed%s",
		lattice.AxisNames[e.Axis], e.Site[0], e.Site[1], e.Site[2], e.Site[3], e.Offset, e.Deviation, e.Tolerance, todo)
}

// AverageError is the error of a field whose average plaquette or link trace differs from that
// of the header.
type AverageError struct {
	Key        string // PLAQUETTE or LINK_TRACE
	Have, Want float64
	Tolerance  float64
}

func (e *AverageError) Error() string {
	return fmt.Sprintf("nersc: %s of the links is %.12g, the header says %.12g, and they may differ by %.1e%s", e.Key, e.Have, e.Want, e.Tolerance, advice(e.Have-e.Want))
}

// advice says what to do about a difference as small as the rounding of single precision.
func advice(difference float64) string {
	_, single := Format{Bits: 32}.tolerance()
	if math.Abs(difference) <= single {
		return fmt.Sprintf("; a field computed in single precision needs a tolerance of %.0e", single)
	}
	return ""
}
