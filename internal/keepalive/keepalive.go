// Package keepalive finds out that the host at the other end of a TCP connection is gone: the
// kernel's probes of an idle connection (RFC 9293, section 3.8.4), and what it says of unacknowledged
// data. A process that is stopped is not silent: its kernel answers.
package keepalive

import (
	"net"
	"time"
)

// Within spreads the probes of a silent connection over a time. The kernel counts in
// whole seconds, and two are the least.
func Within(d time.Duration) net.KeepAliveConfig {
	whole := max(d.Truncate(time.Second), 2*time.Second)
	idle := (whole / 2).Truncate(time.Second)
	interval := max((whole / 10).Truncate(time.Second), time.Second)
	return net.KeepAliveConfig{Enable: true, Idle: idle, Interval: interval, Count: int((whole - idle) / interval)}
}

// Local says whether both ends of a TCP connection are on this host, whose kernel ends it with the
// process at either end.
func Local(conn net.Conn) bool {
	here, ok1 := conn.LocalAddr().(*net.TCPAddr)
	there, ok2 := conn.RemoteAddr().(*net.TCPAddr)
	return ok1 && ok2 && (here.IP.Equal(there.IP) || there.IP.IsLoopback())
}

// Spare ends the probes of a connection within this host: there they tell nothing but that no process
// gets a CPU.
func Spare(conn net.Conn) error {
	if c, ok := conn.(*net.TCPConn); ok && Local(conn) {
		return c.SetKeepAlive(false)
	}
	return nil
}
