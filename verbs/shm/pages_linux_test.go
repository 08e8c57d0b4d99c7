package shm

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/retire"
	"github.com/sluice-hpc/sluice/internal/test/need"
)

// TestHugePages: large arenas ask for huge pages, in the process that makes them and in others.
func TestHugePages(t *testing.T) {
	if _, err := os.Stat("/sys/kernel/mm/transparent_hugepage"); err != nil {
		return // the kernel has none
	}
	noPool(t)
	for _, c := range []struct {
		size int
		asks bool
	}{{4 << 20, true}, {1 << 20, false}} {
		s, err := createSegment("test", c.size, true)
		require.NoError(t, err)
		fd, err := unix.Dup(s.fd)
		require.NoError(t, err)
		theirs, err := openSegment(fd, uint64(c.size))
		require.NoError(t, err)
		require.Equal(t, c.asks, asksHuge(t, s.mem))
		require.Equal(t, c.asks, asksHuge(t, theirs.mem))
		require.NoError(t, theirs.close())
		require.NoError(t, s.close())
	}
}

// noPool lets arenas have no huge pages of the pool, whatever the system has.
func noPool(t *testing.T) {
	before := poolFolder
	t.Cleanup(func() { poolFolder = before })
	poolFolder = t.TempDir() + "/"
}

// TestPool: large arenas have huge pages of the pool, in the process that makes them and in others, and these go
// back when nothing is left in them.
func TestPool(t *testing.T) {
	free := poolFree()
	need.Probe(t, "8 free huge pages of 2 MiB (sysctl vm.nr_hugepages)", enough(free, 8))
	var a arenas
	alloc := func(size int) block { return a.dirty(t, size) }
	large, small := alloc(3<<20), alloc(512<<10)
	require.Same(t, large.arena, small.arena)
	require.Len(t, large.arena.mem, 4<<20)
	require.Equal(t, free-2, poolFree())
	require.True(t, hasFlag(t, large.arena.mem, "ht"))
	fd, err := unix.Dup(large.arena.fd)
	require.NoError(t, err)
	theirs, err := openSegment(fd, 4<<20)
	require.NoError(t, err)
	require.True(t, hasFlag(t, theirs.mem, "ht"))
	theirs.mem[1] = 7
	require.EqualValues(t, 7, large.mem[1])
	require.NoError(t, theirs.close())

	require.Nil(t, a.release(large))
	a.trim()
	a.trim()
	require.Equal(t, free-2, poolFree(), "one of its blocks is in use")
	again := alloc(2 << 20)
	require.Same(t, small.arena, again.arena)
	require.Nil(t, a.release(again))
	ar := a.release(small)
	require.NotNil(t, ar)
	require.NoError(t, ar.giveBack())
	require.Equal(t, free, poolFree())

	a.next = lastReturned + 1
	kept := alloc(2 << 20)
	require.Nil(t, a.release(kept))
	require.Same(t, kept.arena, alloc(1<<20).arena)
	require.NoError(t, a.close())
	require.Equal(t, free, poolFree())
}

// TestPoolIsEmpty: where the pool has too few pages, or the kernel does not give them, arenas have others.
func TestPoolIsEmpty(t *testing.T) {
	open := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return len(list)
	}
	before, real := open(), poolFree()
	require.Nil(t, createPooled((real+1)*hugePage))
	require.Nil(t, createPooled(hugePage-1))
	says(t, "1000000", "0") // others have taken them meanwhile
	require.Equal(t, 1000000, poolFree())
	require.Nil(t, createPooled((real+1)*hugePage))
	says(t, "2", "1")
	require.Equal(t, 1, poolFree())
	require.Nil(t, createPooled(2*hugePage))
	noPool(t)
	require.Zero(t, poolFree())
	var a arenas
	b, err := a.alloc(hugePage, func(*arena) {})
	require.NoError(t, err)
	require.False(t, b.arena.pool)
	require.NoError(t, a.close())
	require.Equal(t, before, open())
}

// TestNothingRetired: memory that cannot be had costs no addresses of memory that has been closed. They must stay
// mapped for slices that are used late.
func TestNothingRetired(t *testing.T) {
	real := poolFree()
	size := (real + 1) * hugePage
	closed, err := retire.Map(-1, size, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	require.NoError(t, err)
	require.NoError(t, retire.Unmap(closed))
	says(t, "1000000", "0") // others take the pages before they are mapped
	require.Nil(t, createPooled(size))
	require.True(t, mapped(closed))

	kernel := madvise
	t.Cleanup(func() { madvise = kernel })
	madvise = func([]byte, int) error { return unix.ENOMEM }
	fails := func() {
		_, err := createSegment("test", os.Getpagesize(), true)
		require.ErrorIs(t, err, unix.ENOMEM)
	}
	for range 1 << 10 { // as many ranges as retire keeps
		fails()
	}
	require.True(t, mapped(closed))
	if real == 0 {
		return
	}
	for range 1 << 10 {
		require.Nil(t, createPooled(hugePage))
	}
	require.True(t, mapped(closed))
}

// mapped says whether all pages of b are mapped.
func mapped(b []byte) bool {
	there := make([]byte, len(b)/os.Getpagesize())
	_, _, e := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), uintptr(unsafe.Pointer(unsafe.SliceData(there))))
	return e == 0
}

// says has the pool say what it has.
func says(t *testing.T, free, reserved string) {
	noPool(t)
	require.NoError(t, os.WriteFile(poolFolder+"free_hugepages", []byte(free+"\n"), 0o600))
	require.NoError(t, os.WriteFile(poolFolder+"resv_hugepages", []byte(reserved+"\n"), 0o600))
}

func enough(n, want int) error {
	if n < want {
		return fmt.Errorf("there are %d", n)
	}
	return nil
}

// asksHuge says whether the mapping that begins with b has been advised to have huge pages.
func asksHuge(t *testing.T, b []byte) bool { return hasFlag(t, b, "hg") }

// hasFlag says whether the mapping that begins with b has a flag: see proc_pid_smaps(5).
func hasFlag(t *testing.T, b []byte, flag string) bool {
	all, err := os.ReadFile("/proc/self/smaps")
	require.NoError(t, err)
	_, after, found := strings.Cut(string(all), fmt.Sprintf("%x-", &b[0]))
	require.True(t, found)
	_, after, found = strings.Cut(after, "VmFlags:")
	require.True(t, found)
	flags, _, _ := strings.Cut(after, "\n")
	return strings.Contains(flags+" ", " "+flag+" ")
}
