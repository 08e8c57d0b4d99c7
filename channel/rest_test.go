package channel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

// near runs a test where streams have rings: over shm, and within a rank.
func near(t *testing.T, test func(t *testing.T, a, b *Node)) {
	for _, size := range []int{1, 2} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			nodes := join(t, size, WithProviders("shm"))
			test(t, nodes[0], nodes[size-1])
		})
	}
}

// rested makes the streams of a node rest for long enough.
func rested(t testing.TB, nodes ...*Node) {
	for _, n := range nodes {
		n.ticks.Add(restTicks)
		require.NoError(t, n.endRests(true))
	}
}

// becomes waits until what the nodes have of a stream from a to b is as wanted.
func becomes(t testing.TB, a, b *Node, number uint32, sends, receives bool) {
	t.Helper()
	eventually(t, func() bool {
		p, q := a.peers[b.rank].Load(), b.peers[a.rank].Load()
		p.mu.Lock()
		s := p.sends[number]
		asks := s != nil && s.aside != nil
		p.mu.Unlock()
		q.mu.Lock()
		r := q.receives[number]
		q.mu.Unlock()
		if !asks && (s != nil) == sends && (r != nil) == receives {
			return true
		}
		if a != b {
			rested(t, a, b)
		}
		return false
	})
}

// carry sends a message that carries k.
func carry(t testing.TB, s, r *Handle, out, in []byte, k int) {
	t.Helper()
	binary.BigEndian.PutUint64(out, uint64(k))
	startAll(t, s, r)
	require.NoError(t, WaitAllContext(within(t), r, s))
	require.EqualValues(t, k, binary.BigEndian.Uint64(in))
	require.EqualValues(t, k, s.k)
	require.EqualValues(t, k, r.k)
}

// TestStreamsRest: a stream gives its memory back when it is closed at both ends, whichever is closed
// first, and goes on where it stopped when it is used again.
func TestStreamsRest(t *testing.T) {
	near(t, func(t *testing.T, a, b *Node) {
		k := 0
		for _, size := range []int{8, 1000, 3 * pipeLeast} {
			for _, sendFirst := range []bool{true, false} {
				s, r, out, in := heapPair(t, a, b, size, OnStream(3))
				first, second := r, s
				if sendFirst {
					first, second = s, r
				}
				for range ringSlots + 1 {
					k++
					carry(t, s, r, out, in, k)
				}
				require.NoError(t, first.Close())
				rested(t, a, b)
				becomes(t, a, b, 3, true, true)
				require.NoError(t, second.Close())
				rested(t, a, b)
				becomes(t, a, b, 3, false, false)
			}
		}
	})
}

// TestStreamRestsLater: messages that have not been taken, and the error of one whose length was wrong, keep
// a stream until they are.
func TestStreamRestsLater(t *testing.T) {
	t.Parallel() // it waits for a tick
	near(t, func(t *testing.T, a, b *Node) {
		s, out := send(t, a, b.Rank(), 8)
		binary.BigEndian.PutUint64(out, 1)
		require.NoError(t, s.Run(within(t)))
		require.NoError(t, s.Close())
		rested(t, a, b)
		becomes(t, a, b, 0, true, true)
		r, in := receive(t, b, a.Rank(), 8)
		require.NoError(t, r.Run(within(t)))
		require.EqualValues(t, 1, binary.BigEndian.Uint64(in))
		require.NoError(t, r.Close())
		becomes(t, a, b, 0, false, false)

		s, _ = send(t, a, b.Rank(), 8)
		r, _ = receive(t, b, a.Rank(), 9)
		require.NoError(t, s.Run(within(t)))
		require.ErrorIs(t, r.Run(within(t)), ErrLength)
		require.NoError(t, s.Close())
		require.NoError(t, r.Close())
		rested(t, a, b)
		becomes(t, a, b, 0, true, true)
		s, _ = send(t, a, b.Rank(), 8)
		require.ErrorIs(t, s.Start(), ErrLength)
		require.NoError(t, s.Close())
		rested(t, a, b)
		becomes(t, a, b, 0, false, false)
	})
}

// TestStreamUnused: a stream on which nothing has been sent, and one that only the sender has declared,
// rest, too.
func TestStreamUnused(t *testing.T) {
	near(t, func(t *testing.T, a, b *Node) {
		for _, both := range []bool{true, false} {
			s, _ := send(t, a, b.Rank(), 8)
			if both {
				r, _ := receive(t, b, a.Rank(), 8)
				require.NoError(t, r.Close())
			}
			require.NoError(t, s.Close())
			if b.peers[a.rank].Load() == nil { // b has not heard of a
				becomesUp(t, b, a)
			}
			rested(t, a, b)
			becomes(t, a, b, 0, false, false)
		}
	})
}

