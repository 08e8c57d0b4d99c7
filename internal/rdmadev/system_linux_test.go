package rdmadev

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/rdmadev/rdmadevtest"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// Package rdmamap knows one place of sysfs and of /dev. A process in name spaces of
// its own sees there what the test has laid out, and says what it finds.
func init() { acts["tell"] = tell }

// tell says what there is, in the name spaces of the process: in these folders in place of /sys
// and /dev.
func tell(args []string) error {
	if out, err := exec.Command("ip", "link", "add", "eth2", "type", "veth", "peer", "name", "eth3").CombinedOutput(); err != nil {
		return fmt.Errorf("ip: %w: %s", err, out)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	for at, from := range map[string]string{"/sys": args[0], "/dev": args[1]} {
		if err := unix.Mount(from, at, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s: %w", at, err)
		}
	}
	for _, d := range []string{"mlx5_0", "mlx5_1", "mlx5_9"} {
		fmt.Println(d, CharDevices(d))
	}
	for _, n := range []string{"eth2", "eth3", "eth9", "lo"} {
		fmt.Printf("%s %q\n", n, OfNetdev(n))
	}
	return nil
}

func TestThroughRDMAMap(t *testing.T) {
	dev := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dev, "infiniband"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dev, "infiniband/rdma_cm"), nil, 0o600))
	cmd := ranks.Command(t.Context(), "tell", rdmadevtest.TwoNodes(t), dev)
	// A user name space, in which everybody may mount.
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, `mlx5_0 [/dev/infiniband/issm0 /dev/infiniband/umad0 /dev/infiniband/uverbs0 /dev/infiniband/rdma_cm]
mlx5_1 [/dev/infiniband/uverbs1 /dev/infiniband/rdma_cm]
mlx5_9 []
eth2 "mlx5_0"
eth3 "rxe0"
eth9 ""
lo ""
`, string(out))
}

func TestCPUs(t *testing.T) {
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	require.Len(t, CPUs(), runtime.NumCPU())
}
