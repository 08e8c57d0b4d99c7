package shm

import (
	"os"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/verbs"
)

// TestBlocksArePages: a block of any size starts at a page, and shares its last page with no other
// block.
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

// pages returns the number of bytes that an arena occupies.
func pages(t *testing.T, ar *arena) int64 {
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(ar.fd, &st))
	return st.Blocks * 512
}

// dirty allocates a block, which must be zero, and leaves no byte of it so.
func (a *arenas) dirty(t *testing.T, size int) block {
	b, err := a.alloc(size, func(*arena) {})
	require.NoError(t, err)
	require.Equal(t, -1, slices.IndexFunc(b.mem, func(v byte) bool { return v != 0 }))
	for i := range b.mem {
		b.mem[i] = 0xff
	}
	return b
}

// TestPagesGoBack: an unused arena occupies no memory. Its pages are allocated again, and zero,
// before any of it is used, in part or as a whole.
func TestPagesGoBack(t *testing.T) {
	noPool(t)
	const size = 8 << 20
	var a arenas
	alloc := func(n int) block { return a.dirty(t, n) }
	small := alloc(100) // in an arena of the smallest size, which stays
	large := alloc(size)
	require.EqualValues(t, 2, a.next)
	require.EqualValues(t, size, pages(t, large.arena))
	a.release(small)
	require.EqualValues(t, arenaSize, pages(t, small.arena))
	a.release(large)
	require.Zero(t, pages(t, large.arena))

	parts := []block{alloc(2 << 20), alloc(3<<20 - 1), alloc(1 << 20)} // the last in the first arena
	require.EqualValues(t, 5<<20, pages(t, large.arena))
	a.release(parts[1]) // joined with what occupies nothing
	require.EqualValues(t, 5<<20, pages(t, large.arena))
	parts[1] = alloc(6 << 20)
	require.EqualValues(t, size, pages(t, large.arena))
	for _, b := range parts {
		a.release(b)
	}
	require.Zero(t, pages(t, large.arena))
	whole := alloc(size)
	require.Same(t, large.arena, whole.arena)
	require.EqualValues(t, size, pages(t, large.arena))
	require.EqualValues(t, 2, a.next)
	require.NoError(t, a.close())
}

// TestPagesGone: if returned pages cannot be allocated again, that is an error, not a fault, and
// the block stays free.
func TestPagesGone(t *testing.T) {
	noPool(t)
	const size = 2 << 20
	var a arenas
	b, err := a.alloc(size, func(*arena) {})
	require.NoError(t, err)
	a.release(b)
	real := madvise
	t.Cleanup(func() { madvise = real })
	madvise = func([]byte, int) error { return unix.ENOMEM }
	_, err = a.alloc(size, func(*arena) {})
	require.ErrorIs(t, err, verbs.ErrNoMemory)
	for _, kernel := range []func([]byte, int) error{real, func([]byte, int) error { return unix.EINVAL }} { // the other is before 5.14
		madvise = kernel
		again, err := a.alloc(size, func(*arena) { require.Fail(t, "another arena") })
		require.NoError(t, err)
		require.EqualValues(t, size, pages(t, again.arena))
		a.release(again)
	}
	require.NoError(t, a.close())
}

// TestArenasGoBack: of unused arenas only some are kept, and numbers are not used again; a process that has
// used most of them keeps its arenas.
func TestArenasGoBack(t *testing.T) {
	var a arenas
	fill := func() (list []block) {
		for range keepUnused + 5 {
			b, err := a.alloc(arenaSize, func(*arena) {})
			require.NoError(t, err)
			list = append(list, b)
		}
		return list
	}
	for round, next := range []int{keepUnused + 5, keepUnused + 10} {
		returned := 0
		for _, b := range fill() {
			if ar := a.release(b); ar != nil {
				returned++
				require.Nil(t, a.get(ar.id))
				require.NoError(t, ar.close())
			}
		}
		require.Equal(t, 5, returned, "round %d", round)
		require.Len(t, a.snapshot(), keepUnused)
		require.EqualValues(t, next, a.next)
	}
	a.next = lastReturned + 1
	for _, b := range fill() {
		if ar := a.release(b); ar != nil {
			require.LessOrEqual(t, ar.id, uint32(lastReturned))
			require.NoError(t, ar.close())
		}
	}
	require.Greater(t, len(a.snapshot()), 5)
	require.NoError(t, a.close())
}

// TestTooManyArenas: an arena that would be one too many is not made.
func TestTooManyArenas(t *testing.T) {
	dir, err := unix.Open(t.TempDir(), unix.O_RDONLY, 0)
	require.NoError(t, err)
	defer unix.Close(dir)
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(dir), Max: limit.Max})) // no memfd can be made
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	a := arenas{next: maxArenas}
	_, err = a.alloc(1, func(*arena) {})
	require.ErrorIs(t, err, verbs.ErrNoMemory)
	require.ErrorContains(t, err, "65536 arenas")
}

// TestFreePagesGoBack: the pages of what has been free for some time are returned, in an arena that is used
// in part, too, and allocated again before they are used.
func TestFreePagesGoBack(t *testing.T) {
	defer func(d time.Duration) { trimAfter = d }(trimAfter)
	trimAfter = time.Hour // the test does it
	var a arenas
	alloc := func(size int) block { return a.dirty(t, size) }
	const size = 64 << 10
	first, second, third := alloc(size), alloc(size), alloc(size)
	ar := first.arena
	require.EqualValues(t, arenaSize, pages(t, ar))
	require.Nil(t, a.trims)
	a.release(second)
	require.NotNil(t, a.trims)
	a.trim()
	require.EqualValues(t, arenaSize, pages(t, ar), "it may be needed again")
	require.NotNil(t, a.trims)
	a.release(third) // it is all free now, since just now
	a.trim()
	require.EqualValues(t, arenaSize, pages(t, ar))
	a.trim()
	require.EqualValues(t, size, pages(t, ar))
	require.Nil(t, a.trims)
	a.release(first) // joined with what has no pages
	a.trim()
	a.trim()
	require.Zero(t, pages(t, ar))
	part := alloc(size)
	require.Same(t, ar, part.arena)
	require.EqualValues(t, size, pages(t, ar))
	a.release(part)
	a.trim()
	part = alloc(size / 2) // of what the next trim would return
	a.trim()
	require.EqualValues(t, size/2, pages(t, ar))
	require.Equal(t, -1, slices.IndexFunc(part.mem, func(v byte) bool { return v != 0xff }))
	a.release(part)
	require.NotNil(t, a.trims)
	require.NoError(t, a.close())
	a.trim() // it was about to begin
	require.Nil(t, a.trims)
}