func becomesUp(t testing.TB, n, other *Node) {
	for ctx := within(t); ; runtime.Gosched() {
		if p := n.peers[other.rank].Load(); p != nil && p.state.Load() == peerUp {
			return
		}
		require.NoError(t, ctx.Err())
	}
}

// TestStreamUsedWhileAsked: a sender that is used again before the receiver has answered goes on when it
// has, whether that has given the ring up or has not, and whichever size the messages have.
func TestStreamUsedWhileAsked(t *testing.T) {
	for _, size := range []int{8, 3 * pipeLeast} {
		for _, keeps := range []bool{true, false} {
			t.Run(fmt.Sprintf("%d bytes, receiver keeps it %v", size, keeps), func(t *testing.T) {
				nodes := join(t, 2, WithProviders("shm"))
				a, b := nodes[0], nodes[1]
				s, r, out, in := heapPair(t, a, b, 8)
				carry(t, s, r, out, in, 1)
				require.NoError(t, s.Close())
				if !keeps {
					require.NoError(t, r.Close())
				}
				p, q := s.peer(), r.peer()
				q.mu.Lock() // it does not answer
				rested(t, a)
				p.mu.Lock()
				require.NotNil(t, p.sends[0].aside)
				p.mu.Unlock()
				out = make([]byte, size)
				binary.BigEndian.PutUint64(out, 2)
				s = declareSend(t, a, Contiguous(out), b.Rank())
				require.NoError(t, s.Start())
				done, err := s.Test()
				require.NoError(t, err)
				require.False(t, done)
				q.mu.Unlock()
				if size == 8 {
					require.NoError(t, s.WaitContext(within(t))) // eager again
				}
				in = make([]byte, size)
				r = declareReceive(t, b, Contiguous(in), a.Rank())
				require.NoError(t, r.Start())
				require.NoError(t, WaitAllContext(within(t), r, s))
				require.EqualValues(t, 2, binary.BigEndian.Uint64(in))
				require.NoError(t, s.Close())
				require.NoError(t, r.Close())
			})
		}
	}
}

// TestRestHostile: what makes no sense ends the connection, and nothing else.
func TestRestHostile(t *testing.T) {
	n := join(t, 1)[0]
	for _, body := range [][]byte{nil, {0, 0, 0, 0}, {0, 0, 0, 0, restYes}, {0, 0, 0, 0, restNo}, {0, 0, 0, 0, 0}, {0, 0, 0, 0, 9},
		{0, 1, 0, 0, restAsk}, {0, 1, 0, 0, restIdle}, {0, 0, 0, 0, restAsk, 1}, {0, 0, 0, 7, restYes}} {
		p := lonely(n)
		require.ErrorIs(t, p.heardRest(body), ErrProtocol, "%v", body)
		require.NotNil(t, p.sends[0])
	}
}

// TestFlood: a peer that says again and again what is answered, and does not read the answers, is stopped, or not
// answered, so that what is queued for it stays within bounds. Once it reads it is answered again.
func TestFlood(t *testing.T) {
	n := join(t, 1)[0]
	n.mu.Lock()
	n.groupsLeft[7] = struct{}{}
	n.mu.Unlock()
	said := func(number uint32, what ...byte) []byte {
		return append(binary.BigEndian.AppendUint32(nil, number), what...)
	}
	for name, say := range map[string]func(p *peer) error{
		"ask":         func(p *peer) error { return p.heardRest(said(7, restAsk)) },
		"ask, in use": func(p *peer) error { return p.heardRest(said(3, restAsk)) },
		"idle and no": func(p *peer) error {
			p.sends[0].r = newRing(alignedMemory(ringSize))
			return errors.Join(p.heardRest(said(0, restIdle)), p.heardRest(said(0, restNo)))
		},
		"end": func(p *peer) error { return p.ended(said(MaxStream + 7)) },
		"call": func(p *peer) error {
			n.peers[0].Store(p)
			n.checkCall(callInfo{group: 7}, 0)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, own := lonely(n), n.peers[0].Load()
			defer n.peers[0].Store(own)
			p.receives[3] = &receiveStream{peer: p, number: 3, users: 1}
			for round := 1; round < 4; round++ {
				var err error
				for range 1000 {
					if err = say(p); err != nil {
						break
					}
				}
				if name != "call" {
					require.ErrorIs(t, err, ErrProtocol)
				}
				require.Len(t, p.out, 1)
				p.sends[0].aside = nil
				p.mu.Lock() // as its writer does
				p.out, p.once = nil, nil
				p.mu.Unlock()
			}
		})
	}
}

