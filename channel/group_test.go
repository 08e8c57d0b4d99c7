package channel

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/coll/colltest"
	"github.com/sluice-hpc/sluice/internal/nettest"
	"github.com/sluice-hpc/sluice/internal/test/need"
)

// withHosts has the ranks be on hosts that are not theirs.
func withHosts(hosts func(rank int) int) Option { return func(o *options) { o.hosts = hosts } }

// worlds makes a job, and the group of all its ranks.
func worlds(t testing.TB, size int, opts ...Option) []*Group {
	nodes := join(t, size, opts...)
	groups := make([]*Group, size)
	each(t, size, func(i int) (err error) {
		groups[i], err = nodes[i].World(within(t))
		return err
	})
	return groups
}

func splitOf(t testing.TB, g *Group, ctx context.Context, color, key int) *Group {
	t.Helper()
	split, err := g.Split(ctx, color, key)
	require.NoError(t, err)
	return split
}

// given is what a rank gives in a collective: the same wherever it is computed.
func given(seed uint64, rank, n int) []byte {
	r := rand.New(rand.NewPCG(seed, uint64(rank)))
	b := make([]byte, n)
	random(r, b)
	return b
}

// element is what is moved; reductions are over affine maps, or over pairs of uint32.
type element [colltest.Elem]byte

// operation returns the operation of a rank, and what dst is to be afterwards.
func operation(c *colltest.Reference, rank int, alloc func(n int) []byte) (o Operation, dst, want []byte) {
	const e = colltest.Elem
	combine := Of[uint32](Sum)
	if c.Ordered {
		combine = UserReduction(e, false, colltest.Affine)
	}
	uneven := c.Counts != nil || c.Between != nil
	src, dst := c.Memory(rank, alloc)
	if c.Kind == coll.Reduce && rank != c.Root { // whose dst nothing is written into
		if dst = src; !c.InPlace {
			dst = alloc(len(src))
		}
	}
	if want = c.Want(rank); want == nil {
		want = slices.Clone(dst)
	}
	elements := func(b []byte) []element {
		if len(b) == 0 {
			return []element{}
		}
		return viewElements(b)
	}
	in, out := elements(src), elements(dst)
	switch c.Kind {
	case coll.Broadcast:
		o = Broadcast(out, c.Root)
	case coll.Reduce:
		o = ReduceBytes(combine, dst, src, c.Root)
	case coll.Allreduce:
		o = AllreduceBytes(combine, dst, src)
	case coll.Scan:
		o = ScanBytes(combine, dst, src)
	case coll.Exscan:
		o = ExscanBytes(combine, dst, src)
	case coll.ReduceScatter:
		list := slices.Clone(c.Counts)
		if !c.Ordered {
			for i := range list {
				list[i] *= e / 4
			}
		}
		o = ReduceScatterBytes(combine, dst, src, list)
	case coll.Gather:
		var counts []int
		if rank == c.Root {
			counts = c.Counts
		}
		if o = Gather(out, in, c.Root); uneven {
			o = Gatherv(out, counts, in, c.Root)
		}
	case coll.Allgather:
		if o = Allgather(out, in); uneven {
			o = Allgatherv(out, c.Counts, in)
		}
	case coll.Scatter:
		if o = Scatter(out, in, c.Root); uneven {
			o = Scatterv(out, in, c.Counts, c.Root)
		}
	case coll.Alltoall:
		if o = Alltoall(out, in); uneven {
			give, get := c.Pairs(rank)
			o = Alltoallv(out, get, in, give)
		}
	default:
		o = Barrier()
	}
	return o, dst, want
}

