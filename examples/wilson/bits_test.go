package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

// simulation makes a field, and solves for a random source on it.
var simulation = []string{"-lattice", "4x4x4x8", "-seed", "3", "-beta", "5.5", "-sweeps", "1", "-kappa", "0.09", "-source", "random"}

// rough is one that is soon over, for nodes that wait for each other long: four over
// emulated RDMA devices, on two CPUs.
var rough = []string{"-lattice", "4x4x4x8", "-tolerance", "0.1", "-source", "random"}

// measured runs the program and returns what it has measured.
func measured(t *testing.T, provider string, nodes int, args ...string) (r report) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "measured")
	stdout := succeed(t, provider, nodes, append(args, "-json", path)...)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &r))
	require.Equal(t, fmt.Sprintf("%.17g", r.Plaquette), line(t, stdout, "plaquette"))
	require.Contains(t, line(t, stdout, "communication"), "%, in starts, waits and global operations")
	require.Positive(t, r.Times.Application)
	r.Times = nil
	return r
}

// The end-to-end test of package qmp: the same bits for any number of nodes, on any
// grid, over every provider: the field, the plaquette, each residual, the norm of the
// solution.
func TestBits(t *testing.T) {
	want := measured(t, "shm", 1, append(simulation, "-out", filepath.Join(t.TempDir(), "lat"))...)
	require.Greater(t, len(want.Residuals), 15)
	require.LessOrEqual(t, want.TrueResidual, 1e-10)
	require.Positive(t, want.TrueResidual)
	require.InDelta(t, 0.4, want.Plaquette, 0.1)

	wantRough := measured(t, "shm", 1, rough...)

	first := filepath.Join(t.TempDir(), "first")
	succeed(t, "shm", 1, append(simulation, "-kappa", "0", "-out", first)...)
	for _, provider := range []string{"shm", "tcp", "ibv"} {
		t.Run(provider, func(t *testing.T) {
			need.Provider(t, provider)
			geometries := []string{"1x1x1x2", "1x2x2x1", "2x2x1x2"}
			switch {
			case provider == "ibv":
				geometries = geometries[:1]
				got := measured(t, provider, 4, append(rough, "-geom", "1x2x2x1")...)
				got.Geometry = wantRough.Geometry
				require.Equal(t, wantRough, got)
			case !testing.Short():
				geometries = append(geometries, "1x1x1x1", "2x1x1x1", "4x1x1x1", "1x1x1x8", "")
			}
			for _, geometry := range geometries {
				nodes, args := 4, simulation // the grid that the library chooses
				if geometry != "" {
					d := lattice4(t, geometry)
					nodes = d.Product()
					args = append(args[:len(args):len(args)], "-geom", geometry)
				}
				t.Run(fmt.Sprintf("%d %s", nodes, geometry), func(t *testing.T) {
					out := filepath.Join(t.TempDir(), "lat")
					got := measured(t, provider, nodes, append(args[:len(args):len(args)], "-out", out)...)
					require.Equal(t, nodes, got.Geometry.Product())
					if geometry != "" {
						require.Equal(t, geometry, got.Geometry.String())
					}
					got.Geometry = want.Geometry
					require.Equal(t, want, got)
					require.Equal(t, links(t, first), links(t, out))
				})
			}
			t.Run("from a file", func(t *testing.T) {
				got := measured(t, provider, 2, "-in", first, "-seed", "3", "-kappa", "0.09", "-source", "random", "-self-messages")
				got.Geometry = want.Geometry
				require.Equal(t, want, got)
			})
		})
	}
}

// Files of 32 bits, of two rows, in either order of bytes, written by two nodes and read
// by four.
func TestFiles(t *testing.T) {
	made := filepath.Join(t.TempDir(), "made")
	plaquette := line(t, succeed(t, "shm", 2, "-lattice", "4x4x2x4", "-kappa", "0", "-beta", "6", "-sweeps", "2", "-out", made), "plaquette")
	for _, c := range []struct{ format, rows string }{{"IEEE32BIG", "2"}, {"IEEE32LITTLE", "3"}, {"IEEE64LITTLE", "2"}, {"IEEE64", "3"}} {
		copied, again := filepath.Join(t.TempDir(), "copied"), filepath.Join(t.TempDir(), "again")
		succeed(t, "shm", 2, "-in", made, "-kappa", "0", "-out", copied, "-format", c.format, "-rows", c.rows)
		stdout := succeed(t, "shm", 4, "-in", copied, "-kappa", "0", "-out", again, "-geom", "1x2x2x1")
		require.Contains(t, line(t, stdout, "gauge field"), "checksum, link trace, plaquette verified")
		if strings.HasPrefix(c.format, "IEEE64") && c.rows == "3" {
			require.Equal(t, plaquette, line(t, stdout, "plaquette"))
			require.Equal(t, links(t, made), links(t, again))
		} else {
			require.Equal(t, plaquette[:8], line(t, stdout, "plaquette")[:8])
		}
	}
}

// A sweep goes on where the file's field has come to.
func TestContinue(t *testing.T) {
	dir := t.TempDir()
	half, whole, resumed := filepath.Join(dir, "half"), filepath.Join(dir, "whole"), filepath.Join(dir, "resumed")
	common := []string{"-lattice", "2x4x2x4", "-kappa", "0", "-beta", "5.7"}
	succeed(t, "shm", 2, append(common, "-sweeps", "4", "-out", whole)...)
	succeed(t, "shm", 1, append(common, "-sweeps", "2", "-out", half)...)
	succeed(t, "shm", 4, append(common, "-sweeps", "2", "-in", half, "-out", resumed)...)
	require.Equal(t, links(t, whole), links(t, resumed))
}

// Other sums solve as well, and differ by rounding. Those that round each site have the
// same bits on every grid, too.
func TestSums(t *testing.T) {
	exact := measured(t, "shm", 2, simulation...)
	sites := measured(t, "shm", 1, append(simulation, "-sums", "sites")...)
	again := measured(t, "shm", 4, append(simulation, "-sums", "sites")...)
	again.Geometry = sites.Geometry
	require.Equal(t, sites, again)
	plain := measured(t, "shm", 2, append(simulation, "-sums", "plain")...)
	for _, other := range []report{sites, plain} {
		require.InEpsilon(t, exact.Plaquette, other.Plaquette, 1e-13)
		require.InEpsilon(t, exact.Norm, other.Norm, 1e-9)
		require.LessOrEqual(t, other.TrueResidual, 1e-10)
	}
}
