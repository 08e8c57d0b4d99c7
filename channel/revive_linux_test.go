package channel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

func init() {
	acts["revive"] = act{do: revive, options: []Option{WithPeerTimeout(2 * time.Second)}}
}

// revive is a job of two ranks: rank 0 is stopped while it writes into the memory of
// rank 1, which closes its node, uses the addresses for something else, and lets
// rank 0 go on.
func revive(ctx context.Context, n *Node, args []string) error {
	peer, err := swapPIDs(ctx, n)
	if err != nil {
		return err
	}
	const size = 4 << 20
	own := args[0] == "alloc"
	if n.Rank() == 0 {
		// Blocks of one byte: a copy that takes its time.
		m := Must(n.Alloc(2 * size))
		copy(m.Bytes(), bytes.Repeat([]byte{0x11}, 2*size))
		s := Must(n.DeclareSend(Strided(m.Bytes(), 0, 1, size, 2), 1))
		for err == nil {
			if err = s.Start(); err == nil {
				err = s.WaitContext(ctx)
			}
		}
		if e := (*Error)(nil); !errors.As(err, &e) || errors.Is(err, ErrTimeout) {
			return fmt.Errorf("the revived rank: %w", err)
		}
		return nil
	}
	defer syscall.Kill(peer, syscall.SIGCONT)
	var m *Memory
	b := make([]byte, size)
	if own {
		if m, err = n.Alloc(size); err != nil {
			return err
		}
		b = m.Bytes()
	}
	h := Must(n.DeclareReceive(Contiguous(b), 0))
	if err := stopWithin(ctx, h, b, peer); err != nil {
		return err
	}
	past, cancel := context.WithDeadline(ctx, time.Now())
	defer cancel()
	err = h.WaitContext(past)
	alone := n.memory != nil && !own // only this rank writes into that memory
	if !errors.Is(err, ErrTimeout) && !(alone && err == nil) {
		return fmt.Errorf("from a stopped peer: %v", err)
	}
	if err := h.Close(); !errors.Is(err, ErrActive) && !alone {
		return fmt.Errorf("closing the handle: %v", err)
	}
	if m != nil {
		if err := m.Close(); !errors.Is(err, ErrBusy) {
			return fmt.Errorf("closing the memory: %v", err)
		}
	}
	mapped := n.memory != nil && own
	switch err := n.Close(); {
	case mapped && !errors.Is(err, ErrBusy):
		return fmt.Errorf("closing the node over memory that a stopped peer writes to: %v", err)
	case !mapped && err != nil:
		return fmt.Errorf("closing the node: %w", err)
	}
	for i := range b { // the addresses are still there, as private memory
		b[i] = 0xee
	}
	if err := syscall.Kill(peer, syscall.SIGCONT); err != nil {
		return err
	}
	for state := ""; state != "Z" && state != "gone"; state = stateOf(peer) { // it has done what it was about to do
		if ctx.Err() != nil {
			return errors.New("the revived rank does not end")
		}
		time.Sleep(time.Millisecond)
	}
	if bytes.Count(b, []byte{0xee}) != size {
		return errors.New("the revived rank has written into memory that was given back")
	}
	return nil
}

// stopWithin starts receives until the peer has been stopped in the middle of one.
func stopWithin(ctx context.Context, h *Handle, b []byte, peer int) error {
	// Once undisturbed: then the peer knows where to write.
	if err := errors.Join(h.Start(), h.WaitContext(ctx)); err != nil {
		return err
	}
	for ctx.Err() == nil {
		clear(b)
		if err := h.Start(); err != nil {
			return err
		}
		// Where only we write into the memory, any moment will do.
		for (h.reachable || h.in.q.Load() != nil) && peek(b) == 0 && ctx.Err() == nil {
		}
		if err := ranks.Stop(ctx, peer); err != nil {
			return err
		}
		if q := h.in.q.Load(); q != nil {
			if done, err := h.Test(); !done || err != nil {
				return err
			}
		} else if r := h.in.r.Load(); !h.reachable {
			return nil
		} else if m := &r.matches[h.k%ringSlots]; atomic.LoadUint64(&m.next) > atomic.LoadUint64(&m.done) {
			return nil
		}
		if err := syscall.Kill(peer, syscall.SIGCONT); err != nil {
			return err
		}
		if err := h.WaitContext(ctx); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// peek looks at the first byte of a buffer that is being received into, which only a test may
// do.
//
//go:norace
//go:noinline
func peek(b []byte) byte { return b[0] }

// stateOf returns the letter of a process's state (proc_pid_stat(5)).
func stateOf(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "gone"
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return rest[:1]
}

// TestRevived: what a stopped peer was about to write does not reach memory that has
// been given back.
func TestRevived(t *testing.T) {
	t.Parallel() // it waits most of the time
	apart(t, func(t *testing.T, provider string) {
		for _, kind := range []string{"alloc", "heap"} {
			t.Run(kind, func(t *testing.T) {
				t.Parallel()
				if kind == "heap" && provider != "shm" {
					need.Long(t) // a queue makes no difference
				}
				r, out := run(t, provider, 2, "revive", kind)
				require.Zero(t, r.ExitStatus(), out)
			})
		}
	})
}
