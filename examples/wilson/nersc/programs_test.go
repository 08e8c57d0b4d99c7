package nersc

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/examples/wilson/gauge"
	"github.com/sluice-hpc/sluice/examples/wilson/global"
	"github.com/sluice-hpc/sluice/examples/wilson/internal/single"
	"github.com/sluice-hpc/sluice/examples/wilson/lattice"
	"github.com/sluice-hpc/sluice/examples/wilson/su3"
	"github.com/sluice-hpc/sluice/qmp"
)

// programs are headers as other programs write them. A test fills in the values of
// CHECKSUM, LINK_TRACE and PLAQUETTE, in the same form.
var programs = []struct {
	name, header string
	format       Format // of the links
	rows         int
	warnings     []string
}{
	{"MILC", `BEGIN_HEADER
DATATYPE = 4D_SU3_GAUGE
DIMENSION_1 = 2
DIMENSION_2 = 4
DIMENSION_3 = 3
DIMENSION_4 = 4
CHECKSUM = d7a20ef
LINK_TRACE = 0.0028710000
PLAQUETTE = 0.5937100000
ENSEMBLE_ID = l243.b600
SEQUENCE_NUMBER = 40
MILC_INFO = -------BEGIN-------
time_stamp = "Thu Nov 22 12:34:56 2001"
checksums = "5f3a8d1c 9e2b4471"
nx = 2
ny = 4
nz = 3
nt = 4
action.description = "Pure gauge"
gauge.description = "Symanzik 1x1 + 1x2 + 1x1x1 action"
gauge.beta11 = 6.000000
quark.mass =[2] 0.010000 0.050000
MILC_INFO = --------END--------
END_HEADER
`, Format{32, Big}, 2, []string{"FLOATING_POINT is missing"}},
	{"MILC, older", `BEGIN_HEADER
DATATYPE = 4D_SU3_GAUGE
DIMENSION_1 = 2
DIMENSION_2 = 4
DIMENSION_3 = 3
DIMENSION_4 = 4
CHECKSUM = d7a20ef
LINK_TRACE = 0.0028710000
PLAQUETTE = 0.5937100000
ENSEMBLE_ID = l243.b600
SEQUENCE_NUMBER = 40
MILC_INFO = -------BEGIN-------
time_stamp "Thu Nov 22 12:34:56 2001"
checksums "5f3a8d1c 9e2b4471"
gauge.beta11 6.000000
MILC_INFO = --------END--------
END_HEADER
`, Format{32, Big}, 2, []string{"time_stamp", "FLOATING_POINT is missing"}},
	{"CPS", `BEGIN_HEADER
HDR_VERSION = 1.0
DATATYPE = 4D_SU3_GAUGE_3X3
STORAGE_FORMAT = 1.0
DIMENSION_1 = 2
DIMENSION_2 = 4
DIMENSION_3 = 3
DIMENSION_4 = 4
LINK_TRACE = -0.00287112345
PLAQUETTE  = 0.5937112345
BOUNDARY_1 = PERIODIC
BOUNDARY_2 = PERIODIC
BOUNDARY_3 = PERIODIC
BOUNDARY_4 = ANTIPERIODIC
CHECKSUM =  d7a20ef
ENSEMBLE_ID = unspecified
ENSEMBLE_LABEL = unspecified
SEQUENCE_NUMBER = 0
CREATOR = unspecified
CREATOR_HARDWARE = QCDOC
CREATION_DATE = unspecified
ARCHIVE_DATE = Thu Nov 22 12:34:56 2001
FLOATING_POINT = IEEE64BIG
END_HEADER
`, Format{64, Big}, 3, nil},
	{"QDP++", `BEGIN_HEADER
HDR_VERSION = 1.0
DATATYPE = 4D_SU3_GAUGE
STORAGE_FORMAT = 1.0
DIMENSION_1 = 2
DIMENSION_2 = 4
DIMENSION_3 = 3
DIMENSION_4 = 4
CHECKSUM = 1d7a20ef
LINK_TRACE = -0.002871
PLAQUETTE = 0.593711
CREATOR = RBC
ARCHIVE_DATE = Thu Nov 22 12:34:56 2001
ENSEMBLE_LABEL = quenched
FLOATING_POINT = IEEE32BIG
ENSEMBLE_ID = q60
SEQUENCE_NUMBER = 40
BETA = 6.0
END_HEADER
`, Format{32, Big}, 2, nil},
	{"Grid", `BEGIN_HEADER
HDR_VERSION = 1.0
DATATYPE = 4D_SU3_GAUGE_3x3
STORAGE_FORMAT = 
DIMENSION_1 = 2
DIMENSION_2 = 4
DIMENSION_3 = 3
DIMENSION_4 = 4
LINK_TRACE = -0.00287112345
PLAQUETTE  = 0.5937112345
BOUNDARY_1 = PERIODIC
BOUNDARY_2 = PERIODIC
BOUNDARY_3 = PERIODIC
BOUNDARY_4 = PERIODIC
CHECKSUM =   1d7a20ef
SCIDAC_CHECKSUMA =   5f3a8d1c
SCIDAC_CHECKSUMB =   9e2b4471
ENSEMBLE_ID = UKQCD
ENSEMBLE_LABEL = DWF
SEQUENCE_NUMBER = 1
CREATOR = user
CREATOR_HARDWARE = node01-x86_64-Linux-5.15
CREATION_DATE = Thu Nov 22 12:34:56 2001 UTC
ARCHIVE_DATE = Thu Nov 22 12:34:56 2001 UTC
FLOATING_POINT = IEEE64BIG
END_HEADER
`, Format{64, Big}, 3, []string{`STORAGE_FORMAT: "" is not 1.0`}},
	{"PyQUDA", `BEGIN_HEADER
HDR_VERSION = 1.0
DATATYPE = 4D_SU3_GAUGE_3x3
STORAGE_FORMAT = 
DIMENSION_1 = 2
DIMENSION_2 = 4
DIMENSION_3 = 3
DIMENSION_4 = 4
LINK_TRACE = -0.00287112345
PLAQUETTE = 0.5937112345
BOUNDARY_1 = PERIODIC
CHECKSUM =   1d7a20ef
ENSEMBLE_ID = pyquda
ENSEMBLE_LABEL = 
SEQUENCE_NUMBER = 1
CREATOR = pyquda
CREATION_DATE = Thu Nov 22 12:34:56 2001 UTC
FLOATING_POINT = IEEE64LITTLE
END_HEADER
`, Format{64, Little}, 3, []string{`STORAGE_FORMAT: "" is not 1.0`}},
	{"a script under DOS", strings.ReplaceAll(`BEGIN_HEADER
# converted by hand
DATATYPE = 4D_SU3_GAUGE_3x3

DIMENSION_1	= 2
DIMENSION_2	= 4
DIMENSION_3	= 3
DIMENSION_4	= 4
CHECKSUM = 0x1D7A20EF
PLAQUETTE = 0.594
SEQUENCE_NUMBER = 20011122123456
FLOATING_POINT = IEEE32
END_HEADER
`, "\n", "\r\n"), Format{32, Little}, 3, []string{"# converted by hand", "LINK_TRACE is missing", "SEQUENCE_NUMBER"}},
}

