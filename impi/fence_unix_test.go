//go:build unix

package impi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// TestInside: the connection to a stopped process breaks, most likely while that process accesses
// our memory. Nothing else waits for it, memory is given back only when it is safe, or is reported
// as lost, and the job can be closed.
func TestInside(t *testing.T) {
	apart(t, 3, "inside")
}

// again is memory of so many pieces that are the same.
func again(b []byte, n int) [][]byte {
	vec := make([][]byte, n)
	for i := range vec {
		vec[i] = b
	}
	return vec
}

func inside(ctx context.Context, j *Job, _ []string) error {
	c := j.World()
	const victim, witness, pieces, piece = 1, 2, 20, 16 << 20
	switch c.Rank() {
	case victim:
		wanted := make(chan os.Signal, 1)
		signal.Notify(wanted, syscall.SIGUSR2)
		if err := sendPID(ctx, c, 0, 0); err != nil {
			return err
		}
		b := again(make([]byte, piece), pieces)
		gone, err := c.Irecv(nil, 0, 5)
		for err == nil {
			select {
			case <-wanted: // the sender watches its link
				var r Request
				if r, err = c.IrecvVec(b, 0, 1); err == nil {
					_, err = r.Wait(ctx)
				}
			case <-gone.Done(): // the message had come, but the sender did not know
				if _, err = gone.Wait(ctx); errors.Is(err, ErrPeerLeft) {
					return c.Send(ctx, nil, witness, 2)
				}
			}
		}
		if err := dies("receive", err, 0); err != nil {
			return err
		}
		return c.Send(ctx, nil, witness, 2)
	case witness:
		for {
			_, err := c.Recv(ctx, nil, 0, 3)
			if err == nil {
				err = c.Send(ctx, nil, 0, 3)
			}
			if errors.Is(err, ErrPeerLeft) {
				break
			}
			if err != nil {
				return err
			}
		}
		_, err := c.Recv(ctx, nil, victim, 2)
		return err
	}
	peer, err := recvPID(ctx, c, victim, 0)
	if err != nil {
		return err
	}
	defer syscall.Kill(peer, syscall.SIGCONT)
	m := ranks.Must(j.Alloc(piece))
	e, l := j.e, j.e.links[victim]
	var q Request
	for { // until it has been stopped inside: this process may lack a CPU meanwhile
		if q, err = c.IsendVec(again(m.Bytes(), pieces), victim, 1); err != nil {
			return err
		}
		e.lock.Lock() // nothing else makes progress
		err = syscall.Kill(peer, syscall.SIGUSR2)
		for err == nil && !q.r.over() && !(q.r.acked && q.r.list == nil) {
			runtime.Gosched()
			e.progress()
			err = ctx.Err()
		}
		err = cmp.Or(err, ranks.Stop(ctx, peer))
		for i := 0; i < turnIdle && err == nil; i++ { // what it has sent until then
			if e.progress() {
				i = 0
			}
		}
		if err != nil || !q.r.over() {
			break
		}
		e.lock.Unlock()
		if _, err = q.Wait(ctx); err != nil {
			return err
		}
		if err = syscall.Kill(peer, syscall.SIGCONT); err != nil {
			return err
		}
	}
	if err != nil {
		e.lock.Unlock()
		return err
	}
	switch c := l.carrier.(type) {
	case *rcCarrier:
		err = unix.Shutdown(c.tcp.fd(), unix.SHUT_RDWR)
	case *tcpCarrier:
		err = unix.Shutdown(c.s.fd(), unix.SHUT_RDWR)
	}
	e.lock.Unlock()
	if err != nil {
		return err
	}
	rounds := 0 // while the end of the link was waited for
	for over := false; !over; {
		err := c.Send(ctx, nil, witness, 3)
		if err == nil {
			_, err = c.Recv(ctx, nil, witness, 3)
		}
		if err != nil {
			return err
		}
		e.lock.Lock()
		if e.fences > 0 {
			rounds++
		}
		over = q.r.over()
		e.lock.Unlock()
		time.Sleep(10 * time.Millisecond) // it may take seconds, in which others want the CPU
	}
	if _, err = q.Wait(ctx); err != nil { // else its end was still on its way
		if err := dies("send", err, victim); err != nil {
			return err
		}
	}
	if errors.Is(err, ErrBusy) { // it was inside
		if rounds == 0 {
			return errors.New("nothing else has moved meanwhile")
		}
		if _, err := c.Isend(m.Bytes()[:1], witness, 4); !errors.Is(err, ErrBusy) {
			return fmt.Errorf("memory that is lost can be used: %w", err)
		}
		if err := m.Close(); !errors.Is(err, ErrBusy) {
			return fmt.Errorf("memory that is lost can be freed: %w", err)
		}
	} else if err := m.Close(); err != nil {
		return fmt.Errorf("memory has been given back too early: %w", err)
	}
	return j.Close(ctx)
}
