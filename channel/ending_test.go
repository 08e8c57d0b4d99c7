package channel

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

// byMessages runs a test for ranks that are on hosts of their own, for each way that
// messages between them can go.
func byMessages(t *testing.T, size int, test func(t *testing.T, groups []*Group)) {
	apart(t, func(t *testing.T, provider string) {
		test(t, worlds(t, size, WithProviders(provider), withHosts(func(rank int) int { return rank })))
	})
}

// streamsLeft is what a node has of streams that do not belong to its world.
func streamsLeft(n *Node) (list []string) {
	const world = MaxStream + 1
	n.mu.Lock()
	for number := range n.streams {
		if number != world {
			list = append(list, fmt.Sprintf("number %d is held", number))
		}
	}
	peers := n.allPeers()
	n.mu.Unlock()
	for _, s := range *n.receives.Load() {
		if s.number != world {
			list = append(list, fmt.Sprintf("stream %d is looked at", s.number))
		}
	}
	for _, p := range peers {
		p.mu.Lock()
		say := func(what string, number uint32) {
			if number != world {
				list = append(list, fmt.Sprintf("rank %d: %s of stream %d", p.rank, what, number))
			}
		}
		for number := range p.sends {
			say("sends", number)
		}
		for number := range p.receives {
			say("receives", number)
		}
		for number := range p.closed {
			say("memory", number)
		}
		for number := range p.heard {
			say("what was heard", number)
		}
		if q := p.queue; q != nil {
			q.lock.Lock()
			for number := range q.out {
				say("queue out", number)
			}
			for number := range q.in {
				say("queue in", number)
			}
			for number := range q.ends {
				say("end", number)
			}
			q.lock.Unlock()
		}
		p.mu.Unlock()
	}
	return list
}

// requireNoStreams waits until nodes have heard that the others are through.
func requireNoStreams(t *testing.T, groups []*Group) {
	t.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(time.Millisecond) {
		var left []string
		for _, g := range groups {
			left = append(left, streamsLeft(g.node)...)
		}
		if len(left) == 0 {
			return
		}
		require.True(t, time.Now().Before(end), left)
	}
}

// Nothing of a group's streams is left when all members have closed it, in any order,
// and their numbers are used again.
func TestStreamsEnd(t *testing.T) {
	byMessages(t, 3, func(t *testing.T, groups []*Group) {
		ctx := within(t)
		rounds := need.InLong(14, 100) // each order twice
		largest := uint32(0)
		orders := [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}, nil} // nil: all at once
		for round := range rounds {
			order := orders[round%len(orders)]
			var closed [3]chan struct{}
			for i := range closed {
				closed[i] = make(chan struct{})
			}
			each(t, 3, func(rank int) error {
				defer close(closed[rank])
				g := splitOf(t, groups[rank], ctx, round%7*rank%2, 0)
				if rank == 0 {
					largest = max(largest, g.stream)
				}
				b := make([]float64, []int{1, 3000, 60_000}[round%3])
				c, err := g.Declare(Allreduce(Sum, b, b))
				if err != nil {
					return err
				}
				for range round % 4 {
					if err := errors.Join(c.Start(), c.WaitContext(ctx), g.Run(ctx, Broadcast(b, 0))); err != nil {
						return err
					}
				}
				if at := slices.Index(order, rank); at > 0 {
					<-closed[order[at-1]]
				}
				return g.Close()
			})
		}
		requireNoStreams(t, groups)
		require.Less(t, largest, uint32(MaxStream+2+rounds/2))
		each(t, 3, func(rank int) error {
			g, err := groups[rank].Split(ctx, 0, 0)
			if err == nil && g.stream != MaxStream+2 {
				err = fmt.Errorf("the first group has stream %d", g.stream)
			}
			return err
		})
		s := groups[0].node.Stats()
		require.NotZero(t, s.Peers[len(s.Peers)-1].Sent.Messages)
	})
}

// A group that one member closes while the others go on with it fails at them.
func TestStreamsEndEarly(t *testing.T) {
	t.Parallel() // it waits most of the time
	byMessages(t, 2, func(t *testing.T, groups []*Group) {
		ctx := within(t)
		for range 3 {
			each(t, 2, func(rank int) error {
				g := splitOf(t, groups[rank], ctx, 0, 0)
				b := make([]float64, 100_000)
				if err := g.Run(ctx, Allreduce(Sum, b, b)); err != nil {
					return err
				}
				if rank == 1 {
					return g.Close()
				}
				err := g.Run(ctx, Allreduce(Sum, b, b))
				if e := (*Error)(nil); !errors.As(err, &e) || e.Rank != 1 || !errors.Is(err, ErrPeerLeft) {
					return fmt.Errorf("not left by rank 1: %w", err)
				}
				return g.Close()
			})
		}
		requireNoStreams(t, groups)
		each(t, 2, func(rank int) error { return groups[rank].Run(ctx, Barrier()) })
	})
}

