// Package nersc reads and writes gauge fields in the archive format of NERSC's Gauge
// Connection: a header of lines "KEY = value", then the links, those of a site
// together, x running fastest over sites, as IEEE 754 numbers.
package nersc

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"github.com/sluice-hpc/sluice/examples/wilson/lattice"
)

// MaxHeader is the largest number of bytes of a header that is read or written.
const MaxHeader = 16 << 10

const (
	begin = "BEGIN_HEADER"
	end   = "END_HEADER"

	datatypeTwo   = "4D_SU3_GAUGE"     // two rows of each link; the third follows from them
	datatypeThree = "4D_SU3_GAUGE_3x3" // all of it
)

// Header is what a file says of its field.
type Header struct {
	Dims   lattice.Dims
	Rows   int    // of each link: 2 (4D_SU3_GAUGE) or 3 (4D_SU3_GAUGE_3x3)
	Format Format // of a number

	Checksum  uint32  // sum of the 32-bit words of the links, modulo 2^32
	LinkTrace float64 // average of Re tr U / 3 over the links
	Plaquette float64 // average of Re tr U / 3 over the plaquettes

	// How far the two may be from what was meant: a unit of their last decimal, but
	// not more than 1e-4. Parse sets them, Append does not read them.
	LinkTraceUnit, PlaquetteUnit float64

	Boundary        [lattice.Axes]string // PERIODIC or ANTIPERIODIC; empty: not said
	EnsembleID      string
	EnsembleLabel   string
	SequenceNumber  int // of the field in its ensemble; -1: not said
	Creator         string
	CreatorHardware string
	CreationDate    string
	ArchiveDate     string
}

// HeaderError is the error of a header.
type HeaderError struct {
	Line int // from 1; 0: the header as a whole
	Why  string
}

func (e *HeaderError) Error() string {
	if e.Line == 0 {
		return "nersc: header: " + e.Why
	}
	return fmt.Sprintf("nersc: header, line %d: %s", e.Line, e.Why)
}

// texts are the keys whose values are any text.
func (h *Header) texts() map[string]*string {
	return map[string]*string{
		"ENSEMBLE_ID": &h.EnsembleID, "ENSEMBLE_LABEL": &h.EnsembleLabel,
		"CREATOR": &h.Creator, "CREATOR_HARDWARE": &h.CreatorHardware,
		"CREATION_DATE": &h.CreationDate, "ARCHIVE_DATE": &h.ArchiveDate,
	}
}

// needed are the keys without which a field cannot be read or not be verified.
var needed = []string{"DATATYPE", "DIMENSION_1", "DIMENSION_2", "DIMENSION_3", "DIMENSION_4", "CHECKSUM", "LINK_TRACE", "PLAQUETTE", "FLOATING_POINT"}