// trials are collectives in random order, around every crossover.
func trials(seed uint64, size, n, largest int) []colltest.Reference {
	r := rand.New(rand.NewPCG(seed, uint64(size)))
	counts := []int{0, 1, 5, 6, 7, 127, 128, 129, 500, 2047, 2048, 2049, 9000, 40000}
	for counts[len(counts)-1] > largest {
		counts = counts[:len(counts)-1]
	}
	list := make([]colltest.Reference, n)
	for i := range list {
		c := colltest.Reference{Kind: coll.Kind(r.IntN(int(coll.Alltoall) + 1)), Seed: r.Uint64() >> 1, Size: size, Root: r.IntN(size), Ordered: r.IntN(2) == 0, Count: counts[r.IntN(len(counts))]}
		uneven, inPlace := r.IntN(3) == 0, r.IntN(3) == 0
		switch c.Kind {
		case coll.Reduce, coll.Allreduce, coll.Scan, coll.Exscan:
			c.InPlace = inPlace
		case coll.Gather, coll.Allgather, coll.ReduceScatter, coll.Scatter, coll.Alltoall:
			c.InPlace = inPlace && (c.Kind == coll.Gather || c.Kind == coll.Allgather)
			c.Count /= max(1, size/2)
			if !uneven {
				break
			}
			matrix := make([]int, size*size)
			for k := range matrix {
				matrix[k] = r.IntN(2*c.Count + 1)
			}
			if c.Kind == coll.Alltoall {
				c.Between = func(from, to int) int { return matrix[from*size+to] }
			} else {
				c.Counts = matrix[:size]
			}
		}
		list[i] = c
	}
	return list
}

// placements are where ranks are.
var placements = []struct {
	name  string
	hosts func(rank int) int
}{
	{"one host", func(int) int { return 0 }},
	{"each its own", func(rank int) int { return rank }},
	{"pairs", func(rank int) int { return rank / 2 }},
	{"in turn", func(rank int) int { return rank % 2 }},
	{"uneven", func(rank int) int { return min(rank, 2) }},
}

// Every collective, called and declared, gives what a serial computation does: on any
// number of ranks, however they are placed, over every provider.
func TestCollectives(t *testing.T) {
	count := need.InLong(30, 120)
	for _, size := range []int{1, 2, 3, 4, 5, 8, 17} {
		for _, place := range placements {
			for _, provider := range append([]string{"shm", "tcp"}, nettest.Providers()...) {
				if size == 1 && place.name != "one host" || provider != "shm" && place.name != "each its own" {
					continue
				}
				t.Run(fmt.Sprintf("%d ranks, %s, %s", size, place.name, provider), func(t *testing.T) {
					need.Provider(t, provider)
					switch {
					case size == 3 && place.name == "uneven": // each its own
						need.Long(t)
					case size == 3 && (place.name == "pairs" || place.name == "in turn"):
						need.Full(t)
					case size == 5 && place.name == "uneven":
					case size == 5 && (place.name == "each its own" || place.name == "in turn"):
						need.Full(t)
					case size == 8 && place.name == "uneven":
						need.Full(t)
					case size != 1 && size != 3:
						need.Long(t)
					}
					groups := worlds(t, size, WithProviders(provider), withHosts(place.hosts))
					list := trials(1, size, count, 9000)
					each(t, size, func(rank int) error {
						return runTrials(within(t), groups[rank], list)
					})
				})
			}
		}
	}
}

