package channel

import (
	"errors"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAfterClose: what is done with a handle of a node that is closed is an error,
// whatever state it was in.
func TestAfterClose(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Node) {
		for _, size := range []int{8, 1000, 300_000} {
			s, _ := send(t, a, b.Rank(), size)
			r, _ := receive(t, b, a.Rank(), size)
			require.NoError(t, s.Start())
			require.NoError(t, r.Start())
			require.NoError(t, r.WaitContext(within(t)))
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