// Parse reads the header that b begins with, and returns the number of its bytes. Keys
// that it does not know are skipped. Errors are of type [*HeaderError].
func Parse(b []byte) (h Header, n int, err error) {
	h.SequenceNumber = -1
	seen := map[string]int{}
	texts := h.texts()
	for line := 1; ; line++ {
		fail := func(format string, args ...any) (Header, int, error) {
			return Header{}, 0, &HeaderError{line, fmt.Sprintf(format, args...)}
		}
		length := bytes.IndexByte(b[n:min(len(b), MaxHeader)], '\n')
		if length < 0 {
			if line == 1 {
				return fail("is not %s", begin)
			}
			return fail("the file ends, or %d bytes do, before %s", MaxHeader, end)
		}
		s := string(b[n : n+length])
		n += length + 1
		for i := range len(s) {
			if s[i] < ' ' || s[i] > '~' {
				return fail("byte %#02x in column %d is not printable ASCII", s[i], i+1)
			}
		}
		if line == 1 {
			if s != begin {
				return fail("is not %s", begin)
			}
			continue
		}
		if s == end {
			break
		}
		key, value, ok := strings.Cut(s, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		switch {
		case !ok || key == "":
			return fail("%q is not KEY = value", s)
		case seen[key] != 0:
			return fail("%s is in line %d already", key, seen[key])
		}
		seen[key] = line
		if text := texts[key]; text != nil {
			*text = value
		} else if why := h.set(key, value); why != "" {
			return fail("%s: %s", key, why)
		}
	}
	for _, key := range needed {
		if seen[key] == 0 {
			return Header{}, 0, &HeaderError{0, key + " is missing"}
		}
	}
	if err := h.Dims.Check(); err != nil {
		return Header{}, 0, &HeaderError{0, err.Error()}
	}
	return h, n, nil
}

// set takes the value of a key; what is wrong with it otherwise.
func (h *Header) set(key, value string) (why string) {
	switch key {
	case "HDR_VERSION", "STORAGE_FORMAT":
		if value != "1.0" {
			return fmt.Sprintf("%q is not 1.0", value)
		}
	case "DATATYPE":
		switch value {
		case datatypeTwo:
			h.Rows = 2
		case datatypeThree:
			h.Rows = 3
		default:
			return fmt.Sprintf("%q is neither %s nor %s", value, datatypeTwo, datatypeThree)
		}
	case "DIMENSION_1", "DIMENSION_2", "DIMENSION_3", "DIMENSION_4":
		d, err := strconv.ParseUint(value, 10, 31)
		if err != nil || d == 0 {
			return fmt.Sprintf("%q is not an extent", value)
		}
		h.Dims[key[len(key)-1]-'1'] = int(d)
	case "BOUNDARY_1", "BOUNDARY_2", "BOUNDARY_3", "BOUNDARY_4":
		if value != "PERIODIC" && value != "ANTIPERIODIC" {
			return fmt.Sprintf("%q is neither PERIODIC nor ANTIPERIODIC", value)
		}
		h.Boundary[key[len(key)-1]-'1'] = value
	case "CHECKSUM":
		sum, err := strconv.ParseUint(value, 16, 32)
		if err != nil {
			return fmt.Sprintf("%q is not a hexadecimal number of 32 bits", value)
		}
		h.Checksum = uint32(sum)
	case "LINK_TRACE":
		return setAverage(&h.LinkTrace, &h.LinkTraceUnit, value)
	case "PLAQUETTE":
		return setAverage(&h.Plaquette, &h.PlaquetteUnit, value)
	case "SEQUENCE_NUMBER":
		n, err := strconv.ParseUint(value, 10, 31)
		if err != nil {
			return fmt.Sprintf("%q is not a number", value)
		}
		h.SequenceNumber = int(n)
	case "FLOATING_POINT":
		f, ok := formats[value]
		if !ok {
			return fmt.Sprintf("%q is not one of %s", value, strings.Join(formatNames(), ", "))
		}
		h.Format = f
	}
	return ""
}

// maxUnit: "1" may stand for 1.00000, for many programs leave zeros at the end out.
const maxUnit = 1e-4

// setAverage takes an average of traces of SU(3), and what a unit of its last decimal
// is.
func setAverage(to, unit *float64, value string) string {
	x, err := strconv.ParseFloat(value, 64)
	if err != nil || !(x >= -1.5 && x <= 1.5) || strings.ContainsAny(value, "xX_") {
		return fmt.Sprintf("%q is not an average of Re tr U / 3", value)
	}
	mantissa, exponent, _ := strings.Cut(strings.ToLower(value), "e")
	scale, _ := strconv.Atoi(exponent)
	if _, decimals, ok := strings.Cut(mantissa, "."); ok {
		scale -= len(decimals)
	}
	u, err := strconv.ParseFloat("1e"+strconv.Itoa(scale), 64)
	if err != nil {
		return fmt.Sprintf("%q is not an average of Re tr U / 3", value)
	}
	*to, *unit = x, min(u, maxUnit)
	return ""
}

// Append appends the header to b. Errors are of type [*HeaderError]: the header is not
// one that Parse would return.
func (h *Header) Append(b []byte) ([]byte, error) {
	start := len(b)
	line := func(key, value string) {
		if value != "" {
			b = append(append(append(append(b, key...), " = "...), value...), '\n')
		}
	}
	average := func(x float64) string { return strconv.FormatFloat(x, 'f', 16, 64) }
	b = append(b, begin+"\n"...)
	line("HDR_VERSION", "1.0")
	line("DATATYPE", map[int]string{2: datatypeTwo, 3: datatypeThree}[h.Rows])
	line("STORAGE_FORMAT", "1.0")
	for i, n := range h.Dims {
		line("DIMENSION_"+strconv.Itoa(i+1), strconv.Itoa(n))
	}
	line("LINK_TRACE", average(h.LinkTrace))
	line("PLAQUETTE", average(h.Plaquette))
	for i, s := range h.Boundary {
		line("BOUNDARY_"+strconv.Itoa(i+1), s)
	}
	line("CHECKSUM", fmt.Sprintf("%08x", h.Checksum))
	line("ENSEMBLE_ID", h.EnsembleID)
	line("ENSEMBLE_LABEL", h.EnsembleLabel)
	if h.SequenceNumber >= 0 {
		line("SEQUENCE_NUMBER", strconv.Itoa(h.SequenceNumber))
	}
	line("CREATOR", h.Creator)
	line("CREATOR_HARDWARE", h.CreatorHardware)
	line("CREATION_DATE", h.CreationDate)
	line("ARCHIVE_DATE", h.ArchiveDate)
	line("FLOATING_POINT", h.Format.String())
	b = append(b, end+"\n"...)
	back, n, err := Parse(b[start:])
	if err != nil {
		return b[:start], err
	}
	back.LinkTrace, back.Plaquette = h.LinkTrace, h.Plaquette // to sixteen decimals
	back.LinkTraceUnit, back.PlaquetteUnit = h.LinkTraceUnit, h.PlaquetteUnit
	if n != len(b)-start || back != *h {
		return b[:start], &HeaderError{0, "a value cannot be written as it is"}
	}
	return b, nil
}
