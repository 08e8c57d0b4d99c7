//go:build unix

package impi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// TestLend: memory of the node in messages of the job, and the other way round, in processes of their own.
func TestLend(t *testing.T) { apart(t, 2, "lend") }

func lendAll(ctx context.Context, n *channel.Node, j *Job) error {
	debug.SetGCPercent(1)
	const size = 600_000
	c, rank := j.World(), n.Rank()
	carried, mapped := j.Provider(1-rank) != "", j.Provider(1-rank) == "shm"
	for round := range 4 {
		ofNode := ranks.Must(n.Alloc(size))
		ofJob := ranks.Must(j.Alloc(size))
		heap := make([]byte, size)
		before := j.Stats()
		for k, b := range [][]byte{ofNode.Bytes(), ofJob.Bytes(), heap, ofNode.Bytes()} {
			var err error
			if rank == 0 {
				copy(b, bytes.Repeat([]byte{byte(10*round + k + 1)}, size))
				err = c.Send(ctx, b, 1, k)
			} else {
				in := [][]byte{ofJob.Bytes(), ofNode.Bytes(), ofNode.Bytes(), heap}[k]
				_, err = c.Recv(ctx, in, 0, k)
				if err == nil && !bytes.Equal(in, bytes.Repeat([]byte{byte(10*round + k + 1)}, size)) {
					err = fmt.Errorf("message %d of round %d has other bytes", k, round)
				}
			}
			if err != nil {
				return err
			}
		}
		if after := j.Stats(); carried && after.Staged != before.Staged {
			return fmt.Errorf("%d bytes have been staged", after.Staged-before.Staged)
		} else if mapped && round > 0 && after.Registered != before.Registered+1 { // the heap, once at either side
			return fmt.Errorf("registered %d times", after.Registered-before.Registered)
		}
		if rank == 0 {
			s, err := n.DeclareSend(channel.Contiguous(ofJob.Bytes()), 1)
			if err == nil {
				err = errors.Join(s.Start(), s.WaitContext(ctx))
			}
			if err != nil {
				return err
			}
			if err := ofJob.Close(); !errors.Is(err, ErrBusy) {
				return fmt.Errorf("memory with a handle over it has been closed: %w", err)
			}
			if err := s.Close(); err != nil {
				return err
			}
		} else if err := n.Recv(ctx, ofJob.Bytes(), 0); err != nil {
			return err
		} else if want := bytes.Repeat([]byte{byte(10*round + 2)}, size); !bytes.Equal(ofJob.Bytes(), want) {
			return errors.New("the channel has brought other bytes")
		}
		r := ranks.Must(c.Irecv(ofNode.Bytes()[:10], 1-rank, 99))
		if err := ofNode.Close(); !errors.Is(err, channel.ErrBusy) {
			return fmt.Errorf("memory with a receive into it has been closed: %w", err)
		}
		if err := r.Cancel(); err != nil {
			return err
		}
		if _, err := r.Wait(ctx); err != nil {
			return err
		}
		old := ofNode.Bytes()
		if err := errors.Join(ofNode.Close(), ofJob.Close()); err != nil {
			return err
		}
		if mapped {
			if err := c.Send(ctx, old[:10], 1-rank, 98); !errors.Is(err, ErrClosed) {
				return fmt.Errorf("closed memory has been sent: %w", err)
			}
		}
	}
	return leaveTogether(ctx, c)
}

// TestLenderDies: a process is killed while memory of its node is read and written: what has arrived is whole, and
// memory of the node here can be closed and used again.
func TestLenderDies(t *testing.T) { apart(t, 2, "lenddie") }

func lendAndDie(ctx context.Context, n *channel.Node, j *Job) error {
	const size, fatal = 3 << 20, 12
	c := j.World()
	m := ranks.Must(n.Alloc(size))
	for k := 1; ; k++ {
		if n.Rank() == 1 {
			if k == fatal {
				go func() { syscall.Kill(os.Getpid(), syscall.SIGKILL) }()
			}
			for i := range m.Bytes() {
				m.Bytes()[i] = byte(k)
			}
			if err := c.Send(ctx, m.Bytes(), 0, 1); err != nil {
				return err
			}
			continue
		}
		if _, err := c.Recv(ctx, m.Bytes(), 1, 1); err != nil {
			if err := dies("receive", err, 1); err != nil {
				return err
			}
			break
		}
		for i, v := range m.Bytes() {
			if v != byte(k) {
				return fmt.Errorf("byte %d of message %d is %d", i, k, v)
			}
		}
	}
	if err := m.Close(); err != nil {
		return fmt.Errorf("close memory that a dead process could write to: %w", err)
	}
	again := ranks.Must(n.Alloc(size))
	if !bytes.Equal(again.Bytes(), make([]byte, size)) {
		return errors.New("new memory has old bytes")
	}
	return again.Close()
}

// TestLenderStops: a process is stopped while memory of its node is read and written. Requests wait for it, memory
// of the node here that they do not use can be closed, and when it continues nothing has been lost.
func TestLenderStops(t *testing.T) { apart(t, 2, "lendstop") }

func lendAndStop(ctx context.Context, n *channel.Node, j *Job) error {
	const size, rounds, pid, spareTag = 4 << 20, 4, 100, 101
	c := j.World()
	out := ranks.Must(n.Alloc(size))
	in := ranks.Must(n.Alloc(size))
	if c.Rank() == 1 {
		if err := sendPID(ctx, c, 0, pid); err != nil {
			return err
		}
		for round := range rounds {
			if _, err := c.Recv(ctx, out.Bytes(), 0, spareTag); err != nil {
				return err
			}
			if _, err := c.Recv(ctx, in.Bytes(), 0, round); err != nil {
				return err
			}
			if err := c.Send(ctx, in.Bytes(), 0, round); err != nil {
				return err
			}
		}
		return leaveTogether(ctx, c)
	}
	peer, err := recvPID(ctx, c, 1, pid)
	if err != nil {
		return err
	}
	defer syscall.Kill(peer, syscall.SIGCONT)
	for round := range rounds {
		spare := ranks.Must(n.Alloc(size))
		if err := c.Send(ctx, spare.Bytes(), 1, spareTag); err != nil {
			return err
		}
		copy(out.Bytes(), pattern(size, uint64(round)))
		r := ranks.Must(c.Irecv(in.Bytes(), 1, round))
		var err error
		if round%2 == 0 {
			err = syscall.Kill(peer, syscall.SIGSTOP)
		}
		s, serr := c.Isend(out.Bytes(), 1, round)
		if round%2 == 1 && err == nil {
			err = syscall.Kill(peer, syscall.SIGSTOP)
		}
		if err := errors.Join(err, serr, spare.Close()); err != nil {
			return err
		}
		short, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
		_, err = r.Wait(short)
		cancel()
		if err == nil {
			r = Request{} // all had happened before the process stopped
		} else if !errors.Is(err, ErrTimeout) {
			return err
		} else if err := in.Close(); !errors.Is(err, channel.ErrBusy) {
			return fmt.Errorf("memory with a receive into it has been closed: %w", err)
		}
		if err := syscall.Kill(peer, syscall.SIGCONT); err != nil {
			return err
		}
		if err := WaitAll(ctx, nil, s, r); err != nil {
			return err
		}
		if !bytes.Equal(in.Bytes(), out.Bytes()) {
			return fmt.Errorf("round %d: the message is wrong", round)
		}
	}
	if err := errors.Join(in.Close(), out.Close()); err != nil {
		return err
	}
	return leaveTogether(ctx, c)
}
