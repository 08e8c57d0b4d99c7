package soft

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// eventFD is a descriptor that is readable while a queue is not empty.
type eventFD int

const noEventFD eventFD = -1

func newEventFD() (eventFD, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	return eventFD(fd), err
}

func (fd eventFD) set() {
	if fd != noEventFD {
		var one [8]byte
		binary.NativeEndian.PutUint64(one[:], 1)
		unix.Write(int(fd), one[:])
	}
}

func (fd eventFD) clear() {
	if fd != noEventFD {
		var b [8]byte
		unix.Read(int(fd), b[:])
	}
}

func (fd eventFD) close() error {
	if fd == noEventFD {
		return nil
	}
	return unix.Close(int(fd))
}
