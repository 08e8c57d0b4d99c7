package impi

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/test/need"
)

// together runs f at all members at the same time, and returns their errors.
func together(comms []*Comm, f func(c *Comm) error) []error {
	errs := make([]error, len(comms))
	var wg sync.WaitGroup
	for i, c := range comms {
		wg.Go(func() { errs[i] = f(c) })
	}
	wg.Wait()
	return errs
}

// all is together, where all have to succeed.
func all(t testing.TB, comms []*Comm, f func(c *Comm) error) {
	t.Helper()
	for i, err := range together(comms, f) {
		require.NoError(t, err, "rank %d", i)
	}
}

// affine composes maps x → a·x + b modulo 2^32, which is associative and not
// commutative: each element is a and b.
func affine(dst, f, g []byte) {
	le := binary.LittleEndian
	for i := 0; i < len(dst); i += 8 {
		a, b, c, d := le.Uint32(f[i:]), le.Uint32(f[i+4:]), le.Uint32(g[i:]), le.Uint32(g[i+4:])
		le.PutUint32(dst[i:], a*c)
		le.PutUint32(dst[i+4:], a*d+b)
	}
}

// trial is a collective with what every member gives.
type trial struct {
	kind    coll.Kind
	size    int // members
	root    int
	n       int // elements of a vector or block
	uneven  bool
	ordered bool
	inPlace bool
	seed    uint64
}

const elem = 8

func (c *trial) reduction() channel.Reduction {
	if c.ordered {
		return channel.UserReduction(elem, false, affine)
	}
	return channel.Of[uint32](channel.Sum)
}

// given is what a member gives to another, or to all (-1).
func (c *trial) given(rank, to, n int) []byte {
	return random(n*elem, rand.NewPCG(c.seed, uint64(rank)<<16|uint64(to+1)))
}

// count is the elements of a member's block.
func (c *trial) count(i int) int {
	if c.uneven {
		return (i*5 + int(c.seed)) % 4 * c.n
	}
	return c.n
}

func (c *trial) counts() []int {
	list := make([]int, c.size)
	for i := range list {
		list[i] = c.count(i)
	}
	return list
}

// folded is what the vectors of members come to, one after the other.
func (c *trial) folded(from, to, n int) []byte {
	acc := c.given(from, -1, n)
	for i := from + 1; i < to; i++ {
		if x := c.given(i, -1, n); c.ordered {
			affine(acc, acc, x)
		} else {
			for k := 0; k < len(x); k += 4 {
				binary.LittleEndian.PutUint32(acc[k:], binary.LittleEndian.Uint32(acc[k:])+binary.LittleEndian.Uint32(x[k:]))
			}
		}
	}
	return acc
}

