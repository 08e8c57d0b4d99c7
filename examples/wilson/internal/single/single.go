// Package single is for tests: the communicator of a job of one node, which is its own neighbour
// along all axes.
package single

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/examples/wilson/gauge"
	"github.com/sluice-hpc/sluice/examples/wilson/lattice"
	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/qmp"
)

// Comm returns the communicator. It ends with the test; everything declared with it must be
// closed before.
func Comm(t testing.TB) *qmp.Comm {
	for _, v := range append(boot.Variables(), boot.ForeignVariables()...) {
		t.Setenv(v.Name, "")
	}
	node, err := channel.Join(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, node.Close()) })
	m, err := qmp.New(node, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Finalize()) })
	comm := m.DefaultComm()
	require.NoError(t, comm.DeclareLogicalTopology([]int{1, 1, 1, 1}))
	return comm
}

// Lattice returns a lattice that is not divided.
func Lattice(t testing.TB, extents lattice.Dims) *lattice.Lattice {
	l, err := lattice.New(extents, lattice.Dims{1, 1, 1, 1}, lattice.Dims{})
	require.NoError(t, err)
	return l
}

// Field returns a gauge field, which ends with the test.
func Field(t testing.TB, comm *qmp.Comm, extents lattice.Dims) *gauge.Field {
	f, err := gauge.New(comm, Lattice(t, extents))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	return f
}
