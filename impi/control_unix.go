//go:build unix

package impi

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/wait"
)

// controls watches the TCP connections of links that carry their packets elsewhere: the end of the
// connection is the end of the peer.
type controls struct {
	e        *engine
	carriers []*rcCarrier
	wake     [2]int
}

func newControls(e *engine) (*controls, error) {
	wake, err := newPipe()
	if err != nil {
		return nil, err
	}
	return &controls{e: e, wake: wake}, nil
}

// controlEvery is how often, in milliseconds, connections are read that cannot be waited for.
const controlEvery = 100

// run watches until end.
func (s *controls) run() {
	var fds []unix.PollFd
	logged := false
	for {
		fds = append(fds[:0], unix.PollFd{Fd: int32(s.wake[0]), Events: unix.POLLIN})
		timeout := -1
		s.e.lock.Lock()
		for _, c := range s.carriers {
			fd := unix.PollFd{Fd: -1, Events: unix.POLLIN}
			switch {
			case c.l.err != nil:
			case c.ended != nil:
				timeout = 1 // ms
			default:
				fd.Fd = int32(c.tcp.fd())
			}
			fds = append(fds, fd)
		}
		s.e.lock.Unlock()
		all := false
		if _, err := unix.Poll(fds, timeout); err != nil && err != unix.EINTR {
			// There is no memory, or the limit of descriptors has been lowered below their number.
			if !logged {
				s.e.log.Error("impi: cannot wait for the connections to peers, reading them periodically instead", "error", err)
			}
			logged, all = true, true
			if _, err := unix.Poll(fds[:1], controlEvery); err != nil {
				time.Sleep(controlEvery * time.Millisecond)
			}
		}
		if fds[0].Revents != 0 {
			return
		}
		s.e.lock.Lock()
		for i, c := range s.carriers {
			if c.l.err == nil && (all || fds[1+i].Revents != 0 || c.ended != nil) {
				c.look()
			}
		}
		s.e.lock.Unlock()
	}
}

// end makes run return.
func (s *controls) end() { unix.Write(s.wake[1], []byte{0}) }

func (s *controls) close() {
	unix.Close(s.wake[0])
	unix.Close(s.wake[1])
}

// lastLooks bounds the polls for what a peer has sent before it ended, because other peers may go
// on sending for ever.
const lastLooks = 1024

// verdictTime is how long the queue pair may take to fail once the control connection has ended, of the
// time in which this process runs: while it is stopped, so is the engine of its provider.
// Providers that learn of a peer's death by themselves (shm, tcp) fail the queue pair after
// delivering everything that has arrived; with them an empty poll proves nothing, because their
// engine may be receiving at that moment. With other providers, what has not arrived by then will
// not arrive.
const verdictTime = time.Second

// look reads the control connection. Once that has ended, look first receives what the peer has
// sent before, until the queue pair fails or verdictTime has passed.
func (c *rcCarrier) look() {
	if c.ended == nil {
		var b [1]byte
		_, err := c.tcp.readv([][]byte{b[:]})
		if err == errAgain {
			return
		}
		if err == nil {
			c.l.lost(fmt.Errorf("%w: the peer sent data on the control connection, which carries none", ErrProtocol))
			return
		}
		c.ended = err
		c.verdict, _ = wait.Patience(c.l.e.life, verdictTime) // it ends by itself
	}
	for range lastLooks {
		if moved := c.d.poll(true); c.l.err != nil || !c.d.pollCQ() && !moved {
			break
		}
	}
	if c.l.err == nil && (c.l.fini || c.verdict.Err() != nil) {
		c.l.left = c.l.left || c.l.fini // its end is its answer
		c.l.lost(c.ended)
	}
}