// operation returns the operation of a member, where its result comes, and what that
// has to be; nil for none.
func (c *trial) operation(me int) (o channel.Operation, dst, want []byte) {
	counts := c.counts()
	total := 0
	for _, n := range counts {
		total += n
	}
	own := counts[me]
	var blocks []byte
	for i, n := range counts {
		blocks = append(blocks, c.given(i, -1, n)...)
	}
	switch c.kind {
	case coll.Barrier:
		return channel.Barrier(), nil, nil
	case coll.Broadcast:
		dst = make([]byte, c.n*elem)
		if me == c.root {
			copy(dst, c.given(me, -1, c.n))
		}
		return channel.Broadcast(dst, c.root), dst, c.given(c.root, -1, c.n)
	case coll.Reduce, coll.Allreduce, coll.Scan, coll.Exscan:
		src := c.given(me, -1, c.n)
		if dst = make([]byte, len(src)); c.inPlace {
			dst = src
		}
		switch c.kind {
		case coll.Reduce:
			if me == c.root {
				want = c.folded(0, c.size, c.n)
			}
			return channel.ReduceBytes(c.reduction(), dst, src, c.root), dst, want
		case coll.Allreduce:
			return channel.AllreduceBytes(c.reduction(), dst, src), dst, c.folded(0, c.size, c.n)
		case coll.Scan:
			return channel.ScanBytes(c.reduction(), dst, src), dst, c.folded(0, me+1, c.n)
		}
		if me > 0 {
			want = c.folded(0, me, c.n)
		}
		return channel.ExscanBytes(c.reduction(), dst, src), dst, want
	case coll.ReduceScatter:
		dst = make([]byte, own*elem)
		at := 0
		for _, n := range counts[:me] {
			at += n
		}
		list := counts
		if !c.uneven {
			list = nil
		}
		return channel.ReduceScatterBytes(c.reduction(), dst, c.given(me, -1, total), list), dst, c.folded(0, c.size, total)[at*elem : (at+own)*elem]
	case coll.Gather:
		src := c.given(me, -1, own)
		if me == c.root {
			dst, want = make([]byte, total*elem), blocks
		}
		if c.uneven {
			return channel.Gatherv(dst, scaled(counts), src, c.root), dst, want
		}
		return channel.Gather(dst, src, c.root), dst, want
	case coll.Allgather:
		dst = make([]byte, total*elem)
		if c.uneven {
			return channel.Allgatherv(dst, scaled(counts), c.given(me, -1, own)), dst, blocks
		}
		return channel.Allgather(dst, c.given(me, -1, own)), dst, blocks
	case coll.Scatter:
		dst = make([]byte, own*elem)
		var src []byte
		if me == c.root {
			src = blocks
		}
		if c.uneven {
			return channel.Scatterv(dst, src, scaled(counts), c.root), dst, c.given(me, -1, own)
		}
		return channel.Scatter(dst, src, c.root), dst, c.given(me, -1, own)
	}
	between := func(from, to int) int { // alltoall
		if c.uneven {
			return (from*3 + to*5 + int(c.seed)) % 4 * c.n
		}
		return c.n
	}
	var src []byte
	from, to := make([]int, c.size), make([]int, c.size)
	for i := range c.size {
		from[i], to[i] = between(i, me)*elem, between(me, i)*elem
		src = append(src, c.given(me, i, between(me, i))...)
		want = append(want, c.given(i, me, between(i, me))...)
	}
	dst = make([]byte, len(want))
	if c.uneven {
		return channel.Alltoallv(dst, from, src, to), dst, want
	}
	return channel.Alltoall(dst, src), dst, want
}

func scaled(counts []int) []int {
	list := slices.Clone(counts)
	for i := range list {
		list[i] *= elem
	}
	return list
}

func (c *trial) run(t testing.TB, comms []*Comm) {
	t.Helper()
	ctx := within(t)
	dsts, wants := make([][]byte, len(comms)), make([][]byte, len(comms))
	errs := together(comms, func(m *Comm) error {
		var o channel.Operation
		o, dsts[m.Rank()], wants[m.Rank()] = c.operation(m.Rank())
		return m.Run(ctx, o)
	})
	for i := range comms {
		require.NoError(t, errs[i], "rank %d, %+v", i, c)
		if wants[i] != nil && !slices.Equal(dsts[i], wants[i]) {
			require.Fail(t, "wrong result", "rank %d, %+v", i, c)
		}
	}
}

// collectivePlaces are jobs of different shapes.
var collectivePlaces = []place{
	{"one", 1, 1, Config{}},
	{"here", 1, 3, Config{}},
	{"tcp 2", 2, 1, Config{Providers: []string{}}},
	{"tcp 3×2", 3, 2, Config{Providers: []string{}}},
	{"tcp 5, short packets", 5, 1, Config{Providers: []string{}, PacketLen: 500, AckMark: 2, HiWater: 5}},
	{"shm 2", 2, 1, Config{Providers: []string{"shm"}}},
	{"shm 3×2", 3, 2, Config{Providers: []string{"shm"}}},
}

