package impi

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/impi/packet"
	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/coll/colltest"
	"github.com/sluice-hpc/sluice/internal/test/need"
)

// byProtocol makes a job with the collectives of jobs with foreign processes.
func byProtocol(t testing.TB, clients, processes int, maxLinear int32) (jobs []*Job, w []*Comm) {
	t.Helper()
	jobs = join(t, place{"", clients, processes, Config{Providers: []string{}, MaxLinear: maxLinear}})
	t.Cleanup(func() { closeAll(t, jobs) })
	for _, j := range jobs {
		j.followProtocol()
		w = append(w, j.Worlds()...)
	}
	return jobs, w
}

func TestProtocolCollectives(t *testing.T) {
	type shape struct {
		clients, processes int
		maxLinear          int32
		short              bool // with -short, too
	}
	// Masters in a line and in a tree, with others below them and without.
	shapes := []shape{{1, 1, 0, true}, {1, 3, 0, true}, {2, 1, 0, false}, {2, 3, 0, true}, {5, 1, 0, false}, {3, 2, 1, false}}
	if need.WantLong() {
		shapes = append(shapes, shape{3, 2, 0, false}, shape{4, 1, 0, false}, shape{6, 2, 0, false}, shape{7, 1, 7, false}, shape{9, 1, 0, false})
	}
	for _, s := range shapes {
		t.Run(fmt.Sprintf("%d×%d, linear up to %d", s.clients, s.processes, s.maxLinear), func(t *testing.T) {
			if !s.short {
				need.Full(t)
			}
			_, w := byProtocol(t, s.clients, s.processes, s.maxLinear)
			for _, kind := range []coll.Kind{coll.Barrier, coll.Broadcast, coll.Reduce, coll.Allreduce} {
				for root := range len(w) {
					if root > 0 && !kind.Rooted() {
						break
					}
					if root > 1 && root < len(w)-1 && !need.WantLong() {
						continue
					}
					for i, n := range []int{0, 1, 127, 128, 129, 9000} { // XSIZE is 128 elements, a packet 8192
						if n == 1 && !need.WantLong() {
							continue
						}
						for variant := range 4 {
							if n <= 1000 && kind.Reduces() && variant != (i+root)%4 && !need.WantLong() {
								continue
							}
							if n > 1000 && (root > 0 || variant > 1) || variant > 0 && !kind.Reduces() {
								continue
							}
							c := newTrial(colltest.Reference{Kind: kind, Size: len(w), Root: root, Count: n, Seed: uint64(n + root), Ordered: variant&1 != 0, InPlace: variant&2 != 0}, false)
							c.run(t, w)
						}
					}
				}
			}
			if len(w) > 1 {
				refuses(t, w)
			}
			all(t, w, func(c *Comm) error { return c.Run(within(t), channel.Barrier()) })
		})
	}
}

// refuses: what LAM/MPI does not have is refused, everywhere, and nothing has been done.
func refuses(t *testing.T, w []*Comm) {
	t.Helper()
	n := len(w)
	one, all, other, counts := []int64{1}, make([]int64, n), make([]int64, n), slices.Repeat([]int{1}, n)
	for i, o := range []channel.Operation{
		channel.Gather(all, one, 0), channel.Gatherv(all, counts, one, 0), channel.Scatter(one, all, 0), channel.Scatterv(one, all, counts, 0),
		channel.Allgather(all, one), channel.Allgatherv(all, counts, one), channel.Alltoall(all, other), channel.Alltoallv(all, counts, other, counts),
		channel.ReduceScatter(channel.Sum, one, all, counts), channel.Scan(channel.Sum, one, one), channel.Exscan(channel.Sum, one, one),
	} {
		for rank, c := range w {
			var e *Error
			err := c.Run(within(t), o)
			require.ErrorAs(t, err, &e, "operation %d, rank %d", i, rank)
			require.ErrorIs(t, err, ErrForeign, "operation %d, rank %d", i, rank)
		}
	}
}

// TestProtocolMemberLost: all processes are told of a lost one, also those that have to
// do with their master alone.
func TestProtocolMemberLost(t *testing.T) {
	jobs := join(t, place{"", 3, 2, Config{Providers: []string{}}})
	const lost = 1
	var others []*Comm
	for i, j := range jobs {
		j.followProtocol()
		if i != lost {
			others = append(others, j.Worlds()...)
		}
	}
	ctx := within(t)
	killed := make(chan struct{})
	go func() {
		defer close(killed)
		kill(jobs[lost])
	}()
	for i, err := range together(others, func(c *Comm) error {
		for {
			x := []int64{1}
			if err := c.Run(ctx, channel.Allreduce(channel.Sum, x, x)); err != nil {
				return err
			}
		}
	}) {
		var e *Error
		require.ErrorAs(t, err, &e, "process %d", i)
		require.ErrorIs(t, err, ErrPeerDied, "process %d", i)
		require.Equal(t, 2, e.Rank, "process %d: %v", i, err) // its master
	}
	<-killed
	closeAll(t, []*Job{jobs[0], jobs[2]})
	require.Error(t, jobs[lost].Close(ctx))
}

