package tcp

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// lendPort has the kernel choose the port of a dialer when it connects, not when its
// address is bound: otherwise the host's number of ports would limit its connections to
// all peers together. An error does not prevent dialing.
func lendPort(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1) })
}
