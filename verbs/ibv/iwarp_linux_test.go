//go:build cgo

package ibv_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/rdmadev"
	"github.com/sluice-hpc/sluice/verbs"
)

// An iWARP device is listed, and opening it says why it cannot be; the other device can be opened.
func testIWARP(t *testing.T) {
	rdmadev.Sysfs = t.TempDir()
	for device, kind := range map[string]string{"null0": "4: RNIC\n", "null1": "1: CA\n"} {
		dir := filepath.Join(rdmadev.Sysfs, "class/infiniband", device)
		require.NoError(t, os.MkdirAll(dir, 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "node_type"), []byte(kind), 0o644))
	}
	d, err := verbs.Find("null0")
	require.NoError(t, err)
	_, err = d.Open(verbs.Config{})
	require.ErrorIs(t, err, verbs.ErrNotSupported)
	require.ErrorContains(t, err, "iWARP has no immediate data")
	openNull(t, "ibv", verbs.Config{})
	d, err = verbs.Find("ibv")
	require.NoError(t, err)
	require.Equal(t, "null1", d.Name())

	require.NoError(t, os.WriteFile(filepath.Join(rdmadev.Sysfs, "class/infiniband/null1/node_type"), []byte("4: RNIC\n"), 0o644))
	testProbe(verbs.No, `only iWARP devices, which are not supported: ["null0" "null1"]`)(t)
}
