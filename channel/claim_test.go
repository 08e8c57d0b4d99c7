package channel

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/memory"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// Whose buffer is it? While a peer that runs is copying, nothing that happens to the
// job gives the buffer back.

// brief returns a context whose deadline has passed.
func brief(t *testing.T) context.Context {
	ctx, cancel := context.WithDeadline(t.Context(), time.Now())
	t.Cleanup(cancel)
	return ctx
}

// claimed starts a message of several chunks in memory of owner of which the other node has claimed
// one, and returns the handle of this side and what ends the copy.
func claimed(t *testing.T, kind handleKind, owner, here, there *Node) (h *Handle, m *Memory, finish func()) {
	const size = 3 * chunkMin
	m = newMemory(t, owner, size)
	var r *ring
	if kind == kindSend {
		h = declareSend(t, here, Contiguous(m.Bytes()), there.Rank())
		other, _ := receive(t, there, here.Rank(), 8, OnStream(1)) // makes the connection
		startAll(t, other, h)
		h.out.lockedUntil(t, func() bool { return h.out.r != nil })
		r = h.out.r
	} else {
		h = declareReceive(t, here, Contiguous(m.Bytes()), there.Rank())
		s, _ := send(t, there, here.Rank(), 8)
		require.NoError(t, s.Start())
		r0, _ := receive(t, here, there.Rank(), 8)
		require.NoError(t, r0.Run(within(t)))
		require.NoError(t, s.WaitContext(within(t)))
		require.NoError(t, h.Start())
		r = h.in.r.Load()
	}
	match := &r.matches[h.k%ringSlots]
	n, _ := chunks(size)
	chunk, verdict := match.claim(h.k, n)
	require.Zero(t, chunk)
	require.Zero(t, verdict)
	return h, m, func() {
		match.finish(h.k)
		for {
			if i, _ := match.claim(h.k, n); i < 0 {
				return
			}
			match.finish(h.k)
		}
	}
}

func (s *sendStream) lockedUntil(t *testing.T, done func() bool) {
	require.Eventually(t, func() bool {
		s.lock.Lock()
		defer s.lock.Unlock()
		return done()
	}, limit, time.Millisecond)
}

// TestClaimed: the job is aborted, or the connection breaks, while a peer copies.
// The handle stays active, and its memory in use, until the copy has ended.
func TestClaimed(t *testing.T) {
	for _, kind := range []handleKind{kindSend, kindReceive} {
		for _, c := range []struct {
			name string
			end  func(t *testing.T, nodes []*Node)
		}{
			{"abort", func(t *testing.T, nodes []*Node) { nodes[1].Abort(3, "a test") }},
			{"connection", func(t *testing.T, nodes []*Node) {
				p := peerOf(t, nodes[1], 0)
				p.mu.Lock()
				defer p.mu.Unlock()
				require.NoError(t, p.conn.Close())
			}},
		} {
			t.Run(kind.String()+"/"+c.name, func(t *testing.T) {
				nodes := join(t, 2, WithProviders("shm"))
				h, m, finish := claimed(t, kind, nodes[0], nodes[0], nodes[1])
				c.end(t, nodes)
				require.Eventually(t, func() bool { return h.peer().state.Load() == peerFailed }, limit, time.Millisecond)
				for range 100 {
					require.ErrorIs(t, h.WaitContext(brief(t)), ErrTimeout)
				}
				require.ErrorIs(t, h.Close(), ErrActive)
				require.ErrorIs(t, m.Close(), ErrBusy)
				finish()
				if err := h.WaitContext(within(t)); err != nil {
					require.True(t, kind == kindReceive, "%v", err)
				}
				require.NoError(t, h.Close())
				require.NoError(t, m.Close())
			})
		}
	}
}

// TestClaimedAtClose: Close waits for a copy that a peer has begun; after the peer
// timeout it says that the memory is not used again.
func TestClaimedAtClose(t *testing.T) {
	for _, kind := range []handleKind{kindSend, kindReceive} {
		t.Run(kind.String(), func(t *testing.T) {
			nodes := join(t, 2, WithProviders("shm"))
			claimed(t, kind, nodes[0], nodes[0], nodes[1])
			nodes[0].opt.leaveTimeout = 10 * time.Millisecond
			err := nodes[0].Close()
			require.ErrorIs(t, err, ErrBusy)
			require.ErrorContains(t, err, "start ")

			nodes = join(t, 2, WithProviders("shm"))
			_, _, finish := claimed(t, kind, nodes[0], nodes[0], nodes[1])
			closed := make(chan error)
			go func() { closed <- nodes[0].Close() }()
			finish()
			require.NoError(t, <-closed)
		})
	}
}

