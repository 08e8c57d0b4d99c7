package qmp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/jobtest"
	"github.com/sluice-hpc/sluice/internal/test/need"
)

// block is the part of a lattice that a node has, of sites of a few numbers each, with
// halos for both directions of every axis.
type block struct {
	c      *Comm
	extent []int // of the part
	origin []int // of the part, in the lattice
	global []int
	field  []float64
	halo   [][2][]float64 // by axis; 0: what comes from +
	all    *Handle
}

const numbers = 3 // of a site

// value is what number k of a site of the lattice is in a round.
func value(site, global []int, round, k int) float64 {
	n := 0
	for i := len(site) - 1; i >= 0; i-- {
		n = n*global[i] + (site[i]+global[i])%global[i]
	}
	return float64((n*numbers+k)*1000 + round)
}

// newBlock declares the exchange of all faces, strided as they lie in the field.
func newBlock(c *Comm, extent []int) (*block, error) {
	b := &block{c: c, extent: extent, origin: c.LogicalCoordinates(), global: c.LogicalDimensions()}
	sites := 1
	for i, n := range extent {
		sites *= n
		b.origin[i] *= n
		b.global[i] *= n
	}
	mem, err := c.Machine().AllocateMemory(8 * numbers * sites)
	if err != nil {
		return nil, err
	}
	b.field = View[float64](mem)
	inner := numbers
	var handles []*Handle
	for axis, n := range extent {
		var halos [2][]float64
		for side, dir := range []int{Plus, Minus} {
			first := 0 // of what the neighbour in direction dir wants
			if dir == Plus {
				first = (n - 1) * inner
			}
			face, err := DeclareStridedMsgMem(b.field[first:], 8*inner, len(b.field)/(inner*n), 8*inner*n)
			if err != nil {
				return nil, err
			}
			s, err := c.DeclareSendRelative(face, axis, dir, DefaultPriority)
			if err != nil {
				return nil, err
			}
			halos[side] = make([]float64, len(b.field)/n) // on the heap
			r, err := c.DeclareReceiveRelative(must(DeclareMsgMem(halos[side])), axis, dir, DefaultPriority)
			if err != nil {
				return nil, err
			}
			handles = append(handles, s, r)
		}
		b.halo = append(b.halo, halos)
		inner *= n
	}
	b.all, err = DeclareMultiple(handles...)
	return b, err
}

// sites calls f for each site of the part, or of the plane of an axis at a coordinate.
func (b *block) sites(axis, at int, f func(i int, site []int)) {
	site := make([]int, len(b.extent))
	for i := 0; ; i++ {
		if axis >= 0 {
			site[axis] = at
		}
		place := slices.Clone(b.origin)
		for k := range place {
			place[k] += site[k]
		}
		f(i, place)
		k := 0
		for ; k < len(site); k++ {
			if k == axis {
				continue
			}
			if site[k]++; site[k] < b.extent[k] {
				break
			}
			site[k] = 0
		}
		if k == len(site) {
			return
		}
	}
}

