package nersc

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/examples/wilson/lattice"
)

// A header in the manner of the archive's own files.
const archived = `BEGIN_HEADER
HDR_VERSION = 1.0
DATATYPE = 4D_SU3_GAUGE
STORAGE_FORMAT = 1.0
DIMENSION_1 = 4
DIMENSION_2 = 6
DIMENSION_3 = 8
DIMENSION_4 = 10
LINK_TRACE = -0.002871
PLAQUETTE  = 5.9371e-01
BOUNDARY_1 = PERIODIC
BOUNDARY_2 = PERIODIC
BOUNDARY_3 = PERIODIC
BOUNDARY_4 = ANTIPERIODIC
CHECKSUM = 1d7a20ef
ENSEMBLE_ID = Q60
ENSEMBLE_LABEL = quenched, beta = 6.0
SEQUENCE_NUMBER = 40
CREATOR = archivist
CREATOR_HARDWARE = something
CREATION_DATE = Thu Nov 22 2001
ARCHIVE_DATE = Thu Nov 22 2001
SCIDAC_CHECKSUM = of no meaning here
FLOATING_POINT = IEEE32
END_HEADER
`

func TestParse(t *testing.T) {
	h, n, warnings, err := Parse([]byte(archived + "\x00\x01"))
	require.NoError(t, err)
	require.Empty(t, warnings)
	require.Equal(t, len(archived), n)
	require.InDelta(t, 1e-6, h.LinkTraceUnit, 1e-15)
	require.InDelta(t, 1e-5, h.PlaquetteUnit, 1e-15)
	h.LinkTraceUnit, h.PlaquetteUnit = 0, 0
	want := Header{
		Dims: lattice.Dims{4, 6, 8, 10}, Rows: 2, Format: Format{32, Unsaid},
		Checksum: 0x1d7a20ef, LinkTrace: -0.002871, Plaquette: 0.59371,
		Boundary:   [4]string{"PERIODIC", "PERIODIC", "PERIODIC", "ANTIPERIODIC"},
		EnsembleID: "Q60", EnsembleLabel: "quenched, beta = 6.0", SequenceNumber: "40",
		Creator: "archivist", CreatorHardware: "something", CreationDate: "Thu Nov 22 2001", ArchiveDate: "Thu Nov 22 2001",
		Others: "SCIDAC_CHECKSUM = of no meaning here\n",
	}
	require.Equal(t, want, h)

	b, err := want.Append([]byte("before"))
	require.NoError(t, err)
	back, n, _, err := Parse(b[len("before"):])
	require.NoError(t, err)
	require.Equal(t, len(b)-len("before"), n)
	back.LinkTraceUnit, back.PlaquetteUnit = 0, 0
	require.Equal(t, want, back)
}

// changed is the header with other text in place of some of it.
func changed(t *testing.T, old, new string) string {
	require.Contains(t, archived, old)
	return strings.Replace(archived, old, new, 1)
}

