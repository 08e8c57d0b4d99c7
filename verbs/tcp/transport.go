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
