package nersc

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/sluice-hpc/sluice/examples/wilson/gauge"
	"github.com/sluice-hpc/sluice/examples/wilson/global"
	"github.com/sluice-hpc/sluice/examples/wilson/lattice"
	"github.com/sluice-hpc/sluice/examples/wilson/su3"
)

// File is a file open for reading, whose header has been read.
type File struct {
	Header Header

	// Warnings are about unusual properties of the file that do not keep it from being read: after
	// Open of the header, after Read also of the links. They are the same on all nodes.
	Warnings []string

	// Tolerance is the allowed deviation of links from SU(3), and of averages from the header's,
	// if it is more than rounding to the format explains: for files of doubles that were computed
	// in single precision. Read projects such links back to SU(3). More than 1e-5 counts as 1e-5.
	// Set it before Read.
	Tolerance float64

	file   *os.File
	offset int64 // of the first link
}

// maxTail is how much white space may follow the links.
const maxTail = 16

// Open opens a file and reads its header. The caller closes it.
//
// Errors: those of package os, also for what is no regular file; [*HeaderError]; [*SizeError]. All name the file.
func Open(path string) (f *File, err error) {
	// To open a FIFO would wait for a writer.
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, &os.PathError{Op: "open", Path: path, Err: errors.New("not a regular file; copy it into one")}
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			file.Close()
			err = fmt.Errorf("%s: %w", path, err)
		}
	}()
	b := make([]byte, MaxHeader)
	n, err := file.ReadAt(b, 0)
	if err != nil && err != io.EOF {
		return nil, err
	}
	h, n, warnings, err := Parse(b[:n])
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	f = &File{Header: h, Warnings: warnings, file: file, offset: int64(n)}
	have, want := info.Size()-f.offset, int64(h.Dims.Product())*int64(f.siteBytes())
	if have > want && have <= want+maxTail {
		tail := make([]byte, have-want)
		if _, err := file.ReadAt(tail, f.offset+want); err != nil {
			return nil, err
		}
		if len(bytes.TrimSpace(tail)) == 0 {
			f.warn("%d bytes of white space after the links", len(tail))
			have = want
		}
	}
	if have != want {
		return nil, &SizeError{Header: f.offset, Have: have, Want: want, Format: h.Format, Dims: h.Dims, Rows: h.Rows}
	}
	return f, nil
}

// Close closes the file.
func (f *File) Close() error { return f.file.Close() }

func (f *File) siteBytes() int { return lattice.Axes * f.Header.Format.linkBytes(f.Header.Rows) }

func (f *File) warn(format string, args ...any) {
	f.Warnings = append(f.Warnings, "nersc: "+fmt.Sprintf(format, args...))
}

// singleDecimal is the last decimal that an average of single precision has.
const singleDecimal = 1e-8

// allowed returns how far a link may be from SU(3), and an average from the header's beyond the
// last decimal. If the averages of a header have no more digits than single precision, its links
// need not have double precision. A header without averages says nothing
// about that.
func (f *File) allowed() (link, average float64) {
	format := f.Header.Format
	if unit := min(f.Header.LinkTraceUnit, f.Header.PlaquetteUnit); unit >= singleDecimal && !math.IsInf(unit, 1) {
		format.Bits = 32
	}
	link, average = format.tolerance()
	mostLink, mostAverage := Format{Bits: 32}.tolerance()
	return max(link, min(f.Tolerance, mostLink)), max(average, min(f.Tolerance, mostAverage))
}

// Read reads the links of this node's sites and of their neighbours into a field, which must have
// the extents in the header. It makes matrices of SU(3) in double precision from 32-bit numbers.
// It verifies the checksum of the header, and the link trace and the plaquette if it has them.
//
// Collective: an error on one node is an error on all. Errors: those of package os;
// [*ChecksumError], joined with a [*LinkError] if there is one; [*LinkError]; [*AverageError];
// those of the communication.
func (f *File) Read(field *gauge.Field, sums *global.Sums) error {
	if err := f.read(field, sums); err != nil {
		return fmt.Errorf("%s: %w", f.file.Name(), err)
	}
	return nil
}

