package ibv

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/rdmadev"
	"github.com/sluice-hpc/sluice/internal/rdmadev/rdmadevtest"
	"github.com/sluice-hpc/sluice/verbs"
)

func TestHardwareStrides(t *testing.T) {
	before := rdmadev.Sysfs
	rdmadev.Sysfs = rdmadevtest.TwoNodes(t)
	t.Cleanup(func() { rdmadev.Sysfs = before })
	require.NoError(t, os.Symlink(filepath.FromSlash("../../../bus/pci/drivers/bnxt_re"), filepath.Join(rdmadev.Sysfs, "devices/pci0000_80/0000_80_01.0/driver")))
	for device, want := range map[string]verbs.Answer{"mlx5_0": verbs.Unknown, "mlx5_1": verbs.No, "rxe0": verbs.No, "mlx5_9": verbs.Unknown} {
		got := HardwareStrides(device)
		require.Equal(t, want, got.Answer, device)
		require.NotEmpty(t, got.Reason, device)
	}
	require.Contains(t, HardwareStrides("mlx5_0").Reason, "UMR")
	require.Contains(t, HardwareStrides("mlx5_1").Reason, "bnxt_re")
	require.Contains(t, HardwareStrides("rxe0").Reason, "software")
}