func TestCollectives(t *testing.T) {
	for _, p := range collectivePlaces {
		t.Run(p.name, func(t *testing.T) {
			p.needs(t)
			switch p.name {
			case "tcp 3×2": // over tcp as with 2 and 5, of this shape as over shm
				need.Long(t)
			case "tcp 5, short packets":
				need.Full(t)
			}
			w := worlds(t, p)
			for kind := coll.Barrier; kind <= coll.Alltoall; kind++ {
				for seed, n := range []int{0, 1, 7, 300, 20000} {
					if (n == 1 || n == 7) && !need.WantLong() {
						continue
					}
					if n > 1000 && (testing.Short() || p.config.PacketLen > 0 && !need.WantLong()) {
						continue // one packet after the other
					}
					for _, root := range slices.Compact([]int{0, len(w) / 2, len(w) - 1}) {
						if root > 0 && (!kind.Rooted() || n > 1000) {
							break
						}
						for variant := range 4 {
							c := trial{kind: kind, size: len(w), root: root, n: n, seed: uint64(seed + root), uneven: variant&1 != 0, ordered: variant&1 != 0, inPlace: variant&2 != 0}
							if variant > 0 && n > 1000 {
								break
							}
							if n <= 1000 && variant != (int(kind)+seed+root+len(w))%4 && !need.WantLong() {
								continue
							}
							c.run(t, w)
						}
					}
				}
			}
		})
	}
}