// random returns a field of random links, whose elements are as they come out of round.
func random(t *testing.T, comm *qmp.Comm, round func(float64) float64) *gauge.Field {
	field := single.Field(t, comm, extents)
	require.NoError(t, field.Hot(8))
	field.Each(func(_ lattice.Dims, _ int, u *su3.Matrix) {
		for i := range u {
			for j := range u[i] {
				u[i][j] = complex(round(real(u[i][j])), round(imag(u[i][j])))
			}
		}
	})
	require.NoError(t, field.Exchange())
	return field
}

func exactly(x float64) float64 { return x }

func toSingle(x float64) float64 { return float64(float32(x)) }

// filled writes a header of programs, and the field: the values that verify it get as
// many decimals, and the same kind of hexadecimal digits, as the header has.
func filled(t *testing.T, comm *qmp.Comm, header string, f Format, rows int, field *gauge.Field) string {
	t.Helper()
	var raw []byte
	field.Each(func(_ lattice.Dims, _ int, u *su3.Matrix) { raw = f.append(raw, u, rows) })
	sum := strconv.FormatUint(uint64(f.Order.checksum(raw)), 16)
	plaquette, trace, err := global.New(comm, global.Exact).Averages(field)
	require.NoError(t, err)
	average := func(x float64) func(string) string {
		return func(s string) string {
			_, decimals, _ := strings.Cut(s, ".")
			return strconv.FormatFloat(x, 'f', len(decimals), 64)
		}
	}
	for key, value := range map[string]func(string) string{
		"CHECKSUM": func(s string) string {
			if upper, ok := strings.CutPrefix(s, "0x"); ok && upper == strings.ToUpper(upper) {
				return "0x" + strings.ToUpper(sum)
			}
			return sum
		},
		"LINK_TRACE": average(trace), "PLAQUETTE": average(plaquette),
	} {
		line := regexp.MustCompile(`(?m)^(` + key + `\s*=\s*)(\S+)`)
		header = line.ReplaceAllStringFunc(header, func(s string) string {
			m := line.FindStringSubmatch(s)
			return m[1] + value(m[2])
		})
	}
	path := filepath.Join(t.TempDir(), "lat")
	require.NoError(t, os.WriteFile(path, append([]byte(header), raw...), 0o600))
	return path
}

