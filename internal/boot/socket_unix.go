//go:build unix

package boot

import (
	"errors"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// taken holds the descriptors that a Join has used up; their numbers may since have been reused.
var taken struct {
	sync.Mutex
	fds map[int]bool
}

// checkSocket returns nil if fd is a connected stream.
func checkSocket(fd int) error {
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err == nil && kind != unix.SOCK_STREAM {
		err = errors.New("not a stream")
	}
	if err == nil {
		_, err = unix.Getpeername(fd)
	}
	if err != nil {
		return errors.Join(errors.New("not a connection to a launcher: the launcher has closed it, or has started a process other than this one"), err)
	}
	return nil
}

// takeSocket makes a connection of an inherited descriptor and takes ownership of it.
func takeSocket(fd int) (net.Conn, error) {
	taken.Lock()
	defer taken.Unlock()
	if taken.fds[fd] {
		return nil, ErrJoined
	}
	if err := checkSocket(fd); err != nil {
		return nil, err
	}
	if taken.fds == nil {
		taken.fds = make(map[int]bool)
	}
	taken.fds[fd] = true
	unix.CloseOnExec(fd)
	f := os.NewFile(uintptr(fd), envPMIFD)
	defer f.Close()
	return net.FileConn(f)
}