// When Close of a failed group has returned, the memory is the user's again: no member touches
// it, whatever the members do that have not closed theirs.
func TestFailedGroupsMemory(t *testing.T) {
	byMessages(t, 2, func(t *testing.T, groups []*Group) {
		const size = 4 << 20
		ctx := within(t)
		rounds := need.InLong(8, 24)
		for round := range rounds {
			first := round % 2 // the rank that fails: the root, which sends, or the other
			r := rand.New(rand.NewPCG(uint64(round), 1))
			failed, through := make(chan struct{}), make(chan struct{})
			fail := sync.OnceFunc(func() { close(failed) })
			each(t, 2, func(rank int) error {
				g := splitOf(t, groups[rank], ctx, 0, 0)
				m := newMemory(t, g.node, size)
				b := m.Bytes()
				if round%3 == 1 { // and memory that the other side cannot map
					b = make([]byte, size)
				}
				c, err := g.Declare(Broadcast(b, 0))
				if err != nil {
					return err
				}
				if rank != first {
					defer close(through)
					if round%4 < 2 { // it takes part, and the message is under way
						if err := c.Start(); err != nil && !errors.Is(err, errFault) {
							return err
						}
					}
					<-failed
					err := c.Start()
					if err == nil {
						err = c.WaitContext(ctx)
					}
					if err == nil || !errors.Is(err, errFault) && !errors.Is(err, ErrActive) {
						return fmt.Errorf("not failed: %w", err)
					}
					return errors.Join(g.Close(), m.Close())
				}
				defer fail()
				if err := c.Start(); err != nil {
					return err
				}
				for range r.IntN(4) {
					if _, err := c.Test(); err != nil {
						return err
					}
				}
				if c.active {
					g.failNow(errors.New("of the test"))
				}
				if err := g.Close(); err != nil {
					return err
				}
				pattern := bytes.Repeat([]byte{0xa5, byte(round)}, size/2)
				copy(b, pattern)
				fail()
				<-through // whatever it was about to do
				if !bytes.Equal(b, pattern) {
					return errors.New("the memory has been overwritten")
				}
				return m.Close()
			})
		}
		requireNoStreams(t, groups)
	})
}

// The same where the deadline of a call ends the group: of an operation over memory of
// the user, that is.
func TestDeadlinesMemory(t *testing.T) {
	byMessages(t, 3, func(t *testing.T, groups []*Group) {
		ctx := within(t)
		each(t, 3, func(rank int) error {
			g := splitOf(t, groups[rank], ctx, 0, 0)
			m := newMemory(t, g.node, keptBytes+8)
			if rank != 2 { // rank 2 does not take part, and computes
				short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
				defer cancel()
				if err := g.Run(short, Broadcast(m.Bytes(), 2)); err == nil {
					return errors.New("no error")
				}
				if err := errors.Join(g.Close(), m.Close()); err != nil {
					return err
				}
			}
			if err := groups[rank].Run(ctx, Barrier()); err != nil {
				return err
			}
			return errors.Join(g.Close(), m.Close())
		})
		requireNoStreams(t, groups)
	})
}

// What Run keeps has a bound in bytes, and what was used last stays.
func TestKeptBound(t *testing.T) {
	need.Full(t)
	groups := worlds(t, 2, WithProviders("shm"), withHosts(func(rank int) int { return rank }))
	ctx := within(t)
	each(t, 2, func(rank int) error {
		g := groups[rank]
		for i := range keptTotal/(keptBytes/2) + 1 {
			b := make([]byte, keptBytes/2-8*i)
			for range 2 {
				binary.NativeEndian.PutUint32(b, uint32(i))
				if err := g.Run(ctx, Broadcast(b, i%2)); err != nil {
					return err
				}
			}
			if g.keptSize > keptTotal {
				return fmt.Errorf("%d bytes are kept, at most %d", g.keptSize, keptTotal)
			}
			kept := 0
			for _, k := range g.kept {
				kept += k.bytes()
			}
			if kept != g.keptSize {
				return fmt.Errorf("%d bytes are kept, counted are %d", kept, g.keptSize)
			}
		}
		last := 0
		for _, k := range g.kept {
			last = max(last, int(k.used))
		}
		if last != int(g.age) || len(g.kept) < 2 {
			return fmt.Errorf("%d are kept, the last of them call %d of %d", len(g.kept), last, g.age)
		}
		return nil
	})
}

// What it costs to look at what others may be waiting for, with and without many groups
// that have been closed.
func BenchmarkDrive(b *testing.B) {
	for _, closed := range []int{0, 2000} {
		b.Run(fmt.Sprint(closed), func(b *testing.B) {
			groups := worlds(b, 2, WithProviders("shm"), withHosts(func(rank int) int { return rank }))
			for range closed {
				each(b, 2, func(rank int) error {
					g := splitOf(b, groups[rank], b.Context(), 0, 0)
					return errors.Join(g.Run(b.Context(), Barrier()), g.Close())
				})
			}
			for b.Loop() {
				groups[0].node.drive()
			}
		})
	}
}
