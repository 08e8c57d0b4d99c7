package nersc

import (
	"bytes"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
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

var extents = lattice.Dims{2, 4, 3, 4}

// archive writes a random field and returns it with the path of its file.
func archive(t *testing.T, comm *qmp.Comm, rows int, f Format) (*gauge.Field, string) {
	field := single.Field(t, comm, extents)
	require.NoError(t, field.Hot(8))
	path := filepath.Join(t.TempDir(), "lat")
	h := Header{Rows: rows, Format: f, SequenceNumber: "12", Creator: "a test", Boundary: [4]string{"PERIODIC", "PERIODIC", "PERIODIC", "PERIODIC"}}
	require.NoError(t, Write(path, h, field, global.New(comm, global.Exact)))
	require.NoFileExists(t, path+".part")
	return field, path
}

// read opens and reads a file.
func read(t *testing.T, comm *qmp.Comm, path string) (*gauge.Field, *File, error) {
	f, err := Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer func() { require.NoError(t, f.Close()) }()
	field := single.Field(t, comm, f.Header.Dims)
	return field, f, f.Read(field, global.New(comm, global.Exact))
}

// farthest is the largest difference of two elements of the links of two fields.
func farthest(a, b *gauge.Field) (d float64) {
	a.Each(func(c lattice.Dims, axis int, u *su3.Matrix) {
		v := b.Link(c, axis)
		for i := range u {
			for j := range u[i] {
				d = max(d, math.Abs(real(u[i][j]-v[i][j])), math.Abs(imag(u[i][j]-v[i][j])))
			}
		}
	})
	return d
}

func TestFile(t *testing.T) {
	comm := single.Comm(t)
	for name, format := range formats {
		for rows := 2; rows <= 3; rows++ {
			field, path := archive(t, comm, rows, format)
			back, file, err := read(t, comm, path)
			require.NoError(t, err, "%s, %d rows", name, rows)
			require.Equal(t, rows, file.Header.Rows)
			require.Equal(t, format.Bits, file.Header.Format.Bits)
			require.Equal(t, "12", file.Header.SequenceNumber)
			require.Empty(t, file.Warnings)
			switch {
			case format.Bits == 32:
				require.Less(t, farthest(field, back), 1e-6)
			case rows == 2:
				require.Less(t, farthest(field, back), 1e-15)
			default:
				require.Zero(t, farthest(field, back))
			}
		}
	}
}

// The bytes of a file, of a field that is easily told: rows, columns, sites and numbers
// in their order.
func TestOrder(t *testing.T) {
	comm := single.Comm(t)
	field := single.Field(t, comm, extents)
	at := func(c lattice.Dims, axis, row, column, part int) float64 {
		return float64(part + 2*(column+3*(row+3*(axis+4*(c[0]+extents[0]*(c[1]+extents[1]*(c[2]+extents[2]*c[3])))))))
	}
	field.Each(func(c lattice.Dims, axis int, u *su3.Matrix) {
		for i := range u {
			for j := range u[i] {
				u[i][j] = complex(at(c, axis, i, j, 0), at(c, axis, i, j, 1))
			}
		}
	})
	raw := make([]byte, 0)
	field.Each(func(_ lattice.Dims, _ int, u *su3.Matrix) { raw = Format{64, Big}.append(raw, u, 3) })
	for k := 0; len(raw) > 0; k++ {
		require.Equal(t, float64(k), math.Float64frombits(binary.BigEndian.Uint64(raw)))
		raw = raw[8:]
	}
}

// A header that does not say in which order the bytes are: the checksum does.
func TestOrderUnsaid(t *testing.T) {
	comm := single.Comm(t)
	for _, format := range []Format{{32, Big}, {32, Little}, {64, Big}, {64, Little}} {
		field, path := archive(t, comm, 3, format)
		spoil(t, path, func(b []byte) []byte {
			return bytes.Replace(b, []byte(format.String()+"\n"), []byte(Format{format.Bits, Unsaid}.String()+"\n"), 1)
		})
		back, file, err := read(t, comm, path)
		require.NoError(t, err, format)
		require.Equal(t, Unsaid, file.Header.Format.Order)
		require.Less(t, farthest(field, back), 1e-6)
	}
}

// spoil changes a file.
func spoil(t *testing.T, path string, change func([]byte) []byte) {
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	c := change(bytes.Clone(b))
	require.NotEqual(t, b, c)
	require.NoError(t, os.WriteFile(path, c, 0o600))
}

// checksummed puts the checksum of the links, as they are now, into the header.
func checksummed(b []byte) []byte {
	h, n, _, err := Parse(b)
	if err != nil {
		panic(err)
	}
	h.Checksum = h.Format.Order.checksum(b[n:])
	head, err := h.Append(nil)
	if err != nil {
		panic(err)
	}
	return append(head, b[n:]...)
}

// Damaged files, and what is said of them.
func TestDamage(t *testing.T) {
	comm := single.Comm(t)
	format := Format{64, Little}
	size := format.linkBytes(3)
	link := lattice.Axes*extents.Index(lattice.Dims{1, 2, 0, 3}) + 2 // along z
	replace := func(b []byte, key, value string) []byte {
		i := bytes.Index(b, []byte(key+" = "))
		n := bytes.IndexByte(b[i:], '\n')
		return append(append(append(bytes.Clone(b[:i]), key+" = "+value...), b[i+n:i+n+1]...), b[i+n+1:]...)
	}
	data := func(b []byte) []byte { return b[bytes.Index(b, []byte(end))+len(end)+1:] }
	number := func(b []byte, x float64) { binary.LittleEndian.PutUint64(data(b)[link*size+16:], math.Float64bits(x)) }
	for _, c := range []struct {
		name  string
		spoil func(b []byte) []byte
		says  []string
	}{
		{"cut", func(b []byte) []byte { return b[:len(b)-1] }, []string{"55295 bytes follow the", "2x4x3x4 sites with links of 3 rows in IEEE64LITTLE take 55296"}},
		{"longer by a line", func(b []byte) []byte { return append(b, "\nEND\n"...) }, []string{"55301 bytes"}},
		{"much longer", func(b []byte) []byte { return append(b, strings.Repeat("\n", maxTail+1)...) }, []string{"55313 bytes"}},
		{"a bit, and a newline", func(b []byte) []byte { data(b)[100] ^= 1; return append(b, '\n') }, []string{"the checksum of the links is"}},
		{"a bit, no averages", func(b []byte) []byte {
			data(b)[100] ^= 1
			return replace(replace(b, "PLAQUETTE", ""), "LINK_TRACE", "")
		}, []string{"the checksum of the links is"}},
		{"longer", func(b []byte) []byte { return append(b, 0) }, []string{"55297 bytes"}},
		{"no links", func(b []byte) []byte { return b[:len(b)-len(data(b))] }, []string{"0 bytes follow the"}},
		{"header only in part", func(b []byte) []byte { return b[:200] }, []string{"before END_HEADER"}},
		{"empty", func([]byte) []byte { return nil }, []string{"line 1: is not BEGIN_HEADER"}},
		{"a bit", func(b []byte) []byte { data(b)[100] ^= 1; return b }, []string{"the checksum of the links is", "the header says"}},
		{"a bit that matters", func(b []byte) []byte { data(b)[link*size+23] ^= 0x40; return b },
			[]string{"the checksum of the links is", "along z of site (1, 2, 0, 3), at byte"}},
		{"checksum", func(b []byte) []byte { return replace(b, "CHECKSUM", "0") }, []string{"the header says 00000000"}},
		{"not in SU(3)", func(b []byte) []byte { number(b, 1.5); return checksummed(b) }, []string{"the link along z of site (1, 2, 0, 3), at byte", "not in SU(3)"}},
		{"not a number", func(b []byte) []byte { number(b, math.NaN()); return checksummed(b) }, []string{"site (1, 2, 0, 3)", "its deviation is NaN"}},
		{"infinite", func(b []byte) []byte { number(b, math.Inf(1)); return checksummed(b) }, []string{"site (1, 2, 0, 3)", "its deviation is NaN"}},
		{"plaquette", func(b []byte) []byte { return replace(b, "PLAQUETTE", "0.5937") }, []string{"PLAQUETTE of the links is", "the header says 0.5937"}},
		{"trace", func(b []byte) []byte { return replace(b, "LINK_TRACE", "0.1") }, []string{"LINK_TRACE of the links is", "the header says 0.1"}},
		{"two links exchanged", func(b []byte) []byte {
			d := data(b)
			first := bytes.Clone(d[:size])
			copy(d, d[size:2*size])
			copy(d[size:], first)
			return b
		}, []string{"PLAQUETTE of the links is"}},
		{"other order", func(b []byte) []byte { return replace(b, "FLOATING_POINT", "IEEE64BIG") }, []string{"the checksum of the links is"}},
		{"other datatype", func(b []byte) []byte { return replace(b, "DATATYPE", datatypeTwo) }, []string{"links of 2 rows in IEEE64LITTLE take 36864"}},
		{"other extents", func(b []byte) []byte { return replace(b, "DIMENSION_1", "4") }, []string{"4x4x3x4 sites"}},
		{"permuted extents", func(b []byte) []byte { return replace(replace(b, "DIMENSION_3", "4"), "DIMENSION_4", "3") }, []string{"PLAQUETTE of the links is"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, path := archive(t, comm, 3, format)
			spoil(t, path, c.spoil)
			_, _, err := read(t, comm, path)
			require.Error(t, err)
			require.True(t, strings.HasPrefix(err.Error(), path+": "), err)
			require.NotContains(t, err.Error(), "needs a tolerance")
			for _, s := range c.says {
				require.ErrorContains(t, err, s)
			}
		})
	}
	t.Run("no file", func(t *testing.T) {
		_, err := Open(filepath.Join(t.TempDir(), "none"))
		require.ErrorIs(t, err, os.ErrNotExist)
	})
	t.Run("other lattice", func(t *testing.T) {
		_, path := archive(t, comm, 3, format)
		f, err := Open(path)
		require.NoError(t, err)
		defer func() { require.NoError(t, f.Close()) }()
		require.ErrorContains(t, f.Read(single.Field(t, comm, lattice.Dims{4, 4, 3, 2}), global.New(comm, global.Exact)), "the lattice is 4x4x3x2, but that of the file is 2x4x3x4")
	})
}

// What cannot be written leaves nothing behind, nor changes what was there.
func TestWriteFails(t *testing.T) {
	comm := single.Comm(t)
	field, path := archive(t, comm, 2, Format{32, Big})
	before, err := os.ReadFile(path)
	require.NoError(t, err)
	sums := global.New(comm, global.Exact)
	var header *HeaderError
	require.ErrorAs(t, Write(path, Header{Rows: 3, Format: Format{64, Big}, Creator: "two\nlines"}, field, sums), &header)
	require.ErrorIs(t, Write(filepath.Join(filepath.Dir(path), "no", "directory"), Header{Rows: 3, Format: Format{64, Big}}, field, sums), os.ErrNotExist)
	after, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, before, after)
	list, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, list, 1)
}

// The runs of all ranks are the sites of the lattice, each once, and as long as can be.
func TestRuns(t *testing.T) {
	whole := lattice.Dims{4, 6, 2, 8}
	for grid, longest := range map[lattice.Dims]int{
		{1, 1, 1, 1}: 384, {1, 1, 1, 4}: 96, {1, 1, 2, 1}: 24, {1, 3, 1, 1}: 8, {2, 1, 1, 1}: 2, {2, 3, 2, 8}: 2,
	} {
		seen := make([]int, whole.Product())
		for rank := range grid.Product() {
			l, err := lattice.New(whole, grid, grid.Coords(rank))
			require.NoError(t, err)
			local := 0
			for r := range runs(l) {
				require.Equal(t, longest, r.sites)
				require.Equal(t, local, r.local)
				local += r.sites
				for i := range r.sites {
					require.Equal(t, l.GlobalIndex(l.Local.Coords(r.local+i)), r.global+i)
					seen[r.global+i]++
				}
			}
			require.Equal(t, l.Sites(), local)
		}
		for _, n := range seen {
			require.Equal(t, 1, n)
		}
	}
}
