package channel

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/layout"
)

// TestSendRecv: messages used once arrive in the order of their starts, whatever their memory and length,
// also between declared ones and by several goroutines.
func TestSendRecv(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Node) {
		sizes := []int{0, 1, 8, slotData, slotData + 1, 100, 128, inlineMax, inlineMax + 1, eagerMax, eagerMax + 1, 8<<10 + 1, 64 << 10, 300_000}
		for _, alloc := range []bool{true, false} {
			out, in := allocate(t, a, 300_000, alloc), allocate(t, b, 300_000, alloc)
			random(rand.New(rand.NewPCG(1, 2)), out)
			for i, n := range sizes {
				clear(in)
				var wg sync.WaitGroup
				wg.Go(func() {
					require.NoError(t, a.Send(within(t), out[:n], b.Rank(), OnStream(i%2)))
				})
				require.NoError(t, b.Recv(within(t), in[:n], a.Rank(), OnStream(i%2)))
				wg.Wait()
				require.True(t, bytes.Equal(out[:n], in[:n]), "%d bytes", n)
				require.True(t, n == len(in) || in[n] == 0)
			}
		}
		require.Empty(t, a.astray)
	})
}

// passOnce sends a message that is used once.
func passOnce(t *testing.T, a, b *Node, from, into Layout, opts ...DeclareOption) {
	t.Helper()
	var wg sync.WaitGroup
	wg.Go(func() { assert.NoError(t, a.SendLayout(within(t), from, b.Rank(), opts...)) })
	assert.NoError(t, b.RecvLayout(within(t), into, a.Rank(), opts...))
	wg.Wait()
	require.False(t, t.Failed())
}

// said returns what the handles for messages used once from a to b have been told of.
func said(a, b *Node) (list []saidLayout) {
	for i := range len(spares{}) {
		for _, p := range []*atomic.Pointer[Handle]{&a.peers[b.rank].Load().sending(0).spares[i], &b.peers[a.rank].Load().receiving(0).spares[i]} {
			if h := p.Load(); h != nil {
				list = append(list, h.said)
			}
		}
	}
	return list
}

// TestLayoutSaidOnce: a layout of Alloc memory is told when it is needed, through a queue at its first use, else at
// its second in a row, and not again, unless another was between or other memory has its address.
func TestLayoutSaidOnce(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Node) {
		const size = 1 << 20
		r := rand.New(rand.NewPCG(3, 4))
		var before []saidLayout
		for round := range 3 {
			out, in := newMemory(t, a, size), newMemory(t, b, size)
			for i, block := range []int{32 << 10, 32 << 10, 32 << 10, 16 << 10, 32 << 10, 16 << 10, 16 << 10} {
				lay := strided(block) // long enough to be told
				random(r, out.Bytes())
				from, into := lay(out.Bytes()), lay(in.Bytes())
				passOnce(t, a, b, from, into)
				require.True(t, bytes.Equal(packed(from), packed(into)), "round %d", round)
				now := said(a, b)
				require.Len(t, now, 2)
				mapped := a != b && a.peers[b.rank].Load().link.dev.mapped
				for j, s := range now {
					switch {
					case a == b:
						require.Empty(t, s.rest)
					case i == 0 && round == 0:
					case mapped && (i == 1 || i == 6), !mapped && (i == 0 || i > 2 && i < 6):
						require.NotEqual(t, before[j].version, s.version, "message %d", i)
					default:
						require.Equal(t, before[j].version, s.version, "message %d", i)
					}
				}
				before = now
			}
			require.NoError(t, out.Close())
			require.NoError(t, in.Close())
		}
		if b.peers[a.rank].Load().link != nil {
			require.NotEmpty(t, before[0].rest)
			require.NotEmpty(t, before[1].rest)
		}
	})
}