func (b *block) round(n int) error {
	b.sites(-1, 0, func(i int, site []int) {
		for k := range numbers {
			b.field[i*numbers+k] = value(site, b.global, n, k)
		}
	})
	if err := b.all.Start(); err != nil {
		return err
	}
	if err := b.all.Wait(); err != nil {
		return err
	}
	for axis := range b.extent {
		for side, at := range []int{b.extent[axis], -1} {
			var err error
			b.sites(axis, at, func(i int, site []int) {
				for k := range numbers {
					if got, want := b.halo[axis][side][i*numbers+k], value(site, b.global, n, k); got != want {
						err = fmt.Errorf("round %d, axis %d, side %d, site %v: %v in place of %v", n, axis, side, site, got, want)
					}
				}
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// TestTorus: faces of a lattice of one to four axes, strided as they lie, against the
// lattice itself; on axes of one and two nodes too.
func TestTorus(t *testing.T) {
	jobtest.Everywhere(t, func(t *testing.T, provider string) {
		for _, g := range []struct{ dims, order, extent []int }{
			{[]int{1}, nil, []int{4}},
			{[]int{2}, nil, []int{3}},
			{[]int{5}, nil, []int{2}},
			{[]int{1, 1, 1, 1}, nil, []int{2, 3, 2, 4}},
			{[]int{1, 2, 1, 2}, nil, []int{4, 2, 3, 2}},
			{[]int{2, 3}, []int{1, 0}, []int{5, 4}},
			{[]int{2, 2, 2, 1}, []int{3, 1, 0, 2}, []int{2, 2, 2, 2}},
			{[]int{4, 1}, nil, []int{30, 40}}, // faces above the eager size
		} {
			nodes := 1
			for _, d := range g.dims {
				nodes *= d
			}
			if provider == "ibv" && nodes > 4 {
				continue
			}
			t.Run(fmt.Sprint(g.dims), func(t *testing.T) {
				switch fmt.Sprint(g.dims) {
				case "[1 2 1 2]", "[4 1]": // lattices of more than a host, and longer messages
				default:
					need.Full(t)
					if provider == "tcp" || provider == "roce" {
						need.Long(t)
					}
				}
				each(t, over(t, provider, nodes), func(c *Comm) error {
					if err := c.DeclareLogicalTopologyMap(g.dims, g.order); err != nil {
						return err
					}
					b, err := newBlock(c, g.extent)
					for n := 0; n < 5 && err == nil; n++ {
						err = b.round(n)
					}
					if err != nil {
						return err
					}
					return b.all.CloseAll()
				})
			})
		}
	})
}

// TestRestarts: a message goes round a ring again and again.
func TestRestarts(t *testing.T) {
	somewhere(t, func(t *testing.T, provider string) {
		rounds := 1000
		if need.WantLong() && provider == "shm" {
			rounds = 5000
		}
		each(t, over(t, provider, 3), func(c *Comm) error {
			if err := c.DeclareLogicalTopology([]int{3}); err != nil {
				return err
			}
			out, in := []int64{int64(c.NodeNumber())}, make([]int64, 1)
			s := must(c.DeclareSendRelative(must(DeclareMsgMem(out)), 0, Plus, 0))
			r := must(c.DeclareReceiveRelative(must(DeclareMsgMem(in)), 0, Minus, 0))
			pair := must(DeclareSendRecvPairs(s, r))
			for n := range rounds {
				if err := pair.Start(); err != nil {
					return err
				}
				if err := pair.Wait(); err != nil {
					return err
				}
				from := (c.NodeNumber() + 2) % 3
				if want := int64((from-n%3+3)%3 + n*10); in[0] != want {
					return fmt.Errorf("round %d: %d in place of %d", n, in[0], want)
				}
				out[0] = in[0] + 10
			}
			return nil
		})
	})
}

// TestStreams: nodes start everything in an order of their own. Messages of both
// directions of an axis, of different axes, by number and by communicator are never
// mixed up, though all of them are between the same two nodes, or to oneself; within a
// stream they keep their order.
func TestStreams(t *testing.T) {
	const depth = 3 // handles of a stream
	somewhere(t, func(t *testing.T, provider string) {
		for _, dims := range [][]int{{1, 1}, {1, 2}, {2, 1}} {
			t.Run(fmt.Sprint(dims), func(t *testing.T) {
				each(t, over(t, provider, dims[0]*dims[1]), func(c *Comm) error {
					second := splitOf(t, c, 0, 0)
					random := rand.New(rand.NewPCG(7, uint64(c.NodeNumber())))
					for round := range 10 {
						if err := mix(c, second, dims, depth, round, random); err != nil {
							return err
						}
						if err := c.Barrier(); err != nil {
							return err
						}
					}
					return nil
				})
			})
		}
	})
}

// mix sends messages with their stream and number in them over all streams.
func mix(first, second *Comm, dims []int, depth, round int, random *rand.Rand) error {
	type lane struct {
		send, receive []*Handle
		in            [][]uint64
		tag           uint64
	}
	var lanes []*lane
	add := func(tag int, declareSend, declareReceive func(mm *MsgMem) (*Handle, error)) error {
		l := &lane{tag: uint64(round*1000+tag) << 8}
		for k := range depth {
			out, in := []uint64{l.tag | uint64(k)}, make([]uint64, 1)
			s, err := declareSend(must(DeclareMsgMem(out)))
			if err != nil {
				return err
			}
			r, err := declareReceive(must(DeclareMsgMem(in)))
			if err != nil {
				return err
			}
			l.send, l.receive, l.in = append(l.send, s), append(l.receive, r), append(l.in, in)
		}
		lanes = append(lanes, l)
		return nil
	}
	for i, c := range []*Comm{first, second} {
		if round == 0 {
			if err := c.DeclareLogicalTopology(dims); err != nil {
				return err
			}
		}
		for axis := range dims {
			for _, dir := range []int{Plus, Minus} {
				err := add(100*i+10*axis+dir+1,
					func(mm *MsgMem) (*Handle, error) { return c.DeclareSendRelative(mm, axis, dir, 0) },
					func(mm *MsgMem) (*Handle, error) { return c.DeclareReceiveRelative(mm, axis, -dir, 0) })
				if err != nil {
					return err
				}
			}
		}
		other := c.NumberOfNodes() - 1 - c.NodeNumber()
		err := add(100*i+50,
			func(mm *MsgMem) (*Handle, error) { return c.DeclareSendTo(mm, other, 0) },
			func(mm *MsgMem) (*Handle, error) { return c.DeclareReceiveFrom(mm, other, 0) })
		if err != nil {
			return err
		}
	}
	// Any order that keeps that of a lane's sends, and that of its receives.
	type step struct {
		l       *lane
		receive bool
	}
	var steps []step
	for _, l := range lanes {
		for range depth {
			steps = append(steps, step{l, false}, step{l, true})
		}
	}
	random.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
	next := map[step]int{}
	for _, s := range steps {
		k := next[s]
		next[s]++
		list := s.l.send
		if s.receive {
			list = s.l.receive
		}
		if err := list[k].Start(); err != nil {
			return err
		}
	}
	for _, l := range lanes {
		if err := errors.Join(WaitAll(l.send...), WaitAll(l.receive...)); err != nil {
			return err
		}
		for k, in := range l.in {
			if want := l.tag | uint64(k); in[0] != want {
				return fmt.Errorf("message %#x in place of %#x", in[0], want)
			}
			if err := errors.Join(l.send[k].Close(), l.receive[k].Close()); err != nil {
				return err
			}
		}
	}
	return nil
}

// shapes are ways to lay n*8 bytes out in memory, with a naive reference: the words of
// the memory that the message consists of, in order.
var shapes = []struct {
	name    string
	words   int // of the memory
	declare func(b []uint64) (*MsgMem, error)
	order   []int
}{
	{"contiguous", 12, DeclareMsgMem[uint64], []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}},
	{"strided", 30, func(b []uint64) (*MsgMem, error) { return DeclareStridedMsgMem(b, 24, 4, 64) }, []int{0, 1, 2, 8, 9, 10, 16, 17, 18, 24, 25, 26}},
	{"downwards", 30, func(b []uint64) (*MsgMem, error) { return DeclareStridedMsgMem(b, 24, 4, -64) }, []int{24, 25, 26, 16, 17, 18, 8, 9, 10, 0, 1, 2}},
	{"init", 24, func(b []uint64) (*MsgMem, error) {
		var mm MsgMem
		return &mm, mm.Init(Bytes(b), 8, 12, 16)
	}, []int{0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22}},
	{"strided array", 40, func(b []uint64) (*MsgMem, error) {
		return DeclareStridedArrayMsgMem([]Strided{
			{Base: Bytes(b[:20]), BlockSize: 16, Blocks: 3, Stride: 32},
			{Base: Bytes(b[20:]), Offset: 80, BlockSize: 8, Blocks: 5, Stride: -16},
			{Base: Bytes(b[30:]), BlockSize: 8, Blocks: 1},
		})
	}, []int{0, 1, 4, 5, 8, 9, 30, 28, 26, 24, 22, 30}},
	{"indexed", 40, func(b []uint64) (*MsgMem, error) {
		return DeclareIndexedMsgMem(b, []int{3, 1, 0, 8}, []int{20, 2, 0, 30}, 0)
	}, []int{20, 21, 22, 2, 30, 31, 32, 33, 34, 35, 36, 37}},
}

// TestLayouts: any layout to any, to oneself and to another node.
func TestLayouts(t *testing.T) {
	somewhere(t, func(t *testing.T, provider string) {
		each(t, over(t, provider, 2), func(c *Comm) error {
			for _, from := range shapes {
				for _, to := range shapes {
					for peer := range 2 {
						src, dst := make([]uint64, from.words), make([]uint64, to.words)
						for i := range src {
							src[i] = uint64(100 + i)
						}
						s := must(c.DeclareSendTo(must(from.declare(src)), peer, 0))
						mm := must(to.declare(dst))
						r, err := c.DeclareReceiveFrom(mm, peer, 0)
						if to.name == "strided array" { // its blocks overlap
							if !errors.Is(err, StatusBadMemory) {
								return fmt.Errorf("overlapping blocks: %v", err)
							}
							if err := s.Close(); err != nil {
								return err
							}
							continue
						}
						if err != nil {
							return err
						}
						mm.Free() // the handle has what it needs
						if err := errors.Join(s.Start(), r.Start(), WaitAll(s, r), s.Close(), r.Close()); err != nil {
							return err
						}
						want := make([]uint64, to.words)
						for i, w := range to.order {
							want[w] = uint64(100 + from.order[i])
						}
						if !slices.Equal(want, dst) {
							return fmt.Errorf("%s to %s: %v in place of %v", from.name, to.name, dst, want)
						}
					}
				}
			}
			return nil
		})
	})
}

// TestMap: node i sends to to[i].
func TestMap(t *testing.T) {
	to := []int{2, 0, 3, 1}
	each(t, over(t, "shm", 4), func(c *Comm) error {
		out, in := make([]byte, 4), make([]byte, 4)
		binary.NativeEndian.PutUint32(out, uint32(c.NodeNumber()))
		s := must(c.DeclareSendMap(must(DeclareMsgMem(out)), to, 0))
		r := must(c.DeclareReceiveMap(must(DeclareMsgMem(in)), to, 0))
		if err := errors.Join(r.Start(), s.Start(), WaitAll(s, r)); err != nil {
			return err
		}
		if from := int(binary.NativeEndian.Uint32(in)); to[from] != c.NodeNumber() {
			return fmt.Errorf("from %d", from)
		}
		for want, wrong := range map[Status][]int{StatusInvalidArg: {0, 1, 2, 2}, StatusNodeOutRange: {0, 1, 2, 4}} {
			if _, err := c.DeclareSendMap(must(DeclareMsgMem(out)), wrong, 0); !errors.Is(err, want) {
				return fmt.Errorf("map %v: %v", wrong, err)
			}
		}
		if _, err := c.DeclareReceiveMap(must(DeclareMsgMem(in)), to[:3], 0); !errors.Is(err, StatusInvalidArg) {
			return fmt.Errorf("short map: %v", err)
		}
		return nil
	})
}

// TestStridedBounds: blocks outside of the memory are an error, not undefined.
func TestStridedBounds(t *testing.T) {
	b := make([]uint64, 10)
	for _, c := range []struct{ size, blocks, stride int }{
		{8, 11, 8}, {81, 1, 0}, {8, 2, 80}, {8, 2, -80}, {8, 3, 1 << 62}, {8, 3, -1 << 62}, {-8, 1, 0}, {8, -1, 0}, {1 << 62, 4, 8},
	} {
		_, err := DeclareStridedMsgMem(b, c.size, c.blocks, c.stride)
		status(t, StatusBadMemory, err)
		var mm MsgMem
		status(t, StatusBadMemory, mm.Init(Bytes(b), c.size, c.blocks, c.stride))
	}
	for _, c := range []struct {
		lengths, indices []int
		elem             int
	}{{[]int{1}, []int{10}, 8}, {[]int{2}, []int{9}, 8}, {[]int{1}, []int{-1}, 8}, {[]int{-1}, []int{0}, 8}, {[]int{1, 1}, []int{0}, 8}, {[]int{1}, []int{0}, -8}} {
		_, err := DeclareIndexedMsgMem(b, c.lengths, c.indices, c.elem)
		status(t, StatusBadMemory, err)
	}
	_, err := DeclareStridedArrayMsgMem([]Strided{{Base: Bytes(b), Offset: 8, BlockSize: 8, Blocks: 10, Stride: 8}})
	status(t, StatusBadMemory, err)
	require.Panics(t, func() { DeclareMsgMem([]*int{nil}) })
}