// runTrials carries out collectives, every other one declared, and some at the same
// time. Of three calls one has Alloc memory, and one such memory but for a piece here and there.
func runTrials(ctx context.Context, g *Group, list []colltest.Reference) error {
	alloc := func(i int) func(n int) []byte {
		r := rand.New(rand.NewPCG(uint64(i), uint64(g.Rank())))
		return func(n int) []byte {
			if n == 0 {
				return []byte{}
			}
			if i%3 == 0 || i%3 == 1 && r.IntN(2*g.Size()) > 0 {
				m, err := g.node.Alloc(n)
				if err == nil {
					return m.Bytes()
				}
			}
			return make([]byte, n)
		}
	}
	type started struct {
		c         *Collective
		name      string
		dst, want []byte
	}
	var open []started
	finish := func() error {
		for _, s := range open {
			if err := s.c.WaitContext(ctx); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			if string(s.dst) != string(s.want) {
				return fmt.Errorf("%s: wrong result", s.name)
			}
			if err := s.c.Close(); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
		open = nil
		return nil
	}
	for i := range list {
		c := &list[i]
		o, dst, want := operation(c, g.Rank(), alloc(i))
		if i%2 == 0 {
			for range 2 {
				if err := g.Run(ctx, o); err != nil {
					return fmt.Errorf("%v: %w", c, err)
				}
				if c.InPlace && c.Kind.Reduces() { // src is gone
					break
				}
			}
			if string(dst) != string(want) {
				return fmt.Errorf("%v: wrong result", c)
			}
			continue
		}
		d, err := g.Declare(o)
		if err != nil {
			return fmt.Errorf("%v: %w", c, err)
		}
		if err := d.Start(); err != nil {
			return fmt.Errorf("%v: %w", c, err)
		}
		open = append(open, started{d, c.String(), dst, want})
		if len(open) == 3 {
			if err := finish(); err != nil {
				return err
			}
		}
	}
	return finish()
}

// TestCollectivesMixedMemory: every collective gives what a serial computation does if some memory is of Alloc and
// some of the heap: that of one rank, or of all others, what it gives, where it gets its result, or both.
func TestCollectivesMixedMemory(t *testing.T) {
	const size, count = 3, 3000
	groups := worlds(t, size, WithProviders("shm"))
	mixed := func(c *colltest.Reference, rank int, heap func(out bool) bool, declared bool) (err error) {
		g := groups[rank]
		out := false
		var memories []*Memory
		defer func() {
			for _, m := range memories {
				err = errors.Join(err, m.Close())
			}
		}()
		o, dst, want := operation(c, rank, func(n int) []byte {
			defer func() { out = true }()
			if n == 0 || heap(out) {
				return make([]byte, n)
			}
			m, e := g.node.Alloc(n)
			if err = errors.Join(err, e); e != nil {
				return make([]byte, n)
			}
			memories = append(memories, m)
			return m.Bytes()
		})
		if declared {
			d, e := g.Declare(o)
			if e != nil {
				return e
			}
			err = errors.Join(err, d.Start(), d.WaitContext(within(t)), d.Close())
		} else {
			err = errors.Join(err, g.Run(within(t), o))
		}
		if err == nil && string(dst) != string(want) {
			err = errors.New("wrong result")
		}
		return err
	}
	for kind := coll.Broadcast; kind <= coll.Alltoall; kind++ {
		for _, uneven := range []bool{false, true} {
			c := colltest.Reference{Kind: kind, Seed: uint64(kind), Size: size, Root: 1, Count: count, Ordered: true}
			switch {
			case !uneven:
			case kind == coll.Alltoall:
				c.Between = func(from, to int) int { return count / (1 + (from+2*to)%size) }
			case kind == coll.Gather, kind == coll.Allgather, kind == coll.Scatter, kind == coll.ReduceScatter:
				c.Counts = []int{count, 5, count / 2}
			default:
				continue
			}
			for odd := range 2 { // the root is 1
				for _, others := range []bool{false, true} {
					for parts := 1; parts <= 3; parts++ {
						heap := func(rank int, out bool) bool {
							part := 1
							if out {
								part = 2
							}
							return (rank == odd) != others && parts&part != 0
						}
						each(t, size, func(rank int) error {
							for _, declared := range []bool{false, true} {
								if err := mixed(&c, rank, func(out bool) bool { return heap(rank, out) }, declared); err != nil {
									return fmt.Errorf("%v, heap: parts %b of rank %d, or of the others: %v, declared %v: %w", &c, parts, odd, others, declared, err)
								}
							}
							return nil
						})
					}
				}
			}
		}
	}
}

// Groups of some of the ranks, in another order, several at the same time.
func TestSplit(t *testing.T) {
	need.Full(t)
	groups := worlds(t, 6, WithProviders("shm"), withHosts(func(rank int) int { return rank / 4 }))
	each(t, 6, func(rank int) error {
		ctx := within(t)
		odd := splitOf(t, groups[rank], ctx, rank%2, -rank)
		half := splitOf(t, groups[rank], ctx, min(rank/3, 0)-rank/5, 0) // rank 5 has none
		if (half == nil) != (rank == 5) {
			return fmt.Errorf("rank %d: %v", rank, half)
		}
		if want := []int{4 + rank%2, 2 + rank%2, rank % 2}; !slices.Equal(want, odd.Ranks()) {
			return fmt.Errorf("%v", odd.Ranks())
		}
		var wg sync.WaitGroup
		errs := make([]error, 2)
		for i, g := range []*Group{odd, half} {
			if g == nil {
				continue
			}
			wg.Go(func() { errs[i] = runTrials(ctx, g, trials(uint64(i), g.Size(), 30, 2049)) })
		}
		wg.Wait()
		if half != nil {
			errs = append(errs, half.Close())
		}
		return errors.Join(append(errs, odd.Close(), odd.Close())...)
	})
}

// A member that calls something else: all members get an error, and those that read the odd
// one's call say what differs.
func TestMismatch(t *testing.T) {
	t.Parallel() // it waits most of the time
	need.Full(t) // TestOnlyTests has one such call
	for _, place := range placements {
		t.Run(place.name, func(t *testing.T) {
			switch place.name {
			case "in turn", "uneven":
				need.Long(t)
			}
			const size = 4
			// the rank that notices it is here
			either := func(what, a, b string) string {
				if what == "collective" {
					return fmt.Sprintf("rank [0-3] called %[1]s, rank 1 called %[2]s|rank 1 called %[2]s, rank [0-3] called %[1]s", a, b)
				}
				return fmt.Sprintf("%[1]s: (rank [0-3] has %[2]s, rank 1 has %[3]s|rank 1 has %[3]s, rank [0-3] has %[2]s)", what, a, b)
			}
			usual := func(b []float64) Operation { return Allreduce(Sum, b[:4], b[4:8]) }
			for i, c := range []struct {
				usual, odd func(b []float64) Operation // of all, but rank 1
				says       string
			}{
				{usual, func(b []float64) Operation { return Allreduce(Sum, b[:3], b[4:7]) }, "rank [0-3] passed (32 bytes, rank 1 passed 24|24 bytes, rank [0-3] passed 32)"},
				{usual, func(b []float64) Operation { return Allreduce(Max, b[:4], b[4:8]) }, either("operation", "sum", "max")},
				{usual, func(b []float64) Operation { return Allgather(b[:4], b[4:5]) }, either("collective", "allreduce", "allgather")},
				{usual, func(b []float64) Operation { return Barrier() }, either("collective", "allreduce", "barrier")},
				{usual, func(b []float64) Operation { return Allreduce(Sum, Floats(b[:4]), Floats(b[4:8])) }, either("type", "float64", "int64")},
				{func(b []float64) Operation { return Broadcast(b[:1], 0) }, func(b []float64) Operation { return Broadcast(b[:1], 1) }, "root: "},
				{func(b []float64) Operation { return Broadcast(b[:2000], 0) }, func(b []float64) Operation { return Broadcast(b[:2000], 1) }, "root: "},
				{func(b []float64) Operation { return Broadcast(b, 0) }, func(b []float64) Operation { return Broadcast(b, 1) }, "root: "},
				{func(b []float64) Operation { return Scatter(b[:1], b[4:8], 0) }, func(b []float64) Operation { return Scatter(b[:1], b[4:8], 1) }, "root: "},
				{func(b []float64) Operation { return Gather(b[4:8], b[:1], 0) }, func(b []float64) Operation { return Gather(b[4:8], b[:1], 1) }, "root: "},
				{func(b []float64) Operation { return Reduce(Sum, b[:4], b[4:8], 0) }, func(b []float64) Operation { return Reduce(Sum, b[:4], b[4:8], 1) }, "root: "},
			} {
				groups := worlds(t, size, WithProviders("shm"), withHosts(place.hosts))
				errs := make([]error, size)
				var wg sync.WaitGroup
				for rank, g := range groups {
					wg.Go(func() {
						b := make([]float64, 20_000)
						o := c.usual(b)
						if rank == 1 {
							o = c.odd(b)
						}
						// A rank that has been through already learns of it in the next, or, if no
						// rank waits for it in that, in the barrier.
						for _, o := range []Operation{o, o, o, Barrier(), Barrier()} {
							if errs[rank] = g.Run(within(t), o); errs[rank] != nil {
								return
							}
						}
					})
				}
				wg.Wait()
				if place.name == "one host" { // else the lengths of messages may be all that is known
					require.Regexp(t, c.says, errors.Join(errs...).Error(), "case %d", i)
				}
				for rank, err := range errs {
					require.ErrorIs(t, err, ErrMismatch, "case %d, rank %d", i, rank)
					require.NotContains(t, err.Error(), fmt.Sprintf(" to rank %d:", rank), "itself")
					require.NotContains(t, err.Error(), anyCollective+": ", "the call that it ended has a name")
					require.Error(t, groups[rank].Run(within(t), Barrier()), "the group is of no use any more")
				}
			}
		})
	}
}

// TestMismatchNeverMeets: members that wait for each other in different collectives hear that, however
// they wait.
func TestMismatchNeverMeets(t *testing.T) {
	t.Parallel() // it waits most of the time
	need.Full(t)
	for _, how := range []string{"", "spin", "yield", "sleep"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			groups := worlds(t, 2, WithProviders("shm"), WithWait(how), withHosts(func(rank int) int { return rank }))
			errs := make([]error, 2)
			var wg sync.WaitGroup
			for rank, g := range groups {
				wg.Go(func() { errs[rank] = g.Run(within(t), Broadcast(make([]byte, 8), 1-rank)) })
			}
			wg.Wait()
			for _, err := range errs {
				require.ErrorIs(t, err, ErrMismatch)
			}
		})
	}
}