// TestStreamsRestUnderUse: ends that are declared, used and closed at any time, while their streams rest
// as often as can be, lose and damage no message.
func TestStreamsRestUnderUse(t *testing.T) {
	near(t, func(t *testing.T, a, b *Node) {
		rounds := need.InShort(60, 300)
		sizes := []int{8, 100, 4096, 5000, 2 * pipeLeast}
		var over atomic.Bool
		var resting, using sync.WaitGroup
		for _, n := range []*Node{a, b} {
			resting.Go(func() {
				for !over.Load() {
					n.ticks.Add(restTicks)
					if err := n.endRests(true); err != nil {
						t.Error(err)
					}
					runtime.Gosched()
				}
			})
		}
		for stream := range 3 {
			for _, sends := range []bool{true, false} {
				using.Go(func() {
					rng := rand.New(rand.NewPCG(uint64(stream), 1))
					life := rand.New(rand.NewPCG(uint64(stream), uint64(len(sizes)))) // of handles, not the same at both ends
					if sends {
						life = rand.New(rand.NewPCG(uint64(stream), 99))
					}
					for k := 1; k <= rounds; {
						size := sizes[rng.IntN(len(sizes))]
						times := 1 + rng.IntN(3)
						for i := 0; i < times; {
							buf := make([]byte, size)
							var h *Handle
							var err error
							if sends {
								h, err = a.DeclareSend(Contiguous(buf), b.Rank(), OnStream(stream))
							} else {
								h, err = b.DeclareReceive(Contiguous(buf), a.Rank(), OnStream(stream))
							}
							if err != nil {
								t.Error(err)
								return
							}
							for n := 1 + life.IntN(3); n > 0 && i < times; n, i, k = n-1, i+1, k+1 {
								if sends {
									binary.BigEndian.PutUint64(buf, uint64(k))
									buf[size-1] = byte(k)
								}
								if err := h.Run(within(t)); err != nil {
									t.Error(err)
									return
								}
								if binary.BigEndian.Uint64(buf) != uint64(k) || buf[size-1] != byte(k) {
									t.Errorf("stream %d: message %d is %x, %x", stream, k, buf[:8], buf[size-1])
									return
								}
							}
							if err := h.Close(); err != nil {
								t.Error(err)
							}
						}
					}
				})
			}
		}
		using.Wait()
		over.Store(true)
		resting.Wait()
		for stream := range 3 {
			rested(t, a, b)
			becomes(t, a, b, uint32(stream), false, false)
		}
	})
}

// TestPipeOfClosedSend: a send that is declared and closed while its stream is asked for has announced a pipe
// that is gone when the receiver, which has left the stream, hears of it. It is not looked at.
func TestPipeOfClosedSend(t *testing.T) {
	nodes := join(t, 2, WithProviders("shm"))
	a, b := nodes[0], nodes[1]
	s, r, out, in := heapPair(t, a, b, 3*pipeLeast)
	carry(t, s, r, out, in, 1)
	info := streamInfo{0, regionOf(s.out.memory.pipe)}
	require.NoError(t, s.Close())
	require.NoError(t, r.Close())
	rested(t, a, b)
	becomes(t, a, b, 0, false, false)
	require.NoError(t, b.peers[a.rank].Load().addPipe(info))
}

// TestStreamRestsUnanswered: a stream that the peer has been asked about keeps its memory when the connection
// ends, since that still has it mapped, and gives it back at the end of the peer.
func TestStreamRestsUnanswered(t *testing.T) {
	for _, again := range []bool{false, true} {
		t.Run(fmt.Sprintf("used again %v", again), func(t *testing.T) {
			nodes := join(t, 2, WithProviders("shm"))
			a, b := nodes[0], nodes[1]
			s, r, out, in := heapPair(t, a, b, 3*pipeLeast)
			carry(t, s, r, out, in, 1)
			p, q := s.peer(), r.peer()
			rings, pipes := &p.link.dev.rings, a.piped.Load()
			used := rings.used
			require.NotZero(t, pipes)
			require.NoError(t, s.Close())
			require.NoError(t, r.Close())
			q.mu.Lock() // it does not answer
			rested(t, a)
			require.NoError(t, p.conn.Close())
			<-p.served
			require.ErrorIs(t, *p.err.Load(), ErrPeerDied)
			if again {
				s, _ = send(t, a, b.Rank(), 8)
				require.ErrorIs(t, s.Start(), ErrPeerDied)
			}
			rested(t, a)
			p.mu.Lock()
			require.NotNil(t, p.sends[0].aside)
			p.mu.Unlock()
			require.Equal(t, []int64{int64(used), pipes}, []int64{int64(rings.used), a.piped.Load()})
			q.mu.Unlock()
			require.NoError(t, b.Close())
			if again {
				for ctx := within(t); !p.gone(); runtime.Gosched() {
					require.NoError(t, ctx.Err())
				}
				require.NoError(t, s.Close())
				rested(t, a)
			}
			for ctx := within(t); ; runtime.Gosched() {
				rings.mu.Lock()
				now := rings.used
				rings.mu.Unlock()
				if now == used-1 {
					break
				}
				require.NoError(t, ctx.Err())
			}
			p.mu.Lock()
			require.Empty(t, p.sends)
			p.mu.Unlock()
			require.Zero(t, a.piped.Load())
		})
	}
}
