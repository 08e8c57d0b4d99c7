package retire

import (
	"os"
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
	require.NoError(t, drop(0, 0))
	require.Zero(t, kept.bytes)
}

func TestBounded(t *testing.T) {
	page := os.Getpagesize()
	var all [][]byte
	for range mostRanges + 10 {
		b, err := Map(-1, page, anonymous)
		require.NoError(t, err)
		all = append(all, b)
	}
	for _, b := range all {
		require.NoError(t, Unmap(b))
	}
	require.Len(t, kept.ranges, mostRanges)
	require.Equal(t, mostRanges*page, kept.bytes)
	require.Same(t, unsafe.SliceData(all[10]), unsafe.SliceData(kept.ranges[0]), "the oldest has gone")
	large, err := Map(-1, 1<<30, anonymous|unix.MAP_NORESERVE)
	require.NoError(t, err)
	require.NoError(t, Unmap(large))
	require.NoError(t, drop(mostRanges, 1<<30))
	require.Len(t, kept.ranges, 1)
	require.NoError(t, drop(0, 0))
}

func TestMapFails(t *testing.T) {
	_, err := Map(1<<20, os.Getpagesize(), unix.MAP_SHARED)
	require.ErrorIs(t, err, unix.EBADF)
	b, err := Map(-1, os.Getpagesize(), anonymous)
	require.NoError(t, err)
	require.NoError(t, Unmap(b))
	_, err = Map(-1, 1<<60, anonymous) // more than there are: what is kept is given back
	require.ErrorIs(t, err, unix.ENOMEM)
	require.Empty(t, kept.ranges)
}