// Floats is b as other numbers of the same length.
func Floats(b []float64) []int64 {
	list := make([]int64, len(b))
	for i, v := range b {
		list[i] = int64(v)
	}
	return list
}

// Two goroutines in one group: an error, and nothing else happens.
func TestTwoGoroutines(t *testing.T) {
	groups := worlds(t, 2, WithProviders("shm"))
	ctx, cancel := context.WithCancel(within(t))
	first := make(chan error)
	go func() {
		err := ErrActive
		for errors.Is(err, ErrActive) { // while the other looks
			err = groups[0].Run(ctx, Barrier())
		}
		first <- err
	}()
	var err error
	for err == nil {
		if groups[0].tryEnter() { // not in it yet
			groups[0].exit()
			continue
		}
		err = groups[0].Run(ctx, Barrier())
	}
	require.ErrorIs(t, err, ErrActive)
	require.NoError(t, groups[1].Run(ctx, Barrier()))
	require.NoError(t, <-first)
	cancel()
}

// A member that dies or leaves in the middle: every other member gets an error that names
// it.
func TestMemberGone(t *testing.T) {
	for _, place := range placements {
		t.Run(place.name, func(t *testing.T) {
			switch place.name {
			case "in turn", "uneven":
				need.Long(t)
			case "one host", "each its own":
				need.Full(t)
			}
			const size = 4
			groups := worlds(t, size, WithProviders("shm"), withHosts(place.hosts))
			each(t, size, func(rank int) error { return groups[rank].Run(within(t), Barrier()) })
			each(t, size, func(rank int) error {
				if rank == 2 {
					return groups[2].node.Close()
				}
				b := make([]float64, 10)
				for {
					err := groups[rank].Run(within(t), Allreduce(Sum, b, b))
					if err == nil {
						continue
					}
					if e := (*Error)(nil); !errors.As(err, &e) || e.Rank != 2 || !errors.Is(err, ErrPeerLeft) {
						return fmt.Errorf("rank %d: %w", rank, err)
					}
					return nil
				}
			})
		})
	}
}