func (f *File) read(field *gauge.Field, sums *global.Sums) error {
	l := field.Lattice
	if l.Global != f.Header.Dims {
		return fmt.Errorf("the lattice is %v, but that of the file is %v", l.Global, f.Header.Dims)
	}
	raw := make([]byte, l.Sites()*f.siteBytes())
	var err error
	for r := range runs(l) {
		part := raw[r.local*f.siteBytes():][:r.sites*f.siteBytes()]
		if _, err = f.file.ReadAt(part, f.offset+int64(r.global)*int64(f.siteBytes())); err != nil {
			break
		}
	}
	if err := sums.Agree(err, 0); err != nil {
		return err
	}
	format, wrong := f.verify(raw, sums)
	var sum *ChecksumError
	if wrong != nil && !errors.As(wrong, &sum) {
		return wrong
	}
	link, far := f.decode(field, raw, format)
	if link != nil {
		link.damaged = wrong != nil
		err = sums.Agree(link, uint64(link.Offset))
	} else {
		err = sums.Agree(nil, 0)
	}
	if err = errors.Join(wrong, err); err != nil {
		return err
	}
	if err := sums.Words(&far); err != nil {
		return err
	}
	if rounding, _ := format.tolerance(); far > 0 {
		f.warn("%d links are more than %.0e from SU(3), and have been projected back to it", far, rounding)
	}
	if err := field.Exchange(); err != nil {
		return err
	}
	return f.compare(field, sums)
}

// verify compares the checksum with that of the header, and returns the format with its byte
// order. Without a byte order in the header it tries both.
func (f *File) verify(raw []byte, sums *global.Sums) (Format, error) {
	format := f.Header.Format
	orders := []Order{format.Order}
	if format.Order == Unsaid {
		orders = []Order{Big, Little}
	}
	var wrong *ChecksumError
	for _, format.Order = range orders {
		sum := uint64(format.Order.checksum(raw))
		if err := sums.Words(&sum); err != nil {
			return format, err
		}
		if uint32(sum) == f.Header.Checksum {
			return format, nil
		}
		if wrong == nil {
			wrong = &ChecksumError{Have: uint32(sum), Want: f.Header.Checksum}
		}
	}
	format.Order = orders[0]
	return format, wrong
}

// decode reads the links of raw. It returns the error of the first link that is not in SU(3), and
// the number of links that are further from it than rounding explains.
func (f *File) decode(field *gauge.Field, raw []byte, format Format) (first *LinkError, far uint64) {
	l, size := field.Lattice, format.linkBytes(f.Header.Rows)
	rounding, _ := format.tolerance()
	allowed, _ := f.allowed()
	field.Each(func(c lattice.Dims, axis int, u *su3.Matrix) {
		format.decode(u, raw, f.Header.Rows)
		raw = raw[size:]
		d := u.Deviation()
		if !(d <= allowed) && first == nil {
			first = &LinkError{
				Site: l.GlobalCoords(c), Axis: axis, Deviation: d, Tolerance: allowed,
				Offset: f.offset + int64(l.GlobalIndex(c)*lattice.Axes+axis)*int64(size),
			}
		}
		if d > rounding {
			far++
		}
		if format.Bits == 32 || d > rounding {
			u.Reunitarise()
		}
	})
	return first, far
}

// compare compares the averages with those of the header.
func (f *File) compare(field *gauge.Field, sums *global.Sums) error {
	plaquette, trace, err := sums.Averages(field)
	if err != nil {
		return err
	}
	_, rounding := f.Header.Format.tolerance()
	_, allowed := f.allowed()
	for _, a := range []AverageError{
		{"LINK_TRACE", trace, f.Header.LinkTrace, f.Header.LinkTraceUnit},
		{"PLAQUETTE", plaquette, f.Header.Plaquette, f.Header.PlaquetteUnit},
	} {
		d, unit := math.Abs(a.Have-a.Want), a.Tolerance
		if a.Tolerance = unit + allowed; !(d <= a.Tolerance) {
			return &a
		}
		if d > unit+rounding {
			f.warn("%s of the links is %.12g, the header says %.12g", a.Key, a.Have, a.Want)
		}
	}
	return nil
}
