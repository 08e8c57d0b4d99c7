// Package nersc reads and writes gauge fields in the archive format of NERSC's Gauge
// Connection: a header of lines "KEY = value", then the links, those of a site
// together, x running fastest over sites, as IEEE 754 numbers.
//
// It also reads files of other programs. Only the header fields that reading needs must be valid;
// the others are kept as they are, with a warning if they are unusual. MILC writes no
// FLOATING_POINT, Grid and PyQUDA no value of STORAGE_FORMAT.
package nersc

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-hpc/sluice/examples/wilson/lattice"
)

// MaxHeader is the largest size of a header that is read or written, in bytes.
const MaxHeader = 16 << 10

const (
	begin = "BEGIN_HEADER"
	end   = "END_HEADER"

	version = "1.0" // of HDR_VERSION and STORAGE_FORMAT

	datatypeTwo   = "4D_SU3_GAUGE"     // two rows of each link; the third follows from them
	datatypeThree = "4D_SU3_GAUGE_3x3" // all of it
)

// Header is the header of a file.
type Header struct {
	Dims   lattice.Dims
	Rows   int    // of each link: 2 (4D_SU3_GAUGE) or 3 (4D_SU3_GAUGE_3x3)
	Format Format // of a number

	Checksum  uint32  // sum of the 32-bit words of the links, modulo 2^32
	LinkTrace float64 // average of Re tr U / 3 over the links
	Plaquette float64 // average of Re tr U / 3 over the plaquettes

	// The precision of the two: a unit of their last decimal, at most 1e-2; infinite if the header
	// lacks them. Parse sets these fields, Append ignores them.
	LinkTraceUnit, PlaquetteUnit float64

	// Texts that reading does not need: arbitrary, and empty if the header lacks them.
	Boundary        [lattice.Axes]string // mostly PERIODIC or ANTIPERIODIC
	EnsembleID      string
	EnsembleLabel   string
	SequenceNumber  string // of the field in its ensemble, see Sequence
	Creator         string
	CreatorHardware string
	CreationDate    string
	ArchiveDate     string

	// Others has the lines without a field here, in order, each with a newline: other keys, second
	// lines of the texts above, and remarks.
	Others string
}

// Sequence returns the number of the field in its ensemble; ok is false if the header has
// none, or one of more than 31 bits.
func (h *Header) Sequence() (n int, ok bool) {
	u, err := strconv.ParseUint(h.SequenceNumber, 10, 31)
	return int(u), err == nil
}

// Verifies returns the names of the header fields that verify the links.
func (h *Header) Verifies() []string {
	names := []string{"checksum"}
	if !math.IsInf(h.LinkTraceUnit, 1) {
		names = append(names, "link trace")
	}
	if !math.IsInf(h.PlaquetteUnit, 1) {
		names = append(names, "plaquette")
	}
	return names
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
	texts := map[string]*string{
		"ENSEMBLE_ID": &h.EnsembleID, "ENSEMBLE_LABEL": &h.EnsembleLabel, "SEQUENCE_NUMBER": &h.SequenceNumber,
		"CREATOR": &h.Creator, "CREATOR_HARDWARE": &h.CreatorHardware,
		"CREATION_DATE": &h.CreationDate, "ARCHIVE_DATE": &h.ArchiveDate,
	}
	for i := range h.Boundary {
		texts["BOUNDARY_"+strconv.Itoa(i+1)] = &h.Boundary[i]
	}
	return texts
}

// needed are the keys that reading and verifying a field needs.
var needed = []string{"DATATYPE", "DIMENSION_1", "DIMENSION_2", "DIMENSION_3", "DIMENSION_4", "CHECKSUM", "LINK_TRACE", "PLAQUETTE", "FLOATING_POINT"}

// missing says what it means if a header lacks one of these keys. A header that lacks any other
// needed key is an error.
var missing = map[string]string{
	"LINK_TRACE": "it is not verified", "PLAQUETTE": "it is not verified",
	"FLOATING_POINT": "IEEE32BIG is meant, as in files of MILC",
}