// A member that leaves after a fault has told the others of it, including one to which it was
// still connecting.
func TestFaultAndLeave(t *testing.T) {
	apart(t, func(t *testing.T, provider string) {
		groups := worlds(t, 3, WithProviders(provider), withHosts(func(rank int) int { return rank }))
		groups[0].failNow(&Error{Op: "barrier", Rank: 1, Stream: -1, Err: ErrPeerDied})
		require.NoError(t, groups[0].node.Close())
		err := groups[2].Run(within(t), Barrier())
		requireError(t, err, ErrPeerDied, 1)
	})
}

// A deadline ends a call, and the group with it, everywhere.
func TestCollectiveDeadline(t *testing.T) {
	groups := worlds(t, 3, WithProviders("shm"), withHosts(func(rank int) int { return rank / 2 }))
	ctx, cancel := context.WithTimeout(within(t), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, groups[0].Run(ctx, Barrier()), ErrTimeout)
	for _, g := range groups {
		require.ErrorIs(t, g.Run(within(t), Barrier()), ErrTimeout)
	}
}

// A report says which collective is waited in.
func TestReportCollective(t *testing.T) {
	groups := worlds(t, 2, WithProviders("shm"))
	over := make(chan error)
	go func() { over <- groups[0].Run(within(t), Barrier()) }()
	eventually(t, func() bool {
		var out lockedBuffer
		require.NoError(t, groups[0].node.Report(&out))
		return strings.Contains(out.String(), "barrier of a group of 2, call 1: waits for members")
	})
	require.NoError(t, groups[1].Run(within(t), Barrier()))
	require.NoError(t, <-over)
	var out lockedBuffer
	require.NoError(t, groups[0].node.Report(&out))
	require.NotContains(t, out.String(), "barrier")
}

