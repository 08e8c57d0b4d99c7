package channel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
	"github.com/sluice-hpc/sluice/verbs/verbstest"
)

// TestAfterClose: what is done with a handle of a node that is closed is an error,
// whatever state it was in.
func TestAfterClose(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Node) {
		for _, size := range []int{8, 1000, 300_000} {
			s, r := sendReceive(t, a, b, size)
			require.NoError(t, s.Start())
			require.NoError(t, r.Run(within(t)))
			require.NoError(t, s.WaitContext(within(t)))
		}
		idle, _ := send(t, b, a.Rank(), 8)
		sent, _ := send(t, b, a.Rank(), 8)
		require.NoError(t, sent.Start())
		offered, _ := send(t, b, a.Rank(), 300_000)
		require.NoError(t, offered.Start())
		waits, _ := receive(t, b, a.Rank(), 300_000)
		require.NoError(t, waits.Start())
		closeEarly(t, b, 1, a.Rank())
		handles := []*Handle{idle, sent, offered, waits}
		for _, h := range handles {
			require.ErrorIs(t, h.Start(), ErrClosed)
			done, err := h.Test()
			require.True(t, done)
			require.ErrorIs(t, err, ErrClosed)
			require.ErrorIs(t, h.WaitContext(within(t)), ErrClosed)
			require.NoError(t, h.Close())
		}
	})
}

// TestCloseTwice: a second Close, at the same time, returns when the node is closed.
func TestCloseTwice(t *testing.T) {
	queued(t, func(t *testing.T, provider string) {
		nodes, q, _ := joinQueue(t, provider)
		n := nodes[0]
		q.lock.Lock() // the first cannot go on
		errs := make(chan error, 2)
		go func() { errs <- n.Close() }()
		for closed := false; !closed; runtime.Gosched() {
			n.mu.Lock()
			closed = n.closed
			n.mu.Unlock()
		}
		<-n.Done()
		begun := make(chan struct{})
		go func() {
			close(begun)
			err := n.Close()
			if n.life.Err() == nil {
				err = errors.New("not closed yet")
			}
			errs <- err
		}()
		<-begun
		q.lock.Unlock()
		require.NoError(t, <-errs)
		require.NoError(t, <-errs)
	})
}

// TestGoneOfClosed: a node that is closed knows of no rank, which is no fault of the rendezvous.
func TestGoneOfClosed(t *testing.T) {
	nodes := join(t, 2)
	require.NoError(t, nodes[0].Gone(within(t), 1))
	require.NoError(t, nodes[0].Close())
	err := nodes[0].Gone(within(t), 1)
	require.ErrorIs(t, err, ErrClosed)
	require.NotErrorIs(t, err, ErrUnreachable)
	require.ErrorIs(t, nodes[1].Gone(within(t), 0), ErrPeerLeft)
}

// endless is a call of rank 0 that waits for rank 1, which does not come.
type endless struct {
	name   string
	member bool // of the group of all ranks, which rank 1 has made, too
	mapped bool // the provider maps memory
	stops  bool // rank 1 makes no progress from here on
	// begin makes the call in a goroutine, and returns when it waits.
	begin func(t *testing.T, n *Node, groups []*Group) <-chan error
}

// TestCloseEndsWaits: whatever a call waits for, it ends when its node or group is closed.
func TestCloseEndsWaits(t *testing.T) {
	apart(t, func(t *testing.T, provider string) {
		for _, c := range endlesses {
			for _, closed := range []string{"node", "group", "group of several hosts"} {
				if closed != "node" && !c.member || c.mapped && provider != "shm" {
					continue
				}
				t.Run(c.name+"/"+closed, func(t *testing.T) {
					if provider == "tcp" || provider != "shm" && closed != "node" {
						need.Full(t)
					}
					opts := []Option{WithProviders(provider), WithWait("sleep")}
					if closed == "group of several hosts" {
						opts = append(opts, withHosts(func(rank int) int { return rank }))
					}
					nodes := join(t, 2, opts...)
					groups := []*Group{{node: nodes[0]}, {node: nodes[1]}}
					if c.member {
						each(t, 2, func(rank int) (err error) {
							groups[rank], err = nodes[rank].World(within(t))
							return err
						})
					}
					end := nodes[0].Close
					if closed != "node" {
						end = groups[0].Close
					}
					if c.stops {
						nodes[1].mu.Lock()
					}
					over, ended := c.begin(t, nodes[0], groups), make(chan error, 1)
					go func() { ended <- end() }()
					var err error
					select {
					case err = <-over:
					case <-within(t).Done():
					}
					if c.stops {
						nodes[1].mu.Unlock()
					}
					require.ErrorIs(t, err, ErrClosed)
					require.ErrorContains(t, err, "closed by this process")
					if err := <-ended; !errors.Is(err, ErrActive) {
						require.NoError(t, err)
					}
				})
			}
		}
	})
}

