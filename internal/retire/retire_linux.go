package retire

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/limits"
)

const (
	// mostRanges and mostBytes bound the addresses that are kept. A range costs the kernel some
	// 200 bytes, and memory only where it is written to.
	mostRanges = 1 << 10
	mostBytes  = 1 << 40
	// limitPart is the part of what the process may map that may be kept: the rest is for the
	// heap, whose growth does not fail but ends the process.
	limitPart = 16
)

// kept are the ranges that are retired, in this order.
var kept struct {
	sync.Mutex
	ranges [][]byte
	bytes  int
}

// Tests replace these.
var (
	mmap       = unix.Mmap
	remap      = unix.MmapPtr
	munmap     = unix.Munmap
	getrlimit  = unix.Getrlimit
	overcommit = "/proc/sys/vm/overcommit_memory"
)

const access = unix.PROT_READ | unix.PROT_WRITE

// Map maps size bytes, a multiple of the page size, readable and writable, with these flags; of
// a file, or of none where fd is -1.
func Map(fd, size, flags int) ([]byte, error) {
	b, err := mmap(fd, 0, size, access, flags)
	if err == unix.ENOMEM { // what is kept counts where addresses are limited
		kept.Lock()
		for fits := couldFit(fd, size, flags); fits && err == unix.ENOMEM && dropOldest(); {
			b, err = mmap(fd, 0, size, access, flags)
		}
		kept.Unlock()
	}
	if err == unix.ENOMEM {
		if why := why(size); why != nil {
			return nil, fmt.Errorf("%w: %w", os.NewSyscallError("mmap", err), why)
		}
	}
	return b, os.NewSyscallError("mmap", err)
}

// why says what a mapping exceeds, as far as the system says.
func why(size int) error {
	host := limits.Host{FS: os.DirFS("/")}
	for _, l := range []struct {
		resource   int
		used, name string
	}{{unix.RLIMIT_AS, "VmSize:", "RLIMIT_AS (ulimit -v)"}, {unix.RLIMIT_DATA, "VmData:", "RLIMIT_DATA (ulimit -d)"}} {
		var most unix.Rlimit
		kib, _ := strconv.ParseUint(host.Field("proc/self/status", l.used), 10, 64)
		if getrlimit(l.resource, &most) == nil && kib<<10+uint64(size) > most.Cur {
			return fmt.Errorf("%s is %d KiB", l.name, most.Cur>>10)
		}
	}
	return limits.Fits(uint64(size))
}

// couldFit says whether there is room for size bytes without what is kept. The caller holds the
// lock.
func couldFit(fd, size, flags int) bool {
	if size -= kept.bytes; size <= 0 {
		return true
	}
	b, err := mmap(fd, 0, size, access, flags)
	if err == nil {
		err = munmap(b)
	}
	return err == nil
}

// Unmap takes back what Map has returned, and keeps its addresses, as far as the bound allows.
func Unmap(b []byte) error {
	const flags = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE | unix.MAP_FIXED
	kept.Lock()
	defer kept.Unlock()
	most := bound()
	if len(b) > most {
		return os.NewSyscallError("munmap", munmap(b))
	}
	for (len(kept.ranges) >= mostRanges || kept.bytes+len(b) > most) && dropOldest() {
	}
	if _, err := remap(-1, 0, unsafe.Pointer(unsafe.SliceData(b)), uintptr(len(b)), access, flags); err != nil {
		return errors.Join(fmt.Errorf("the addresses of %d bytes are not kept: do not use slices of them any more: %w", len(b), os.NewSyscallError("mmap", err)),
			os.NewSyscallError("munmap", munmap(b)))
	}
	if unix.Munlock(b) == nil { // after mlockall the pages are there, and stay
		unix.Madvise(b, unix.MADV_DONTNEED)
	}
	kept.ranges = append(kept.ranges, b)
	kept.bytes += len(b)
	return nil
}

// bound is how many bytes of addresses may be kept: none where the kernel counts them as memory.
func bound() int {
	if mode, _ := os.ReadFile(overcommit); len(mode) > 0 && mode[0] == '2' {
		return 0
	}
	most := uint64(mostBytes)
	for _, resource := range []int{unix.RLIMIT_AS, unix.RLIMIT_DATA} {
		var l unix.Rlimit
		if getrlimit(resource, &l) == nil {
			most = min(most, l.Cur/limitPart)
		}
	}
	return int(most)
}

// dropOldest gives back the oldest addresses that can be given back, and says whether there were
// any: part of what the kernel has joined to one range may have to stay. The caller holds the
// lock.
func dropOldest() bool {
	for i, b := range kept.ranges {
		if munmap(b) == nil {
			kept.ranges = slices.Delete(kept.ranges, i, i+1)
			kept.bytes -= len(b)
			return true
		}
	}
	return false
}
