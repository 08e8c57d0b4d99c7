package channel

import (
	"bytes"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// heapPair declares messages of heap memory, which go through a pipe on shm.
func heapPair(t testing.TB, a, b *Node, size int, opts ...DeclareOption) (s, r *Handle, out, in []byte) {
	out, in = make([]byte, size), make([]byte, size)
	s, err := a.DeclareSend(Contiguous(out), b.Rank(), opts...)
	require.NoError(t, err)
	r, err = b.DeclareReceive(Contiguous(in), a.Rank(), opts...)
	require.NoError(t, err)
	return s, r, out, in
}

// TestPieces: the pieces of a message follow each other in the pipe, and fill it no more than the
// message's cache lines do; they are short at its ends.
func TestPieces(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	pipe := make([]byte, pipeSize)
	for range 2000 {
		first, n := pipeLine*rng.Uint64N(3*pipeSize/pipeLine), 1+rng.IntN(1<<rng.IntN(21))
		at := first
		for moved := 0; moved < n; {
			b := piece(pipe, at, moved, n)
			require.NotEmpty(t, b)
			require.Same(t, &pipe[at%pipeSize], &b[0])
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

// TestPipeSenderAway: a message longer than the pipe arrives while its sender's
// user computes, in one start and in many.
func TestPipeSenderAway(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Node) {
		s, r, out, in := heapPair(t, a, b, 5*pipeSize+1)
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
			require.NoError(t, r.Start())
			require.NoError(t, r.WaitContext(within(t)))
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
		sizes := []int{eagerMax + 1, pieceMax, pieceMax + 1, pipeSize, pipeSize + 1, 3 * pipeSize, 100}
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
					var err error
					p.r, err = b.DeclareReceive(Contiguous(make([]byte, size-1)), a.Rank())
					require.NoError(t, err)
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
			answer, _ := send(t, b, a.Rank(), 8, OnStream(1))
			answered, _ := receive(t, a, b.Rank(), 8, OnStream(1))
			require.NoError(t, answer.Start())
			require.NoError(t, answered.Start())
			require.NoError(t, answered.WaitContext(within(t)))
			s, r, _, _ := heapPair(t, a, b, 0)
			for {
				err := s.Start()
				if err == nil {
					break
				}
				require.ErrorIs(t, err, ErrLength)
				failures++
			}
			require.NoError(t, r.Start())
			require.NoError(t, r.WaitContext(within(t)))
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
	nodes := join(t, 2, WithProviders("shm"))
	a, b := nodes[0], nodes[1]
	whole, r1, out, in := heapPair(t, a, b, pipeSize/2)
	random(rand.New(rand.NewPCG(5, 6)), out)
	part, r2, _, _ := heapPair(t, a, b, 3*pipeSize)
	ping, _ := send(t, a, 1, 8, OnStream(1))
	pong, _ := receive(t, b, 0, 8, OnStream(1))
	require.NoError(t, ping.Start())
	require.NoError(t, pong.Start())
	require.NoError(t, pong.WaitContext(within(t))) // connected
	require.NoError(t, whole.Start())
	require.NoError(t, whole.WaitContext(within(t)))
	require.NoError(t, part.Start())
	closeEarly(t, a, 1, 1)
	require.NoError(t, r1.Start())
	require.NoError(t, r1.WaitContext(within(t)))
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
		s, err := a.DeclareSend(Contiguous(out), b.Rank())
		require.NoError(t, err)
		r, in := receive(t, b, a.Rank(), size)
		rng := rand.New(rand.NewPCG(7, 8))
		for range 20 {
			random(rng, out[:64])
			out[size-1]++
			require.NoError(t, r.Start())
			done := make(chan error)
			go func() { done <- r.WaitContext(within(t)) }() // ready to copy
			require.NoError(t, s.Start())
			require.NoError(t, s.WaitContext(within(t)))
			require.NoError(t, <-done)
			require.True(t, bytes.Equal(out, in))
		}
	})
}
