package channel

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/layout"
	"github.com/sluice-hpc/sluice/internal/machine"
)

// heapPair declares messages of heap memory, which go through a pipe on shm.
func heapPair(t testing.TB, a, b *Node, size int, opts ...DeclareOption) (s, r *Handle, out, in []byte) {
	out, in = make([]byte, size), make([]byte, size)
	s = declareSend(t, a, Contiguous(out), b.Rank(), opts...)
	r = declareReceive(t, b, Contiguous(in), a.Rank(), opts...)
	return s, r, out, in
}

// TestPieces: the pieces of a message follow each other in the pipe, and fill it no more than the
// message's cache lines do; they are short at its ends.
func TestPieces(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	pipe := make([]byte, pipeMost)
	for range 2000 {
		first, n := pipeLine*rng.Uint64N(3*pipeMost/pipeLine), 1+rng.IntN(1<<rng.IntN(21))
		at := first
		for moved := 0; moved < n; {
			b := piece(pipe, at, moved, n)
			require.NotEmpty(t, b)
			require.Same(t, &pipe[at%pipeMost], &b[0])
			require.LessOrEqual(t, len(b), pieceMax)
			if moved == 0 || moved+len(b) == n {
				require.LessOrEqual(t, len(b), pieceMin)
			}
			if moved += len(b); moved < n {
				require.Zero(t, len(b)%pipeLine)
			}
			at += pipeLines(uint64(len(b)))
		}
		require.Equal(t, first+pipeLines(uint64(n)), at)
	}
}

// TestPacks: each way to pack moves the messages, of one block and of many, in any order of starts.
func TestPacks(t *testing.T) {
	t.Cleanup(func() { packForced = -1 })
	for way := range packWays {
		packForced = way
		nodes := join(t, 2, WithProviders("shm"))
		rng := rand.New(rand.NewPCG(11, uint64(way)))
		for i := range 40 {
			out := make([]byte, 1<<20)
			random(rng, out)
			block, count := eagerMax+1+rng.IntN(300<<10), 1
			if i%2 == 0 {
				count = 2 + rng.IntN(9)
				block = eagerMax/count + 1 + rng.IntN(1<<(4+rng.IntN(12)))
			}
			stride := block + rng.IntN(100)
			if (count-1)*stride+block+64 > len(out) {
				continue
			}
			sent := Strided(out, rng.IntN(64), block, count, stride)
			in := make([]byte, block*count)
			s, r := declareBoth(t, nodes[0], nodes[1], sent, Contiguous(in))
			for range 3 {
				clear(in)
				startAll(t, s, r)
				arrives(t, s, r)
				want := make([]byte, len(in))
				sent.shape.Gather(want, 0)
				require.True(t, bytes.Equal(want, in))
			}
			require.NoError(t, s.Close())
			require.NoError(t, r.Close())
		}
		for _, n := range nodes {
			require.NoError(t, n.Close())
		}
	}
}

// TestPacksTimed: a stream learns from the times of both sides, of messages that were received, whatever
// the peer says of others.
func TestPacksTimed(t *testing.T) {
	const bytes = 100_000
	r, p, memory := newRing(alignedMemory(ringSize)), packs{}, make([]byte, bytes)
	k, timed := uint64(0), 0
	pass := func(unpack [packWays]time.Duration, answer func(h *Handle) uint64) (past bool) {
		k++
		h := &Handle{shape: layout.Flat(memory)}
		h.k = k
		p.begin(h, r, k)
		if h.timed {
			timed++
			h.took = time.Microsecond
			p.packed(h)
			way := packPlain
			if h.past {
				way = packPast
			}
			h.took = unpack[way]
			r.unpacked = answer(h)
		}
		r.acks[k%ringSlots] = k << 1
		return h.past
	}
	told := func(h *Handle) uint64 { return h.k<<32 | uint64(h.took) }
	for _, best := range []int{packPlain, packPast, packPlain} {
		unpack := [packWays]time.Duration{5 * time.Microsecond, 5 * time.Microsecond}
		unpack[best] = time.Microsecond
		for range 20_000 {
			pass(unpack, told)
		}
		n := 0
		for range 1000 {
			if pass(unpack, told) == (best == packPast && layout.Past) {
				n++
			}
		}
		require.Greater(t, n, 950)
	}
	require.Equal(t, layout.Past, timed > 0)
	known := p.choice
	for range 1000 {
		pass([packWays]time.Duration{}, func(h *Handle) uint64 { return (h.k+1)<<32 | 1 })
	}
	require.Equal(t, known.Best(packWays, bytes), p.choice.Best(packWays, bytes))
	require.Equal(t, packPlain, p.choice.Best(packWays, bytes))
}

// TestPipeSizes: pipes are as large as a cache until they take too much, and then small, until a stream
// ends.
func TestPipeSizes(t *testing.T) {
	nodes := join(t, 2, WithProviders("shm"))
	a, b := nodes[0], nodes[1]
	large := a.pipeSize()
	require.GreaterOrEqual(t, large, pipeLeast)
	require.LessOrEqual(t, large, pipeMost)
	require.Zero(t, large&(large-1))
	var handles []*Handle
	for i := range pipesLarge + 2 {
		size := 2*pipeMost + i
		s, r, out, in := heapPair(t, a, b, size, OnStream(i))
		handles = append(handles, s)
		random(rand.New(rand.NewPCG(1, uint64(i))), out)
		startAll(t, s, r)
		arrives(t, s, r)
		require.True(t, bytes.Equal(out, in))
		want := large
		if i >= pipesLarge {
			want = pipeLeast
		}
		require.Len(t, s.out.pipe, want)
	}
	require.Equal(t, pipeLeast, a.pipeSize())
	p := handles[0].peer()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range handles[:2] {
		defer p.detach(h.out.number).free()
	}
	require.Equal(t, large, a.pipeSize())
}