func requireWarnings(t *testing.T, want, got []string) {
	t.Helper()
	require.Len(t, got, len(want), "%q", got)
	for i, w := range want {
		require.Contains(t, got[i], w)
	}
}

// Files with the headers of other programs are read, verified and refused where they are
// damaged. Written anew they say what they said, without a warning of the form and without
// checksums that may be of other links.
func TestPrograms(t *testing.T) {
	comm := single.Comm(t)
	field := random(t, comm, exactly)
	for _, p := range programs {
		t.Run(p.name, func(t *testing.T) {
			path := filled(t, comm, p.header, p.format, p.rows, field)
			back, file, err := read(t, comm, path)
			require.NoError(t, err)
			require.Less(t, farthest(field, back), 1e-6)
			require.Equal(t, p.rows, file.Header.Rows)
			requireWarnings(t, p.warnings, file.Warnings)

			copied := filepath.Join(t.TempDir(), "copied")
			require.NoError(t, Write(copied, file.Header, back, global.New(comm, global.Exact)))
			again, err := Open(copied)
			require.NoError(t, err)
			require.NoError(t, again.Close())
			h := again.Header
			require.Equal(t, file.Header.texts(), h.texts())
			require.Equal(t, regexp.MustCompile("(?m)^(SCIDAC_CHECKSUM[AB]|checksums) .*\n").ReplaceAllString(file.Header.Others, ""), h.Others)

			damage := func(change func(b []byte)) string {
				damaged := filled(t, comm, p.header, p.format, p.rows, field)
				spoil(t, damaged, func(b []byte) []byte { change(b); return b })
				_, _, err := read(t, comm, damaged)
				require.Error(t, err)
				return err.Error()
			}
			require.Contains(t, damage(func(b []byte) { b[len(b)-100] ^= 1 }), "the checksum of the links")
			require.Contains(t, damage(func(b []byte) {
				size := p.format.linkBytes(p.rows)
				d := b[len(b)-2*size:]
				copy(d, append(bytes.Clone(d[size:]), d[:size]...))
			}), "PLAQUETTE of the links is")
		})
	}
}

