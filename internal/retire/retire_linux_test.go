package retire

import (
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

const anonymous = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS

func TestAddressesStay(t *testing.T) {
	page := os.Getpagesize()
	fd, err := unix.MemfdCreate("retire", 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, unix.Ftruncate(fd, int64(3*page)))
	b, err := Map(fd, 3*page, unix.MAP_SHARED)
	require.NoError(t, err)
	b[page] = 1
	require.NoError(t, Unmap(b))
	require.Zero(t, b[page])
	b[page], b[2*page] = 2, 3 // not in the file
	var seen [1]byte
	_, err = unix.Pread(fd, seen[:], int64(page))
	require.NoError(t, err)
	require.EqualValues(t, 1, seen[0])

	other, err := Map(fd, 3*page, unix.MAP_SHARED)
	require.NoError(t, err)
	require.NotSame(t, unsafe.SliceData(b), unsafe.SliceData(other))
	require.NoError(t, Unmap(other))
	dropAll()
	require.Zero(t, kept.bytes)
}

func dropAll() {
	for dropOldest() {
	}
}

// replace has a variable another value until the test ends.
func replace[T any](t *testing.T, at *T, value T) {
	before := *at
	t.Cleanup(func() { *at = before })
	*at = value
}

// retired maps so many ranges of a page, and retires them.
func retired(t *testing.T, n int) (all [][]byte) {
	for range n {
		b, err := Map(-1, os.Getpagesize(), anonymous)
		require.NoError(t, err)
		all = append(all, b)
	}
	for _, b := range all {
		require.NoError(t, Unmap(b))
	}
	t.Cleanup(dropAll)
	return all
}

func TestBounded(t *testing.T) {
	all := retired(t, mostRanges+10)
	require.Equal(t, mostRanges, len(kept.ranges))
	require.Equal(t, mostRanges*os.Getpagesize(), kept.bytes)
	require.Same(t, unsafe.SliceData(all[10]), unsafe.SliceData(kept.ranges[0]), "the oldest has gone")
	large, err := Map(-1, 1<<30, anonymous|unix.MAP_NORESERVE)
	require.NoError(t, err)
	replace(t, &getrlimit, limited(unix.RLIMIT_AS, limitPart<<30))
	require.NoError(t, Unmap(large))
	require.Equal(t, 1, len(kept.ranges))
}

// limited is a system where one resource is limited.
func limited(resource int, limit uint64) func(int, *unix.Rlimit) error {
	return func(which int, l *unix.Rlimit) error {
		l.Cur = unix.RLIM_INFINITY
		if which == resource {
			l.Cur = limit
		}
		return nil
	}
}

// TestLimited: what is kept leaves room in the limits of the process, and nothing is kept where
// the kernel counts it.
func TestLimited(t *testing.T) {
	const part = 1 << 20
	for _, resource := range []int{unix.RLIMIT_AS, unix.RLIMIT_DATA} {
		replace(t, &getrlimit, limited(resource, limitPart*part))
		for range 5 {
			b, err := Map(-1, part/2, anonymous)
			require.NoError(t, err)
			require.NoError(t, Unmap(b))
			require.LessOrEqual(t, kept.bytes, part)
		}
		require.Equal(t, 2, len(kept.ranges))
		large, err := Map(-1, 2*part, anonymous)
		require.NoError(t, err)
		require.NoError(t, Unmap(large))
		require.Equal(t, 2, len(kept.ranges), "what cannot be kept pushes nothing out")
		dropAll()
	}
	replace(t, &getrlimit, unix.Getrlimit)
	replace(t, &overcommit, filepath.Join(t.TempDir(), "overcommit"))
	for mode, want := range map[string]int{"0\n": 1, "1\n": 1, "2\n": 0} {
		require.NoError(t, os.WriteFile(overcommit, []byte(mode), 0o600))
		retired(t, 1)
		require.Equal(t, want, len(kept.ranges), "mode %s", mode)
		dropAll()
	}
}

func TestMapFails(t *testing.T) {
	_, err := Map(1<<20, os.Getpagesize(), unix.MAP_SHARED)
	require.ErrorIs(t, err, unix.EBADF)
	retired(t, 2)
	_, err = Map(-1, 1<<60, anonymous) // more than there are, also without what is kept
	require.ErrorIs(t, err, unix.ENOMEM)
	require.Equal(t, 2, len(kept.ranges))
	for resource, name := range map[int]string{unix.RLIMIT_AS: "RLIMIT_AS (ulimit -v) is 4096 KiB", unix.RLIMIT_DATA: "RLIMIT_DATA (ulimit -d) is 4096 KiB"} {
		replace(t, &getrlimit, limited(resource, 4<<20))
		_, err = Map(-1, 1<<60, anonymous)
		require.ErrorIs(t, err, unix.ENOMEM)
		require.ErrorContains(t, err, name)
	}
}

// TestMapMakesRoom: where there are too few addresses the oldest go, as many as it takes.
func TestMapMakesRoom(t *testing.T) {
	page := os.Getpagesize()
	all := retired(t, 5)
	room := 6 * page
	replace(t, &mmap, func(fd int, offset int64, size, prot, flags int) ([]byte, error) {
		if kept.bytes+size > room {
			return nil, unix.ENOMEM
		}
		return unix.Mmap(fd, offset, size, prot, flags)
	})
	for _, c := range []struct{ size, left int }{{1, 5}, {3, 3}, {7, 3}, {6, 0}} {
		b, err := Map(-1, c.size*page, anonymous)
		require.Equal(t, c.left, len(kept.ranges))
		if c.size*page > room {
			require.ErrorIs(t, err, unix.ENOMEM)
			continue
		}
		require.NoError(t, err)
		require.NoError(t, unix.Munmap(b))
		if c.left > 0 {
			require.Same(t, unsafe.SliceData(all[5-c.left]), unsafe.SliceData(kept.ranges[0]))
		}
	}
}

// TestStuck: a range that cannot be given back stays known, and is no error of another one.
func TestStuck(t *testing.T) {
	all := retired(t, mostRanges)
	stuck := unsafe.SliceData(all[0])
	replace(t, &munmap, func(b []byte) error {
		if unsafe.SliceData(b) == stuck {
			return unix.ENOMEM
		}
		return unix.Munmap(b)
	})
	retired(t, 1)
	require.Equal(t, mostRanges, len(kept.ranges))
	require.Same(t, stuck, unsafe.SliceData(kept.ranges[0]))
	require.NotSame(t, unsafe.SliceData(all[1]), unsafe.SliceData(kept.ranges[1]))
	dropAll()
	require.Equal(t, 1, len(kept.ranges))
	replace(t, &munmap, unix.Munmap)
	dropAll()
	require.Zero(t, len(kept.ranges))
	require.Zero(t, kept.bytes)
}

// TestNotKept: that the addresses could not be kept is said.
func TestNotKept(t *testing.T) {
	b, err := Map(-1, os.Getpagesize(), anonymous)
	require.NoError(t, err)
	replace(t, &remap, func(int, int64, unsafe.Pointer, uintptr, int, int) (unsafe.Pointer, error) { return nil, unix.ENOMEM })
	err = Unmap(b)
	require.ErrorIs(t, err, unix.ENOMEM)
	require.ErrorContains(t, err, "are not kept")
	require.Zero(t, len(kept.ranges))
	require.ErrorIs(t, unix.Munmap(b), unix.EINVAL, "it is unmapped")
}

// TestLocked: after mlockall, where what is mapped has its pages at once, they go all the same.
func TestLocked(t *testing.T) {
	replace(t, &remap, func(fd int, offset int64, at unsafe.Pointer, size uintptr, prot, flags int) (unsafe.Pointer, error) {
		return unix.MmapPtr(fd, offset, at, size, prot, flags|unix.MAP_LOCKED)
	})
	b := retired(t, 1)[0]
	var there [1]byte
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), uintptr(unsafe.Pointer(&there)))
	require.Zero(t, errno)
	require.Zero(t, there)
	b[0] = 1
}