// What reading does not need may be anything: it is kept, and what is odd is a warning.
// What Append writes of it is read as the same.
func TestParseKeeps(t *testing.T) {
	line := func(old, new string) string { return changed(t, old, new) }
	for _, c := range []struct {
		name, header string
		warnings     []string
		differs      func(*Header) // from that of archived
	}{
		{"DOS lines", strings.ReplaceAll(archived, "\n", "\r\n"), nil, nil},
		{"tabs", strings.ReplaceAll(archived, " = ", "\t=\t"), nil,
			func(h *Header) {
				h.EnsembleLabel, h.Others = "quenched, beta\t=\t6.0", "SCIDAC_CHECKSUM\t=\tof no meaning here\n"
			}},
		{"indented", strings.ReplaceAll(archived, "\n", " \n "), nil, nil},
		{"blank lines", "\n" + strings.ReplaceAll(archived, "\n", "\n \n"), nil, nil},
		{"tab in a text", line("archivist", "some\tbody"), nil, func(h *Header) { h.Creator = "some\tbody" }},
		{"no ASCII", line("archivist", "J\xf6rg"), []string{`line 19: byte 0xf6 of "CREATOR = J\xf6rg" is not printable`}, func(h *Header) { h.Creator = "J\xf6rg" }},
		{"control bytes, twice", strings.NewReplacer("archivist", "\x1b[2J", "something", "\x00").Replace(archived),
			[]string{`line 19: byte 0x1b of "CREATOR = \x1b[2J" is not`}, func(h *Header) { h.Creator, h.CreatorHardware = "\x1b[2J", "\x00" }},
		{"remarks", line("BOUNDARY_1", "# said = by hand\n! a remark\nanother\nBOUNDARY_1"), []string{`line 12: "! a remark" is not KEY = value`},
			func(h *Header) { h.Others = "# said = by hand\n! a remark\nanother\n" + h.Others }},
		{"empty key", line("CREATOR = archivist", "= archivist"), []string{`line 19: "= archivist" is not KEY = value`},
			func(h *Header) { h.Creator, h.Others = "", "= archivist\n"+h.Others }},
		{"version", line("HDR_VERSION = 1.0", "HDR_VERSION = 2.0"), []string{`line 2: HDR_VERSION: "2.0" is not 1.0`}, nil},
		{"no storage format", line("STORAGE_FORMAT = 1.0", "STORAGE_FORMAT = "), []string{`line 4: STORAGE_FORMAT: "" is not 1.0`}, nil},
		{"neither version nor format", strings.NewReplacer("HDR_VERSION = 1.0\n", "", "STORAGE_FORMAT = 1.0\n", "").Replace(archived), nil, nil},
		{"boundary", line("ANTIPERIODIC", "OPEN"), []string{`header: BOUNDARY_4: "OPEN" is neither`}, func(h *Header) { h.Boundary[3] = "OPEN" }},
		{"sequence of text", line("= 40", "= forty"), []string{`SEQUENCE_NUMBER: "forty" is not a number`}, func(h *Header) { h.SequenceNumber = "forty" }},
		{"sequence of 14 digits", line("= 40", "= 20011122123456"), []string{`SEQUENCE_NUMBER: "20011122123456" is not`}, func(h *Header) { h.SequenceNumber = "20011122123456" }},
		{"negative sequence", line("= 40", "= -1"), []string{`SEQUENCE_NUMBER: "-1"`}, func(h *Header) { h.SequenceNumber = "-1" }},
		{"long text", line("= 40", "= "+strings.Repeat("4", 1000)), []string{strings.Repeat("4", 60) + `" is not`}, func(h *Header) { h.SequenceNumber = strings.Repeat("4", 1000) }},
		{"no text", strings.NewReplacer("Q60", "", "archivist", "").Replace(archived), nil, func(h *Header) { h.EnsembleID, h.Creator = "", "" }},
		{"text twice", line("ENSEMBLE_ID = Q60", "CREATOR =\nENSEMBLE_ID = Q60\nCREATOR = first"), []string{"line 21: CREATOR is in line 18 already"},
			func(h *Header) { h.Creator, h.Others = "first", "CREATOR = archivist\n"+h.Others }},
		{"key twice", line("SCIDAC", "MILC_INFO = BEGIN\nnx = 4\nMILC_INFO = END\nSCIDAC"), nil,
			func(h *Header) { h.Others = "MILC_INFO = BEGIN\nnx = 4\nMILC_INFO = END\n" + h.Others }},
		{"the same twice", line("CREATOR = ", "DIMENSION_1 = 04\nCREATOR = "), []string{"line 19: DIMENSION_1 is in line 5 already, with the same value"}, nil},
		{"average twice", line("CREATOR = ", "PLAQUETTE = 0.593710\nPLAQUETTE = 0.59371\nCREATOR = "), []string{"line 19: PLAQUETTE is in line 10 already, with the same value"},
			func(h *Header) { h.PlaquetteUnit = 1e-6 }},
		{"texts and values many times", line("CREATOR = archivist\n", strings.Repeat("CREATOR = archivist\nDIMENSION_1 = 4\nHDR_VERSION = 2\n", 3)),
			[]string{"line 20: DIMENSION_1 is in line 5", `line 21: HDR_VERSION: "2" is not`, "line 22: CREATOR is in line 19"},
			func(h *Header) { h.Others = "CREATOR = archivist\nCREATOR = archivist\n" + h.Others }},
		{"checksum 0x", line("1d7a20ef", "0x1d7a20ef"), nil, nil},
		{"checksum 0X", line("1d7a20ef", " 0X1D7A20EF"), nil, nil},
		{"other case", strings.NewReplacer("4D_SU3_GAUGE", "4d_su3_gauge", "IEEE32", "ieee32").Replace(archived), nil, nil},
		{"no format of numbers", line("FLOATING_POINT = IEEE32\n", ""), []string{"header: FLOATING_POINT is missing: IEEE32BIG is meant"}, func(h *Header) { h.Format.Order = Big }},
		{"empty format of numbers", line("IEEE32", ""), []string{"FLOATING_POINT is missing"}, func(h *Header) { h.Format.Order = Big }},
		{"no averages", strings.NewReplacer("LINK_TRACE = -0.002871\n", "", "PLAQUETTE  = 5.9371e-01\n", "").Replace(archived),
			[]string{"LINK_TRACE is missing: it is not verified", "PLAQUETTE is missing: it is not verified"},
			func(h *Header) {
				h.LinkTrace, h.LinkTraceUnit, h.Plaquette, h.PlaquetteUnit = 0, math.Inf(1), 0, math.Inf(1)
			}},
		{"few digits", line("5.9371e-01", "0.6"), nil, func(h *Header) { h.Plaquette, h.PlaquetteUnit = 0.6, 1e-2 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			want, _, _, err := Parse([]byte(archived))
			require.NoError(t, err)
			if c.differs != nil {
				c.differs(&want)
			}
			h, n, warnings, err := Parse([]byte(c.header))
			require.NoError(t, err)
			require.Equal(t, strings.TrimRight(c.header, " \n"), strings.TrimRight(c.header[:n], " \n"))
			require.Equal(t, want, h)
			require.Len(t, warnings, len(c.warnings), "%v", warnings)
			for i, w := range c.warnings {
				require.Contains(t, warnings[i], w)
			}
			again, err := h.Append(nil)
			require.NoError(t, err)
			back, _, _, err := Parse(again)
			require.NoError(t, err)
			back.LinkTraceUnit, back.PlaquetteUnit = want.LinkTraceUnit, want.PlaquetteUnit
			require.Equal(t, want, back)
		})
	}
}

