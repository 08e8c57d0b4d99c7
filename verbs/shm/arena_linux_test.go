package shm

import (
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// TestBlocksArePages: a block begins at a page, whatever its size, and no other is
// in its last one.
func TestBlocksArePages(t *testing.T) {
	before := blockAlign
	t.Cleanup(func() { blockAlign = before })
	for _, page := range []int{os.Getpagesize(), 64 << 10} { // as on arm64, and ppc64
		blockAlign = page
		var a arenas
		taken := map[int]bool{}
		for _, size := range []int{1, page - 1, page, page + 1, 3*page - 1, 1} {
			b, err := a.alloc(size, func(*arena) {})
			require.NoError(t, err)
			require.Len(t, b.mem, size)
			require.Zero(t, b.off%page)
			require.Zero(t, uintptr(unsafe.Pointer(unsafe.SliceData(b.mem)))%uintptr(os.Getpagesize()))
			for off := b.off; off < b.off+size; off += page {
				require.False(t, taken[off])
				taken[off] = true
			}
		}
		require.NoError(t, a.close())
	}
}
