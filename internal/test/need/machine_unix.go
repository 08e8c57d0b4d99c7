//go:build unix

package need

import (
	"fmt"
	"math"
	"os/exec"
	"sync"

	"golang.org/x/sys/unix"
)

const isUnix = true

// lockedMemory is how many bytes of memory this process may lock.
func lockedMemory() uint64 { return softLimit(unix.RLIMIT_MEMLOCK) }

// openFiles is how many files this process may have open.
func openFiles() uint64 { return softLimit(unix.RLIMIT_NOFILE) }

func softLimit(resource int) uint64 {
	var l unix.Rlimit
	if unix.Getrlimit(resource, &l) != nil {
		return math.MaxUint64
	}
	return uint64(l.Cur)
}

// networks makes a network namespace with a pair of veth devices, which end with the command.
var networks = sync.OnceValue(func() error {
	out, err := exec.Command("unshare", "--net", "ip", "link", "add", "veth0", "type", "veth", "peer", "name", "veth1").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
})