// What is refused, and what is said of it: that by which links are read and verified.
func TestParseRefuses(t *testing.T) {
	line := func(old, new string) string { return changed(t, old, new) }
	for _, c := range []struct{ name, header, says string }{
		{"nothing", "", "line 1: is not BEGIN_HEADER"},
		{"another file", "\x89PNG\r\n", "line 1: is not BEGIN_HEADER"},
		{"text", "hello\nworld\n", "line 1: is not BEGIN_HEADER"},
		{"no end", line("END_HEADER\n", ""), "line 25: the file ends"},
		{"cut", archived[:100], "the file ends"},
		{"too long", line("Q60", strings.Repeat("Q", MaxHeader)), "line 16: the file ends, or 16384 bytes do"},
		{"two values", line("CREATOR = ", "DATATYPE = 4D_SU3_GAUGE_3x3\nCREATOR = "), `line 19: DATATYPE: "4D_SU3_GAUGE_3x3" is not what line 3 says; remove the wrong one`},
		{"two averages", line("CREATOR = ", "PLAQUETTE = 0.5937\nCREATOR = "), `line 19: PLAQUETTE: "0.5937" is not what line 10 says`},
		{"two values of no type", line("CREATOR = ", "DATATYPE = archivist\nCREATOR = "), `line 19: DATATYPE: "archivist" is neither`},
		{"datatype", line("4D_SU3_GAUGE", "4D_SU2_GAUGE"), "is neither 4D_SU3_GAUGE nor 4D_SU3_GAUGE_3x3"},
		{"extent", line("DIMENSION_2 = 6", "DIMENSION_2 = -6"), `line 6: DIMENSION_2: "-6" is not an extent`},
		{"no sites", line("DIMENSION_2 = 6", "DIMENSION_2 = 0"), "is not an extent"},
		{"too many sites", line("DIMENSION_2 = 6", "DIMENSION_2 = 2000000000"), "the product at most"},
		{"checksum", line("1d7a20ef", "1d7a20ef0"), "is not a hexadecimal number of 32 bits"},
		{"not a number", line("5.9371e-01", "NaN"), "line 10: PLAQUETTE"},
		{"hexadecimal", line("5.9371e-01", "0x1p-1"), "line 10: PLAQUETTE"},
		{"plaquette of no SU(3)", line("5.9371e-01", "2.5"), "line 10: PLAQUETTE"},
		{"precision", line("IEEE32", "IEEE80"), `line 24: FLOATING_POINT: "IEEE80" is not one of IEEE32, IEEE32BIG`},
		{"empty checksum", line("1d7a20ef", ""), "CHECKSUM is missing, or has no value"},
		{"signed checksum", line("1d7a20ef", "-1"), `CHECKSUM: "-1" is not`},
		{"no checksum", line("CHECKSUM = 1d7a20ef\n", ""), "CHECKSUM is missing"},
		{"no extent", line("DIMENSION_4 = 10\n", ""), "DIMENSION_4 is missing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, _, err := Parse([]byte(c.header))
			var e *HeaderError
			require.ErrorAs(t, err, &e)
			require.ErrorContains(t, err, c.says)
		})
	}
}

