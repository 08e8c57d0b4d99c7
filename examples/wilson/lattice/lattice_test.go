package lattice

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseDims(t *testing.T) {
	for s, want := range map[string]Dims{
		"8x8x8x16": {8, 8, 8, 16}, "1,2,3,4": {1, 2, 3, 4}, "1x1x1x2147483647": {1, 1, 1, MaxSites},
		"": {}, "8": {}, "8x8x8": {}, "8x8x8x8x8": {}, "8x8x8x0": {}, "8x8x8x-1": {}, "8x8x8xt": {},
		"65536x65536x1x1": {}, "4294967296x4294967296x1x1": {}, "99999999999999999999x1x1x1": {},
	} {
		d, err := ParseDims(s)
		if want == (Dims{}) {
			require.ErrorIs(t, err, ErrDims, s)
			continue
		}
		require.NoError(t, err, s)
		require.Equal(t, want, d)
		again, err := ParseDims(d.String())
		require.NoError(t, err)
		require.Equal(t, d, again)
	}
}

// The parts of all ranks are the lattice, each site once.
func TestDivision(t *testing.T) {
	global := Dims{4, 6, 3, 8}
	for _, grid := range []Dims{{1, 1, 1, 1}, {2, 1, 1, 1}, {1, 3, 1, 2}, {4, 6, 3, 8}, {2, 2, 3, 4}} {
		seen := make([]int, global.Product())
		for rank := range grid.Product() {
			l, err := New(global, grid, grid.Coords(rank))
			require.NoError(t, err)
			require.Equal(t, global.Product()/grid.Product(), l.Sites())
			for i := range l.Sites() {
				c := l.Local.Coords(i)
				require.Equal(t, i, l.Local.Index(c))
				at := l.GlobalCoords(c)
				require.Equal(t, l.GlobalIndex(c), global.Index(at))
				require.Equal(t, (at[0]+at[1]+at[2]+at[3])%2, l.Parity(c))
				seen[l.GlobalIndex(c)]++
			}
		}
		for i, n := range seen {
			require.Equal(t, 1, n, "site %v", global.Coords(i))
		}
	}
}

func TestNewRefuses(t *testing.T) {
	for name, c := range map[string]struct{ global, grid, at Dims }{
		"no sites":        {Dims{4, 4, 4, 0}, Dims{1, 1, 1, 1}, Dims{}},
		"not divided":     {Dims{4, 4, 4, 4}, Dims{1, 1, 1, 3}, Dims{}},
		"no ranks":        {Dims{4, 4, 4, 4}, Dims{1, 1, 1, 0}, Dims{}},
		"more than sites": {Dims{4, 4, 4, 4}, Dims{1, 1, 1, 8}, Dims{}},
		"beyond the grid": {Dims{4, 4, 4, 4}, Dims{1, 1, 1, 2}, Dims{0, 0, 0, 2}},
		"before the grid": {Dims{4, 4, 4, 4}, Dims{1, 1, 1, 2}, Dims{-1, 0, 0, 0}},
	} {
		_, err := New(c.global, c.grid, c.at)
		require.ErrorIs(t, err, ErrDims, name)
	}
}