// TestClaimedOfOthers: so it is with memory of another node of the process, which its owner does not free, and which
// the peer still maps.
func TestClaimedOfOthers(t *testing.T) {
	for _, kind := range []handleKind{kindSend, kindReceive} {
		t.Run(kind.String(), func(t *testing.T) {
			lend, nodes := join(t, 2, WithProviders("shm")), join(t, 2, WithProviders("shm"))
			_, m, _ := claimed(t, kind, lend[0], nodes[0], nodes[1])
			b := m.Bytes()
			for i := range b {
				b[i] = byte(i)
			}
			want := bytes.Clone(b)
			key, addr, ok := (&hostCarrier{node: nodes[0]}).Export(b)
			require.True(t, ok)
			p := nodes[1].peers[0].Load()
			ranks.Eventually(t, func() bool { return p.state.Load() == peerUp })
			h := &hostCarrier{node: nodes[1], peers: []*peer{nil, p}}
			awaitView(t, h, key, addr, len(b))
			mapped, err := h.View(1, key, addr, len(b))
			require.NoError(t, err)
			nodes[0].opt.leaveTimeout = 10 * time.Millisecond
			require.ErrorIs(t, nodes[0].Close(), ErrBusy)
			require.ErrorIs(t, m.Close(), ErrBusy)
			next := newMemory(t, lend[0], len(b))
			clear(next.Bytes())
			require.Equal(t, want, mapped)
			require.ErrorIs(t, lend[0].Close(), ErrBusy)
			require.Equal(t, want, mapped)
		})
	}
}

// TestAddressesAgain: where memory was that is never freed, there is other memory once its owner has ended.
func TestAddressesAgain(t *testing.T) {
	for _, running := range []bool{true, false} {
		t.Run(fmt.Sprintf("running %v", running), func(t *testing.T) {
			n := join(t, 2, WithProviders("shm"))[0]
			b := make([]byte, 64<<10)
			part := b[4<<10 : 8<<10]
			once := memory.Share(part, memory.Kind{Freed: true})
			m, open := n.allocated(part)
			require.True(t, m.others && open)
			n.keep(m, errAccessed)
			if !running {
				require.ErrorIs(t, n.Close(), ErrBusy)
			}
			require.ErrorIs(t, once.End(), errAccessed)
			closed, _ := n.allocated(part)
			require.Same(t, m, closed)
			require.True(t, closed.closed.Load())
			next := memory.Share(b, memory.Kind{Freed: true})
			if running {
				got, open := n.allocated(part)
				require.True(t, open && !got.closed.Load())
				require.Same(t, next, got.shared)
			}
			require.NoError(t, next.End())
			again := memory.Share(part, memory.Kind{Freed: true})
			require.NoError(t, again.End())
		})
	}
}

// TestClaimedByMember: memory in which a member still works when the peer timeout has passed after the end of a
// collective is not freed, be it the node's own or that of another node.
func TestClaimedByMember(t *testing.T) {
	for _, own := range []bool{true, false} {
		t.Run(fmt.Sprintf("own %v", own), func(t *testing.T) {
			lend, groups := join(t, 2, WithProviders("shm")), worlds(t, 2, WithProviders("shm"))
			const size = 64 << 10
			var memories [2]*Memory
			for i := range memories {
				owner := lend[i]
				if own {
					owner = groups[i].node
				}
				memories[i] = newMemory(t, owner, size)
			}
			inside, resume := make(chan struct{}), make(chan struct{})
			goOn := sync.OnceFunc(func() { close(resume) })
			t.Cleanup(goOn)
			var once sync.Once
			reductions := [2]Reduction{
				UserReduction(8, true, func(_, _, _ []byte) {}),
				UserReduction(8, true, func(_, _, _ []byte) {
					once.Do(func() {
						close(inside)
						<-resume
					})
				}),
			}
			ctx, cancel := context.WithCancel(within(t))
			groups[0].node.opt.leaveTimeout = 10 * time.Millisecond
			var errs [2]chan error
			for i := range errs {
				errs[i] = make(chan error, 1)
				go func() {
					b := memories[i].Bytes()
					errs[i] <- groups[i].Run(ctx, AllreduceBytes(reductions[i], b, b))
				}()
			}
			<-inside
			cancel()
			require.ErrorIs(t, <-errs[0], context.Canceled)
			first := unsafe.SliceData(memories[0].Bytes())
			require.ErrorIs(t, memories[0].Close(), ErrBusy)
			next := newMemory(t, memories[0].node, size)
			require.NotSame(t, first, unsafe.SliceData(next.Bytes()))
			require.ErrorIs(t, groups[0].node.Close(), ErrBusy)
			goOn()
			<-errs[1] // whether it has failed there, too, or was complete
		})
	}
}
