package tcp

import (
	"errors"
	"net"
	"time"

	"github.com/sluice-hpc/sluice/internal/keepalive"
)

// errAgain: no bytes, or no room, at the moment. It is not a failure.
var errAgain = errors.New("would block")

// transport moves the bytes of one connection. No method blocks; all are called with the
// lock of the connection's QP held.
type transport interface {
	// readable says whether readv would return anything but errAgain. It costs as
	// much as readv, but delays arriving data less.
	readable() bool
	// readv fills the buffers in turn and returns the number of bytes: errAgain if
	// there are none, io.EOF if there will be none.
	readv(bufs [][]byte) (int, error)
	// writev takes bytes from the buffers in turn and returns how many.
	writev(bufs [][]byte) (int, error)
	// shutdown ends writing: the peer reads io.EOF after what was written.
	shutdown()
	close()

	// arm has the engine called, once, when the connection becomes readable (if
	// in), writable (if out) or dead; disarm revokes that, and fired notes that
	// it has been called.
	arm(in, out bool)
	disarm()
	fired()
	// join adds the connection to a set, leave removes it from all. mute hides it
	// from them while it must not be read.
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
	// polled says that connections are read only by polling or by the engine.
	polled() bool
	// adopt takes a connection over; its net.Conn must not be used any more. The
	// caller holds the QP's lock.
	adopt(c *conn, nc net.Conn) (transport, error)
	// loop returns the transport of a QP that is connected to itself.
	loop(c *conn) (transport, error)
	newSet() (pollSet, error)

	// wait returns the connections whose armed event has occurred. It returns after d
	// at the latest (d < 0: no limit), or when wake is called.
	wait(d time.Duration) []happening
	wake()
	close()
}

// happening is what wait returns for a connection.
type happening struct {
	c      *conn
	hangup bool // the peer will send nothing beyond what has arrived
}

// prepare sets the options of a connection's socket that neither the listener nor the dialer
// sets. TCP_NODELAY is Go's default.
func prepare(tc *net.TCPConn) error {
	if err := keepalive.Spare(tc); err != nil {
		return err
	}
	if keepalive.Local(tc) {
		if err := tc.SetWriteBuffer(localBuffer); err != nil {
			return err
		}
		uncongested(tc)
	}
	return nil
}

// localBuffer limits the bytes in flight between two processes of a host; Linux doubles it.
// The kernel's own limit, 4 MB and more, exceeds the caches: messages of 1 MiB then move at
// 4.5 GB/s, with this at 10 (EPYC with 1 MiB of L2; half of it does as well, a quarter does
// not). A network can use more: there the kernel decides.
const localBuffer = 256 << 10