var endlesses = []endless{
	{name: "exchange", begin: func(t *testing.T, n *Node, _ []*Group) <-chan error {
		return called(t, n, func() error { return exchanged(n) }, "the other ranks")
	}},
	{name: "second exchange", begin: func(t *testing.T, n *Node, _ []*Group) <-chan error {
		defer verbstest.Asleep(t, "channel.(*Node).Exchange", 2)
		return called(t, n, twice(func() error { return exchanged(n) }), "the other ranks")
	}},
	{name: "world", begin: func(t *testing.T, n *Node, _ []*Group) <-chan error {
		return called(t, n, func() error { return joined(n) }, "the other ranks, round 1 of 2")
	}},
	{name: "second world", begin: func(t *testing.T, n *Node, _ []*Group) <-chan error {
		defer verbstest.Asleep(t, "channel.(*Node).World", 2)
		return called(t, n, twice(func() error { return joined(n) }), "the other ranks, round 1 of 2")
	}},
	{name: "world connects", mapped: true, stops: true, begin: func(t *testing.T, n *Node, groups []*Group) <-chan error {
		go groups[1].node.job.Exchange(within(t), (&groupRecord{host: n.hostOf(1), shares: true}).append(nil))
		return called(t, n, func() error { return joined(n) }, "the connection to rank 1")
	}},
	{name: "world in round 2", begin: func(t *testing.T, n *Node, groups []*Group) <-chan error {
		go groups[1].node.job.Exchange(within(t), (&groupRecord{host: 1}).append(nil))
		return called(t, n, func() error { return joined(n) }, "the other ranks, round 2 of 2")
	}},
	{name: "split", member: true, begin: func(t *testing.T, n *Node, g []*Group) <-chan error {
		return asleep(t, n, g[0].divided)
	}},
	{name: "split in round 1", member: true, begin: func(t *testing.T, n *Node, g []*Group) <-chan error {
		go g[1].divideUpTo(within(t), 1)
		return called(t, n, g[0].divided, "the other ranks, round 1 of 2")
	}},
	{name: "split in round 2", member: true, begin: func(t *testing.T, n *Node, g []*Group) <-chan error {
		go g[1].divideUpTo(within(t), 2)
		return called(t, n, g[0].divided, "the other ranks, round 2 of 2")
	}},
	{name: "barrier", member: true, stops: true, begin: func(t *testing.T, n *Node, g []*Group) <-chan error {
		return asleep(t, n, func() error { return g[0].Run(context.Background(), Barrier()) })
	}},
	{name: "long collective", member: true, stops: true, begin: func(t *testing.T, n *Node, g []*Group) <-chan error {
		data := make([]float64, 1<<16)
		return asleep(t, n, func() error { return g[0].Run(context.Background(), Allreduce(Sum, data, data)) })
	}},
	{name: "declared collective", member: true, begin: func(t *testing.T, n *Node, g []*Group) <-chan error {
		c, err := g[0].Declare(Broadcast(make([]byte, 100), 1))
		require.NoError(t, err)
		require.NoError(t, c.Start())
		return asleep(t, n, c.Wait)
	}},
	{name: "receive", begin: message(8, receive, (*Handle).Wait)},
	{name: "receive once", begin: func(t *testing.T, n *Node, _ []*Group) <-chan error {
		return asleep(t, n, func() error { return n.Recv(context.Background(), make([]byte, 8), 1) })
	}},
	{name: "long receive", begin: message(300_000, receive, (*Handle).Wait)},
	{name: "long send", begin: message(300_000, send, (*Handle).Wait)},
	{name: "wire-up", stops: true, begin: message(8, receive, (*Handle).Wait)},
	{name: "wire-up of send", stops: true, begin: message(300_000, send, (*Handle).Wait)},
	{name: "any", begin: message(8, receive, func(h *Handle) error {
		_, err := WaitAny(context.Background(), h)
		return err
	})},
	{name: "some", begin: message(300_000, send, func(h *Handle) error {
		_, err := WaitSome(context.Background(), nil, h)
		return err
	})},
	{name: "all", begin: message(8, receive, func(h *Handle) error { return WaitAll(h) })},
	{name: "multiple", begin: message(8, multiple, (*Handle).Wait)},
}

