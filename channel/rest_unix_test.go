//go:build unix

package channel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// sharedMemory returns the shared memory that this process has touched, in bytes.
func sharedMemory() (int, error) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	var kib int
	_, after, found := strings.Cut(string(b), "RssShmem:")
	if !found {
		return 0, errors.New("no RssShmem in /proc/self/status")
	}
	_, err = fmt.Sscanf(after, "%d kB", &kib)
	return kib << 10, err
}

func init() {
	acts["rest-dying"] = act{do: restDying}
	acts["rest-once"] = act{do: restOnce, patient: true}
}

// rest declares messages on many streams, to the other rank and from it, exchanges them, and closes all. Then
// this process has as much shared memory as before.
func rest(ctx context.Context, n *Node, args []string) error {
	streams, other := number(args[0]), 1-n.Rank()
	first := errors.Join(n.Send(ctx, []byte{1}, other), n.Recv(ctx, make([]byte, 1), other))
	if _, err := n.Exchange(ctx, nil); err != nil || first != nil {
		return errors.Join(first, err)
	}
	before := Must(sharedMemory())
	var handles []*Handle
	var in [][]byte
	for i := range streams {
		size := 8
		switch {
		case i%200 == 7:
			size = 20_000 // through a pipe
		case i%10 == 3:
			size = 1000
		}
		out := make([]byte, size)
		binary.BigEndian.PutUint64(out, uint64(i))
		in = append(in, make([]byte, size))
		s := Must(n.DeclareSend(Contiguous(out), other, OnStream(1+i)))
		r := Must(n.DeclareReceive(Contiguous(in[i]), other, OnStream(1+i)))
		handles = append(handles, s, r)
	}
	for _, h := range handles {
		if err := h.Start(); err != nil {
			return err
		}
	}
	if err := WaitAllContext(ctx, handles...); err != nil {
		return err
	}
	for i, b := range in {
		if got := binary.BigEndian.Uint64(b); got != uint64(i) {
			return fmt.Errorf("stream %d: message %d", i, got)
		}
	}
	most := Must(sharedMemory())
	if most < before+streams*ringData {
		return fmt.Errorf("%d streams take %d bytes of shared memory: want more than the data of their rings", streams, most-before)
	}
	for _, h := range handles {
		if err := h.Close(); err != nil {
			return err
		}
	}
	if err := awaitMemory(ctx, before+before/20); err != nil {
		return fmt.Errorf("%d bytes of shared memory before, %d with %d streams; after: %w", before, most, streams, err)
	}
	_, err := n.Exchange(ctx, nil) // the other rank may not be through
	return err
}

// TestClosedStreamsMemory: what is closed gives its memory back, in both processes.
func TestClosedStreamsMemory(t *testing.T) {
	t.Parallel() // it waits for streams that rest
	if _, err := sharedMemory(); err != nil {
		return // not Linux
	}
	need.Full(t)
	need.Memory(t, 3)
	r, out := run(t, "shm", 2, "rest", "10000")
	require.Zero(t, r.ExitStatus(), out)
}

// restOnce sends and receives one message on each of many streams, as a program does that goes from one to the
// next. Then this process has no more shared memory than the streams take that are kept for a next message.
func restOnce(ctx context.Context, n *Node, args []string) error {
	streams, other := number(args[0]), 1-n.Rank()
	for i := range streams {
		size := 8 + i%3*500
		if i%100 == 7 {
			size = 20_000 // through a pipe
		}
		out, in := make([]byte, size), make([]byte, size)
		binary.BigEndian.PutUint64(out, uint64(i))
		if err := n.Sendrecv(ctx, out, other, in, other, OnStream(i)); err != nil {
			return err
		}
		if got := binary.BigEndian.Uint64(in); got != uint64(i) {
			return fmt.Errorf("stream %d: message %d", i, got)
		}
	}
	n.mu.Lock()
	kept := len(n.onces)
	n.mu.Unlock()
	if kept > sparesMost {
		return fmt.Errorf("%d handles for messages used once: want at most %d", kept, sparesMost)
	}
	// Half of the handles are receives; each side has mapped what the other has made. Slabs of rings that some
	// stream is kept in have been taken by resting ones, too.
	if err := awaitMemory(ctx, 2*(sparesMost/2+restingMost)*ringStep+16<<20); err != nil {
		return fmt.Errorf("after %d streams: %w", streams, err)
	}
	_, err := n.Exchange(ctx, nil) // the other rank may not be through
	return err
}