// Parse parses the header at the beginning of b, and returns its size. Only an invalid field that
// reading needs is an error; any other unusual line is kept, with a warning. Errors are of type
// [*HeaderError]; warnings are texts of such errors.
func Parse(b []byte) (h Header, n int, warnings []string, err error) {
	h.Format = Format{32, Big}
	h.LinkTraceUnit, h.PlaquetteUnit = math.Inf(1), math.Inf(1)
	seen := map[string]int{}  // the first line of each key; under "": of lines without key
	told := map[string]bool{} // keys that have had a warning
	texts := h.texts()
	begun, odd := false, false
	line := 1
	warn := func(format string, args ...any) {
		warnings = append(warnings, (&HeaderError{line, fmt.Sprintf(format, args...)}).Error())
	}
	fail := func(format string, args ...any) (Header, int, []string, error) {
		return Header{}, 0, nil, &HeaderError{line, fmt.Sprintf(format, args...)}
	}
	for ; ; line++ {
		length := bytes.IndexByte(b[n:min(len(b), MaxHeader)], '\n')
		switch {
		case length < 0 && !begun:
			return fail("is not %s", begin)
		case length < 0:
			return fail("the file ends, or %d bytes do, before %s", MaxHeader, end)
		}
		s := strings.TrimSpace(string(b[n : n+length]))
		n += length + 1
		switch {
		case s == "":
			continue
		case !begun && s != begin:
			return fail("is not %s", begin)
		case !begun:
			begun = true
			continue
		}
		if s == end {
			break
		}
		if i := strings.IndexFunc(s, func(r rune) bool { return r != '\t' && (r < ' ' || r > '~') }); i >= 0 && !odd {
			odd = true
			warn("byte %#02x of %.60q is not printable ASCII; such texts are kept", s[i], s)
		}
		key, value, ok := strings.Cut(s, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		if !ok {
			key = ""
		}
		first, text := seen[key], texts[key]
		switch {
		case slices.Contains(needed, key):
			if value == "" {
				continue // as if it were missing
			}
			before := h
			if why := h.set(key, value); why != "" {
				return fail("%s: %.60q %s", key, value, why)
			}
			// The same average may have fewer digits.
			h.LinkTraceUnit = min(h.LinkTraceUnit, before.LinkTraceUnit)
			h.PlaquetteUnit = min(h.PlaquetteUnit, before.PlaquetteUnit)
			before.LinkTraceUnit, before.PlaquetteUnit = h.LinkTraceUnit, h.PlaquetteUnit
			if first != 0 && h != before {
				return fail("%s: %.60q is not what line %d says; remove the wrong one", key, value, first)
			} else if first != 0 && !told[key] {
				told[key] = true
				warn("%s is in line %d already, with the same value", key, first)
			}
		case key == "HDR_VERSION" || key == "STORAGE_FORMAT":
			if value != version && !told[key] {
				told[key] = true
				warn("%s: %.60q is not %s, as which the file is read", key, value, version)
			}
		case text != nil && *text == "":
			*text, seen[key] = value, line
		default:
			h.Others += s + "\n"
			if text != nil && !told[key] {
				told[key] = true
				warn("%s is in line %d already; all are kept", key, first)
			} else if key == "" && first == 0 {
				warn("%.60q is not KEY = value; such lines are kept", s)
			}
		}
		if first == 0 {
			seen[key] = line
		}
	}
	line = 0
	for _, key := range needed {
		if means := missing[key]; seen[key] == 0 && means != "" {
			warn("%s is missing: %s", key, means)
		} else if seen[key] == 0 {
			return fail("%s is missing, or has no value; the file cannot be read without", key)
		}
	}
	if err := h.Dims.Check(); err != nil {
		return fail("%s", err)
	}
	for i, s := range h.Boundary {
		if s != "" && s != "PERIODIC" && s != "ANTIPERIODIC" {
			warn("BOUNDARY_%d: %.60q is neither PERIODIC nor ANTIPERIODIC; it is kept", i+1, s)
		}
	}
	if _, ok := h.Sequence(); !ok && h.SequenceNumber != "" {
		warn("SEQUENCE_NUMBER: %.60q is not a number of 31 bits; it is kept", h.SequenceNumber)
	}
	return h, n, warnings, nil
}

// set sets the value of a needed key, or returns what is wrong with it.
func (h *Header) set(key, value string) (why string) {
	switch key {
	case "DATATYPE":
		switch {
		case strings.EqualFold(value, datatypeTwo):
			h.Rows = 2
		case strings.EqualFold(value, datatypeThree):
			h.Rows = 3
		default:
			return fmt.Sprintf("is neither %s nor %s, as which links are read", datatypeTwo, datatypeThree)
		}
	case "DIMENSION_1", "DIMENSION_2", "DIMENSION_3", "DIMENSION_4":
		d, err := strconv.ParseUint(value, 10, 31)
		if err != nil || d == 0 {
			return "is not an extent, a number from 1 on"
		}
		h.Dims[key[len(key)-1]-'1'] = int(d)
	case "CHECKSUM":
		sum, err := strconv.ParseUint(strings.TrimPrefix(strings.ToLower(value), "0x"), 16, 32)
		if err != nil {
			return "is not a hexadecimal number of 32 bits"
		}
		h.Checksum = uint32(sum)
	case "LINK_TRACE":
		return setAverage(&h.LinkTrace, &h.LinkTraceUnit, value)
	case "PLAQUETTE":
		return setAverage(&h.Plaquette, &h.PlaquetteUnit, value)
	case "FLOATING_POINT":
		f, ok := ParseFormat(value)
		if !ok {
			return "is not one of " + strings.Join(formatNames(), ", ")
		}
		h.Format = f
	}
	return ""
}

// maxUnit: "1" may stand for 1.00000, as many programs omit trailing zeros.
const maxUnit = 1e-2

// setAverage sets an average of traces of SU(3), and the unit of its last decimal.
func setAverage(to, unit *float64, value string) string {
	x, err := strconv.ParseFloat(value, 64)
	if err != nil || !(x >= -1.5 && x <= 1.5) || strings.ContainsAny(value, "xX_") {
		return "is not an average of Re tr U / 3"
	}
	mantissa, exponent, _ := strings.Cut(strings.ToLower(value), "e")
	scale, _ := strconv.Atoi(exponent)
	if _, decimals, ok := strings.Cut(mantissa, "."); ok {
		scale -= len(decimals)
	}
	u, err := strconv.ParseFloat("1e"+strconv.Itoa(scale), 64)
	if err != nil {
		return "is not an average of Re tr U / 3"
	}
	*to, *unit = x, min(u, maxUnit)
	return ""
}

// Append appends the header to b. The error is a [*HeaderError] if Parse could not return this
// header.
func (h *Header) Append(b []byte) ([]byte, error) {
	start := len(b)
	line := func(key, value string) {
		if value != "" {
			b = append(append(append(append(b, key...), " = "...), value...), '\n')
		}
	}
	average := func(x float64) string { return strconv.FormatFloat(x, 'f', 16, 64) }
	b = append(b, begin+"\n"...)
	line("HDR_VERSION", version)
	line("DATATYPE", map[int]string{2: datatypeTwo, 3: datatypeThree}[h.Rows])
	line("STORAGE_FORMAT", version)
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
	line("SEQUENCE_NUMBER", h.SequenceNumber)
	line("CREATOR", h.Creator)
	line("CREATOR_HARDWARE", h.CreatorHardware)
	line("CREATION_DATE", h.CreationDate)
	line("ARCHIVE_DATE", h.ArchiveDate)
	line("FLOATING_POINT", h.Format.String())
	b = append(append(b, h.Others...), end+"\n"...)
	back, n, _, err := Parse(b[start:])
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