// called makes a call in a goroutine, and returns when the node reports that it waits for that.
func called(t *testing.T, n *Node, call func() error, waitsFor string) <-chan error {
	t.Helper()
	over := make(chan error, 1)
	go func() { over <- call() }()
	eventually(t, func() bool {
		return slices.ContainsFunc(n.pending(), func(line string) bool { return strings.Contains(line, "waits for "+waitsFor+",") })
	})
	return over
}

// twice makes a call twice at the same time.
func twice(call func() error) func() error {
	return func() error {
		other := make(chan error, 1)
		go func() { other <- call() }()
		err := call()
		if e := <-other; !errors.Is(e, ErrClosed) {
			return fmt.Errorf("one call: %v, the other: %v", err, e)
		}
		return err
	}
}

func (g *Group) divided() error {
	_, err := g.Split(context.Background(), 0, 0)
	return err
}

// divideUpTo takes part in a split up to that round of the exchange, which other members then begin.
func (g *Group) divideUpTo(ctx context.Context, round int) {
	g.Run(ctx, Allgather(make([]byte, 2*16), make([]byte, 16)))
	g.agree(ctx)
	if round > 1 {
		g.allgather(ctx, (&groupRecord{host: 1}).append(nil), g.ranks)
	}
}

// message returns the wait for a message of so many bytes.
func message(size int, declare func(testing.TB, *Node, int, int, ...DeclareOption) (*Handle, []byte), wait func(*Handle) error) func(*testing.T, *Node, []*Group) <-chan error {
	return func(t *testing.T, n *Node, _ []*Group) <-chan error {
		h, _ := declare(t, n, 1, size)
		require.NoError(t, h.Start())
		return asleep(t, n, func() error { return wait(h) })
	}
}

// multiple declares a receive and a send as one.
func multiple(t testing.TB, n *Node, peer, size int, opts ...DeclareOption) (*Handle, []byte) {
	r, _ := receive(t, n, peer, size, opts...)
	s, b := send(t, n, peer, 300_000, opts...)
	m, err := n.Multiple(r, s)
	require.NoError(t, err)
	return m, b
}

// TestClosedWhileConnecting: a rank that closes its node while another one ends the connection that they are making
// does not take that one for dead, since it does not wait for what the rendezvous may say.
func TestClosedWhileConnecting(t *testing.T) {
	for _, connected := range []bool{true, false} {
		n := join(t, 2)[0]
		p, err := n.peer(1)
		require.NoError(t, err)
		l := ranks.Listen(t)
		conn := ranks.Dial(t, l.Addr().String())
		far, err := l.Accept()
		require.NoError(t, err)
		require.NoError(t, far.Close())
		n.closing.Store(true)
		n.shut(ErrClosed)
		if connected {
			require.True(t, p.take(conn))
			p.serve(conn)
			require.ErrorIs(t, *p.err.Load(), ErrClosed)
			require.NotErrorIs(t, *p.err.Load(), ErrPeerDied)
		} else {
			require.NoError(t, conn.Close())
			require.ErrorIs(t, p.whyNot(io.EOF), ErrClosed)
		}
	}
}
