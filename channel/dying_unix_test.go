//go:build unix

package channel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

func init() { acts["copy"] = act{do: copyDying} }

// copyDying is a job of two over shared memory. Rank 1 copies a message of rank 0 when that is killed: out of a
// pipe that holds a part of it, after rank 0 has been stopped, or out of Alloc memory, at any time. It gets
// either all of the message, or an error.
func copyDying(ctx context.Context, n *Node, args []string) error {
	const size = 64 << 20
	piped := args[0] == "pipe"
	if n.Rank() == 0 {
		b := make([]byte, size)
		if !piped {
			m := Must(n.Alloc(size))
			b = m.Bytes()
		}
		paint(b, 0, 0, 0)
		s := Must(n.DeclareSend(Contiguous(b), 1))
		if err := s.Start(); err != nil {
			return err
		}
		for part := !piped; !part; { // before this process is stopped
			if done, err := s.Test(); done || err != nil {
				return fmt.Errorf("all of %d bytes are in the pipe: %w", size, err)
			}
			s.out.lock.Lock()
			part = s.moved > 0
			s.out.lock.Unlock()
		}
		if _, err := swapPIDs(ctx, n); err != nil {
			return err
		}
		return s.WaitContext(ctx)
	}
	in := make([]byte, size)
	r := Must(n.DeclareReceive(Contiguous(in), 0))
	victim, err := swapPIDs(ctx, n)
	if err != nil {
		return err
	}
	if piped {
		if err := ranks.Stop(ctx, victim); err != nil {
			return err
		}
		if err := r.Start(); err != nil {
			return err
		}
		for r.moved == 0 {
			if done, err := r.Test(); done {
				return fmt.Errorf("a process that is stopped has sent %d bytes: %v", size, err)
			}
		}
		if err := syscall.Kill(victim, syscall.SIGKILL); err != nil {
			return err
		}
		if err := r.WaitContext(ctx); !errors.Is(err, ErrPeerDied) {
			return fmt.Errorf("a part of a message, from a process that is killed: %v", err)
		}
		return r.Close()
	}
	killed := make(chan error, 1)
	go func() { // as soon as some has been copied
		for begun := false; !begun && ctx.Err() == nil; {
			ring := r.in.r.Load()
			begun = ring != nil && atomic.LoadUint64(&ring.matches[1].done) >= key(1, 1)
		}
		killed <- syscall.Kill(victim, syscall.SIGKILL)
	}()
	err = r.Start()
	if err == nil {
		err = r.WaitContext(ctx)
	}
	if e := <-killed; e != nil {
		return e
	}
	if err != nil {
		if !errors.Is(err, ErrPeerDied) {
			return fmt.Errorf("a message from a process that is killed: %w", err)
		}
		return r.Close()
	}
	want := make([]byte, size)
	if paint(want, 0, 0, 0); !bytes.Equal(in, want) {
		return errors.New("a message of which a part is missing")
	}
	return r.Close()
}

// TestCopyDeath: the end of a process whose message is being copied over shared memory tears none.
func TestCopyDeath(t *testing.T) {
	for _, kind := range []string{"pipe", "alloc"} {
		t.Run(kind, func(t *testing.T) {
			r, out := run(t, "shm", 2, "copy", kind)
			require.Equal(t, []int{137, 0}, r.Status, out)
		})
	}
}