// TestAlloc: all pages are there, and those of large memory go at once when it is freed, or cannot be
// had.
func TestAlloc(t *testing.T) {
	for _, size := range []int{1, heapMost, heapMost + 1, 5*heapMost + 7} {
		b, free, err := Alloc(size)
		require.NoError(t, err)
		require.NotContains(t, resident(t, b), byte(0))
		require.Len(t, b, size)
		require.Equal(t, make([]byte, size), b)
		require.Zero(t, uintptr(unsafe.Pointer(unsafe.SliceData(b)))%uintptr(pageSize))
		if size <= heapMost {
			require.Nil(t, free)
			continue
		}
		b[size-1] = 1
		require.NoError(t, free())
		require.NotContains(t, resident(t, b), byte(1))
		require.Zero(t, b[size-1])
	}
	_, _, err := Alloc(1 << 60)
	require.ErrorContains(t, err, "there is no room")
}

// TestLargePages: memory of the heap begins at a page of this machine, whatever size those have.
func TestLargePages(t *testing.T) {
	defer func(was int) { pageSize = was }(pageSize)
	pageSize = 64 << 10
	for _, size := range []int{1, 100, 4096, 100_000} {
		b, free, err := Alloc(size)
		require.NoError(t, err)
		require.Nil(t, free)
		require.Len(t, b, size)
		require.Zero(t, uintptr(unsafe.Pointer(unsafe.SliceData(b)))%uintptr(pageSize))
	}
}

// resident has a 1 for each page that is there.
func resident(t *testing.T, b []byte) []byte {
	t.Helper()
	there := make([]byte, (len(b)+pageSize-1)/pageSize)
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), uintptr(unsafe.Pointer(unsafe.SliceData(there))))
	require.Zero(t, errno)
	for i := range there {
		there[i] &= 1
	}
	return there
}
