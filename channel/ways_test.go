package channel

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/layout"
	"github.com/sluice-hpc/sluice/internal/test/need"
)

// way is how a message goes over shared memory, and what makes it go that way.
type way struct {
	name          string
	least, most   int  // bytes
	src, dst      bool // Alloc memory
	receiverWaits bool
	pack          int // by which the sender packs
	eager, packed uint64
}

// knows waits until a peer knows where the memory of a handle is.
func knows(t testing.TB, n *Node, rank int, h *Handle) {
	p := n.peers[rank].Load()
	for ctx := within(t); ; runtime.Gosched() {
		if l, err := p.find(h.where, uint64(h.shape.Len())); err != nil || l != nil {
			require.NoError(t, err)
			return
		}
		require.NoError(t, ctx.Err())
	}
}

// TestWays: any layout to any layout by each way that a message can go over shared memory. It writes what
// the layout says, and nothing else.
func TestWays(t *testing.T) {
	const long = 400_000
	ways := []way{
		{"a line, or three", 0, inlineMax, false, false, false, -1, 1, 0},
		{"the ring", inlineMax + 1, eagerMax, false, false, false, -1, 1, 0},
		{"the ring, from Alloc memory into it", inlineMax + 1, eagerMax, true, true, false, -1, 1, 0},
		{"short, from the heap into waiting Alloc memory", inlineMax + 1, eagerMax, false, true, true, -1, 0, 0},
		{"short, within Alloc memory, to a receiver that waits", inlineMax + 1, eagerMax, true, true, true, -1, 0, 0},
		{"the pipe, through the caches", eagerMax + 1, long, false, false, false, packPlain, 0, 1},
		{"the pipe, to a receiver that waits", eagerMax + 1, long, false, false, true, packPlain, 0, 1},
		{"the pipe, into Alloc memory", eagerMax + 1, long, false, true, false, packPlain, 0, 1},
		{"from the heap into waiting Alloc memory", eagerMax + 1, long, false, true, true, -1, 0, 0},
		{"from Alloc memory into the heap", eagerMax + 1, long, true, false, false, -1, 0, 0},
		{"from Alloc memory into the heap of a receiver that waits", eagerMax + 1, long, true, false, true, -1, 0, 0},
		{"within Alloc memory, the receiver copies", eagerMax + 1, long, true, true, false, -1, 0, 0},
		{"within Alloc memory, the sender copies", eagerMax + 1, long, true, true, true, -1, 0, 0},
	}
	if layout.Past {
		ways = append(ways, way{"the pipe, past the caches", eagerMax + 1, long, false, false, false, packPast, 0, 1})
	}
	rounds := need.ByForm(3, 10, 100)
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			defer func(forced int) { packForced = forced }(packForced)
			packForced = w.pack
			nodes := join(t, 2, WithProviders("shm"))
			a, b := nodes[0], nodes[1]
			one, other := sendReceive(t, a, b, 8)
			pass(t, one, other, other) // connects
			s := seed(t)
			r := rand.New(rand.NewPCG(s, uint64(w.least)))
			for range rounds {
				n := w.least + r.IntN(w.most-w.least+1)
				src := draw(r, n, func(n int) []byte { return allocate(t, a, max(n, 1), w.src)[:n] })
				dst := draw(r, n, func(n int) []byte { return allocate(t, b, max(n, 1), w.dst)[:n] })
				for _, m := range append(src.bases, dst.bases...) {
					random(r, m)
				}
				want := dst.images(src.packed())
				out, in := declareBoth(t, a, b, src.layout, dst.layout)
				before := a.Stats().Peers[0].Sent
				first, second := out, in
				if w.receiverWaits {
					first, second = in, out
					if in.reachable {
						knows(t, a, 1, in)
					}
				}
				startAll(t, first, second)
				arrives(t, out, in)
				for i := range want {
					require.True(t, bytes.Equal(want[i], dst.bases[i]), "%d bytes, %s to %s", n, src.name, dst.name)
				}
				after := a.Stats().Peers[0].Sent
				require.Equal(t, []uint64{w.eager, w.packed}, []uint64{after.Eager - before.Eager, after.Packed - before.Packed}, "%d bytes", n)
				require.NoError(t, out.Close())
				require.NoError(t, in.Close())
			}
		})
	}
}

