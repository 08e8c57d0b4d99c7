package retire

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/limits"
)

// heapMost is how many bytes are allocated in the heap at most. Of more the heap may zero pages that
// it has given back, all at once, and the kernel count them whether there is room or not; and a
// process that fails to allocate them holds what it has until the next collection.
const heapMost = 1 << 20

// Alloc returns size bytes of zeroed, page-aligned memory, and what frees them as Unmap does; nil for
// memory of the heap, which lives as long as a slice of it. All its pages are there. If there is no
// room, the error says what is exceeded.
func Alloc(size int) (b []byte, free func() error, err error) {
	if size <= heapMost {
		b, err = heap(size)
		return b, nil, err
	}
	all, err := Private(size)
	if err != nil {
		return nil, nil, err
	}
	return all[:size:size], func() error { return Unmap(all) }, nil
}

// hugePage is a size for which the kernel may use one page: that is zeroed in a fraction of the time,
// and makes the translation tables of a device much shorter.
const hugePage = 2 << 20

// Private maps at least size bytes of zeroed memory, to the end of a page, whose pages are all there.
// If there is no room, the error says what is exceeded.
func Private(size int) ([]byte, error) {
	b, err := Map(-1, (size+pageSize-1)&^(pageSize-1), unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	err = limits.Charge(len(b), func(from, to int) error {
		advice := unix.MADV_HUGEPAGE
		if to-from < hugePage { // the room is so small: a huge page would be more than the piece
			advice = unix.MADV_NOHUGEPAGE
		}
		unix.Madvise(b[from:to], advice) // best effort
		return touch(b[from:to])
	})
	if err != nil {
		return nil, errors.Join(err, os.NewSyscallError("munmap", munmap(b))) // no slice of it is known
	}
	return b, nil
}
