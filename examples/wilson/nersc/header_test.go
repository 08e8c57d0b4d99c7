package nersc

import (
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
CREATOR = somebody
CREATOR_HARDWARE = something
CREATION_DATE = Thu Nov 22 2001
ARCHIVE_DATE = Thu Nov 22 2001
SCIDAC_CHECKSUM = of no meaning here
FLOATING_POINT = IEEE32
END_HEADER
`

func TestParse(t *testing.T) {
	h, n, err := Parse([]byte(archived + "\x00\x01"))
	require.NoError(t, err)
	require.Equal(t, len(archived), n)
	require.InDelta(t, 1e-6, h.LinkTraceUnit, 1e-15)
	require.InDelta(t, 1e-5, h.PlaquetteUnit, 1e-15)
	h.LinkTraceUnit, h.PlaquetteUnit = 0, 0
	want := Header{
		Dims: lattice.Dims{4, 6, 8, 10}, Rows: 2, Format: Format{32, Unsaid},
		Checksum: 0x1d7a20ef, LinkTrace: -0.002871, Plaquette: 0.59371,
		Boundary:   [4]string{"PERIODIC", "PERIODIC", "PERIODIC", "ANTIPERIODIC"},
		EnsembleID: "Q60", EnsembleLabel: "quenched, beta = 6.0", SequenceNumber: 40,
		Creator: "somebody", CreatorHardware: "something", CreationDate: "Thu Nov 22 2001", ArchiveDate: "Thu Nov 22 2001",
	}
	require.Equal(t, want, h)

	b, err := want.Append([]byte("before"))
	require.NoError(t, err)
	back, n, err := Parse(b[len("before"):])
	require.NoError(t, err)
	require.Equal(t, len(b)-len("before"), n)
	back.LinkTraceUnit, back.PlaquetteUnit = 0, 0
	require.Equal(t, want, back)
}

// What is refused, and what is said of it.
func TestParseRefuses(t *testing.T) {
	line := func(old, new string) string {
		require.Contains(t, archived, old)
		return strings.Replace(archived, old, new, 1)
	}
	for _, c := range []struct{ name, header, says string }{
		{"nothing", "", "line 1: is not BEGIN_HEADER"},
		{"another file", "\x89PNG\r\n", "line 1: byte 0x89 in column 1"},
		{"text", "hello\nworld\n", "line 1: is not BEGIN_HEADER"},
		{"no end", line("END_HEADER\n", ""), "line 25: the file ends"},
		{"cut", archived[:100], "the file ends"},
		{"too long", line("Q60", strings.Repeat("Q", MaxHeader)), "line 16: the file ends, or 16384 bytes do"},
		{"DOS lines", strings.ReplaceAll(archived, "\n", "\r\n"), "line 1: byte 0x0d in column 13"},
		{"control byte", line("somebody", "some\tbody"), "line 19: byte 0x09 in column 15"},
		{"no key", line("CREATOR = somebody", "somebody"), `line 19: "somebody" is not KEY = value`},
		{"empty key", line("CREATOR = somebody", "= somebody"), "is not KEY = value"},
		{"twice", line("CREATOR = ", "DATATYPE = "), "line 19: DATATYPE is in line 3 already"},
		{"version", line("HDR_VERSION = 1.0", "HDR_VERSION = 2.0"), `line 2: HDR_VERSION: "2.0" is not 1.0`},
		{"datatype", line("4D_SU3_GAUGE", "4D_SU2_GAUGE"), "is neither 4D_SU3_GAUGE nor 4D_SU3_GAUGE_3x3"},
		{"extent", line("DIMENSION_2 = 6", "DIMENSION_2 = -6"), `line 6: DIMENSION_2: "-6" is not an extent`},
		{"no sites", line("DIMENSION_2 = 6", "DIMENSION_2 = 0"), "is not an extent"},
		{"too many sites", line("DIMENSION_2 = 6", "DIMENSION_2 = 2000000000"), "the product at most"},
		{"boundary", line("ANTIPERIODIC", "OPEN"), "line 14: BOUNDARY_4"},
		{"checksum", line("1d7a20ef", "1d7a20ef0"), "is not a hexadecimal number of 32 bits"},
		{"not a number", line("5.9371e-01", "NaN"), "line 10: PLAQUETTE"},
		{"hexadecimal", line("5.9371e-01", "0x1p-1"), "line 10: PLAQUETTE"},
		{"plaquette of no SU(3)", line("5.9371e-01", "2.5"), "line 10: PLAQUETTE"},
		{"sequence", line("= 40", "= forty"), "line 18: SEQUENCE_NUMBER"},
		{"precision", line("IEEE32", "IEEE80"), `line 24: FLOATING_POINT: "IEEE80" is not one of IEEE32, IEEE32BIG`},
		{"no checksum", line("CHECKSUM = 1d7a20ef\n", ""), "CHECKSUM is missing"},
		{"no extent", line("DIMENSION_4 = 10\n", ""), "DIMENSION_4 is missing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := Parse([]byte(c.header))
			var e *HeaderError
			require.ErrorAs(t, err, &e)
			require.ErrorContains(t, err, c.says)
		})
	}
}

func TestAppendRefuses(t *testing.T) {
	good, _, err := Parse([]byte(archived))
	require.NoError(t, err)
	for name, spoil := range map[string]func(*Header){
		"line in a text":  func(h *Header) { h.Creator = "a\nCHECKSUM = 0" },
		"spaces around":   func(h *Header) { h.Creator = " a " },
		"no rows":         func(h *Header) { h.Rows = 0 },
		"no such format":  func(h *Header) { h.Format.Bits = 16 },
		"no extents":      func(h *Header) { h.Dims[3] = 0 },
		"boundary":        func(h *Header) { h.Boundary[0] = "OPEN" },
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
	f.Fuzz(func(t *testing.T, b []byte) {
		h, n, err := Parse(b)
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
		back, m, err := Parse(again)
		require.NoError(t, err)
		require.Len(t, again, m)
		require.InDelta(t, h.LinkTrace, back.LinkTrace, 1e-16)
		require.InDelta(t, h.Plaquette, back.Plaquette, 1e-16)
		back.LinkTrace, back.LinkTraceUnit, back.Plaquette, back.PlaquetteUnit = h.LinkTrace, h.LinkTraceUnit, h.Plaquette, h.PlaquetteUnit
		require.Equal(t, h, back)
	})
}
