package channel

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/vast"
)

// TestBeyond4GiB: a message of 5 GiB and some bytes, of which each is checked: through a pipe, copied by the sender
// into Alloc memory, by either side out of such memory, which the blocks of the layout share, and over tcp.
func TestBeyond4GiB(t *testing.T) {
	need.Long(t)
	need.Memory(t, 6)
	for _, c := range []struct {
		name, provider string
		from, to       bool // Alloc memory
	}{{"pipe", "shm", false, false}, {"into Alloc", "shm", false, true}, {"Alloc", "shm", true, true}, {"tcp", "tcp", false, false}} {
		t.Run(c.name, func(t *testing.T) {
			nodes := join(t, 2, WithProviders(c.provider))
			a, b := nodes[0], nodes[1]
			ctx, cancel := context.WithTimeout(t.Context(), 5*limit)
			defer cancel()
			var source Layout
			var period, dst []byte
			if c.from {
				period = allocate(t, a, vast.Period, true)
				vast.Fill(period)
				source = StridedArray(Vector{period, 0, vast.Period, vast.Len / vast.Period, 0}, Vector{period, 0, vast.Len % vast.Period, 1, 0})
			} else {
				var message []byte
				message, period = vast.Source(t)
				source = Contiguous(message)
			}
			if c.to {
				dst = allocate(t, b, vast.Len, true)
			} else {
				dst = vast.Sink(t)
			}
			require.Equal(t, vast.Len, source.Len())
			s, r := declareBoth(t, a, b, source, Contiguous(dst))
			each(t, 2, func(rank int) error {
				h := []*Handle{s, r}[rank]
				return errors.Join(h.Start(), h.WaitContext(ctx))
			})
			vast.Check(t, dst, period)
			require.NoError(t, errors.Join(s.Close(), r.Close()))
		})
	}
}

// TestCallsBeyond4GiB: as much at once, by calls that nothing is declared for, and by a collective.
func TestCallsBeyond4GiB(t *testing.T) {
	need.Long(t)
	need.Memory(t, 6)
	for _, c := range []struct {
		name, provider string
		do             func(ctx context.Context, n *Node, b []byte) error
	}{
		{"once, shm", "shm", sendsOnce},
		{"once, tcp", "tcp", sendsOnce},
		{"broadcast, shm", "shm", broadcasts},
		{"broadcast, tcp", "tcp", broadcasts},
	} {
		t.Run(c.name, func(t *testing.T) {
			nodes := join(t, 2, WithProviders(c.provider))
			ctx, cancel := context.WithTimeout(t.Context(), 5*limit)
			defer cancel()
			message, period := vast.Source(t)
			dst := vast.Sink(t)
			each(t, 2, func(rank int) error { return c.do(ctx, nodes[rank], [][]byte{message, dst}[rank]) })
			vast.Check(t, dst, period)
		})
	}
}

func sendsOnce(ctx context.Context, n *Node, b []byte) error {
	if n.Rank() == 0 {
		return n.Send(ctx, b, 1)
	}
	return n.Recv(ctx, b, 0)
}

func broadcasts(ctx context.Context, n *Node, b []byte) error {
	g, err := n.World(ctx)
	if err != nil {
		return err
	}
	return g.Run(ctx, Broadcast(b, 0))
}