// sums checks that collectives of these communicators work, and that the messages of
// several at the same time do not meet.
func sums(t testing.TB, groups ...[]*Comm) {
	t.Helper()
	ctx := within(t)
	rounds := 10
	if need.WantLong() {
		rounds = 20
	}
	var wg sync.WaitGroup
	errs := make(chan error, 100)
	for g, comms := range groups {
		for _, c := range comms {
			wg.Go(func() {
				for i := range rounds {
					x := []int64{int64(c.Rank() + i*g)}
					if err := c.Run(ctx, channel.Allreduce(channel.Sum, x, x)); err != nil {
						errs <- err
						return
					}
					n := int64(c.Size())
					if want := n*(n-1)/2 + n*int64(i*g); x[0] != want {
						errs <- fmt.Errorf("rank %d of group %d: sum %d, not %d", c.Rank(), g, x[0], want)
						return
					}
				}
			})
		}
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
}

func TestMismatch(t *testing.T) {
	long, short := make([]int64, 20), make([]int64, 10)
	for _, c := range []struct {
		name string
		ops  [3]channel.Operation
	}{
		{"kind", [3]channel.Operation{channel.Barrier(), channel.Allreduce(channel.Sum, short, short), channel.Barrier()}},
		{"length", [3]channel.Operation{channel.Broadcast(long, 0), channel.Broadcast(short, 0), channel.Broadcast(short, 0)}},
		{"operation", [3]channel.Operation{channel.Allreduce(channel.Sum, short, short), channel.Allreduce(channel.Sum, short, short), channel.Allreduce(channel.Max, short, short)}},
		{"one more", [3]channel.Operation{channel.Allreduce(channel.Sum, short, short), channel.Allreduce(channel.Sum, short, short), channel.Allgather(make([]int64, 30), short)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := worlds(t, place{"", 3, 1, Config{Providers: []string{}}})
			ctx := within(t)
			for i, err := range together(w, func(m *Comm) error {
				for { // who only sends is through before anybody has seen the difference
					if err := m.Run(ctx, c.ops[m.Rank()]); err != nil {
						return err
					}
				}
			}) {
				require.ErrorIs(t, err, ErrMismatch, "rank %d", i)
				var e *Error
				require.ErrorAs(t, err, &e)
				require.GreaterOrEqual(t, e.Rank, 0)
				require.Equal(t, err, w[i].Run(ctx, channel.Barrier()), "ever after")
			}
			// Messages are not concerned.
			both(t,
				func() error { return w[0].Send(ctx, []byte{1}, 2, 3) },
				func() error { _, err := w[2].Recv(ctx, make([]byte, 1), 0, 3); return err })
		})
	}
}

// kill ends a host as the death of its process does.
func kill(j *Job) {
	j.e.lock.Lock()
	defer j.e.lock.Unlock()
	for _, l := range j.e.links {
		if l != nil {
			l.lost(io.ErrUnexpectedEOF)
		}
	}
}

// TestMemberLost: a member that has died or left is named by all the others, whoever
// depends on it.
func TestMemberLost(t *testing.T) {
	for _, size := range []int{3, 6} {
		for _, leaves := range []bool{true, false} {
			t.Run(fmt.Sprintf("%d, leaves %v", size, leaves), func(t *testing.T) {
				jobs := join(t, place{"", size, 1, Config{Providers: []string{}}})
				const lost = 1
				t.Cleanup(func() {
					closeAll(t, slices.Delete(slices.Clone(jobs), lost, lost+1))
					jobs[lost].Close(context.WithoutCancel(t.Context())) // of a killed one there is nobody to say goodbye to
				})
				w := make([]*Comm, size)
				for i, j := range jobs {
					w[i] = j.World()
				}
				ctx := within(t)
				all(t, w, func(c *Comm) error { return c.Run(ctx, channel.Barrier()) })
				want := ErrPeerDied
				if leaves {
					want = ErrPeerLeft
				}
				over := make(chan struct{})
				go func() {
					defer close(over)
					if leaves {
						jobs[lost].Close(context.WithoutCancel(ctx))
						return
					}
					kill(jobs[lost])
				}()
				others := slices.Delete(slices.Clone(w), lost, lost+1)
				x := make([]int64, 1000)
				for i, err := range together(others, func(c *Comm) error {
					for {
						y := slices.Clone(x)
						if err := c.Run(ctx, channel.Allreduce(channel.Sum, y, y)); err != nil {
							return err
						}
					}
				}) {
					var e *Error
					require.ErrorAs(t, err, &e, "member %d", i)
					require.Equal(t, lost, e.Rank, "member %d: %v", i, err)
					require.ErrorIs(t, err, want, "member %d", i)
				}
				<-over
			})
		}
	}
}

// TestGivenUp: a member whose context ends fails at once, and so do the others.
func TestGivenUp(t *testing.T) {
	w := worlds(t, place{"", 3, 1, Config{Providers: []string{}}})
	ctx, cancel := context.WithCancel(within(t))
	late := make(chan error)
	go func() { late <- w[1].Run(ctx, channel.Barrier()) }()
	cancel()
	require.ErrorIs(t, <-late, context.Canceled)
	for i, c := range []*Comm{w[0], w[2]} {
		err := c.Run(within(t), channel.Barrier())
		var e *Error
		require.ErrorAs(t, err, &e, "member %d", i)
		require.Equal(t, 1, e.Rank, "%v", err)
	}
}

func TestCollectiveArguments(t *testing.T) {
	w := worlds(t, place{"", 1, 2, Config{}})
	ctx := within(t)
	require.ErrorIs(t, w[0].Run(ctx, channel.Broadcast([]byte{1}, 2)), ErrInvalid)
	require.ErrorIs(t, w[0].Run(ctx, channel.Operation{}), ErrInvalid)
	require.ErrorIs(t, w[0].Run(ctx, channel.Allreduce(channel.Sum, make([]int32, 1), make([]int32, 2))), ErrInvalid)
	all(t, w, func(c *Comm) error { return c.Run(ctx, channel.Barrier()) })
}

// TestCollectiveAllocs: a short collective that has been called before allocates
// nothing.
func TestCollectiveAllocs(t *testing.T) {
	w := worlds(t, place{"", 2, 1, Config{Providers: []string{}}})
	ctx := within(t)
	const runs = 20
	ops := func() []channel.Operation {
		x, y := make([]float64, 4), make([]float64, 4)
		return []channel.Operation{channel.Barrier(), channel.Allreduce(channel.Sum, x, x), channel.Alltoall(x, y)}
	}
	for i := range ops() {
		// AllocsPerRun counts what both do.
		done := make(chan error)
		go func() {
			o := ops()[i]
			for range runs + 1 {
				if err := w[1].Run(ctx, o); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
		o := ops()[i]
		require.NoError(t, w[0].Run(ctx, o))
		n := testing.AllocsPerRun(runs-1, func() {
			if err := w[0].Run(ctx, o); err != nil {
				t.Error(err)
			}
		})
		require.NoError(t, <-done)
		require.Less(t, n, 1.0, "operation %d", i)
	}
}