// TestPipeSenderAway: a message longer than the pipe arrives while its sender's
// user computes, in one start and in many.
func TestPipeSenderAway(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Node) {
		s, r, out, in := heapPair(t, a, b, 5*pipeMost+1)
		rng := rand.New(rand.NewPCG(1, 2))
		random(rng, out)
		var stop atomic.Bool
		started, computed := make(chan error), make(chan struct{})
		for range 4 {
			stop.Store(false)
			go func() {
				started <- s.Start()
				for !stop.Load() { // computes
				}
				computed <- struct{}{}
			}()
			require.NoError(t, <-started)
			require.NoError(t, r.Run(within(t)))
			stop.Store(true)
			<-computed
			require.NoError(t, s.WaitContext(within(t)))
			require.True(t, bytes.Equal(out, in))
			clear(in)
		}
	})
}

// TestPipeRefused: messages whose length is wrong, in the pipe in whole or in part,
// leave the others of the stream intact, whichever side waits for which.
func TestPipeRefused(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Node) {
		rng := rand.New(rand.NewPCG(3, 4))
		sizes := []int{eagerMax + 1, pieceMax, pieceMax + 1, pipeMost, pipeMost + 1, 3 * pipeMost, 100}
		type pair struct {
			s, r    *Handle
			out, in []byte
			wrong   bool
		}
		for range 5 {
			var pairs []pair
			for range 12 {
				size := sizes[rng.IntN(len(sizes))]
				p := pair{wrong: rng.IntN(3) == 0}
				p.s, p.r, p.out, p.in = heapPair(t, a, b, size)
				if p.wrong {
					require.NoError(t, p.r.Close())
					p.r = declareReceive(t, b, Contiguous(make([]byte, size-1)), a.Rank())
				}
				random(rng, p.out)
				pairs = append(pairs, p)
			}
			done := make(chan int)
			go func() {
				failures := 0
				for _, p := range pairs {
					for p.s.Start() != nil { // the error of an earlier one
						failures++
					}
				}
				for _, p := range pairs {
					if p.s.WaitContext(within(t)) != nil {
						failures++
					}
				}
				done <- failures
			}()
			for _, p := range pairs {
				require.NoError(t, p.r.Start())
			}
			for _, i := range rng.Perm(len(pairs)) {
				err := pairs[i].r.WaitContext(within(t))
				if pairs[i].wrong {
					require.ErrorIs(t, err, ErrLength)
					continue
				}
				require.NoError(t, err)
				require.True(t, bytes.Equal(pairs[i].out, pairs[i].in))
			}
			failures := <-done
			// What was complete before it was refused is an error of a later start,
			// once word of it has come: with an answer at the latest.
			answer, answered := sendReceive(t, b, a, 8, OnStream(1))
			require.NoError(t, answer.Start())
			require.NoError(t, answered.Run(within(t)))
			s, r, _, _ := heapPair(t, a, b, 0)
			for {
				err := s.Start()
				if err == nil {
					break
				}
				require.ErrorIs(t, err, ErrLength)
				failures++
			}
			require.NoError(t, r.Run(within(t)))
			require.NoError(t, s.WaitContext(within(t)))
			wrong := 0
			for _, p := range pairs {
				if p.wrong {
					wrong++
				}
				require.NoError(t, p.s.Close())
				require.NoError(t, p.r.Close())
			}
			require.Equal(t, wrong, failures)
		}
	})
}

// TestPipeLeft: of a sender that leaves, what was complete arrives; of what was not,
// the receive ends.
func TestPipeLeft(t *testing.T) {
	ring := machine.Ring
	defer func() { machine.Ring = ring }()
	for _, size := range []int{machine.RingLeast, machine.RingMost} { // as CPUs have them
		machine.Ring = func() int { return size }
		t.Run(fmt.Sprint(size), pipeLeft)
	}
}

func pipeLeft(t *testing.T) {
	nodes := join(t, 2, WithProviders("shm"))
	a, b := nodes[0], nodes[1]
	whole, r1, out, in := heapPair(t, a, b, a.pipeSize()/2)
	random(rand.New(rand.NewPCG(5, 6)), out)
	part, r2, _, _ := heapPair(t, a, b, 3*pipeMost)
	ping, pong := sendReceive(t, a, b, 8, OnStream(1))
	startAll(t, ping, pong)
	require.NoError(t, pong.WaitContext(within(t))) // connected
	require.NoError(t, whole.Run(within(t)))
	require.NoError(t, part.Start())
	closeEarly(t, a, 1, 1)
	require.NoError(t, r1.Run(within(t)))
	require.True(t, bytes.Equal(out, in))
	require.NoError(t, r2.Start())
	require.ErrorIs(t, r2.WaitContext(within(t)), ErrPeerLeft)
}

// TestDirect: heap memory goes straight into node memory that waits for it, though
// the receiver could not take it from there.
func TestDirect(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Node) {
		size := 8 * chunkMin
		out := make([]byte, size)
		s := declareSend(t, a, Contiguous(out), b.Rank())
		r, in := receive(t, b, a.Rank(), size)
		rng := rand.New(rand.NewPCG(7, 8))
		for range 20 {
			random(rng, out[:64])
			out[size-1]++
			require.NoError(t, r.Start())
			done := make(chan error)
			go func() { done <- r.WaitContext(within(t)) }() // ready to copy
			require.NoError(t, s.Run(within(t)))
			require.NoError(t, <-done)
			require.True(t, bytes.Equal(out, in))
		}
	})
}
