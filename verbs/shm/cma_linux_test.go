package shm

import (
	"os"
	"os/exec"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

var readable = []byte("0123456789")

// TestReadOfTheDead: bytes that were read from a process by its number are void if it has ended, because the number
// may have become that of another process. Here that is this one.
func TestReadOfTheDead(t *testing.T) {
	child := exec.Command("cat")
	in, err := child.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	pidfd, err := unix.PidfdOpen(child.Process.Pid, 0)
	require.NoError(t, err)
	defer unix.Close(pidfd)
	l := link{pid: os.Getpid(), pidfd: pidfd}
	read := func() (dst [8]byte, ok bool) {
		local := []unix.Iovec{{Base: &dst[0]}, {Base: &dst[3]}}
		local[0].SetLen(3)
		local[1].SetLen(5)
		ok = l.readPeer(local, uint64(uintptr(unsafe.Pointer(&readable[1]))), len(dst))
		return dst, ok
	}
	dst, ok := read()
	require.True(t, ok)
	require.Equal(t, "12345678", string(dst[:]))
	require.NoError(t, in.Close())
	require.NoError(t, child.Wait())
	_, ok = read()
	require.False(t, ok)
}
