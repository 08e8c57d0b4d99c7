package channel

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

func init() {
	acts["fenced"] = act{do: fenced, prepare: func(args []string) error {
		if !refused(args[1], number(os.Getenv("SLUICE_RANK"))) {
			return nil
		}
		return forbidBarriers()
	}}
}

// refused says whether a rank does without membarrier(2).
func refused(ranks string, rank int) bool { return ranks == "all" || ranks == "one" && rank == 0 }

// forbidBarriers makes membarrier(2) fail, as container runtimes have it.
func forbidBarriers() error { return forbid(unix.SYS_MEMBARRIER) }

// forbid installs a seccomp filter under which a system call, whose first argument is that one if
// there is one here, fails with EPERM.
func forbid(call uint32, first ...uint32) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no new privileges: %w", err)
	}
	// Offsets in seccomp_data: the number of the call is at 0, the first argument at 16.
	var filter []unix.SockFilter
	for i, k := range append([]uint32{call}, first...) {
		filter = append(filter,
			unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: uint32(16 * i)},
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jt: 1},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
	}
	filter = append(filter, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)})
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if _, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog))); e != 0 {
		return fmt.Errorf("seccomp: %w", e)
	}
	return nil
}

// fenced is a halo exchange of ranks that do not spin. Both ends of a pair know
// whether one of them has no membarrier.
func fenced(ctx context.Context, n *Node, args []string) error {
	ranks := args[1]
	if n.fenced != refused(ranks, n.Rank()) {
		return fmt.Errorf("rank %d without membarrier: %v", n.Rank(), n.fenced)
	}
	n.spins = 0
	if err := halo(ctx, n, number(args[0]), hooks{}); err != nil {
		return err
	}
	n.mu.Lock()
	peers := n.allPeers()
	n.mu.Unlock()
	for _, p := range peers {
		p.mu.Lock()
		got, want := p.fenced, n.fenced || refused(ranks, p.rank)
		p.mu.Unlock()
		if got != want {
			return fmt.Errorf("rank %d and %d with fences: %v, want %v", n.Rank(), p.rank, got, want)
		}
	}
	return nil
}

// TestWithoutBarriers: where all ranks, or one of them, may not call membarrier(2),
// sleepers are woken all the same.
func TestWithoutBarriers(t *testing.T) {
	need.Full(t)
	rounds := 24
	if need.WantLong() {
		rounds = 200
	}
	for _, ranks := range []string{"all", "one", "none"} {
		for _, size := range []int{2, 4, 16} {
			t.Run(fmt.Sprintf("%s of %d", ranks, size), func(t *testing.T) {
				if size > 4 || size > 2 && ranks != "one" {
					need.Long(t)
				}
				r, out := run(t, "shm", size, "fenced", strconv.Itoa(rounds/size*2), ranks)
				require.Zero(t, r.ExitStatus(), out)
			})
		}
	}
}
