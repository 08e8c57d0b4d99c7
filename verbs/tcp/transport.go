package tcp

import (
	"errors"
	"net"
	"time"
)

// errAgain: no bytes, or no room, now. Not an error.
var errAgain = errors.New("not now")

// transport moves the bytes of one connection. Nothing blocks; everything is
// called with the lock of the connection's QP held.
type transport interface {
	// readable says whether readv would return anything but errAgain. It costs as
	// much as to try, but is less in the way of what arrives.
	readable() bool
	// readv fills the buffers in turn and returns how many bytes came: errAgain
	// for none, io.EOF when there will be none.
	readv(bufs [][]byte) (int, error)
	// writev takes bytes from the buffers in turn and returns how many.
	writev(bufs [][]byte) (int, error)
	// shutdown ends writing: the peer reads io.EOF behind what was written.
	shutdown()
	close()

	// arm has the engine called, once, when the connection becomes readable (if
	// in), writable (if out) or dead; disarm revokes that, and fired notes that
	// it has been called.
	arm(in, out bool)
	disarm()
	fired()
	// join adds the connection to a set, leave takes it out of all. mute hides
	// it from them while it must not be read.
	join(pollSet)
	leave()
	mute(bool)
}

// pollSet finds the readable ones of many connections.
type pollSet interface {
	// ready returns connections that may be read.
	ready(into []*conn) []*conn
	close()
}

// driver is a way of driving the connections of a context. There are two: raw
// sockets and epoll (Linux), and the net package (everywhere).
type driver interface {
	// polled says that nobody reads a connection unless it is polled or its
	// engine is called.
	polled() bool
	// adopt takes a connection over, whose net.Conn is of no more use. The
	// caller holds the QP's lock.
	adopt(c *conn, nc net.Conn) (transport, error)
	// loop makes the transport of a QP that is connected with itself.
	loop(c *conn) (transport, error)
	newSet() (pollSet, error)

	// wait returns connections that have become what they were armed for, after
	// d at the latest (never for d < 0), or when wake is called.
	wait(d time.Duration) []happening
	wake()
	close()
}

// happening is what wait returns of a connection.
type happening struct {
	c      *conn
	hangup bool // the peer will send nothing more than what is there
}

// prepare sets the options of a connection's socket that are not the listener's
// or the dialer's to set. TCP_NODELAY is Go's default.
func prepare(tc *net.TCPConn, peerTimeout time.Duration) error {
	here, ok1 := tc.LocalAddr().(*net.TCPAddr)
	there, ok2 := tc.RemoteAddr().(*net.TCPAddr)
	if ok1 && ok2 && (here.IP.Equal(there.IP) || there.IP.IsLoopback()) {
		if err := tc.SetWriteBuffer(localBuffer); err != nil {
			return err
		}
		uncongested(tc)
	}
	return tune(tc, peerTimeout)
}

// localBuffer bounds what is on its way between two processes of a host, in
// bytes, of which Linux makes twice as much. What the kernel would allow, 4 MB
// and more, does not fit the caches: messages of 1 MiB move at 4.5 GB/s then, at
// 10 with this (EPYC with 1 MiB of L2; half of it is as good, a quarter is not). A
// network has use for more: there the kernel decides.
const localBuffer = 256 << 10