// TestReduceAmongMessages: the messages of reductions, which travel among those of the
// users, do not meet wildcards.
func TestReduceAmongMessages(t *testing.T) {
	_, w := byProtocol(t, 2, 1, 0)
	ctx := within(t)
	b := make([]byte, 8)
	q := irecv(t, w[0], b, AnySource, AnyTag)
	all(t, w, func(c *Comm) error {
		x := []int64{int64(c.Rank()) + 1}
		if err := c.Run(ctx, channel.Reduce(channel.Sum, x, x, 0)); err != nil || c.Rank() == 1 {
			return err
		}
		require.Equal(t, []int64{3}, x)
		return nil
	})
	require.NoError(t, w[1].Send(ctx, []byte("for you"), 0, tagReduce))
	require.NoError(t, w[1].Send(ctx, []byte("for all"), 0, 1))
	st := completed(t, q)
	require.Equal(t, Status{Source: 1, Tag: 1, Len: 7}, st)
	nothing(t, w[0], AnySource, AnyTag)
	st = received(t, w[0], b, AnySource, tagReduce)
	require.Equal(t, Status{Source: 1, Tag: tagReduce, Len: 7}, st)
}

// recorder writes down the data packets that go to another host.
type recorder struct {
	carrier
	mu   *sync.Mutex
	list *[]string
}

func (r recorder) data(q *request, t packet.Type, n uint64) {
	r.mu.Lock()
	*r.list = append(*r.list, fmt.Sprintf("%d→%d %v cid %d tag %d: %d", q.comm.p.rank, q.peer, t, q.match.cid, q.tag, q.length))
	r.mu.Unlock()
	r.carrier.data(q, t, n)
}

// TestProtocolPackets compares what masters send with what LAM/MPI 7.1.4 sends and
// waits for (share/ssi/coll/impi): which process sends to which, in which order, in
// which context and with which tag.
func TestProtocolPackets(t *testing.T) {
	need.Full(t)
	buf := func() []byte { return make([]byte, 24) }
	sum := channel.Of[uint32](channel.Sum)
	ordered := channel.UserReduction(colltest.Elem, false, colltest.Affine)
	for _, c := range []struct {
		name      string
		clients   int
		processes int
		op        func() channel.Operation
		want      [][]string // by sender
	}{
		{"barrier, linear", 3, 2, channel.Barrier, [][]string{
			0: {"0→2 DATA cid 1 tag 110: 0", "0→4 DATA cid 1 tag 110: 0"},
			2: {"2→0 DATA cid 1 tag 110: 0"},
			4: {"4→0 DATA cid 1 tag 110: 0"},
			5: nil,
		}},
		{"barrier, tree", 6, 1, channel.Barrier, [][]string{
			0: {"0→1 DATA cid 1 tag 110: 0", "0→2 DATA cid 1 tag 110: 0", "0→4 DATA cid 1 tag 110: 0"},
			1: {"1→0 DATA cid 1 tag 110: 0", "1→3 DATA cid 1 tag 110: 0", "1→5 DATA cid 1 tag 110: 0"},
			2: {"2→0 DATA cid 1 tag 110: 0"},
			3: {"3→1 DATA cid 1 tag 110: 0"},
			4: {"4→0 DATA cid 1 tag 110: 0"},
			5: {"5→1 DATA cid 1 tag 110: 0"},
		}},
		{"bcast, linear, root no master", 3, 2, func() channel.Operation { return channel.Broadcast(buf(), 3) }, [][]string{
			3: {"3→0 DATA cid 1 tag 120: 24", "3→4 DATA cid 1 tag 120: 24"},
			5: nil,
		}},
		{"bcast, tree", 5, 1, func() channel.Operation { return channel.Broadcast(buf(), 2) }, [][]string{
			2: {"2→3 DATA cid 1 tag 120: 24", "2→4 DATA cid 1 tag 120: 24", "2→1 DATA cid 1 tag 120: 24"},
			3: {"3→0 DATA cid 1 tag 120: 24"},
			4: nil,
		}},
		{"reduce, linear", 3, 2, func() channel.Operation { return channel.ReduceBytes(sum, buf(), buf(), 3) }, [][]string{
			0: {"0→3 DATA cid 0 tag 190: 24"},
			4: {"4→3 DATA cid 0 tag 190: 24"},
			5: nil,
		}},
		{"reduce, tree", 5, 1, func() channel.Operation { return channel.ReduceBytes(sum, buf(), buf(), 1) }, [][]string{
			0: {"0→1 DATA cid 0 tag 190: 24"}, // number 4
			2: {"2→1 DATA cid 0 tag 190: 24"}, // 1
			3: {"3→1 DATA cid 0 tag 190: 24"}, // 2
			4: {"4→3 DATA cid 0 tag 190: 24"}, // 3
		}},
		{"reduce in order", 2, 2, func() channel.Operation { return channel.ReduceBytes(ordered, buf(), buf(), 1) }, [][]string{
			2: {"2→1 DATA cid 0 tag 190: 24"},
			3: {"3→1 DATA cid 0 tag 190: 24"},
		}},
		{"allreduce", 2, 1, func() channel.Operation { return channel.AllreduceBytes(sum, buf(), buf()) }, [][]string{
			0: {"0→1 DATA cid 1 tag 120: 24"},
			1: {"1→0 DATA cid 0 tag 190: 24"},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			jobs, w := byProtocol(t, c.clients, c.processes, 0)
			var mu sync.Mutex
			lists := make([][]string, len(jobs))
			for i, j := range jobs {
				j.e.lock.Lock()
				for _, l := range j.e.links {
					if l != nil {
						l.carrier = recorder{l.carrier, &mu, &lists[i]}
					}
				}
				j.e.lock.Unlock()
			}
			all(t, w, func(m *Comm) error { return m.Run(within(t), c.op()) })
			mu.Lock()
			defer mu.Unlock()
			var got []string
			for _, l := range lists {
				got = append(got, l...)
			}
			var want []string
			for _, l := range c.want {
				want = append(want, l...)
			}
			if c.processes > 1 { // processes of a host in any order
				slices.Sort(got)
				slices.Sort(want)
			}
			require.Equal(t, want, got)
		})
	}
}
