package impi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/coll/colltest"
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

// trial is a collective with what every member gives.
type trial struct{ colltest.Reference }

// newTrial makes the blocks of members differ if they are to be uneven.
func newTrial(r colltest.Reference, uneven bool) *trial {
	if uneven {
		r.Between = func(from, to int) int { return (from*3 + to*5 + int(r.Seed)) % 4 * r.Count }
		for i := range r.Size {
			r.Counts = append(r.Counts, (i*5+int(r.Seed))%4*r.Count)
		}
	}
	// The others are not done in place.
	r.InPlace = r.InPlace && r.Kind.Reduces() && r.Kind != coll.ReduceScatter
	return &trial{r}
}

// operation returns the operation of a member, and where its result comes.
func (c *trial) operation(me int) (o channel.Operation, dst []byte) {
	combine := channel.Of[uint32](channel.Sum)
	if c.Ordered {
		combine = channel.UserReduction(colltest.Elem, false, colltest.Affine)
	}
	src, dst := c.Memory(me, func(n int) []byte { return make([]byte, n) })
	counts, uneven := scaled(c.Counts), c.Counts != nil
	switch c.Kind {
	case coll.Broadcast:
		o = channel.Broadcast(dst, c.Root)
	case coll.Reduce:
		if me != c.Root {
			dst = make([]byte, len(src))
		}
		o = channel.ReduceBytes(combine, dst, src, c.Root)
	case coll.Allreduce:
		o = channel.AllreduceBytes(combine, dst, src)
	case coll.Scan:
		o = channel.ScanBytes(combine, dst, src)
	case coll.Exscan:
		o = channel.ExscanBytes(combine, dst, src)
	case coll.ReduceScatter:
		list := c.Counts
		if !c.Ordered {
			list = scaled(c.Counts)
			for i := range list {
				list[i] /= 4
			}
		}
		o = channel.ReduceScatterBytes(combine, dst, src, list)
	case coll.Gather:
		if o = channel.Gather(dst, src, c.Root); uneven {
			o = channel.Gatherv(dst, counts, src, c.Root)
		}
	case coll.Allgather:
		if o = channel.Allgather(dst, src); uneven {
			o = channel.Allgatherv(dst, counts, src)
		}
	case coll.Scatter:
		if o = channel.Scatter(dst, src, c.Root); uneven {
			o = channel.Scatterv(dst, src, counts, c.Root)
		}
	case coll.Alltoall:
		if o = channel.Alltoall(dst, src); uneven {
			give, get := c.Pairs(me)
			o = channel.Alltoallv(dst, scaled(get), src, scaled(give))
		}
	default:
		o = channel.Barrier()
	}
	return o, dst
}

// scaled are counts of elements in bytes.
func scaled(counts []int) []int {
	list := slices.Clone(counts)
	for i := range list {
		list[i] *= colltest.Elem
	}
	return list
}

func (c *trial) run(t testing.TB, comms []*Comm) {
	t.Helper()
	ctx := within(t)
	dsts := make([][]byte, len(comms))
	errs := together(comms, func(m *Comm) error {
		var o channel.Operation
		o, dsts[m.Rank()] = c.operation(m.Rank())
		return m.Run(ctx, o)
	})
	for i, want := range c.Wanted() {
		require.NoError(t, errs[i], "rank %d, %v", i, c)
		if want != nil && !bytes.Equal(dsts[i], want) {
			require.Fail(t, "wrong result", "rank %d, %v", i, c)
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
							c := newTrial(colltest.Reference{Kind: kind, Size: len(w), Root: root, Count: n, Seed: uint64(seed + root), Ordered: variant&1 != 0, InPlace: variant&2 != 0}, variant&1 != 0)
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
	rounds := need.InLong(10, 20)
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
				for { // a member that only sends is done before any member has noticed the mismatch
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

// TestMemberLost: all other members name a member that has died or left, whichever of them depend
// on it.
func TestMemberLost(t *testing.T) {
	for _, size := range []int{3, 6} {
		for _, leaves := range []bool{true, false} {
			t.Run(fmt.Sprintf("%d, leaves %v", size, leaves), func(t *testing.T) {
				jobs := join(t, place{"", size, 1, Config{Providers: []string{}}})
				const lost = 1
				t.Cleanup(func() {
					closeAll(t, slices.Delete(slices.Clone(jobs), lost, lost+1))
					jobs[lost].Close(context.WithoutCancel(t.Context())) // a killed one has no peer to say goodbye to
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
		o := [2]channel.Operation{ops()[i], ops()[i]}
		count := func() float64 { // what both do
			done := make(chan error, 1)
			go func() {
				var err error
				for range runs + 1 {
					err = errors.Join(err, w[1].Run(ctx, o[1]))
				}
				done <- err
			}()
			var err error
			n := testing.AllocsPerRun(runs, func() { err = errors.Join(err, w[0].Run(ctx, o[0])) })
			require.NoError(t, errors.Join(err, <-done))
			return n
		}
		// Where a call takes long, what goes on beside it adds to a count.
		n := count()
		for i := 0; i < 10 && n >= 1; i++ {
			n = min(n, count())
		}
		require.Less(t, n, 1.0, "operation %d", i)
	}
}
