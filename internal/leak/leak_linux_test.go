package leak

import (
	"fmt"
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestDescriptor(t *testing.T) {
	before := take()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	err = before.verify(0)
	require.ErrorContains(t, err, fmt.Sprintf("descriptor %d: pipe:[", r.Fd()))
	require.ErrorContains(t, err, fmt.Sprintf("descriptor %d: pipe:[", w.Fd()))
	r.Close()
	w.Close()
	require.NoError(t, before.verify(0))
}

// A number that was open at the snapshot and now is something else counts.
func TestDescriptorReused(t *testing.T) {
	a, err := unix.MemfdCreate("before", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	before := take()
	require.NoError(t, unix.Close(a))
	b, err := unix.MemfdCreate("after", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	require.NoError(t, unix.Dup3(b, a+100, unix.O_CLOEXEC))
	if b != a {
		require.NoError(t, unix.Dup3(b, a, unix.O_CLOEXEC))
		require.NoError(t, unix.Close(b))
	}
	require.NoError(t, unix.Close(a+100))
	require.ErrorContains(t, before.verify(0), "/memfd:after")
	require.NoError(t, unix.Close(a))
	require.NoError(t, before.verify(0))
}

// The runtime's own epoll instance and eventfd are no leak, however late the
// first use of the network poller is.
func TestPollerIsNotALeak(t *testing.T) {
	before := take()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	require.NoError(t, before.verify(bound))
}

func TestMapping(t *testing.T) {
	for _, c := range []struct {
		name  string
		fd    func(t *testing.T) int
		flags int
		says  string
	}{
		{"memfd", memfd, unix.MAP_SHARED, "mapping of /memfd:leak-test"},
		{"private memfd", memfd, unix.MAP_PRIVATE, "mapping of /memfd:leak-test"},
		{"anonymous", func(*testing.T) int { return -1 }, unix.MAP_SHARED | unix.MAP_ANON, "mapping of /dev/zero"},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := take()
			fd := c.fd(t)
			size := 3 * os.Getpagesize()
			b, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, c.flags)
			require.NoError(t, err)
			if fd >= 0 {
				require.NoError(t, unix.Close(fd))
			}
			err = before.verify(0)
			require.ErrorContains(t, err, c.says)
			require.ErrorContains(t, err, fmt.Sprintf("%d bytes", size))
			require.NoError(t, unix.Munmap(b))
			require.NoError(t, before.verify(0))
		})
	}
}

// A second mapping of what was mapped before is found too: the bytes count.
func TestMappingTwice(t *testing.T) {
	fd := memfd(t)
	defer unix.Close(fd)
	page := os.Getpagesize()
	first, err := unix.Mmap(fd, 0, page, unix.PROT_READ, unix.MAP_SHARED)
	require.NoError(t, err)
	before := take()
	second, err := unix.Mmap(fd, 0, page, unix.PROT_READ, unix.MAP_SHARED)
	require.NoError(t, err)
	require.ErrorContains(t, before.verify(0), fmt.Sprintf("%d bytes", page))
	require.NoError(t, unix.Munmap(second))
	require.NoError(t, before.verify(0))
	require.NoError(t, unix.Munmap(first))
}

func memfd(t *testing.T) int {
	fd, err := unix.MemfdCreate("leak-test", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	require.NoError(t, unix.Ftruncate(fd, int64(3*os.Getpagesize())))
	return fd
}

func TestParseMapping(t *testing.T) {
	for _, c := range []struct {
		line  string
		path  string
		size  uint64
		ok    bool
		fails bool
	}{
		{line: "7f00-7f10 rw-s 00000000 00:01 1042     /memfd:a b (deleted)", path: "/memfd:a b (deleted)", size: 16, ok: true},
		{line: "7f00-7f10 r--p 00000000 00:01 1042     /memfd:x", path: "/memfd:x", size: 16, ok: true},
		{line: "7f00-7f10 r--s 00000000 00:01 1042     /dev/shm/x", path: "/dev/shm/x", size: 16, ok: true},
		{line: "7f00-7f10 r--s 00000000 08:01 1042     /usr/lib/gconv-modules.cache", path: "/usr/lib/gconv-modules.cache", size: 16},
		{line: "7f00-7f10 rw-p 00000000 00:00 0", size: 16},
		{line: "7f00 rw-p 00000000 00:00 0", fails: true},
		{line: "7f10-7f00 rw-p 00000000 00:00 0", fails: true},
		{line: "short", fails: true},
	} {
		o, size, ok, err := parseMapping(c.line)
		if c.fails {
			require.Error(t, err, c.line)
			continue
		}
		require.NoError(t, err, c.line)
		require.Equal(t, c.path, o.path, c.line)
		require.Equal(t, c.size, size, c.line)
		require.Equal(t, c.ok, ok, c.line)
	}
}
