package main

import (
	"bytes"
	"encoding/binary"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"image/png"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/examples/wilson/global"
	"github.com/sluice-hpc/sluice/examples/wilson/lattice"
	"github.com/sluice-hpc/sluice/examples/wilson/nersc"
)

func lattice4(t *testing.T, s string) lattice.Dims {
	d, err := lattice.ParseDims(s)
	require.NoError(t, err)
	return d
}

// What cannot be done is said once, by node 0, and ends the job.
func TestRefuses(t *testing.T) {
	dir := t.TempDir()
	good := filepath.Join(dir, "good")
	succeed(t, "shm", 1, "-lattice", "2x2x2x6", "-kappa", "0", "-out", good)
	b, err := os.ReadFile(good)
	require.NoError(t, err)
	damaged := func(name string, change func([]byte) []byte) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, change(bytes.Clone(b)), 0o600))
		return path
	}
	cut := damaged("cut", func(b []byte) []byte { return b[:len(b)-7] })
	bit := damaged("bit", func(b []byte) []byte { b[len(b)-2*18*8] ^= 0x40; return b }) // near the end: of the last node
	for _, c := range []struct {
		name   string
		nodes  int
		args   []string
		status int
		says   string
	}{
		{"option", 2, []string{"-nonsense"}, exitUsage, "flag provided but not defined: -nonsense"},
		{"argument", 1, []string{"lat"}, exitUsage, `unexpected argument "lat"`},
		{"grid", 2, []string{"-lattice", "4x4x4x4", "-geom", "1x1x1x4"}, exitFailed, "-geom: a grid of 1x1x1x4 has 4 nodes, but the job has 2"},
		{"grid and lattice", 2, []string{"-lattice", "4x4x4x5", "-geom", "1x1x1x2"}, exitFailed, "2 ranks along t do not divide 5 sites"},
		{"odd heat-bath", 1, []string{"-lattice", "4x4x4x5", "-sweeps", "1"}, exitFailed, "the heat-bath needs even extents: 5 sites along t"},
		{"no file", 2, []string{"-in", filepath.Join(dir, "none")}, exitFailed, "no such file"},
		{"cut file", 3, []string{"-in", cut}, exitFailed, "27641 bytes follow the"},
		{"other lattice", 2, []string{"-in", good, "-lattice", "4x4x4x4"}, exitFailed, ", 2x2x2x6"},
		{"damaged file", 3, []string{"-in", bit, "-geom", "1x1x1x3"}, exitFailed, "node 2: nersc: the link along z of site (1, 1, 1, 5)"},
		{"no directory", 2, []string{"-lattice", "2x2x2x2", "-kappa", "0", "-out", filepath.Join(dir, "none", "lat")}, exitFailed, "no such file"},
		{"no convergence", 2, []string{"-lattice", "2x2x2x4", "-max-iterations", "2"}, exitFailed, "not converged to 1.0e-10 in 2 iterations"},
		{"no report", 2, []string{"-scaling", filepath.Join(dir, "a.svg"), filepath.Join(dir, "none.json")}, exitFailed, "no such file"},
		{"no plot", 2, []string{"-lattice", "2x2x2x4", "-plot", filepath.Join(dir, "none", "plot.svg")}, exitFailed, "no such file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := wilson(t, "shm", c.nodes, c.args...)
			require.Equal(t, c.status, e.status, e.stderr)
			require.Contains(t, e.stderr, c.says)
			require.Equal(t, 1, strings.Count(e.stderr, "wilson:"), e.stderr)
		})
	}
}

