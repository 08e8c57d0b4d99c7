package tcp

import (
	"net"
	"time"

	"github.com/sluice-hpc/sluice/internal/keepalive"
)

// netDriver drives connections through package net. Two goroutines for each block in Read
// and Write, on buffers of their own, so that user memory is touched only under the QP's
// lock; the holder of that lock finds in the buffers what a non-blocking socket would have
// returned.
type netDriver struct {
	alarm chan struct{} // wake
	timer *time.Timer
}

func newNetDriver() *netDriver {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &netDriver{alarm: make(chan struct{}, 1), timer: t}
}

// polled: the reading goroutine drives the connection.
func (d *netDriver) polled() bool { return false }

func (d *netDriver) newSet() (pollSet, error) { return nil, nil }

func (d *netDriver) wait(limit time.Duration) []happening {
	if limit < 0 {
		<-d.alarm
		return nil
	}
	d.timer.Reset(limit)
	select {
	case <-d.alarm:
		d.timer.Stop()
	case <-d.timer.C:
	}
	return nil
}

func (d *netDriver) wake() { signal(d.alarm) }

func (d *netDriver) close() {}

// signal fills a channel of capacity 1.
func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

func (d *netDriver) adopt(c *conn, nc net.Conn) (transport, error) {
	if err := prepare(nc.(*net.TCPConn)); err != nil {
		return nil, err
	}
	nc = keepalive.Guard(nc, c.a.cfg.PeerTimeout)
	return d.start(c, nc, nc), nil
}

func (d *netDriver) loop(c *conn) (transport, error) {
	r, w := net.Pipe()
	return d.start(c, r, w), nil
}

// netBuffer is the size of each of a connection's two buffers, in bytes.
const netBuffer = 128 << 10

// stream is the transport of net.Conns: in has been read from the connection but not
// consumed, out has been copied from the user but not written.
type stream struct {
	c      *conn
	r, w   net.Conn // they differ only if the QP is connected to itself
	in     []byte
	inErr  error         // of the read after in
	taken  chan struct{} // signalled when in has become empty or the stream is closed
	out    []byte
	given  chan struct{} // signalled when out grows, fin is set or the stream is closed
	fin    bool          // close for writing after out
	dead   bool          // writing failed: the reading goroutine will find out
	closed bool
}

func (d *netDriver) start(c *conn, r, w net.Conn) *stream {
	s := &stream{c: c, r: r, w: w, taken: make(chan struct{}, 1), given: make(chan struct{}, 1)}
	s.out = make([]byte, 0, netBuffer)
	c.a.streams.Go(s.read)
	c.a.streams.Go(s.write)
	return s
}

// read reads from the connection, drives it, and waits until what it read is consumed.
func (s *stream) read() {
	q := s.c.q
	buf := make([]byte, netBuffer)
	for {
		n, err := s.r.Read(buf)
		q.Lock.Lock()
		s.in, s.inErr = buf[:n], err
		for !s.closed {
			s.c.drive(nil)
			if len(s.in) == 0 && err == nil {
				break
			}
			if !s.closed {
				q.Unlock()
				<-s.taken
				q.Lock.Lock()
			}
		}
		ended := s.closed
		q.Unlock()
		if ended {
			return
		}
	}
}

// write writes one buffer while the connection fills the other. Where nothing watches the connection,
// a peer on another host that accepts nothing for the peer timeout is dead.
func (s *stream) write() {
	q := s.c.q
	_, guarded := s.w.(*keepalive.Guarded)
	guarded = guarded || keepalive.Local(s.w)
	spare := make([]byte, 0, netBuffer)
	for {
		<-s.given
		q.Lock.Lock()
		if s.closed {
			q.Unlock()
			return
		}
		batch, fin := s.out, s.fin
		s.out = spare[:0]
		if s.c.tx.blocked {
			// Include acknowledgements that found no room before: no other call will.
			s.c.transmit(nil, true)
		}
		q.Unlock()
		var err error
		if len(batch) > 0 {
			if !guarded {
				s.w.SetWriteDeadline(time.Now().Add(s.c.a.cfg.PeerTimeout))
			}
			_, err = s.w.Write(batch)
		}
		if err != nil {
			q.Lock.Lock()
			s.dead = true
			q.Unlock()
			// Read what the peer sent before, if that does not take long.
			s.r.SetReadDeadline(time.Now().Add(lastWords))
			return
		}
		if fin {
			if half, ok := s.w.(interface{ CloseWrite() error }); ok {
				half.CloseWrite()
			} else {
				s.w.Close()
			}
			return
		}
		spare = batch
	}
}

// lastWords is how long a connection that can no longer be written is still read.
const lastWords = time.Second

func (s *stream) readable() bool { return len(s.in) > 0 || s.inErr != nil }

func (s *stream) readv(bufs [][]byte) (int, error) {
	if len(s.in) == 0 {
		if s.inErr != nil {
			return 0, s.inErr
		}
		return 0, errAgain
	}
	n := 0
	for _, b := range bufs {
		m := copy(b, s.in)
		s.in = s.in[m:]
		n += m
	}
	if len(s.in) == 0 {
		signal(s.taken)
	}
	return n, nil
}

func (s *stream) writev(bufs [][]byte) (int, error) {
	room := cap(s.out) - len(s.out)
	if room == 0 && !s.dead {
		return 0, errAgain
	}
	n := 0
	for _, b := range bufs {
		if s.dead {
			n += len(b)
			continue
		}
		b = b[:min(len(b), room)]
		s.out = append(s.out, b...)
		room -= len(b)
		n += len(b)
	}
	signal(s.given)
	return n, nil
}

func (s *stream) shutdown() {
	s.fin = true
	signal(s.given)
}

func (s *stream) close() {
	s.closed = true
	s.r.Close()
	s.w.Close()
	signal(s.taken)
	signal(s.given)
}

// The two goroutines always drive the connection: there is nothing to arm.
func (s *stream) arm(in, out bool) {}
func (s *stream) disarm()          {}
func (s *stream) fired()           {}
func (s *stream) join(pollSet)     {}
func (s *stream) leave()           {}
func (s *stream) mute(bool)        {}