// What an operation says of itself that cannot be.
func TestInvalidOperations(t *testing.T) {
	g := worlds(t, 1)[0]
	b := make([]float64, 8)
	for name, o := range map[string]Operation{
		"root":              Broadcast(b, 1),
		"negative root":     Reduce(Sum, b, b, -1),
		"lengths":           Allreduce(Sum, b[:3], b[4:]),
		"overlap":           Allreduce(Sum, b[:4], b[2:6]),
		"alltoall in place": Alltoall(b, b),
		"gather":            Gather(b, b[:3], 0),
		"counts":            Allgatherv(b, []int{1, 2}, b[:1]),
		"negative counts":   Allgatherv(b, []int{-1}, b[:1]),
		"bits of floats":    Allreduce(And, b, b),
		"bytes":             AllreduceBytes(Of[float64](Sum), Bytes(b)[:7], Bytes(b)[:7]),
		"pointers":          Broadcast([]*int{nil}, 0),
		"user":              AllreduceBytes(UserReduction(0, true, colltest.Affine), nil, nil),
	} {
		require.ErrorIs(t, g.Run(within(t), o), ErrInvalid, name)
		_, err := g.Declare(o)
		require.ErrorIs(t, err, ErrInvalid, name)
	}
	require.NoError(t, g.Run(within(t), Allreduce(Sum, b, b)))
}

// Closing a group, or its node, ends what waits in it; the others learn that the rank
// has left.
func TestCloseInside(t *testing.T) {
	for _, place := range placements[:2] {
		for _, whole := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, node %v", place.name, whole), func(t *testing.T) {
				groups := worlds(t, 2, WithProviders("shm"), withHosts(place.hosts))
				each(t, 2, func(rank int) error { return groups[rank].Run(within(t), Barrier()) })
				g := groups[0]
				inside := make(chan error)
				started := make(chan struct{})
				go func() {
					c, err := g.Declare(Barrier())
					if err == nil {
						err = c.Start()
					}
					close(started)
					if err == nil {
						err = c.WaitContext(within(t))
					}
					inside <- err
				}()
				<-started
				if whole {
					require.NoError(t, g.node.Close())
				} else {
					require.NoError(t, g.Close())
				}
				require.ErrorIs(t, <-inside, ErrClosed)
				require.ErrorIs(t, g.Run(within(t), Barrier()), ErrClosed)
				err := groups[1].Run(within(t), Barrier()) // of which the other has done its part
				if err == nil {
					err = groups[1].Run(within(t), Barrier())
				}
				require.ErrorIs(t, err, ErrPeerLeft)
				require.NoError(t, groups[1].Close())
			})
		}
	}
}

// A member that waits for one that has closed the idle group gets an error.
func TestCloseIdle(t *testing.T) {
	t.Parallel() // it waits most of the time
	for _, place := range placements[:2] {
		t.Run(place.name, func(t *testing.T) {
			t.Parallel()
			groups := worlds(t, 3, WithProviders("shm"), withHosts(place.hosts))
			require.NoError(t, groups[2].Close())
			each(t, 2, func(rank int) error {
				err := groups[rank].Run(within(t), Barrier())
				if e := (*Error)(nil); !errors.As(err, &e) || !errors.Is(err, ErrPeerLeft) || e.Rank != 2 {
					return fmt.Errorf("rank %d: %w", rank, err)
				}
				return nil
			})
		})
	}
}

// Elements of the program's of any size are never cut, wherever their memory is.
func TestUserElements(t *testing.T) {
	groups := worlds(t, 3, WithProviders("shm"))
	for _, size := range []int{3, 12, 24, 1000, 5000} {
		whole := func(dst, a, b []byte) { // a permutation of bytes within an element, and a sum
			for i := 0; i < len(dst); i += size {
				var e [5000]byte
				for k := range size {
					e[k] = a[i+k] + b[i+k]
				}
				copy(dst[i:], e[:size])
				if len(dst)%size != 0 {
					panic("an element was cut")
				}
			}
		}
		n := 100_000 / size * size
		each(t, 3, func(rank int) error {
			g := groups[rank]
			m := newMemory(t, g.node, 2*n)
			for _, mem := range [][]byte{m.Bytes(), make([]byte, 2*n)} {
				src, dst := mem[:n], mem[n:2*n]
				copy(src, given(5, rank, n))
				want := given(5, 0, n)
				for i := 1; i < 3; i++ {
					whole(want, want, given(5, i, n))
				}
				if err := g.Run(within(t), AllreduceBytes(UserReduction(size, true, whole), dst, src)); err != nil {
					return err
				}
				if string(want) != string(dst) {
					return fmt.Errorf("elements of %d bytes: wrong result", size)
				}
			}
			return m.Close()
		})
	}
}

