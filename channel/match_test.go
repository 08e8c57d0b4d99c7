package channel

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What must succeed: declareSend and declareReceive declare a handle, declareBoth one at each end of
// a message. send and receive declare them over memory of their own.

func declareSend(t testing.TB, from *Node, l Layout, to int, opts ...DeclareOption) *Handle {
	t.Helper()
	h, err := from.DeclareSend(l, to, opts...)
	require.NoError(t, err)
	return h
}

func declareReceive(t testing.TB, at *Node, l Layout, from int, opts ...DeclareOption) *Handle {
	t.Helper()
	h, err := at.DeclareReceive(l, from, opts...)
	require.NoError(t, err)
	return h
}

func declareBoth(t testing.TB, a, b *Node, from, into Layout, opts ...DeclareOption) (s, r *Handle) {
	t.Helper()
	return declareSend(t, a, from, b.Rank(), opts...), declareReceive(t, b, into, a.Rank(), opts...)
}

func send(t testing.TB, from *Node, to, size int, opts ...DeclareOption) (*Handle, []byte) {
	t.Helper()
	b := allocate(t, from, max(size, 1), true)[:size]
	return declareSend(t, from, Contiguous(b), to, opts...), b
}

func receive(t testing.TB, at *Node, from, size int, opts ...DeclareOption) (*Handle, []byte) {
	t.Helper()
	b := allocate(t, at, max(size, 1), true)[:size]
	return declareReceive(t, at, Contiguous(b), from, opts...), b
}

// sendReceive declares both ends of a message from a to b; sendReceiveBytes returns their memory, too.
func sendReceive(t testing.TB, a, b *Node, size int, opts ...DeclareOption) (s, r *Handle) {
	t.Helper()
	s, r, _, _ = sendReceiveBytes(t, a, b, size, opts...)
	return s, r
}

func sendReceiveBytes(t testing.TB, a, b *Node, size int, opts ...DeclareOption) (s, r *Handle, out, in []byte) {
	t.Helper()
	s, out = send(t, a, b.Rank(), size, opts...)
	r, in = receive(t, b, a.Rank(), size, opts...)
	return s, r, out, in
}

// startAll starts handles in that order.
func startAll(t testing.TB, handles ...*Handle) {
	t.Helper()
	for _, h := range handles {
		require.NoError(t, h.Start())
	}
}

// arrives waits for both ends of a message at the same time.
func arrives(t testing.TB, s, r *Handle, says ...any) {
	t.Helper()
	sent := make(chan error, 1)
	go func() { sent <- s.WaitContext(within(t)) }()
	require.NoError(t, r.WaitContext(within(t)), says...)
	require.NoError(t, <-sent, says...)
}

// requireError requires an [Error] for that reason, with that rank.
func requireError(t testing.TB, err, reason error, rank int) {
	t.Helper()
	var e *Error
	require.ErrorAs(t, err, &e)
	require.ErrorIs(t, err, reason)
	require.Equal(t, rank, e.Rank, "%v", err)
}

func peerOf(t testing.TB, n *Node, rank int) *peer {
	t.Helper()
	p, err := n.peer(rank)
	require.NoError(t, err)
	return p
}

// TestOrder: on each stream the k-th send meets the k-th receive, however many
// are started ahead, and whichever handles and sizes they are of.
func TestOrder(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Node) {
		const count = 3 * ringSlots / 2
		for _, size := range []int{8, 120, 1000, 20_000} {
			var sends, receives []*Handle
			var in [][]byte
			for i := range count {
				s, out := send(t, a, b.Rank(), size, OnStream(5))
				binary.BigEndian.PutUint64(out[size-8:], uint64(i))
				r, buf := receive(t, b, a.Rank(), size, OnStream(5))
				sends, receives, in = append(sends, s), append(receives, r), append(in, buf)
			}
			for range 2 {
				var wg sync.WaitGroup
				wg.Go(func() {
					startAll(t, sends...)
					require.NoError(t, WaitAllContext(within(t), sends...))
				})
				startAll(t, receives...)
				// The last first: the others have to be moved on meanwhile.
				for i := range receives {
					require.NoError(t, receives[count-1-i].WaitContext(within(t)))
				}
				wg.Wait()
				for i, buf := range in {
					require.EqualValues(t, i, binary.BigEndian.Uint64(buf[size-8:]))
				}
			}
			for _, h := range append(sends, receives...) {
				require.NoError(t, h.Close())
			}
		}
	})
}

