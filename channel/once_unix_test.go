//go:build unix

package channel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// burn computes until the process that has started it ends.
func burn([]string) error {
	parent := os.Getppid()
	for x := uint64(1); os.Getppid() == parent && x != 0; {
		for range 1_000_000 {
			x = x*6364136223846793005 + 1
		}
	}
	return errors.New("left alone")
}

// once is a job of two with one CPU for Go in each, which exchange messages that are declared for
// one use. It fails if a rank gives up the CPU too often while it waits.
func once(ctx context.Context, n *Node, args []string) error {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const size = 64 << 10
	m, err := n.Alloc(2 * size)
	if err != nil {
		return err
	}
	out, in := m.Bytes()[:size], m.Bytes()[size:]
	message := func(h *Handle, err error) error {
		if err == nil {
			err = h.Start()
		}
		if err == nil && args[1] == "any" {
			_, err = WaitAny(ctx, h)
		} else if err == nil {
			err = h.WaitContext(ctx)
		}
		if h != nil {
			err = errors.Join(err, h.Close())
		}
		return err
	}
	other := 1 - n.Rank()
	var before uint64
	for i := range number(args[0]) + 1 {
		if i == 1 { // connected
			before = n.sleeps.Load() + n.policy.Yields()
		}
		for turn := range 2 {
			if turn == n.Rank() {
				copy(out, bytes.Repeat([]byte{byte(i + turn)}, size))
				err = message(n.DeclareSend(Contiguous(out), other))
			} else if err = message(n.DeclareReceive(Contiguous(in), other)); err == nil && !bytes.Equal(in, bytes.Repeat([]byte{byte(i + turn)}, size)) {
				err = fmt.Errorf("message %d is damaged", i)
			}
			if err != nil {
				return err
			}
		}
	}
	if n := n.sleeps.Load() + n.policy.Yields() - before; n > uint64(10*number(args[0])) {
		return fmt.Errorf("gave up the CPU %d times", n)
	}
	return nil
}

// TestOnce: a message that is declared for one use needs the goroutines that write and read
// its layout. A rank that waits lets them run, although it polls, has one CPU for Go and shares it:
// it does not wait until the runtime takes the CPU away.
func TestOnce(t *testing.T) {
	for range runtime.NumCPU() {
		c := ranks.Command(t.Context(), "burn")
		require.NoError(t, c.Start())
		t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	}
	for _, provider := range []string{"shm", "tcp"} { // the driver of roce blocks in system calls
		for _, way := range []string{"one", "any"} {
			t.Run(provider+"/"+way, func(t *testing.T) {
				r, out := run(t, provider, 2, "once", "50", way)
				require.Zero(t, r.ExitStatus(), out)
			})
		}
	}
}