// TestQueueWays: any layout to any layout by each way that a message can go through a queue: copied at both ends,
// written, or read, whichever side comes first; packed, or block by block. It writes what the layout says, and nothing
// else.
func TestQueueWays(t *testing.T) {
	const long, always = 100_000, mostCrossover
	rounds := need.ByForm(1, 6, 50)
	queued(t, func(t *testing.T, provider string) {
		for _, pack := range []int{0, always} { // blocks of less than this
			for _, read := range []int{0, always} { // blocks of this or more
				t.Run(fmt.Sprintf("pack %v, read %v", pack != 0, read == 0), func(t *testing.T) {
					for _, c := range []*crossovers{&crossoversTCP, &crossoversRDMA} {
						setTo(t, &c.pack, pack)
						setTo(t, &c.read, read)
					}
					nodes, qa, qb := joinQueue(t, provider)
					a, b := nodes[0], nodes[1]
					s := seed(t)
					r := rand.New(rand.NewPCG(s, 0))
					for i := range 4 * rounds {
						order, eager := arrival(i%4), i%4 == 3
						n := eagerQueued + 1 + r.IntN(long)
						if eager {
							n = r.IntN(eagerQueued + 1)
						}
						src := draw(r, n, func(n int) []byte { return allocate(t, a, n, r.IntN(2) == 0) })
						dst := draw(r, n, func(n int) []byte { return allocate(t, b, n, r.IntN(2) == 0) })
						name := fmt.Sprintf("%d bytes, %s to %s, %d", n, src.name, dst.name, order)
						for _, m := range slices.Concat(src.bases, dst.bases) {
							random(r, m)
						}
						want := dst.images(src.packed())
						out, err := a.DeclareSend(src.layout, 1)
						require.NoError(t, err, name)
						in, err := b.DeclareReceive(dst.layout, 0)
						require.NoError(t, err, name)
						before := a.Stats().Peers[0].Sent
						expected := []uint64{1, 0, 0} // eager, packed, read
						if eager {
							startAll(t, out, in)
						} else {
							startIn(t, order, qa, qb, out, in)
							expected = make([]uint64, 3)
							from, into := out.shape.Blocks(), in.shape.Blocks()
							if out.staging != nil {
								from, expected[1] = 1, 1
							}
							if in.staging != nil {
								into = 1
							}
							if order == receiverSecond && (read == 0 || from <= into) {
								expected[2] = 1
							}
						}
						arrives(t, out, in, name)
						for k := range want {
							require.True(t, bytes.Equal(want[k], dst.bases[k]), name)
						}
						after := a.Stats().Peers[0].Sent
						require.Equal(t, expected, []uint64{after.Eager - before.Eager, after.Packed - before.Packed, after.Read - before.Read}, name)
						require.NoError(t, errors.Join(out.Close(), in.Close()))
					}
				})
			}
		}
	})
}

// TestLinesTellNothing: a message that lies in the lines of its slot needs no gate, and its layout need not be told.
func TestLinesTellNothing(t *testing.T) {
	a, b := connected(t, "shm")
	for _, size := range []int{8, slotData, slotData + 4, inlineMax} {
		out, in := newMemory(t, a, 2*size).Bytes(), newMemory(t, b, 2*size).Bytes()
		random(rand.New(rand.NewPCG(1, uint64(size))), out)
		for _, lay := range []func(m []byte) Layout{
			func(m []byte) Layout { return Contiguous(m[:size]) },
			func(m []byte) Layout { return Strided(m, 0, 4, size/4, 8) },
		} {
			s, r := declareBoth(t, a, b, lay(out), lay(in))
			require.NoError(t, r.Start())
			require.False(t, r.gated, "%d bytes", size)
			require.NoError(t, s.Start())
			arrives(t, s, r)
			require.Equal(t, packed(lay(out)), packed(lay(in)))
			require.False(t, s.told || r.told, "%d bytes", size)
			require.NoError(t, errors.Join(s.Close(), r.Close()))
		}
	}
}