// TestAhead: a sender that is ahead by any number of starts of one handle
// corrupts nothing.
func TestAhead(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Node) {
		for _, size := range []int{8, 2000} {
			s, r, out, in := sendReceiveBytes(t, a, b, size)
			const count = 300
			done := make(chan error, 1)
			go func() {
				for i := range count {
					binary.BigEndian.PutUint64(out, uint64(i))
					if err := s.Start(); err != nil {
						done <- err
						return
					}
					if err := s.WaitContext(within(t)); err != nil {
						done <- err
						return
					}
				}
				done <- nil
			}()
			for i := range count {
				require.NoError(t, r.Run(within(t)))
				require.EqualValues(t, i, binary.BigEndian.Uint64(in))
			}
			require.NoError(t, <-done)
		}
	})
}

// TestStreams: messages of different streams do not meet.
func TestStreams(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Node) {
		var receives []*Handle
		var in [][]byte
		numbers := []int{0, 1, 17, MaxStream}
		for _, n := range numbers {
			s, out := send(t, a, b.Rank(), 8, OnStream(n))
			binary.BigEndian.PutUint64(out, uint64(n))
			require.NoError(t, s.Run(within(t)))
			r, buf := receive(t, b, a.Rank(), 8, OnStream(n))
			receives, in = append(receives, r), append(in, buf)
		}
		for i := range receives {
			i = len(receives) - 1 - i
			require.NoError(t, receives[i].Run(within(t)))
			require.EqualValues(t, numbers[i], binary.BigEndian.Uint64(in[i]))
		}
	})
}

// TestLengthMismatch: it uses the pair up on both sides and harms nothing else.
func TestLengthMismatch(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Node) {
		for _, c := range []struct{ sent, wanted int }{
			{8, 9}, {0, 1}, {1, 0}, {100, 200}, {200, 100}, {8, 20_000}, {20_000, 8}, {20_000, 20_001}, {1000, 20_000}, {20_000, 1000},
		} {
			for _, receiveFirst := range []bool{true, false} {
				s, _ := send(t, a, b.Rank(), c.sent)
				r, in := receive(t, b, a.Rank(), c.wanted)
				first, second := s, r
				if receiveFirst {
					first, second = r, s
				}
				startAll(t, first, second)
				err := r.WaitContext(within(t))
				var e *Error
				require.ErrorAs(t, err, &e)
				require.ErrorIs(t, err, ErrLength)
				require.Equal(t, Error{Op: "receive", Rank: a.Rank(), Start: r.k, Len: c.wanted, Other: c.sent, Err: ErrLength}, *e)
				for _, v := range in {
					require.Zero(t, v)
				}
				// The sender learns it from this start if it is still active, else from
				// the next.
				k := s.k
				if err = s.WaitContext(within(t)); err == nil {
					require.Eventually(t, func() bool {
						if err = s.Start(); err == nil {
							again, _ := receive(t, b, a.Rank(), c.sent)
							require.NoError(t, again.Run(within(t)))
							require.NoError(t, s.WaitContext(within(t)))
							return false
						}
						return true
					}, limit, time.Millisecond)
				}
				require.ErrorIs(t, err, ErrLength, "%v", c)
				require.ErrorAs(t, err, &e)
				require.Equal(t, Error{Op: "send", Rank: b.Rank(), Start: k, Len: c.sent, Other: c.wanted, Err: ErrLength}, *e)
				require.NoError(t, s.Close())
				require.NoError(t, r.Close())
			}
		}
		// A send that is not active any more: the next start says it, once.
		s, _ := send(t, a, b.Rank(), 8)
		r, _ := receive(t, b, a.Rank(), 9)
		good, in := receive(t, b, a.Rank(), 8)
		require.NoError(t, s.Run(within(t)))
		require.NoError(t, r.Start())
		require.ErrorIs(t, r.WaitContext(within(t)), ErrLength)
		faults := 0
		for range 200 {
			if err := s.Start(); err != nil {
				require.ErrorIs(t, err, ErrLength)
				faults++
				continue
			}
			require.NoError(t, good.Run(within(t)))
			require.NoError(t, s.WaitContext(within(t)))
		}
		require.Equal(t, 1, faults)
		require.Len(t, in, 8)
	})
}