// White space may follow the links.
func TestTail(t *testing.T) {
	comm := single.Comm(t)
	for _, tail := range []string{"\n", "\r\n", "\n\n"} {
		field, path := archive(t, comm, 3, Format{64, Little})
		spoil(t, path, func(b []byte) []byte { return append(b, tail...) })
		back, file, err := read(t, comm, path)
		require.NoError(t, err)
		require.Zero(t, farthest(field, back))
		requireWarnings(t, []string{"bytes of white space after the links"}, file.Warnings)
	}
}

// A file of doubles that were computed in single precision is read with a tolerance, or
// where its header has no more digits than single precision.
func TestTolerance(t *testing.T) {
	comm := single.Comm(t)
	field := random(t, comm, toSingle)
	for _, c := range []struct {
		name      string
		decimals  int
		rows      int
		tolerance float64
		says      string // the error, if it is refused
		warnings  []string
	}{
		{"many digits", 12, 3, 0, "is not in SU(3): its deviation is", nil},
		{"advice", 12, 3, 1e-10, "a field computed in single precision needs a tolerance of 1e-05", nil},
		{"tolerance too small", 12, 3, 1e-9, "at most 1e-09 is allowed", nil},
		{"tolerance", 12, 3, 1e-5, "", []string{"links are more than 1e-10 from SU(3)", "PLAQUETTE of the links is"}},
		{"as MILC's", 10, 3, 1e-6, "", []string{"links are more than 1e-10 from SU(3)", "PLAQUETTE of the links is"}},
		{"digits of single precision", 7, 3, 0, "", []string{"links are more than 1e-10 from SU(3)"}},
		{"no averages", 0, 3, 0, "is not in SU(3): its deviation is", nil},
		{"few digits, two rows", 5, 2, 0, "", []string{"links are more than 1e-10 from SU(3)"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			datatype := map[int]string{2: datatypeTwo, 3: datatypeThree}[c.rows]
			header := "BEGIN_HEADER\nDATATYPE = " + datatype + "\nDIMENSION_1 = 2\nDIMENSION_2 = 4\nDIMENSION_3 = 3\nDIMENSION_4 = 4\nCHECKSUM = 0\n" +
				"LINK_TRACE = 0." + strings.Repeat("0", c.decimals) + "\nPLAQUETTE = 0." + strings.Repeat("0", c.decimals) + "\nFLOATING_POINT = IEEE64BIG\nEND_HEADER\n"
			if c.decimals == 0 {
				header = regexp.MustCompile("(?m)^(LINK_TRACE|PLAQUETTE).*\n").ReplaceAllString(header, "")
			}
			path := filled(t, comm, header, Format{64, Big}, c.rows, field)
			f, err := Open(path)
			require.NoError(t, err)
			defer func() { require.NoError(t, f.Close()) }()
			f.Tolerance = c.tolerance
			back := single.Field(t, comm, extents)
			err = f.Read(back, global.New(comm, global.Exact))
			if c.says != "" {
				require.ErrorContains(t, err, c.says)
				return
			}
			require.NoError(t, err)
			requireWarnings(t, c.warnings, f.Warnings)
			require.Less(t, farthest(field, back), 1e-6)
			back.Each(func(_ lattice.Dims, _ int, u *su3.Matrix) { require.LessOrEqual(t, u.Deviation(), 1e-10) })

			spoil(t, path, func(b []byte) []byte { b[len(b)-3] ^= 1; return b })
			require.ErrorContains(t, f.Read(back, global.New(comm, global.Exact)), "the checksum of the links is")
		})
	}
}

// A tolerance that is meant for the solver does not admit links that no program computed.
func TestLargeTolerance(t *testing.T) {
	comm := single.Comm(t)
	field := random(t, comm, func(x float64) float64 { return math.Round(x*1e3) / 1e3 })
	path := filled(t, comm, programs[2].header, Format{64, Big}, 3, field) // CPS
	f, err := Open(path)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	f.Tolerance = 1e-2
	require.ErrorContains(t, f.Read(single.Field(t, comm, extents), global.New(comm, global.Exact)), "at most 1e-05 is allowed")
}
