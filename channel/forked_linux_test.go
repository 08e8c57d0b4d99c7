package channel

import (
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

func init() {
	acts["forked"] = act{do: forked}
	acts["forked-death"] = act{do: forkedDeath, options: []Option{WithPeerTimeout(time.Second)}}
}

// forked exchanges faces, and carries out collectives, while copies of this process share its pages: what it
// writes next goes to other ones. Some copies outlive the node, until the launcher ends what is left of the rank.
func forked(ctx context.Context, n *Node, args []string) error {
	var copies []int
	copying := func(round int) {
		if round%3 != n.Rank() {
			return
		}
		copies = append(copies, Must(ranks.Fork()))
		if len(copies) > 2 {
			if err := ranks.EndFork(copies[0]); err != nil {
				panic(err)
			}
			copies = copies[1:]
		}
	}
	err := halo(ctx, n, number(args[0]), hooks{before: copying})
	if err == nil {
		err = collecting(ctx, n)
	}
	return errors.Join(err, n.Close())
}

// TestForked: memory of messages that are declared stays theirs when C of the program calls fork(2).
func TestForked(t *testing.T) {
	processes(t, func(t *testing.T, provider string, run runner) {
		rounds := need.ByForm(6, 12, 60)
		r, out := run(t, 3, "forked", strconv.Itoa(rounds))
		require.Zero(t, r.ExitStatus(), out)
	})
}

// forkedDeath is a halo exchange in which rank 1 makes a copy of itself, and kills itself.
func forkedDeath(ctx context.Context, n *Node, args []string) error {
	err := halo(ctx, n, 1_000_000, hooks{before: func(round int) {
		if n.Rank() == 1 && round == 5 {
			Must(ranks.Fork())
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}})
	var e *Error
	if errors.As(err, &e) && e.Rank == 1 && (errors.Is(err, ErrPeerDied) || errors.Is(err, ErrUnreachable)) {
		return nil
	}
	return errors.Join(errors.New("want an error that names rank 1"), err)
}

// TestForkedDeath: a process has ended when it is killed, though a copy of it has its connections open.
func TestForkedDeath(t *testing.T) {
	processes(t, func(t *testing.T, provider string, run runner) {
		r, out := run(t, 2, "forked-death")
		require.Equal(t, []int{0, 137}, r.Status, out)
	})
}

// TestHeldOpen: a rank that hangs up has done so, though a copy of it has the connection open.
func TestHeldOpen(t *testing.T) {
	nodes := join(t, 2, WithProviders("shm"))
	one, other := sendReceive(t, nodes[0], nodes[1], 8)
	pass(t, one, other, other) // connects
	a, b := peerOf(t, nodes[0], 1), peerOf(t, nodes[1], 0)
	a.mu.Lock()
	copied, err := a.conn.(*net.TCPConn).File()
	a.mu.Unlock()
	require.NoError(t, err)
	defer copied.Close()
	a.fail(ErrClosed)
	ranks.Closes(t, b.served)
}