// TestMisuse: what is wrong is an error, and has no effect.
func TestMisuse(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Node) {
		_, err := a.DeclareSend(Contiguous(make([]byte, 8)), a.Size())
		require.ErrorIs(t, err, ErrInvalid)
		_, err = a.DeclareReceive(Contiguous(make([]byte, 8)), -1)
		require.ErrorIs(t, err, ErrInvalid)
		_, err = a.DeclareSend(Contiguous(make([]byte, 8)), 0, OnStream(MaxStream+1))
		require.ErrorIs(t, err, ErrInvalid)
		_, err = a.Alloc(0)
		require.ErrorIs(t, err, ErrInvalid)

		r, _ := receive(t, b, a.Rank(), 8)
		done, err := r.Test()
		require.True(t, done)
		require.NoError(t, err)
		require.NoError(t, r.Wait(), "idle")
		require.NoError(t, r.Start())
		require.ErrorIs(t, r.Start(), ErrActive)
		require.ErrorIs(t, r.Close(), ErrActive)
		require.ErrorIs(t, r.Rebase(make([]byte, 8)), ErrActive)
		done, err = r.Test()
		require.False(t, done)
		require.NoError(t, err)

		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, r.WaitContext(ctx), ErrTimeout)
		require.ErrorIs(t, r.Start(), ErrActive, "after the deadline")
		cancelled, stop := context.WithCancel(t.Context())
		stop()
		require.ErrorIs(t, r.WaitContext(cancelled), context.Canceled)

		s, _ := send(t, a, b.Rank(), 8)
		require.NoError(t, s.Start())
		require.NoError(t, r.WaitContext(within(t)))
		require.NoError(t, s.WaitContext(within(t)))

		m := newMemory(t, b, 100)
		h := declareReceive(t, b, Contiguous(m.Bytes()[10:20]), a.Rank())
		require.ErrorIs(t, m.Close(), ErrBusy)
		require.ErrorIs(t, h.Rebase(), ErrInvalid)
		require.ErrorIs(t, h.Rebase(make([]byte, 9)), ErrLayout)
		require.NoError(t, h.Close())
		require.NoError(t, h.Close())
		require.ErrorIs(t, h.Start(), ErrClosed)
		require.ErrorIs(t, h.Rebase(make([]byte, 10)), ErrClosed)
		_, err = h.Test()
		require.ErrorIs(t, err, ErrClosed)
		require.NoError(t, m.Close())
		require.NoError(t, m.Close())

		_, err = a.Multiple(s, s)
		require.ErrorIs(t, err, ErrInvalid)
		_, err = a.Multiple(nil)
		require.ErrorIs(t, err, ErrInvalid)
	})
}

// TestRebase: the same layout over other memory.
func TestRebase(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Node) {
		for _, size := range []int{8, 1000, 100_000} {
			for _, own := range []bool{true, false} {
				old := allocate(t, a, 2*size, own)
				s, r := declareBoth(t, a, b, Strided(old, size, size/8, 8, size/8), Contiguous(allocate(t, b, size, own)))
				for i := range 8 { // memory of all kinds after all kinds
					src, dst := allocate(t, a, 2*size+i, own == (i%2 == 0)), allocate(t, b, size+i, own == (i/2%2 == 0))
					random(rand.New(rand.NewPCG(1, uint64(i))), src)
					require.NoError(t, s.Rebase(src))
					require.NoError(t, r.Rebase(dst))
					require.NoError(t, s.Start())
					require.NoError(t, r.Run(within(t)))
					require.NoError(t, s.WaitContext(within(t)))
					require.Equal(t, src[size:2*size], dst[:size])
				}
				require.NoError(t, s.Close())
				require.NoError(t, r.Close())
			}
		}
		s, r := declareBoth(t, a, b, Contiguous(nil), Contiguous([]byte{}))
		require.NoError(t, errors.Join(s.Rebase(make([]byte, 0, 8)), r.Rebase(nil), r.Rebase(make([]byte, 8)), r.Rebase()))
		require.NoError(t, s.Start())
		require.NoError(t, r.Run(within(t)))
		require.NoError(t, s.WaitContext(within(t)))
		require.NoError(t, errors.Join(s.Close(), r.Close()))
	})
}

// TestRebaseFrees: memory is in use by the handle that has it, and by no other.
func TestRebaseFrees(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Node) {
		s, r := declareBoth(t, a, b, Contiguous(make([]byte, 100)), Contiguous(make([]byte, 100)))
		startAll(t, s, r)
		arrives(t, s, r) // connected
		for range 3 {
			m := newMemory(t, a, 200)
			for _, x := range [][]byte{m.Bytes()[:100], m.Bytes()[100:], m.Bytes()} {
				require.NoError(t, s.Rebase(x))
				require.ErrorIs(t, m.Close(), ErrBusy)
			}
			startAll(t, s, r)
			arrives(t, s, r)
			require.NoError(t, s.SetLayout(Contiguous(make([]byte, 100))))
			late := m.Bytes()[:100]
			require.NoError(t, m.Close())
			if m.mr != nil || m.free != nil { // else the slice keeps it
				require.ErrorIs(t, s.Rebase(late), ErrClosed)
				require.ErrorIs(t, s.SetLayout(Contiguous(late)), ErrClosed)
			}
			one, two := newMemory(t, a, 50), newMemory(t, a, 50)
			require.NoError(t, s.SetLayout(StridedArray(Vector{one.Bytes(), 0, 50, 1, 0}, Vector{two.Bytes(), 0, 50, 1, 0})))
			require.NoError(t, s.SetLayout(Contiguous(make([]byte, 100))))
			require.NoError(t, errors.Join(one.Close(), two.Close()))
		}
	})
}

