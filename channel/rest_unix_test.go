//go:build unix

package channel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
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

// rest declares messages on many streams, to the other rank and from it, exchanges them, and closes all. Then
// this process has as much shared memory as before.
func rest(ctx context.Context, n *Node, args []string) error {
	streams, other := number(args[0]), 1-n.Rank()
	first := errors.Join(n.Send(ctx, []byte{1}, other), n.Recv(ctx, make([]byte, 1), other))
	if _, err := n.Exchange(ctx, nil); err != nil || first != nil {
		return errors.Join(first, err)
	}
	before, err := sharedMemory()
	if err != nil {
		return err
	}
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
		s, err := n.DeclareSend(Contiguous(out), other, OnStream(1+i))
		if err != nil {
			return err
		}
		r, err := n.DeclareReceive(Contiguous(in[i]), other, OnStream(1+i))
		if err != nil {
			return err
		}
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
	most, err := sharedMemory()
	if err != nil {
		return err
	}
	if most < before+streams*ringData {
		return fmt.Errorf("%d streams take %d bytes of shared memory: want more than the data of their rings", streams, most-before)
	}
	for _, h := range handles {
		if err := h.Close(); err != nil {
			return err
		}
	}
	for {
		now, err := sharedMemory()
		if err != nil {
			return err
		}
		if now <= before+before/20 {
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d bytes of shared memory before, %d with %d streams, %d after", before, most, streams, now)
		case <-time.After(10 * time.Millisecond):
		}
	}
	_, err = n.Exchange(ctx, nil) // the other rank may not be through
	return err
}

// TestClosedStreamsMemory: what is closed gives its memory back, in both processes.
func TestClosedStreamsMemory(t *testing.T) {
	if _, err := sharedMemory(); err != nil {
		return // not Linux
	}
	streams := "10000"
	if testing.Short() {
		streams = "1000"
	} else {
		need.Memory(t, 3)
	}
	r, out := run(t, "shm", 2, "rest", streams)
	require.Zero(t, r.ExitStatus(), out)
}
