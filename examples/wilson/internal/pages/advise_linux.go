package pages

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// huge is the size of a huge page of most processors. Where it is another, the advice takes the
// pages that it covers.
const huge = 2 << 20

// advise asks for huge pages where they fit into the memory at p. Best effort: some kernels have none.
func advise(p unsafe.Pointer, size uintptr) {
	skip := -uintptr(p) & (huge - 1)
	if size < skip+huge {
		return
	}
	unix.Madvise(unsafe.Slice((*byte)(unsafe.Add(p, skip)), (size-skip)&^(huge-1)), unix.MADV_HUGEPAGE)
}