// A file of another program, which computed in single precision and wrote double, is read
// with -tolerance. Node 0 warns of each oddity once, and what the header says is in the
// copy.
func TestForeignFile(t *testing.T) {
	dir := t.TempDir()
	good, foreign, copied, swept := filepath.Join(dir, "good"), filepath.Join(dir, "foreign"), filepath.Join(dir, "copied"), filepath.Join(dir, "swept")
	succeed(t, "shm", 1, "-lattice", "2x2x2x4", "-kappa", "0", "-out", good)
	data := links(t, good)
	var sum uint32
	for at := 0; at < len(data); at += 8 {
		x := math.Float64frombits(binary.BigEndian.Uint64(data[at:]))
		binary.BigEndian.PutUint64(data[at:], math.Float64bits(float64(float32(x))))
		sum += binary.BigEndian.Uint32(data[at:]) + binary.BigEndian.Uint32(data[at+4:])
	}
	b, err := os.ReadFile(good)
	require.NoError(t, err)
	h, _, _, err := nersc.Parse(b)
	require.NoError(t, err)
	header := fmt.Sprintf("BEGIN_HEADER\r\nDATATYPE = 4D_SU3_GAUGE_3x3\nSTORAGE_FORMAT = \n\nDIMENSION_1\t= 2\nDIMENSION_2 = 2\nDIMENSION_3 = 2\nDIMENSION_4 = 4\n"+
		"CHECKSUM = 0x%X\nLINK_TRACE = %.10f\nPLAQUETTE = %.10f\nSEQUENCE_NUMBER = forty\nMILC_INFO = -------BEGIN-------\nnx = 2\nMILC_INFO = --------END--------\n"+
		"FLOATING_POINT = IEEE64BIG\nEND_HEADER\n", sum, h.LinkTrace, h.Plaquette)
	require.NoError(t, os.WriteFile(foreign, append(append([]byte(header), data...), '\n'), 0o600))

	e := wilson(t, "shm", 2, "-in", foreign, "-kappa", "0")
	require.Equal(t, exitFailed, e.status)
	require.Contains(t, e.stderr, "needs a tolerance of 1e-05")

	e = wilson(t, "shm", 2, "-in", foreign, "-kappa", "0", "-tolerance", "1e-5", "-out", copied)
	require.Zero(t, e.status, e.stderr)
	for _, warning := range []string{"STORAGE_FORMAT", "SEQUENCE_NUMBER", "white space after the links", "links are more than 1e-10 from SU(3)"} {
		require.Equal(t, 1, strings.Count(e.stderr, warning), e.stderr)
	}
	b, err = os.ReadFile(copied)
	require.NoError(t, err)
	h, _, warnings, err := nersc.Parse(b)
	require.NoError(t, err)
	require.Len(t, warnings, 1)
	require.Equal(t, "forty", h.SequenceNumber)
	require.Equal(t, "MILC_INFO = -------BEGIN-------\nnx = 2\nMILC_INFO = --------END--------\n", h.Others)

	e = wilson(t, "shm", 2, "-in", foreign, "-kappa", "0", "-tolerance", "1e-5", "-sweeps", "1", "-out", swept)
	require.Zero(t, e.status, e.stderr)
	require.Contains(t, line(t, succeed(t, "shm", 1, "-in", swept, "-kappa", "0"), "gauge field"), "checksum, link trace, plaquette verified")
	b, err = os.ReadFile(swept)
	require.NoError(t, err)
	h, _, _, err = nersc.Parse(b)
	require.NoError(t, err)
	require.Equal(t, "1", h.SequenceNumber)
	require.Empty(t, h.Others)
}

func TestHelp(t *testing.T) {
	stdout := succeed(t, "shm", 2, "-help")
	for _, option := range []string{"lattice", "geom", "in", "out", "beta", "kappa", "sums", "plot", "json", "scaling"} {
		require.Equal(t, 1, strings.Count(stdout, "  -"+option+" "), "%s\n%s", option, stdout)
	}
}

func TestOptions(t *testing.T) {
	o, err := parseOptions([]string{"-lattice", "8x8x8x16", "--geom=1,1,2,4", "-beta", "5.7", "-kappa", "0.15", "-sums", "plain", "-format", "IEEE32", "-rows", "2", "-plot", "a.SVG", "-start", "cold"})
	require.NoError(t, err)
	require.Equal(t, lattice.Dims{8, 8, 8, 16}, o.extents)
	require.Equal(t, lattice.Dims{1, 1, 2, 4}, o.geometry)
	require.Equal(t, 5.7, o.beta)
	require.Equal(t, global.Plain, o.sumKind)
	require.Equal(t, 32, o.format.Bits)
	require.Equal(t, 2, o.rows)
	require.Equal(t, startCold, o.start)

	for _, args := range []string{
		"-lattice 8x8x8", "-geom 0x1x1x1", "-start warm", "-beta -1", "-beta NaN", "-sweeps -1", "-format IEEE16", "-rows 4",
		"-kappa 2", "-kappa NaN", "-source wall", "-tolerance 0", "-tolerance 1", "-max-iterations 0", "-sums exactly", "-plot a.gif", "-scaling a.gif a.json", "-scaling a.svg", "-seed -1", "-no-such", "argument",
	} {
		_, err := parseOptions(strings.Fields(args))
		require.Error(t, err, args)
		require.Contains(t, err.Error(), strings.TrimPrefix(strings.Fields(args)[0], "-"), args)
	}
	_, err = parseOptions([]string{"-h"})
	require.ErrorIs(t, err, flag.ErrHelp)
}