// TestMultiple: several as one, both ways, waited for together and one by one.
func TestMultiple(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Node) {
		nodes := []*Node{a, b}
		var all [2]*Handle
		var members [2][]*Handle
		for i, n := range nodes {
			other := nodes[1-i].Rank()
			for j, size := range []int{8, 3000, 50_000, 400_000} {
				// With one node both directions are streams to itself: keep them apart.
				s, _ := send(t, n, other, size, OnStream(2*j+i))
				r, _ := receive(t, n, other, size, OnStream(2*j+1-i), WithPriority(j))
				members[i] = append(members[i], s, r)
			}
			var err error
			all[i], err = n.Multiple(members[i]...)
			require.NoError(t, err)
		}
		for round := range 8 {
			var wg sync.WaitGroup
			for i := range nodes {
				wg.Go(func() {
					require.NoError(t, all[i].Start())
					require.ErrorIs(t, all[i].Start(), ErrActive)
					if round%2 == 1 {
						require.NoError(t, WaitAllContext(within(t), members[i]...))
					}
					require.NoError(t, all[i].WaitContext(within(t)))
				})
			}
			wg.Wait()
		}
	})
}

// TestBeforeWireUp: starts before the peer is connected are pending, and go
// through then.
func TestBeforeWireUp(t *testing.T) {
	apart(t, func(t *testing.T, provider string) {
		nodes := join(t, 2, WithProviders(provider))
		var handles []*Handle
		for i := range 100 {
			s, out := send(t, nodes[0], 1, 8)
			out[0] = byte(i)
			require.NoError(t, s.Start())
			handles = append(handles, s)
		}
		r, in := receive(t, nodes[1], 0, 8)
		for i := range 100 {
			require.NoError(t, r.Run(within(t)))
			require.EqualValues(t, i, in[0])
		}
		require.NoError(t, WaitAllContext(within(t), handles...))
	})
}

// TestLeaving: what was complete before the peer left is received, the rest ends.
func TestLeaving(t *testing.T) {
	apart(t, func(t *testing.T, provider string) {
		nodes := join(t, 2, WithProviders(provider))
		a, b := nodes[0], nodes[1]
		s, _ := send(t, a, 1, 100)
		for range 10 {
			require.NoError(t, s.Run(within(t)))
		}
		offered, _ := send(t, a, 1, 100_000)
		require.NoError(t, offered.Start())
		r, _ := receive(t, b, 0, 100)
		require.NoError(t, r.Run(within(t)))
		back, _ := send(t, b, 0, 100_000)
		require.NoError(t, back.Start())
		waits, _ := receive(t, b, 0, 8, OnStream(1))
		require.NoError(t, waits.Start())
		closeEarly(t, a, 1, 1)

		for range 9 {
			require.NoError(t, r.Run(within(t)))
		}
		large, _ := receive(t, b, 0, 100_000)
		for _, h := range []*Handle{large, r} {
			if err := h.Start(); err == nil {
				err = h.WaitContext(within(t))
				require.ErrorIs(t, err, ErrPeerLeft)
			}
		}
		require.ErrorIs(t, waits.WaitContext(within(t)), ErrPeerLeft)
		require.ErrorIs(t, back.WaitContext(within(t)), ErrPeerLeft)
		require.ErrorIs(t, back.Start(), ErrPeerLeft, "at once")
	})
}

// TestLengthMismatchWaitsInAnyOrder: a send whose receive is too short is over as
// soon as any goroutine waits on the receiver's node, whatever for.
func TestLengthMismatchWaitsInAnyOrder(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Node) {
		for _, wanted := range []int{0, 8, 1000} {
			s, _ := send(t, a, b.Rank(), 20_000)
			r, _ := receive(t, b, a.Rank(), wanted)
			other, _ := receive(t, b, a.Rank(), 8, OnStream(1))
			startAll(t, r, s, other)
			ctx, cancel := context.WithCancel(within(t))
			waited := make(chan error)
			go func() { waited <- other.WaitContext(ctx) }()
			require.ErrorIs(t, s.WaitContext(within(t)), ErrLength)
			cancel()
			require.ErrorIs(t, <-waited, context.Canceled)
			require.ErrorIs(t, r.WaitContext(within(t)), ErrLength)
			for _, h := range []*Handle{s, r} {
				require.NoError(t, h.Close())
			}
			release, _ := send(t, a, b.Rank(), 8, OnStream(1))
			require.NoError(t, release.Start())
			require.NoError(t, other.WaitContext(within(t)))
			require.NoError(t, release.WaitContext(within(t)))
		}
	})
}
