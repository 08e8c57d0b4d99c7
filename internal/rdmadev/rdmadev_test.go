package rdmadev

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/leak"
	"github.com/sluice-hpc/sluice/internal/rdmadev/rdmadevtest"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

var acts = map[string]func(args []string) error{}

func TestMain(m *testing.M) {
	ranks.Play(acts, ranks.Call)
	leak.Main(m)
}

// read has the test read root in place of sysfs.
func read(t *testing.T, root string) {
	before := Sysfs
	Sysfs = root
	t.Cleanup(func() { Sysfs = before })
}

func TestDevices(t *testing.T) {
	read(t, rdmadevtest.TwoNodes(t))
	require.Equal(t, []string{"mlx5_0", "mlx5_1", "rxe0"}, Devices())

	require.Equal(t, []int{1}, Ports("mlx5_0"))
	require.Empty(t, Ports("mlx5_7"))
	require.Equal(t, "eth2", Netdev("mlx5_0", 1), "the first of the table, by number")
	require.Equal(t, "ib0", Netdev("mlx5_1", 1))
	require.Equal(t, "ib1", Netdev("mlx5_1", 2))
	require.Equal(t, "eth3", Netdev("rxe0", 1))
	require.Empty(t, Netdev("mlx5_0", 2))
	require.Empty(t, Netdev("mlx5_9", 1))

	require.Equal(t, "IB/RoCE v1", GIDType("mlx5_0", 1, 1))
	require.Equal(t, "RoCE v2", GIDType("mlx5_0", 1, 2))
	require.Equal(t, "eth2.7", GIDNetdev("mlx5_0", 1, 2))
	require.Empty(t, GIDType("mlx5_0", 1, 0))
	require.Empty(t, GIDNetdev("mlx5_1", 1, 0))

	require.False(t, IWARP("mlx5_0"))
	require.True(t, IWARP("rxe0"), "which the fixture makes one of iWARP")
	require.False(t, IWARP("mlx5_9"))

	require.Equal(t, []string{"mlx5_core", "", "", ""}, []string{Driver("mlx5_0"), Driver("mlx5_1"), Driver("rxe0"), Driver("mlx5_9")})
	require.Equal(t, []bool{false, true, false}, []bool{Software("mlx5_0"), Software("rxe0"), Software("mlx5_9")})

	require.Equal(t, []int{0, 2, -1, -1}, []int{NUMANode("mlx5_0"), NUMANode("mlx5_1"), NUMANode("rxe0"), NUMANode("mlx5_9")})
	require.Equal(t, []int{4, 5, 6, 7, 12, 13, 14, 15}, LocalCPUs("mlx5_1"))
	require.Nil(t, LocalCPUs("rxe0"))
}

// TestNothing: a host without RDMA, or without sysfs, is no error.
func TestNothing(t *testing.T) {
	read(t, t.TempDir())
	require.Empty(t, Devices())
	require.Empty(t, Netdev("mlx5_0", 1))
	require.Equal(t, -1, NUMANode("mlx5_0"))
	require.Nil(t, LocalCPUs("mlx5_0"))
	require.Equal(t, []string{"b", "a"}, Nearest([]string{"b", "a"}, []int{0}))
}

func TestNearest(t *testing.T) {
	read(t, rdmadevtest.TwoNodes(t))
	all := []string{"rxe0", "mlx5_1", "mlx5_0"}
	for _, c := range []struct {
		name string
		cpus []int
		want []string
	}{
		{"node 0", []int{1, 8}, []string{"mlx5_0", "mlx5_1", "rxe0"}},
		{"node 2", []int{5}, []string{"mlx5_1", "mlx5_0", "rxe0"}},
		{"both, whatever number of CPUs each", []int{0, 1, 2, 15}, []string{"mlx5_1", "mlx5_0", "rxe0"}},
		{"not known", nil, []string{"mlx5_1", "mlx5_0", "rxe0"}},
		{"of no node", []int{99}, []string{"mlx5_1", "mlx5_0", "rxe0"}},
	} {
		require.Equal(t, c.want, Nearest(all, c.cpus), c.name)
	}
	require.Equal(t, []string{"rxe0", "mlx5_1", "mlx5_0"}, all, "the argument is as it was")
	require.Empty(t, Nearest(nil, []int{0}))
}

// TestNearestOfBrokenNodes: a kernel that does not tell distances.
func TestNearestOfBrokenNodes(t *testing.T) {
	root := rdmadevtest.TwoNodes(t)
	read(t, root)
	require.NoError(t, os.WriteFile(filepath.Join(root, "devices/system/node/node2/distance"), []byte("21\n"), 0o644))
	require.Equal(t, []string{"mlx5_0", "mlx5_1"}, Nearest([]string{"mlx5_1", "mlx5_0"}, []int{4}))
}

func TestParseList(t *testing.T) {
	for s, want := range map[string][]int{
		"0":             {0},
		"0-3,8":         {0, 1, 2, 3, 8},
		"":              nil,
		"3-1":           nil,
		"-1":            nil,
		"1-":            nil,
		"0,x":           nil,
		"0-4294967295":  nil,
		"1,,2":          nil,
		"0-1,2-3,65535": {0, 1, 2, 3, 65535},
	} {
		require.Equal(t, want, parseList(s), "%q", s)
	}
}
