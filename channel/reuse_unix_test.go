//go:build unix

package channel

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// children are the programs that go on. The first is started before the rank joins.
var children ranks.Children

func init() {
	acts["reuse"] = act{do: reuse, prepare: func([]string) error { return children.Start() }}
}

// reuse exchanges messages between two ranks in memory that is taken for each, overwritten as soon as the
// handle is closed, and then left to a collector that collects all the time, or to the next Alloc. Meanwhile
// another goroutine starts programs, some of which outlive the node. What has been received does not change
// after the handle is closed, either: nothing is written late. Then there are collectives.
func reuse(ctx context.Context, n *Node, args []string) error {
	defer children.End()
	defer debug.SetGCPercent(debug.SetGCPercent(1))
	during, stop := context.WithCancel(ctx)
	forked, started := make(chan error, 1), 0
	begun := make(chan struct{})
	go func() {
		var err error
		for err == nil && (started < 3 || during.Err() == nil) {
			if children.Len() < 8 {
				err = children.Start()
			} else {
				err = exec.Command("true").Run()
			}
			if started++; started == 1 {
				close(begun)
			}
		}
		forked <- err
	}()
	<-begun
	err := reusing(ctx, n, number(args[0]))
	if err == nil {
		err = collecting(ctx, n)
	}
	stop()
	if failed := <-forked; failed != nil {
		err = errors.Join(err, fmt.Errorf("start a program: %w", failed))
	}
	if err != nil {
		return err
	}
	if err := children.Start(); err != nil { // while the node has all that it ever has
		return err
	}
	if err := n.Close(); err != nil {
		return err
	}
	return children.Alike(ctx)
}

// collecting carries out collectives, most of them in memory of the heap.
func collecting(ctx context.Context, n *Node) error {
	g := Must(n.World(ctx))
	return runTrials(ctx, g, trials(5, n.Size(), 12, 40_000))
}

func reusing(ctx context.Context, n *Node, rounds int) error {
	other := 1 - n.Rank()
	fill := func(b []byte, k int) {
		for i := range b {
			b[i] = byte(k + i + i>>8)
		}
	}
	check := func(b []byte, k int) error {
		for i := range b {
			if b[i] != byte(k+i+i>>8) {
				return fmt.Errorf("byte %d of %d of message %d is %d, want %d", i, len(b), k, b[i], byte(k+i+i>>8))
			}
		}
		return nil
	}
	take := func(size int, own bool) ([]byte, func() error, error) {
		if !own {
			return make([]byte, size), func() error { return nil }, nil
		}
		m, err := n.Alloc(size)
		if err != nil {
			return nil, nil, err
		}
		return m.Bytes(), m.Close, nil
	}
	type late struct {
		b    []byte
		k    int
		free func() error
	}
	var kept []late
	settle := func(l late) error { return errors.Join(check(l.b, l.k), l.free()) }
	for round := range rounds {
		for i, size := range []int{8, 1000, 4096, 20_000, 200_000, 1_100_000} {
			k := 10*round + i
			out, freeOut, err := take(size, k%2 == 0)
			if err != nil {
				return err
			}
			in, freeIn, err := take(size, k%3 == 0)
			if err != nil {
				return err
			}
			fill(out, k+n.Rank())
			s := Must(n.DeclareSend(Contiguous(out), other))
			r := Must(n.DeclareReceive(Contiguous(in), other))
			if err := errors.Join(s.Start(), r.Start(), WaitAllContext(ctx, s, r), s.Close(), r.Close()); err != nil {
				return err
			}
			fill(out, -1-k)
			if err := freeOut(); err != nil {
				return err
			}
			kept = append(kept, late{in, k + other, freeIn})
			if len(kept) > 4 {
				if err := settle(kept[0]); err != nil {
					return err
				}
				kept = kept[1:]
			}
		}
	}
	for _, l := range kept {
		if err := settle(l); err != nil {
			return err
		}
	}
	return nil
}

// TestReuse: memory may be freed and used for something else once its handle is closed, and the program
// may start others, which corrupts no message. Those inherit nothing that would keep memory, or a
// connection, when the node is closed.
func TestReuse(t *testing.T) {
	need.Program(t, "true")
	need.Program(t, "sleep")
	processes(t, func(t *testing.T, provider string, run runner) {
		rounds := need.InLong("6", "60")
		r, out := run(t, 2, "reuse", rounds)
		require.Zero(t, r.ExitStatus(), out)
	})
}
