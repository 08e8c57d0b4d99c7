// Package retire maps memory that users get slices of, and takes it back without taking away
// its addresses: a slice that is used after that finds private pages, of zeroes at first.
// Nothing tells when the last such slice is gone: beyond a bound, and where there is no room
// for new memory, the oldest addresses are given back. A slice of those ends the process, or
// reaches what has the addresses then.
package retire

import (
	"fmt"
	"os"
	"unsafe"

	"github.com/sluice-hpc/sluice/internal/limits"
)

// pageSize is a variable for tests alone.
var pageSize = os.Getpagesize()

// mostHeap is more than any machine has; the runtime panics if it is asked for more addresses than there are.
const mostHeap = 1 << 46

// heap returns size bytes of zeroed, page-aligned memory of the Go heap.
func heap(size int) ([]byte, error) {
	if uint64(size) > mostHeap {
		return nil, fmt.Errorf("there are no addresses for %d bytes", size)
	}
	b := make([]byte, size+pageSize)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (pageSize - 1)
	b = b[skip : skip+size : skip+size]
	return b, limits.Charge(size, func(from, to int) error { return touch(b[from:to]) })
}

// touch has the pages of b be there.
func touch(b []byte) error {
	for i := 0; i < len(b); i += pageSize {
		b[i] = 0
	}
	return nil
}