// TestLayoutsInTurn: layouts of Alloc memory that differ in anything from the one before are not told.
func TestLayoutsInTurn(t *testing.T) {
	const half, block, count, stride = 256 << 10, 1 << 10, 32, 4 << 10
	a, b := connected(t, "shm")
	out, in := newMemory(t, a, 2*half).Bytes(), newMemory(t, b, 2*half).Bytes()
	random(rand.New(rand.NewPCG(5, 6)), out)
	pass := func(lay func(m []byte) Layout) (told int) {
		t.Helper()
		clear(in)
		passOnce(t, a, b, lay(out), lay(in))
		require.True(t, bytes.Equal(packed(lay(out)), packed(lay(in))))
		for _, s := range said(a, b) {
			if len(s.rest) > 0 {
				told++
			}
		}
		return told
	}
	usual := func(m []byte) Layout { return Strided(m[:half], 0, block, count, stride) }
	for _, other := range []func(m []byte) Layout{
		func(m []byte) Layout { return Strided(m[:half], block, block, count, stride) },
		func(m []byte) Layout { return Strided(m[half:], 0, block, count, stride) },
		func(m []byte) Layout { return Strided(m[:half], 0, 2*block, count, stride) },
		func(m []byte) Layout { return Strided(m[:half], 0, block, 2*count, stride) },
		func(m []byte) Layout { return Strided(m[:half], 0, block, count, 2*stride) },
		func(m []byte) Layout {
			return StridedArray(Vector{m[:half], 0, block, count, stride}, Vector{m[half:], 0, block, 1, 0})
		},
	} {
		for range 2 {
			require.Zero(t, pass(usual))
			require.Zero(t, pass(other))
		}
	}
	pass(usual)
	require.Equal(t, 2, pass(usual))
}

// TestLayoutNotKept: of a layout of Alloc memory that has been used once, however many parts it has, nothing is kept.
func TestLayoutNotKept(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Node) {
		const parts = 1000
		out, in := newMemory(t, a, 64*parts).Bytes(), newMemory(t, b, 64*parts).Bytes()
		lengths, indices := slices.Repeat([]int{1}, parts), make([]int, parts)
		for i := range indices {
			indices[i] = 2 * i
		}
		pass := func() (list []weak.Pointer[layout.Part]) {
			from, into := Indexed(out, 32, lengths, indices), Indexed(in, 32, lengths, indices)
			passOnce(t, a, b, from, into)
			return append(list, weak.Make(&from.shape.Parts()[0]), weak.Make(&into.shape.Parts()[0]))
		}
		kept := pass()
		for ctx := within(t); kept[0].Value() != nil || kept[1].Value() != nil; runtime.GC() {
			require.NoError(t, ctx.Err())
		}
	})
}

// TestSendrecvBoth: both ranks exchange with one call each, and a rank with itself.
func TestSendrecvBoth(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Node) {
		for _, n := range []int{8, 300_000} {
			nodes := []*Node{a, b}
			each(t, 2, func(i int) error {
				if i == 1 && a == b {
					return nil
				}
				out, in := bytes.Repeat([]byte{byte(1 + i)}, n), make([]byte, n)
				for _, to := range []*Node{nodes[1-i], nodes[i]} {
					if err := nodes[i].Sendrecv(within(t), out, to.Rank(), in, to.Rank()); err != nil {
						return err
					}
					want := byte(2 - i) // of the other
					if to == nodes[i] {
						want = out[0]
					}
					if !bytes.Equal(in, bytes.Repeat([]byte{want}, n)) {
						return fmt.Errorf("rank %d: wrong bytes", i)
					}
				}
				return nil
			})
		}
	})
}

// TestOnceErrors: what is wrong with the arguments, before anything is started; and a wrong length.
func TestOnceErrors(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Node) {
		x := make([]byte, 8)
		var e *Error
		err := a.Send(within(t), x, 17)
		require.ErrorAs(t, err, &e)
		require.ErrorIs(t, err, ErrInvalid)
		require.Equal(t, 17, e.Rank)
		require.ErrorIs(t, a.Recv(within(t), x, b.Rank(), OnStream(MaxStream+1)), ErrInvalid)

		m := newMemory(t, a, 100_000)
		late := m.Bytes()
		require.NoError(t, m.Close())
		for _, n := range []int{8, 100_000} {
			if m.mr == nil && m.free == nil {
				break // the slice keeps it
			}
			require.ErrorIs(t, a.Send(within(t), late[:n], b.Rank()), ErrClosed)
		}

		var wg sync.WaitGroup
		wg.Go(func() {
			if err := a.Send(within(t), x, b.Rank()); err != nil { // it is complete before, mostly
				require.ErrorIs(t, err, ErrLength)
			}
		})
		require.ErrorIs(t, b.Recv(within(t), make([]byte, 9), a.Rank()), ErrLength)
		wg.Wait()
	})
}