// Groups that are split at the same time, in different orders, do not get in each
// other's way.
func TestConcurrentSplits(t *testing.T) {
	need.Full(t)
	groups := worlds(t, 3, WithProviders("shm"), withHosts(func(rank int) int { return rank }))
	each(t, 3, func(rank int) error {
		ctx := within(t)
		a := splitOf(t, groups[rank], ctx, 0, 0)
		b := splitOf(t, groups[rank], ctx, 0, 0)
		var wg sync.WaitGroup
		errs := make([]error, 2)
		var split [2]*Group
		for i, g := range []*Group{a, b} {
			wg.Go(func() {
				if split[i], errs[i] = g.Split(ctx, 0, 0); errs[i] == nil {
					errs[i] = runTrials(ctx, split[i], trials(uint64(i), 3, 30, 2049))
				}
			})
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
		if split[0].stream == split[1].stream {
			return fmt.Errorf("both have stream %d", split[0].stream)
		}
		return nil
	})
}

// A member that only tests also learns of a member that is gone, and of one that calls something
// else.
func TestOnlyTests(t *testing.T) {
	for _, place := range placements[:2] {
		for name, other := range map[string]func(g *Group) error{
			"left": func(g *Group) error { return g.node.Close() },
			"mismatch": func(g *Group) error {
				_ = g.Run(within(t), Broadcast([]byte{1}, 1))
				if err := g.Close(); err != nil && !errors.Is(err, ErrMismatch) {
					return err
				}
				return nil
			},
		} {
			t.Run(place.name+", "+name, func(t *testing.T) {
				groups := worlds(t, 2, WithProviders("shm"), withHosts(place.hosts))
				each(t, 2, func(rank int) error { return groups[rank].Run(within(t), Barrier()) })
				each(t, 2, func(rank int) error {
					if rank == 1 {
						return other(groups[1])
					}
					c, err := groups[0].Declare(Allreduce(Sum, make([]float64, 3), make([]float64, 3)))
					if err != nil {
						return err
					}
					if err = c.Start(); err != nil {
						return err
					}
					for ctx := within(t); ctx.Err() == nil; {
						if done, err := c.Test(); done {
							if errors.Is(err, ErrPeerLeft) || errors.Is(err, ErrMismatch) {
								return nil
							}
							return fmt.Errorf("%w", err)
						}
					}
					return errors.New("never over")
				})
			})
		}
	}
}

// A group that one member closes long after the others, which may have put something else where
// their segments were, is closed at once; and its segments are freed.
func TestCloseGroupLate(t *testing.T) {
	worlds := worlds(t, 2, WithProviders("shm"), WithPeerTimeout(time.Hour))
	memories := func() (n int) {
		for _, w := range worlds {
			n += w.node.memories.Len()
		}
		return n
	}
	before := memories()
	for range 3 {
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			each(t, 2, func(rank int) error {
				ctx := within(t)
				split := func() *Group {
					g, err := worlds[rank].Split(ctx, 0, 0)
					require.NoError(t, err)
					return g
				}
				first := split()
				err := first.Run(ctx, Barrier())
				if rank == 0 {
					err = errors.Join(err, first.Close())
				}
				second := split()
				if rank == 1 {
					err = errors.Join(err, first.Close())
				}
				return errors.Join(err, second.Run(ctx, Barrier()), second.Close())
			})
		}()
		closes(t, ended)
	}
	for _, w := range worlds {
		require.NoError(t, w.node.freeSegments())
	}
	require.Equal(t, before, memories())
}

// What no collective has shown, because none follows, the end of the group shows.
func TestMismatchAtClose(t *testing.T) {
	worlds := worlds(t, 3, WithProviders("shm"))
	errs := make([]error, 3)
	each(t, 3, func(rank int) error {
		g := splitOf(t, worlds[rank], within(t), 0, 0)
		root := 0
		if rank == 1 {
			root = 1
		}
		if err := g.Run(within(t), Broadcast(make([]float64, 1), root)); err != nil {
			return err
		}
		errs[rank] = g.Close()
		return nil
	})
	for rank, err := range errs {
		require.ErrorIs(t, err, ErrMismatch, "rank %d", rank)
		require.Regexp(t, "^channel: close group to rank [01]: collective mismatch: the call before, bcast: root: rank [0-9] has [01], rank [0-9] has [01]$", err.Error())
	}
}
