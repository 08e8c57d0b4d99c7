package tcp

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// lendPort has the kernel choose the port of a dialer when it connects, and not
// when its address is bound: else a host would have as many connections as it has
// ports, to whomever they lead. An error is no reason not to dial.
func lendPort(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1) })
}
