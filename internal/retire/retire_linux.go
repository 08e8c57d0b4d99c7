// Package retire maps memory that users get slices of, and takes it back without taking away
// its addresses: a slice that is used after that finds private pages, of zeroes at first, and
// not the end of the process, nor anything that others use. Nothing tells when the last such
// slice is gone: beyond a bound the oldest addresses are given back.
package retire

import (
	"os"
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// mostRanges and mostBytes bound the addresses that are kept. A range costs the kernel some
	// 200 bytes, and memory only where it is written to.
	mostRanges = 1 << 10
	mostBytes  = 1 << 40
)

// kept are the ranges that are retired, in this order.
var kept struct {
	sync.Mutex
	ranges [][]byte
	bytes  int
}

// Map maps size bytes, a multiple of the page size, readable and writable, with these flags; of
// a file, or of none where fd is -1.
func Map(fd, size, flags int) ([]byte, error) {
	b, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, flags)
	if err == unix.ENOMEM { // what is kept counts where addresses are limited
		kept.Lock()
		dropped := drop(0, 0)
		kept.Unlock()
		if dropped != nil {
			return nil, dropped
		}
		b, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, flags)
	}
	return b, os.NewSyscallError("mmap", err)
}

// Unmap takes back what Map has returned, and keeps its addresses.
func Unmap(b []byte) error {
	const flags = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE | unix.MAP_FIXED
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	if _, _, errno := unix.Syscall6(unix.SYS_MMAP, at, uintptr(len(b)), unix.PROT_READ|unix.PROT_WRITE, flags, ^uintptr(0), 0); errno != 0 {
		return os.NewSyscallError("munmap", unix.Munmap(b))
	}
	kept.Lock()
	defer kept.Unlock()
	kept.ranges = append(kept.ranges, b)
	kept.bytes += len(b)
	return drop(mostRanges, mostBytes)
}

// drop gives addresses back until no more than so many are kept. The caller holds the lock.
func drop(ranges, bytes int) error {
	for len(kept.ranges) > ranges || kept.bytes > bytes {
		b := kept.ranges[0]
		kept.ranges = slices.Delete(kept.ranges, 0, 1)
		kept.bytes -= len(b)
		if err := unix.Munmap(b); err != nil {
			return os.NewSyscallError("munmap", err)
		}
	}
	return nil
}