func TestAppendRefuses(t *testing.T) {
	good, _, _, err := Parse([]byte(archived))
	require.NoError(t, err)
	for name, spoil := range map[string]func(*Header){
		"line in a text":  func(h *Header) { h.Creator = "a\nCHECKSUM = 0" },
		"spaces around":   func(h *Header) { h.Creator = " a " },
		"no rows":         func(h *Header) { h.Rows = 0 },
		"no such format":  func(h *Header) { h.Format.Bits = 16 },
		"no extents":      func(h *Header) { h.Dims[3] = 0 },
		"line in others":  func(h *Header) { h.Others = "CHECKSUM = 0\n" },
		"end in others":   func(h *Header) { h.Others = "END_HEADER\n" },
		"no line":         func(h *Header) { h.Others = "A = b" },
		"longer than max": func(h *Header) { h.EnsembleLabel = strings.Repeat("x", MaxHeader) },
	} {
		t.Run(name, func(t *testing.T) {
			h := good
			spoil(&h)
			b, err := h.Append([]byte("before"))
			var e *HeaderError
			require.ErrorAs(t, err, &e)
			require.Equal(t, "before", string(b))
		})
	}
}

// Whatever Parse takes, Append writes so that Parse reads the same; and nothing makes
// it panic.
func FuzzParse(f *testing.F) {
	f.Add([]byte(archived))
	f.Add([]byte(archived[:300]))
	f.Add([]byte("BEGIN_HEADER\nEND_HEADER\n"))
	f.Add([]byte(strings.Replace(archived, "IEEE32", "IEEE64LITTLE", 1)))
	for _, p := range programs {
		f.Add([]byte(p.header))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, n, _, err := Parse(b)
		if err != nil {
			var e *HeaderError
			require.ErrorAs(t, err, &e)
			return
		}
		require.LessOrEqual(t, n, min(len(b), MaxHeader))
		again, err := h.Append(nil)
		if err != nil { // longer with what was left out
			require.Greater(t, n, MaxHeader/2)
			return
		}
		back, m, _, err := Parse(again)
		require.NoError(t, err)
		require.Len(t, again, m)
		require.InDelta(t, h.LinkTrace, back.LinkTrace, 1e-16)
		require.InDelta(t, h.Plaquette, back.Plaquette, 1e-16)
		back.LinkTrace, back.LinkTraceUnit, back.Plaquette, back.PlaquetteUnit = h.LinkTrace, h.LinkTraceUnit, h.Plaquette, h.PlaquetteUnit
		require.Equal(t, h, back)
	})
}
