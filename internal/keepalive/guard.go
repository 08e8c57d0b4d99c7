package keepalive

import (
	"net"
	"sync/atomic"
	"time"
)

// While data is unacknowledged, Linux sends no keep-alive probes, and retransmits for a quarter of an
// hour. TCP_USER_TIMEOUT would also end a connection whose window stays zero, although the other kernel
// answers all probes of the window. Watch instead reads in TCP_INFO whether answers are due and none came.

// Socket lends the descriptor of a connection until the connection is closed, as [syscall.RawConn] does.
type Socket interface{ Control(func(fd uintptr)) error }

// Guard watches a connection of package net like [Watch] until it is closed. Once the other host is
// silent, reads and writes of the result fail with ETIMEDOUT. Where nothing watches, or within this
// host, the result is conn.
func Guard(conn net.Conn, d time.Duration) net.Conn {
	tc, ok := conn.(*net.TCPConn)
	if !ok || Local(conn) {
		return conn
	}
	raw, err := tc.SyscallConn()
	if err != nil || !Watchable(raw) {
		return conn
	}
	g := &Guarded{Conn: tc}
	Watch(raw, d, g.fail)
	return g
}

// Keep has a connection of package net end once the other host is silent for d, be it idle or data on its
// way: the probes of [Within], and [Guard], whose result it returns. Within this host it has no probes, as
// after [Spare].
func Keep(conn net.Conn, d time.Duration) net.Conn {
	if tc, ok := conn.(*net.TCPConn); ok {
		probes := Within(d)
		probes.Enable = !Local(conn)
		_ = tc.SetKeepAliveConfig(probes) // an error is that the connection has ended, which its user sees
	}
	return Guard(conn, d)
}

// Guarded is a connection that [Guard] watches.
type Guarded struct {
	net.Conn // no *net.TCPConn: its ReadFrom and WriteTo, and net.Buffers, would bypass Read and Write
	silence  atomic.Pointer[error]
}

func (g *Guarded) fail(err error) {
	g.silence.CompareAndSwap(nil, &err)
	g.SetDeadline(time.Unix(1, 0))
}

func (g *Guarded) Read(b []byte) (int, error) {
	n, err := g.Conn.Read(b)
	return n, g.why("read", err)
}

func (g *Guarded) Write(b []byte) (int, error) {
	n, err := g.Conn.Write(b)
	return n, g.why("write", err)
}

// CloseWrite is that of [net.TCPConn].
func (g *Guarded) CloseWrite() error { return g.Conn.(*net.TCPConn).CloseWrite() }

// WriteBuffers is [net.Buffers.WriteTo], with one system call for all buffers also if conn is a [Guarded].
func WriteBuffers(conn net.Conn, b *net.Buffers) (int64, error) {
	g, ok := conn.(*Guarded)
	if !ok {
		return b.WriteTo(conn)
	}
	n, err := b.WriteTo(g.Conn)
	return n, g.why("write", err)
}

func (g *Guarded) why(op string, err error) error {
	if why := g.silence.Load(); err != nil && why != nil {
		return &net.OpError{Op: op, Net: "tcp", Source: g.LocalAddr(), Addr: g.RemoteAddr(), Err: *why}
	}
	return err
}