// What is drawn can be read as what its name says.
func TestPlot(t *testing.T) {
	dir := t.TempDir()
	for name, read := range map[string]func(io.Reader) error{
		"a.png": func(r io.Reader) error { _, err := png.Decode(r); return err },
		"a.SVG": func(r io.Reader) error {
			d, n := xml.NewDecoder(r), 0
			for ; ; n++ {
				if _, err := d.Token(); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					return err
				}
			}
			require.Greater(t, n, 50)
			return nil
		},
	} {
		path := filepath.Join(dir, name)
		require.NoError(t, plotResiduals(path, "title", []float64{1, 0.1, 3e-5, 0}, 1e-4))
		file, err := os.Open(path)
		require.NoError(t, err)
		require.NoError(t, read(file), name)
		require.NoError(t, file.Close())
	}
	require.ErrorContains(t, plotResiduals(filepath.Join(dir, "b.svg"), "", []float64{0}, 1e-4), "no residual to draw")
	require.ErrorIs(t, plotResiduals(filepath.Join(dir, "none", "b.svg"), "", []float64{1}, 1e-4), os.ErrNotExist)
}

// Times are medians, by the number of nodes, and there is one lattice.
func TestScaling(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	file := func(name, grid, solve string) string {
		return write(name, `{"lattice":[4,4,4,8],"geometry":`+grid+`,"residuals":[1,0.1,0.01],"times":{"solve":`+solve+`,"application":1e-3}}`)
	}
	one := file("1", "[1,1,1,1]", "4e-3")
	paths := []string{file("2", "[1,1,1,2]", "2.5e-3"), file("2 again", "[1,1,2,1]", "2.4e-3"), file("2 once more", "[2,1,1,1]", "9"), one}
	plot := filepath.Join(dir, "a.svg")
	stdout := succeed(t, "shm", 2, append([]string{"-scaling", plot}, paths...)...)
	require.Contains(t, stdout, "lattice 4x4x4x8")
	require.Equal(t, "2000.0 µs, 1.00   1000.0 µs, 1.00", line(t, stdout, "    1"))
	require.Equal(t, "1250.0 µs, 0.80   1000.0 µs, 0.50", line(t, stdout, "    2"))
	b, err := os.ReadFile(plot)
	require.NoError(t, err)
	require.NoError(t, xml.Unmarshal(b, new(struct{})))

	for name, c := range map[string]struct{ path, says string }{
		"text":          {write("text", "no report"), "it is no report"},
		"not solved":    {write("field", `{"lattice":[4,4,4,8],"geometry":[1,1,1,1]}`), "it has no times"},
		"other lattice": {write("other", `{"lattice":[4,4,4,4],"geometry":[1,1,1,1],"residuals":[1,0],"times":{"solve":1,"application":1}}`), "its lattice is 4x4x4x4"},
	} {
		require.ErrorContains(t, scaling(io.Discard, plot, []string{one, c.path}), c.says, name)
	}
}

// The bar is only for terminals, and has an end.
func TestProgress(t *testing.T) {
	var b bytes.Buffer
	p := &progress{w: &b}
	p.show(0.5, "sweep %d", 3)
	require.Contains(t, b.String(), "[===============               ] sweep 3")
	n := b.Len()
	p.show(0.6, "too early")
	require.Equal(t, n, b.Len())
	p.clear()
	p.clear()
	require.Equal(t, n+len("\r\x1b[K"), b.Len())
	newProgress(false).show(1, "it is not shown")
	require.InDelta(t, 0.5, converged(1e-5, 1e-10), 1e-12)
}