// TestOnceLeft: a message whose caller has left goes on, and its memory stays in use until it is complete.
func TestOnceLeft(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Node) {
		for _, n := range []int{8, 300_000} {
			m := newMemory(t, b, n)
			over, cancel := context.WithCancel(t.Context())
			cancel()
			require.ErrorIs(t, b.Recv(over, m.Bytes(), a.Rank()), context.Canceled)
			require.ErrorIs(t, m.Close(), ErrBusy)
			var wg sync.WaitGroup
			wg.Go(func() {
				require.NoError(t, a.Send(within(t), bytes.Repeat([]byte{7}, n), b.Rank()))
				require.NoError(t, a.Send(within(t), make([]byte, 8), b.Rank()))
			})
			h := declareReceive(t, b, Contiguous(make([]byte, 8)), a.Rank())
			require.NoError(t, h.Start()) // the next: its wait moves the one before, too
			require.NoError(t, h.WaitContext(within(t)))
			wg.Wait()
			for ctx := within(t); m.Close() != nil; {
				require.NoError(t, ctx.Err())
			}
		}
		require.Empty(t, b.astray)
	})
}

// TestOnceAllocates nothing, on any stream, once the stream has a handle.
func TestOnceAllocates(t *testing.T) {
	n := join(t, 1)[0]
	x := make([]byte, 8)
	ctx := within(t)
	for _, stream := range []int{0, 5} {
		require.Zero(t, testing.AllocsPerRun(100, func() {
			require.NoError(t, n.Sendrecv(ctx, x, 0, x[:8:8], 0, OnStream(stream)))
		}))
	}
}

// TestSparesBounded: of the handles for messages used once those that have not been used for longest are closed;
// those in use, and those that are used again and again, are not.
func TestSparesBounded(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Node) {
		pass := func(stream int) {
			t.Helper()
			var wg sync.WaitGroup
			wg.Go(func() { require.NoError(t, a.Send(within(t), []byte{byte(stream)}, b.Rank(), OnStream(stream))) })
			in := make([]byte, 1)
			require.NoError(t, b.Recv(within(t), in, a.Rank(), OnStream(stream)))
			wg.Wait()
			require.Equal(t, byte(stream), in[0])
		}
		has := func(stream int) bool {
			s, r := a.peers[b.rank].Load().sending(uint32(stream)), b.peers[a.rank].Load().receiving(uint32(stream))
			filled := func(l *spares) (n int) {
				for i := range l {
					if l[i].Load() != nil {
						n++
					}
				}
				return n
			}
			return s != nil && r != nil && filled(&s.spares) > 0 && filled(&r.spares) > 0
		}
		ended, end := context.WithCancel(t.Context())
		end()
		late := make([]byte, 1)
		require.Error(t, b.Recv(ended, late, a.Rank(), OnStream(1000))) // it goes on
		for i := range 3 * sparesMost {
			if i%20 == 0 {
				a.ticks.Add(1)
				if a != b {
					b.ticks.Add(1)
				}
				pass(0)
			}
			pass(1 + i)
			for _, n := range []*Node{a, b} {
				n.mu.Lock()
				kept := len(n.onces)
				n.mu.Unlock()
				require.LessOrEqual(t, kept, sparesMost)
			}
		}
		require.True(t, has(0))
		require.True(t, has(3*sparesMost))
		require.False(t, has(1))
		require.NoError(t, a.Send(within(t), []byte{7}, b.Rank(), OnStream(1000)))
		for ctx := within(t); ; runtime.Gosched() {
			b.tendSpares()
			b.mu.Lock()
			over := len(b.astray) == 0
			b.mu.Unlock()
			if over {
				break
			}
			require.NoError(t, ctx.Err())
		}
		require.EqualValues(t, 7, late[0])
	})
}

// TestSparesInUse: handles for messages used once of which too many are in use are not looked through by each call
// that needs one more, of which there may be as many.
func TestSparesInUse(t *testing.T) {
	n := join(t, 1)[0]
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for range sparesMost + 1 {
		require.ErrorIs(t, n.Recv(over, make([]byte, 8), 0), context.Canceled) // the receive goes on: its handle stays in use
	}
	require.Zero(t, testing.AllocsPerRun(10, n.closeSpares))
}