// TestOnceMemory: streams of messages used once give their memory back when there are many of them.
func TestOnceMemory(t *testing.T) {
	t.Parallel() // it waits for streams that rest
	if _, err := sharedMemory(); err != nil {
		return // not Linux
	}
	need.Full(t)
	r, out := run(t, "shm", 2, "rest-once", "10000")
	require.Zero(t, r.ExitStatus(), out)
}

// restDying is a job of two. Rank 0 closes its ends of many streams, whose messages rank 1 has not taken when that
// is stopped, and of as many that it is asked about then. Once it is killed, rank 0 has as much shared memory as
// before.
func restDying(ctx context.Context, n *Node, args []string) error {
	const streams = 400 // more than may rest
	first := errors.Join(n.Send(ctx, []byte{1}, 1-n.Rank()), n.Recv(ctx, make([]byte, 1), 1-n.Rank()))
	if first != nil {
		return first
	}
	var handles []*Handle
	for i := range 2 * streams {
		var h *Handle
		var err error
		switch {
		case n.Rank() == 0:
			h, err = n.DeclareSend(Contiguous(make([]byte, 1000)), 1, OnStream(1+i))
		case i < streams:
			h, err = n.DeclareReceive(Contiguous(make([]byte, 1000)), 0, OnStream(1+i))
		default:
			continue
		}
		if err == nil {
			err = h.Start()
		}
		if err != nil {
			return err
		}
		handles = append(handles, h)
	}
	if err := WaitAllContext(ctx, handles...); err != nil {
		return err
	}
	victim := Must(swapPIDs(ctx, n))
	if n.Rank() == 1 {
		<-ctx.Done() // it is killed
		return ctx.Err()
	}
	if err := ranks.Stop(ctx, victim); err != nil { // it answers no question from here on
		return err
	}
	most := Must(sharedMemory())
	if most < 2*streams*ringData {
		return fmt.Errorf("%d streams take %d bytes of shared memory: want more than the data of their rings", 2*streams, most)
	}
	for _, h := range handles {
		if err := h.Close(); err != nil {
			return err
		}
	}
	p := n.peers[1].Load()
	for asked := 0; asked < streams; {
		n.ticks.Add(restTicks)
		if err := errors.Join(n.endRests(true), ctx.Err()); err != nil {
			return err
		}
		asked = 0
		p.mu.Lock()
		for _, s := range p.sends {
			if s.aside != nil {
				asked++
			}
		}
		p.mu.Unlock()
	}
	if err := syscall.Kill(victim, syscall.SIGKILL); err != nil {
		return err
	}
	return awaitMemory(ctx, most/20)
}

// awaitMemory waits until this process has at most so much shared memory.
func awaitMemory(ctx context.Context, most int) error {
	for {
		now, err := sharedMemory()
		if err != nil || now <= most {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d bytes of shared memory: want at most %d", now, most)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// TestDeadPeerMemory: what a process that is killed had access to is given back, whether it had been asked or not.
func TestDeadPeerMemory(t *testing.T) {
	t.Parallel() // it waits for the processes
	if _, err := sharedMemory(); err != nil {
		return // not Linux
	}
	need.Full(t)
	r, out := run(t, "shm", 2, "rest-dying")
	require.Equal(t, []int{0, 137}, r.Status, out)
}
