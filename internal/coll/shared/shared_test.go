package shared

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/coll/colltest"
	"github.com/sluice-hpc/sluice/internal/layout"
	"github.com/sluice-hpc/sluice/internal/test/need"
)

// heap is members of one process, whose memory is the heap: what they do to each
// other is seen by the race detector.
type heap struct {
	reachable bool
	mu        sync.Mutex
	exported  map[uint64][]byte
	hidden    map[*byte]bool // begins of memory that the others cannot access
	gone      []bool
	late      func(i int) bool // says that a view of member i is not there yet; nil: all are
	teams     []*Team
}

func newHeap(size, flat int, reachable bool) *heap {
	h := &heap{reachable: reachable, exported: map[uint64][]byte{}, hidden: map[*byte]bool{}, gone: make([]bool, size)}
	segments := make([]*Segment, size)
	for i := range segments {
		segments[i] = NewSegment(aligned(SegmentSize(size)), size)
	}
	for i := range size {
		t := NewTeam(h, i, segments)
		t.flat, t.buffer = flat, DataSize
		h.teams = append(h.teams, t)
	}
	return h
}

func aligned(n int) []byte {
	b := make([]byte, n+128)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & 127
	return b[skip : skip+n : skip+n]
}

func (h *heap) Wake() {}

func (h *heap) Mute() {}

func (h *heap) Export(b []byte) (key uint32, addr uint64, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.reachable || h.hidden[unsafe.SliceData(b)] {
		return 0, 0, false
	}
	addr = uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
	h.exported[addr] = b
	return 7, addr, true
}

func (h *heap) View(i int, key uint32, addr uint64, n int) ([]byte, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.late != nil && h.late(i) {
		return nil, ErrLater
	}
	b := h.exported[addr]
	if key != 7 || len(b) < n {
		return nil, fmt.Errorf("no view of %d bytes", n)
	}
	return b[:n:n], nil
}

func (h *heap) Gone(i int) bool { return h.gone[i] }

const elem = colltest.Elem

// job is one collective as all members call it, and what is to come of it.
type job struct {
	calls []Call
	want  [][]byte
}

// serial is a collective whose result a serial computation knows.
func serial(r *rand.Rand, kind coll.Kind, size, n, root int, uneven, inPlace bool) (j job) {
	known := r.IntN(2) == 0 // blocks that differ, by all
	// Members do not scatter in place.
	f := &colltest.Reference{Kind: kind, Size: size, Root: root, Count: n, Ordered: true, Seed: r.Uint64(), InPlace: inPlace && kind != coll.Scatter && kind != coll.ReduceScatter}
	var spans []Span
	if uneven {
		matrix := make([]int, size*size)
		for i := range matrix {
			matrix[i] = r.IntN(2*n + 1)
		}
		f.Counts, f.Between = matrix[:size], func(from, to int) int { return matrix[from*size+to] }
		spans = spread(f.Counts)
	}
	j.want = f.Wanted()
	for me := range size {
		c := Call{Kind: kind, Signature: uint64(kind)<<32 | uint64(n), Root: root, Elem: elem, Combine: colltest.Affine, Block: n * elem}
		c.Src, c.Dst = f.Memory(me, func(n int) []byte { return make([]byte, n) })
		if kind == coll.Exscan && me == 0 {
			j.want[me] = bytes.Clone(c.Dst) // as it was
		}
		switch kind {
		case coll.Barrier:
			c = Call{Kind: kind, Signature: c.Signature, Root: root, Combine: c.Combine}
		case coll.ReduceScatter, coll.Allgather:
			c.Blocks = spans
		case coll.Gather, coll.Scatter:
			c.Uneven = uneven && !known
			if c.Blocks = spans; c.Uneven && me != root {
				c.Blocks = spans[:min(me, 1)] // it does not matter
			}
		case coll.Alltoall:
			if c.Uneven = uneven; uneven {
				give, get := f.Pairs(me)
				c.From, c.Blocks = spread(give), spread(get)
			}
		}
		j.calls = append(j.calls, c)
	}
	return j
}

// private is a job with blocks that differ, of which each member knows its own.
func private(r *rand.Rand, kind coll.Kind, size, n, root int) job {
	for {
		if j := serial(r, kind, size, n, root, true, false); j.calls[0].Uneven {
			return j
		}
	}
}

// spread are the spans of blocks of so many elements, one behind the other.
func spread(counts []int) (list []Span) {
	at := 0
	for _, n := range counts {
		list = append(list, Span{at, n * elem})
		at += n * elem
	}
	return list
}

func (j *job) check(t require.TestingT, name string) {
	for i := range j.calls {
		if j.want[i] != nil {
			require.True(t, bytes.Equal(j.want[i], j.calls[i].Dst), "%s: member %d", name, i)
		}
	}
}

var allKinds = []coll.Kind{coll.Barrier, coll.Broadcast, coll.Reduce, coll.Allreduce, coll.ReduceScatter, coll.Scan, coll.Exscan, coll.Gather, coll.Scatter, coll.Allgather, coll.Alltoall}

// counts are around every size at which something changes.
func counts(size int) []int {
	list := []int{0, 1, Inline / elem, Inline/elem + 1, shareMin / elem, DataSize / elem, DataSize/elem + 1, 3*DataSize/elem + 5, (buffers+2)*DataSize/elem + 1}
	for _, n := range []int{Inline, DataSize, DataSize - lengthSize*size} {
		list = append(list, n/elem/size, n/elem/size+1)
	}
	return list
}

// hide makes some memory of a job inaccessible to the others.
func (h *heap) hide(j *job, hidden func(member int, dst bool) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, c := range j.calls {
		for _, m := range []struct {
			b   []byte
			dst bool
		}{{c.Src, false}, {c.Dst, true}} {
			if len(m.b) > 0 && hidden(i, m.dst) {
				h.hidden[unsafe.SliceData(m.b)] = true
			}
		}
	}
}

// drive moves the members on in any order until all are through.
func (h *heap) drive(r *rand.Rand, ops []*Op) error {
	for left := len(ops); left > 0; {
		i := r.IntN(len(ops))
		if ops[i] == nil {
			continue
		}
		if err := h.teams[i].Advance(); err != nil {
			return fmt.Errorf("member %d: %w", i, err)
		}
		if ops[i].Over() {
			ops[i] = nil
			left--
		}
	}
	return nil
}

// Every collective gives what a serial computation does, whatever the order in which
// the members come to it.
func TestAgainstSerial(t *testing.T) {
	need.NoRace(t, "the members take turns, and are slow")
	r := rand.New(rand.NewPCG(1, 2))
	sizes, times := []int{1, 2, 3, 5, 8, 17}, 1
	switch {
	case testing.Short():
		sizes = []int{2, 5, 17}
	case need.WantLong():
		times = 2
	}
	for _, size := range sizes {
		for _, reachable := range []bool{true, false} {
			for _, flat := range []int{1, Flat} {
				h := newHeap(size, flat, reachable)
				h.late = func(int) bool { return r.IntN(3) == 0 }
				for _, kind := range allKinds {
					for _, n := range counts(size) {
						if size*n > 2*DataSize && (testing.Short() || size > 8 && !need.WantLong()) {
							continue
						}
						for range times {
							uneven, inPlace, root := r.IntN(3) == 0, r.IntN(2) == 0, r.IntN(size)
							name := fmt.Sprintf("%v of %d elements, %d members, reachable %v, flat %d, root %d, uneven %v, in place %v", kind, n, size, reachable, flat, root, uneven, inPlace)
							j := serial(r, kind, size, n, root, uneven, inPlace)
							clear(h.hidden)
							switch one := r.IntN(2) == 0; r.IntN(3) { // and with some memory that the others cannot access
							case 0:
								h.hide(&j, func(_ int, dst bool) bool { return dst == one })
								name += fmt.Sprintf(", hidden: all dst %v", one)
							case 1:
								h.hide(&j, func(int, bool) bool { return r.IntN(2*size) == 0 })
								name += ", some hidden"
							}
							ops := make([]*Op, size)
							for i := range ops {
								require.True(t, Can(kind, elem, uneven, size), name)
								ops[i] = new(Op)
								h.teams[i].Enqueue(ops[i], &j.calls[i])
								ops[i].Release()
							}
							require.NoError(t, h.drive(r, ops), name)
							j.check(t, name)
						}
					}
				}
			}
		}
	}
}

// Each member reduces its share of a long vector: no more bytes than the vector has, among any number of members.
func TestWork(t *testing.T) {
	r := rand.New(rand.NewPCG(71, 72))
	for _, size := range []int{2, 3, 8, 16} {
		for _, reachable := range []bool{true, false} {
			h := newHeap(size, Flat, reachable)
			for _, kind := range []coll.Kind{coll.Reduce, coll.Allreduce, coll.ReduceScatter, coll.Scan, coll.Exscan} {
				n := 9*DataSize/elem + 5
				if kind == coll.ReduceScatter {
					n /= size
				}
				j := serial(r, kind, size, n, 0, false, false)
				reduced, ops := make([]int, size), make([]*Op, size)
				for i := range ops {
					c := &j.calls[i]
					combine := c.Combine
					c.Combine = func(dst, a, b []byte) {
						reduced[i] += len(dst)
						combine(dst, a, b)
					}
					ops[i] = new(Op)
					h.teams[i].Enqueue(ops[i], c)
					ops[i].Release()
				}
				require.NoError(t, h.drive(r, ops))
				j.check(t, kind.String())
				for i, c := range j.calls {
					require.LessOrEqual(t, reduced[i], len(c.Src)+len(c.Src)/50, "%v among %d, reachable %v: member %d", kind, size, reachable, i)
				}
			}
		}
	}
}

// Where the memory of one side is enough, nothing is staged.
func TestWays(t *testing.T) {
	r := rand.New(rand.NewPCG(23, 24))
	const size, root, n = 3, 1, 3 * DataSize / elem
	const ( // what is accessible
		gives = iota
		gets
		both
		atRoot
		atOthers
	)
	uneven := []coll.Kind{coll.Gather, coll.Scatter, coll.Alltoall}
	for at, kind := range append(uneven, allKinds[1:]...) {
		uneven := at < len(uneven)
		want := [...]way{wayPull, wayPush, wayPull, wayStaged, wayStaged}
		switch kind {
		case coll.Broadcast:
			want = [...]way{wayPull, wayStaged, wayPull, wayPull, wayStaged}
		case coll.Scatter:
			want = [...]way{wayPull, wayPush, wayPull, wayPull, wayPush}
		case coll.Gather:
			want = [...]way{wayPull, wayPush, wayPush, wayPush, wayPull}
		case coll.ReduceScatter:
			want = [...]way{wayPull, wayStaged, wayPull, wayStaged, wayStaged}
		case coll.Reduce, coll.Allreduce, coll.Scan, coll.Exscan:
			want = [...]way{wayStaged, wayStaged, wayShares, wayStaged, wayStaged}
		}
		for accessible, way := range want {
			h := newHeap(size, Flat, true)
			j := serial(r, kind, size, n, root, false, false)
			if uneven {
				j = private(r, kind, size, n, root)
			}
			h.hide(&j, func(i int, dst bool) bool {
				switch accessible {
				case gives: // the root of a broadcast gives its dst
					return dst != (kind == coll.Broadcast && i == root)
				case gets:
					return !dst || kind == coll.Broadcast && i == root
				case atRoot:
					return i != root
				case atOthers:
					return i == root
				}
				return false
			})
			ops := make([]*Op, size)
			all := make([]Op, size)
			for i := range ops {
				ops[i] = &all[i]
				h.teams[i].Enqueue(ops[i], &j.calls[i])
				ops[i].Release()
			}
			name := fmt.Sprintf("%v, uneven %v, %d", kind, uneven, accessible)
			require.NoError(t, h.drive(r, ops), name)
			j.check(t, name)
			for i := range all {
				require.Equal(t, way, all[i].way, "%s, member %d", name, i)
			}
		}
	}
}

// A member that cannot access all memory yet which it needs moves nothing: it would do so again.
func TestLater(t *testing.T) {
	r := rand.New(rand.NewPCG(25, 26))
	const size, missing = 4, 2
	moves := map[way]int{}
	uneven := []coll.Kind{coll.Gather, coll.Scatter, coll.Alltoall}
	for at, kind := range append(uneven, allKinds[1:]...) {
		for _, dst := range []bool{false, true} {
			h := newHeap(size, Flat, true)
			j := serial(r, kind, size, 3*DataSize/elem, 0, false, false)
			if at < len(uneven) {
				j = private(r, kind, size, 3*DataSize/elem, 0)
			}
			h.hide(&j, func(_ int, of bool) bool { return of == dst && !kind.Reduces() })
			all, ops := make([]Op, size), make([]*Op, size)
			for i := range ops {
				ops[i] = &all[i]
				h.teams[i].Enqueue(ops[i], &j.calls[i])
				ops[i].Release()
				require.NoError(t, h.teams[i].Advance()) // the others see it
			}
			memory := func() (b []byte) {
				for _, c := range j.calls {
					b = append(append(b, c.Src...), c.Dst...)
				}
				return b
			}
			for i, team := range h.teams {
				later, before := false, memory()
				h.late = func(of int) bool {
					later = later || of == missing
					return of == missing
				}
				require.NoError(t, team.Advance())
				if later {
					require.Equal(t, before, memory(), "%v, by member %d, hidden: dst %v", kind, i, dst)
					moves[all[i].way]++
				}
			}
			h.late = nil
			require.NoError(t, h.drive(r, ops))
			j.check(t, kind.String())
		}
	}
	require.Len(t, moves, 3, "in each way of several members")
}

// As many operations as there are slots are under way, begun in either order: what each prepares for the next one
// is not the data of another.
func TestSlots(t *testing.T) {
	r := rand.New(rand.NewPCG(81, 82))
	const size = 2
	for _, kind := range []coll.Kind{coll.Allreduce, coll.Reduce, coll.Allgather, coll.Alltoall} {
		for _, backwards := range []bool{false, true} {
			h := newHeap(size, Flat, true)
			for round := range 3 {
				var jobs [slots]job
				var ops [size][slots]Op
				for k := range jobs {
					jobs[k] = serial(r, kind, size, 2*touchMin/elem, k%size, false, false)
				}
				for i, team := range h.teams {
					for k := range jobs {
						team.Enqueue(&ops[i][k], &jobs[k].calls[i])
					}
					for k := range jobs {
						if backwards {
							k = slots - 1 - k
						}
						ops[i][k].Release()
						require.NoError(t, team.Advance())
					}
				}
				for left := 1; left > 0; {
					left = 0
					for i, team := range h.teams {
						require.NoError(t, team.Advance())
						for k := range jobs {
							if !ops[i][k].Over() {
								left++
							}
						}
					}
				}
				for k := range jobs {
					jobs[k].check(t, fmt.Sprintf("%v %d of round %d, backwards: %v", kind, k, round, backwards))
				}
			}
		}
	}
}

// Elements may be so long that a piece has fewer than there are members, and pieces as long as a
// buffer is.
func TestLargeElements(t *testing.T) {
	r := rand.New(rand.NewPCG(21, 22))
	for _, size := range []int{2, 9} {
		for _, whole := range []bool{false, true} {
			if whole && size > 2 && testing.Short() {
				continue
			}
			for _, kind := range allKinds {
				h := newHeap(size, Flat, false)
				each, n := 128, 128*20
				if whole {
					n = 2*mostBuffer/elem + each
					for i := range h.teams {
						h.teams[i].buffer = bufferSize(size)
					}
				}
				if blockwise(kind) {
					each = 8
				}
				j := serial(r, kind, size, n, size-1, false, r.IntN(2) == 0)
				ops := make([]*Op, size)
				for i := range ops {
					j.calls[i].Elem = each * elem
					ops[i] = new(Op)
					h.teams[i].Enqueue(ops[i], &j.calls[i])
					ops[i].Release()
				}
				name := fmt.Sprintf("%v, %d members, buffers of %d bytes", kind, size, h.teams[0].buffer)
				require.NoError(t, h.drive(r, ops), name)
				j.check(t, name)
			}
		}
	}
}

// Members run as they like, and have several operations under way.
func TestConcurrent(t *testing.T) {
	for _, size := range []int{2, 3, 7, 18} {
		for _, reachable := range []bool{true, false} {
			t.Run(fmt.Sprintf("%d members, reachable %v", size, reachable), func(t *testing.T) {
				r := rand.New(rand.NewPCG(3, uint64(size)))
				h := newHeap(size, Flat, reachable)
				const ahead = 5
				rounds := 3 + 30/size
				switch {
				case testing.Short():
					rounds = max(1, 20/size)
				case need.WantLong():
					rounds = 30
				}
				var jobs []job
				for range rounds * ahead {
					kind, n := allKinds[r.IntN(len(allKinds))], counts(size)[r.IntN(8)]
					jobs = append(jobs, serial(r, kind, size, n, r.IntN(size), r.IntN(3) == 0, r.IntN(2) == 0))
					if dst := r.IntN(2) == 0; r.IntN(3) == 0 {
						h.hide(&jobs[len(jobs)-1], func(_ int, d bool) bool { return d == dst })
					}
				}
				var wg sync.WaitGroup
				for me, team := range h.teams {
					wg.Go(func() {
						for first := 0; first < len(jobs); first += ahead {
							var ops [ahead]Op
							for k := range ops {
								team.Enqueue(&ops[k], &jobs[first+k].calls[me])
								ops[k].Release()
							}
							for k := range ops {
								for !ops[k].Over() {
									if err := team.Advance(); err != nil {
										t.Error(err)
										return
									}
									runtime.Gosched()
								}
							}
						}
						for !team.Quiet() {
							runtime.Gosched()
						}
					})
				}
				wg.Wait()
				for i := range jobs {
					jobs[i].check(t, fmt.Sprintf("job %d, %v", i, jobs[i].calls[0].Kind))
				}
			})
		}
	}
}

// What members have called differently without looking at each other, such as two roots of a
// broadcast, is found in the next call in which they look.
func TestMismatchBefore(t *testing.T) {
	r := rand.New(rand.NewPCG(15, 16))
	for _, size := range []int{3, Flat + 3} {
		for _, kind := range []coll.Kind{coll.Broadcast, coll.Scatter, coll.Gather, coll.Reduce} {
			for _, n := range []int{0, 1, Inline / elem, 100, DataSize / elem / size, DataSize/elem + 1} {
				for _, reachable := range []bool{true, false} {
					name := fmt.Sprintf("%v of %d elements, %d members, reachable %v", kind, n, size, reachable)
					h := newHeap(size, Flat, reachable)
					usual, odd := serial(r, kind, size, n, 0, false, false), serial(r, kind, size, n, 1, false, false)
					barrier := serial(r, coll.Barrier, size, 0, 0, false, false)
					sign := func(c *Call) { c.Signature = uint64(c.Root)<<28 | uint64(kind)<<60 }
					ops := make([][3]Op, size)
					for i, team := range h.teams {
						call := &usual.calls[i]
						if i == 1 {
							call = &odd.calls[i]
						}
						sign(call)
						for k, c := range []*Call{call, &barrier.calls[i], &barrier.calls[i]} {
							team.Enqueue(&ops[i][k], c)
							ops[i][k].Release()
						}
					}
					var found *MismatchError
					for range 10 * size {
						for i, team := range h.teams {
							var m *MismatchError
							if team.Err() != nil {
								continue
							}
							if err := team.Advance(); err != nil {
								require.ErrorAs(t, err, &m, name)
								require.Equal(t, uint64(1), (m.Ours^m.Theirs)>>28, "%s: member %d: %+v", name, i, m)
								found = m
							}
						}
					}
					require.NotNil(t, found, name)
					for i := range ops {
						require.False(t, ops[i][2].Over(), "%s: member %d is through", name, i)
					}
				}
			}
		}
	}
}

// If no call follows, the members say so when they end.
func TestMismatchAtEnd(t *testing.T) {
	r := rand.New(rand.NewPCG(17, 18))
	const size = 3
	for _, calls := range []int{1, 5, lastCalls + 1} {
		h := newHeap(size, Flat, true)
		usual, odd := serial(r, coll.Broadcast, size, 1, 0, false, false), serial(r, coll.Broadcast, size, 1, 1, false, false)
		barrier := serial(r, coll.Barrier, size, 0, 0, false, false)
		run := func(c func(i int) *Call) {
			ops := make([]Op, size)
			for i, team := range h.teams {
				team.Enqueue(&ops[i], c(i))
				ops[i].Release()
			}
			for range 10 * size {
				for _, team := range h.teams {
					require.NoError(t, team.Advance())
				}
			}
			for i := range ops {
				require.True(t, ops[i].Over())
			}
		}
		for range calls - 1 {
			run(func(i int) *Call { return &barrier.calls[i] })
		}
		for _, team := range h.teams {
			require.Nil(t, team.Differ())
		}
		run(func(i int) *Call { // each is content with what it has: two roots send to a third member
			c := &usual.calls[i]
			if i == 1 {
				c = &odd.calls[i]
			}
			c.Signature = uint64(c.Root)<<28 | uint64(coll.Broadcast)<<60
			return c
		})
		lives := h.teams[0].lives
		for i, team := range h.teams { // the memory is no segment any more
			team.lives = make([]uint64, len(lives))
			require.Nil(t, team.Differ())
			team.lives = lives
			m := team.Differ()
			require.NotNil(t, m, "member %d after %d calls", i, calls)
			require.Equal(t, i == 1, m.Member != 1)
			require.Equal(t, 1, m.Before)
			require.Equal(t, uint64(1), (m.Ours^m.Theirs)>>28)
		}
	}
}

// What members call differently is an error that says so, at one of them at least,
// and never a result.
func TestMismatch(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, other := range allKinds {
		for _, kind := range allKinds {
			h := newHeap(3, Flat, true)
			j, odd := serial(r, kind, 3, 4, 0, false, false), serial(r, other, 3, 5, 1, false, false)
			if kind == other {
				continue
			}
			odd.calls[1].Signature = 99
			calls := []Call{j.calls[0], odd.calls[1], j.calls[2]}
			ops := make([]Op, 3)
			for i, team := range h.teams {
				team.Enqueue(&ops[i], &calls[i])
				ops[i].Release()
			}
			var found *MismatchError
			for range 10 {
				for _, team := range h.teams {
					if err := team.Advance(); err != nil {
						require.ErrorAs(t, err, &found)
					}
				}
			}
			reads := false // a member reads a line of the odd one, or the odd one another's
			for i, c := range calls {
				from, to := c.needs(i, 3)
				for k := from; k < to; k++ {
					reads = reads || (k == 1) != (i == 1)
				}
			}
			require.Equal(t, reads, found != nil, "%v against %v", kind, other)
		}
	}
}

// Blocks whose lengths do not match are found where they are wanted.
func TestUnevenMismatch(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	const root = 0
	for _, c := range []struct {
		kind   coll.Kind
		member int  // whose block a member is wrong about
		odd    int  // that member
		hidden bool // the others cannot read what is given
	}{{coll.Gather, 1, 1, false}, {coll.Scatter, 0, 1, false}, {coll.Scatter, 0, 1, true}, {coll.Scatter, 0, 0, true},
		{coll.Alltoall, 0, 1, false}, {coll.Alltoall, 1, 1, false}, {coll.Alltoall, 0, 1, true}, {coll.Alltoall, 1, 1, true}} {
		for _, n := range []int{1, 100, DataSize} {
			for _, reachable := range []bool{true, false} {
				name := fmt.Sprintf("%v of %d elements from member %d to %d, reachable %v, hidden %v", c.kind, n, c.member, c.odd, reachable, c.hidden)
				h := newHeap(3, Flat, reachable)
				j := private(r, c.kind, 3, n, root)
				odd, more := &j.calls[c.odd], make([]byte, elem)
				h.hide(&j, func(_ int, dst bool) bool { return c.hidden && !dst })
				switch c.kind {
				case coll.Gather:
					odd.Src = append(odd.Src, more...)
				case coll.Scatter:
					odd.Dst = append(odd.Dst, more...)
				case coll.Alltoall:
					odd.Blocks[c.member].Len += elem
					odd.Dst = append(odd.Dst, more...)
				}
				all, ops := make([]Op, 3), make([]*Op, 3)
				for i, team := range h.teams {
					ops[i] = &all[i]
					team.Enqueue(ops[i], &j.calls[i])
					ops[i].Release()
				}
				var bad *MismatchError
				require.ErrorAs(t, h.drive(r, ops), &bad, name)
				pushed := all[0].way == wayPush
				with, theirs := c.member, false // the odd length is the other's
				switch {
				case c.kind == coll.Gather && bad.Member == root: // which expects less
					require.True(t, reachable && n == DataSize, name)
					with = root
				case c.kind == coll.Gather || pushed:
					with, theirs = c.odd, true
				}
				if c.kind != coll.Gather { // the root may fail before it chooses
					require.Equal(t, c.hidden && reachable && n == DataSize, pushed, name)
				}
				require.Equal(t, with, bad.Member, name)
				if theirs {
					bad.Len, bad.Other = bad.Other, bad.Len
				}
				require.Equal(t, elem, bad.Len-bad.Other, name)
			}
		}
	}
}

// Members whose blocks fit into a slot give them there, and the others in their memory; where none fit, all
// may write to the memory of the others.
func TestUnevenMixed(t *testing.T) {
	r := rand.New(rand.NewPCG(29, 30))
	const size = 3
	const most = (DataSize/size - lengthSize) / elem // elements of a block in a slot
	for _, push := range []bool{false, true} {
		for _, n := range [][size]int{{most, most, most}, {most, most + 1, most}, {most + 1, most, 3 * most}, {most, 0, 2 * most}, {0, 0, most + 1}, {2 * most, most + 1, 3 * most}} {
			name := fmt.Sprintf("%v, push %v", n, push)
			f := &colltest.Reference{Kind: coll.Alltoall, Size: size, Seed: r.Uint64(), Between: func(from, to int) int {
				if from != to {
					return n[from]
				}
				return from
			}}
			h := newHeap(size, Flat, true)
			j := job{want: f.Wanted()}
			for me := range size {
				c := Call{Kind: f.Kind, Elem: elem, Uneven: true}
				c.Src, c.Dst = f.Memory(me, func(n int) []byte { return make([]byte, n) })
				give, get := f.Pairs(me)
				c.From, c.Blocks = spread(give), spread(get)
				j.calls = append(j.calls, c)
			}
			h.hide(&j, func(i int, dst bool) bool { return dst != push || !dst && n[i] <= most })
			all, ops := make([]Op, size), make([]*Op, size)
			for i := range ops {
				ops[i] = &all[i]
				h.teams[i].Enqueue(ops[i], &j.calls[i])
				ops[i].Release()
			}
			require.NoError(t, h.drive(r, ops), name)
			j.check(t, name)
			want, staged := wayPull, false
			switch {
			case max(n[0], n[1], n[2]) == most:
				want = wayStaged // in the slots
			case push && min(n[0], n[1], n[2]) > most:
				want = wayPush
			case push: // the slot of one has no room for where it gets its blocks
				want, staged = wayStaged, true
			}
			require.Equal(t, want, all[0].way, name)
			require.Equal(t, staged, all[0].piece > 0, name)
		}
	}
}

// A slot has room for where the blocks are for so many members; more pass them through the buffers,
// or are read where they are.
func TestUnevenMany(t *testing.T) {
	const most, length = DataSize / spanSize, 2 * DataSize
	for _, c := range []struct {
		kind    coll.Kind
		size    int
		me      int // of a gather, 0: the last member is not the root
		wants   way
		differs bool // the root, which is as the others here, does not say what it gets
	}{
		{coll.Alltoall, most / 2, 0, wayPull, false}, {coll.Alltoall, most/2 + 1, 0, wayStaged, false},
		{coll.Alltoall, DataSize / (lengthSize + 1), 0, wayStaged, false},
		{coll.Gather, most, most - 1, wayPush, false}, {coll.Gather, most + 1, most, wayPull, false},
		{coll.Gather, most, 0, wayPush, true}, {coll.Gather, most + 1, 0, wayPull, false},
	} {
		name := fmt.Sprintf("%v of %d members, root %d", c.kind, c.size, c.me)
		require.True(t, Can(c.kind, 1, true, c.size))
		segments := make([]*Segment, c.size)
		segments[0] = NewSegment(aligned(SegmentSize(c.size)), c.size)
		for i := range segments {
			segments[i] = segments[0] // all members do what this one does
		}
		h := newHeap(1, Flat, true)
		team := NewTeam(h, c.size-1, segments)
		call := Call{Kind: c.kind, Root: c.me, Elem: 1, Uneven: true, Blocks: make([]Span, c.size)}
		if c.kind == coll.Alltoall {
			call.Src, call.From = make([]byte, 100*(c.size-1)), make([]Span, c.size)
			for i := range c.size - 1 {
				call.From[i] = Span{100 * i, 100}
			}
		} else {
			call.Src, call.Dst = make([]byte, length), make([]byte, length*c.size)
			for i := range call.Blocks {
				call.Blocks[i] = Span{length * i, length}
			}
		}
		var o Op
		team.Enqueue(&o, &call)
		o.Release()
		err := team.Advance()
		if c.differs {
			var bad *MismatchError
			require.ErrorAs(t, err, &bad, name)
		} else {
			require.NoError(t, err, name)
		}
		require.Equal(t, c.wants, o.way, name)
	}
}

// TestGot: how many bytes members get, by which a copy stays in the caches or not.
func TestGot(t *testing.T) {
	const size, root, each = 3, 1, 2 * DataSize
	for _, c := range []struct {
		kind coll.Kind
		dst  bool // what is given is hidden
		want int
	}{
		{coll.Gather, true, size * each}, {coll.Gather, false, size * each},
		{coll.Scatter, true, 2 * size * each}, {coll.Scatter, false, size * each},
		{coll.Allgather, true, size * size * each}, {coll.Alltoall, false, size * size * each},
	} {
		h := newHeap(size, Flat, true)
		r := rand.New(rand.NewPCG(31, 32))
		j := serial(r, c.kind, size, each/elem, root, false, false)
		h.hide(&j, func(_ int, dst bool) bool { return dst != c.dst })
		all, ops := make([]Op, size), make([]*Op, size)
		for i := range ops {
			ops[i] = &all[i]
			h.teams[i].Enqueue(ops[i], &j.calls[i])
			ops[i].Release()
		}
		require.NoError(t, h.drive(r, ops))
		for i := range all {
			mover := !c.kind.Rooted() || (i == root) == ((c.kind == coll.Gather) != c.dst)
			if mover {
				require.Equal(t, c.want, all[i].got(), "%v, hidden: given %v, member %d", c.kind, c.dst, i)
			}
		}
	}
}

// What a member says of its blocks is checked before it is used.
func TestUnevenHostile(t *testing.T) {
	r := rand.New(rand.NewPCG(27, 28))
	const size, liar, reader = 3, 1, 2
	const most = DataSize/size - lengthSize // of a block in a slot
	const stride = most/elem*elem + lengthSize
	for _, lie := range []struct {
		name  string
		bytes int            // of the block
		at    int            // in the slot
		value uint64         // there
		wants error          // nil: a mismatch
		offer map[int]uint64 // what it offers besides, in its line
		push  bool           // the reader writes to the liar's memory
	}{
		{"offset past the end", 2 * DataSize, reader * spanSize, 4*DataSize + 1, ErrProtocol, nil, false},
		{"offset that overflows", 2 * DataSize, reader * spanSize, ^uint64(DataSize), ErrProtocol, nil, false},
		{"other length", 2 * DataSize, reader*spanSize + lengthSize, DataSize, nil, nil, false},
		{"length that overflows", 2 * DataSize, reader*spanSize + lengthSize, ^uint64(0), nil, nil, false},
		{"other length in the slot", elem, reader * stride, most, nil, nil, false},
		{"longer than the slot", 2 * DataSize, reader * stride, 2 * DataSize, ErrProtocol, map[int]uint64{0: elem}, false},
		{"longer than the memory", 2 * DataSize, reader * spanSize, 0, ErrProtocol, map[int]uint64{20: DataSize}, false},
		{"place past the end", 2 * DataSize, (size + reader) * spanSize, 3*DataSize + 1, ErrProtocol, nil, true},
		{"place that overflows", 2 * DataSize, (size + reader) * spanSize, ^uint64(DataSize), ErrProtocol, nil, true},
		{"other length of the place", 2 * DataSize, (size+reader)*spanSize + lengthSize, 2 * DataSize, nil, nil, true},
		{"place longer than the memory", 2 * DataSize, (size + reader) * spanSize, 0, ErrProtocol, map[int]uint64{40: DataSize - 1}, true},
	} {
		h := newHeap(size, Flat, true)
		j := private(r, coll.Alltoall, size, 2*DataSize/elem, 0)
		for i := range j.calls {
			c, gives := &j.calls[i], DataSize/elem
			if i == liar {
				gives = lie.bytes / elem
			}
			c.From, c.Blocks = spread([]int{gives, gives, gives}), spread([]int{DataSize / elem, lie.bytes / elem, DataSize / elem})
			c.Src, c.Dst = make([]byte, 3*gives*elem), make([]byte, 2*DataSize+lie.bytes)
		}
		h.hide(&j, func(_ int, dst bool) bool { return dst != lie.push })
		ops := make([]Op, size)
		for i, team := range h.teams {
			if i == reader {
				slot := h.teams[liar].data(liar, ops[liar].number)[:]
				binary.NativeEndian.PutUint64(slot[lie.at:], lie.value)
				for at, v := range lie.offer {
					binary.NativeEndian.PutUint64(h.teams[liar].line(liar, ops[liar].number).up.payload[at:], v)
				}
			}
			team.Enqueue(&ops[i], &j.calls[i])
			ops[i].Release()
			if i != reader {
				require.NoError(t, team.Advance(), lie.name)
			}
		}
		err := h.teams[reader].Advance()
		if lie.wants != nil {
			require.ErrorIs(t, err, lie.wants, lie.name)
			continue
		}
		var bad *MismatchError
		require.ErrorAs(t, err, &bad, lie.name)
		bytes := lie.bytes
		if lie.push {
			bytes = DataSize // that the reader gives
		}
		require.Equal(t, []int{liar, bytes, int(lie.value)}, []int{bad.Member, bad.Len, bad.Other}, lie.name)
	}
}

// A member that fails in the middle of a long operation waits until no member works in its memory,
// and from then on none begins to.
func TestWithdraw(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	h := newHeap(2, Flat, true)
	j := serial(r, coll.Allreduce, 2, DataSize, 0, false, false)
	ops := make([]Op, 2)
	for i, team := range h.teams {
		team.Enqueue(&ops[i], &j.calls[i])
		ops[i].Release()
	}
	before := bytes.Clone(j.calls[0].Dst)
	require.NoError(t, h.teams[0].Advance())
	boom := errors.New("boom")
	d := &h.teams[1].line(1, ops[1].number).down
	d.publish(0, ops[1].stamp(), flagWorking, 0) // as member 1 does while it works
	h.teams[0].Fail(boom)
	require.False(t, h.teams[0].Settled())
	d.publish(0, stamp(ops[1].number-1, 0), 0, 0)
	require.True(t, h.teams[0].Settled())
	require.ErrorIs(t, h.teams[1].Advance(), ErrWithdrawn)
	require.True(t, bytes.Equal(before, j.calls[0].Dst))
	require.ErrorIs(t, h.teams[0].Advance(), boom)
}

// A member that has offered no memory waits for none: here those of a broadcast that only get it.
func TestWithdrawNothing(t *testing.T) {
	h := newHeap(3, Flat, true)
	j := serial(rand.New(rand.NewPCG(9, 10)), coll.Broadcast, 3, DataSize, 1, false, false)
	h.hidden[unsafe.SliceData(j.calls[0].Dst)] = true
	ops := make([]Op, 3)
	for i, team := range h.teams {
		team.Enqueue(&ops[i], &j.calls[i])
		ops[i].Release()
		require.NoError(t, team.Advance())
	}
	for _, i := range []int{0, 1} { // while member 2 works
		h.teams[2].line(2, ops[2].number).down.publish(0, ops[2].stamp(), flagWorking, 0)
		h.teams[i].Fail(errors.New("boom"))
		require.Equal(t, i == 0, h.teams[i].Settled())
	}
}

// A member that is gone is not waited for.
func TestWithdrawFromTheDead(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	h := newHeap(2, Flat, true)
	j := serial(r, coll.Allreduce, 2, DataSize, 0, false, false)
	var o Op
	h.teams[0].Enqueue(&o, &j.calls[0])
	o.Release()
	require.NoError(t, h.teams[0].Advance())
	h.teams[1].line(1, o.number).down.publish(0, o.stamp(), flagWorking, 0)
	h.teams[0].Fail(errors.New("died"))
	require.False(t, h.teams[0].Settled())
	require.False(t, h.teams[0].Quiet() && o.number > 1)
	h.gone[1] = true
	require.True(t, h.teams[0].Settled())
	require.True(t, h.teams[0].Quiet())
}

// Nothing is allocated for an operation.
func TestAllocs(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	for _, n := range []int{1, 100, 2 * DataSize} {
		h := newHeap(2, Flat, false)
		j := serial(r, coll.Allreduce, 2, n, 0, false, false)
		ops := make([]Op, 2)
		require.Zero(t, testing.AllocsPerRun(100, func() {
			for i, team := range h.teams {
				team.Enqueue(&ops[i], &j.calls[i])
				ops[i].Release()
			}
			for !ops[0].Over() || !ops[1].Over() {
				if h.teams[0].Advance() != nil || h.teams[1].Advance() != nil {
					t.Error("failed")
					return
				}
			}
		}))
	}
}

func TestViewSegment(t *testing.T) {
	size := SegmentSize(3)
	mem := aligned(size)
	s := NewSegment(mem, 3)
	v, err := ViewSegment(mem, 3)
	require.NoError(t, err)
	require.Same(t, s, v)
	for name, b := range map[string][]byte{"short": mem[:size-1], "not aligned": aligned(size + 8)[8:][:size], "empty": aligned(size)} {
		_, err := ViewSegment(b, 3)
		require.ErrorIs(t, err, ErrSegment, name)
	}
	for members := range 300 {
		require.LessOrEqual(t, SegmentSize(members), 1<<20)
	}
	require.EqualValues(t, 64, unsafe.Sizeof(line{}))
	require.Zero(t, unsafe.Offsetof(s.lines)%128)
	require.Zero(t, unsafe.Offsetof(s.pieces)%128)
	require.Zero(t, unsafe.Offsetof(s.data)%128)
}

// Every member but the root of a tree is looked at by exactly one.
func TestTree(t *testing.T) {
	for size := 1; size < 600; size++ {
		parents := make([]int, size)
		for me := range size {
			for at := 0; ; at++ {
				i, ok := child(me, size, at)
				if !ok {
					break
				}
				require.Greater(t, i, me)
				parents[i]++
			}
		}
		require.Zero(t, parents[0])
		for i := 1; i < size; i++ {
			require.Equal(t, 1, parents[i], "member %d of %d", i, size)
		}
	}
}

// TestMoveBlock: a block that is copied in pieces, or at once because the caches have no room, arrives whole; its own
// place is left alone.
func TestMoveBlock(t *testing.T) {
	defer func(was func() int) { lastCache = was }(lastCache)
	src := make([]byte, 4*movePiece+1)
	rng := rand.New(rand.NewPCG(71, 72))
	for i := range src {
		src[i] = byte(rng.Uint32())
	}
	for _, n := range []int{0, 1, movePiece - 1, movePiece, movePiece + 1, 2 * movePiece, 3*movePiece + 7, len(src)} {
		for _, cache := range []int{0, 8*n - 1, 8 * n} {
			lastCache = func() int { return cache }
			dst := make([]byte, n+1)
			o := Op{team: &Team{size: 2}, call: &Call{Dst: dst[:n]}}
			o.moveBlock(dst[:n], src[:n])
			require.True(t, bytes.Equal(src[:n], dst[:n]), "%d bytes, cache of %d", n, cache)
			require.Zero(t, dst[n])
			o.moveBlock(dst[:n], dst[:n])
			require.True(t, bytes.Equal(src[:n], dst[:n]))
		}
	}
}

// TestPast: results that are stored past the caches are the same, in each way; that is done from twice what the
// caches have on, of one CPU and of all.
func TestPast(t *testing.T) {
	defer func(was, all func() int) { lastCache, lastCaches = was, all }(lastCache, lastCaches)
	r := rand.New(rand.NewPCG(73, 74))
	const size = 3
	for _, kind := range allKinds[1:] {
		for i := range 8 {
			reachable, inPlace, uneven := i&1 != 0, i&2 != 0, i&4 != 0
			for _, c := range []struct {
				one, all int
				want     bool
			}{{0, 0, false}, {1, 1, true}, {1, 1 << 40, false}, {1 << 40, 1 << 40, false}} {
				lastCache, lastCaches = func() int { return c.one }, func() int { return c.all }
				h := newHeap(size, Flat, reachable)
				j := serial(r, kind, size, 3*DataSize/elem+5, 1, uneven, inPlace)
				all, ops := make([]Op, size), make([]*Op, size)
				for i := range ops {
					ops[i] = &all[i]
					h.teams[i].Enqueue(ops[i], &j.calls[i])
					ops[i].Release()
				}
				name := fmt.Sprintf("%v, reachable %v, in place %v, uneven %v, caches %d and %d", kind, reachable, inPlace, uneven, c.one, c.all)
				require.NoError(t, h.drive(r, ops), name)
				j.check(t, name)
				for i := range all {
					if len(j.calls[i].Dst) > 0 && !uneven {
						require.Equal(t, c.want && layout.Past, all[i].past, "%s, member %d", name, i)
					}
				}
			}
		}
	}
	c := Call{Dst: make([]byte, 100), Src: make([]byte, 100)}
	o := Op{team: &Team{size: 4}, call: &c}
	for kind, memory := range map[coll.Kind]int{coll.Allreduce: 800, coll.Alltoall: 800, coll.Scatter: 800, coll.Reduce: 500, coll.Gather: 500} {
		c.Kind = kind
		require.Equal(t, memory, o.memory())
		for cache, past := range map[int]bool{memory / 2: true, memory/2 + 1: false} {
			lastCache, lastCaches = func() int { return cache }, func() int { return cache }
			require.Equal(t, past && layout.Past, o.passes(), "%v with caches of %d", kind, cache)
		}
	}
	// Which copy it was shows where dst lies behind src in the same memory: only the plain one is right there.
	for _, past := range []bool{false, true} {
		b := make([]byte, 1024)
		for i := range b {
			b[i] = byte(i / 64)
		}
		want := bytes.Clone(b[:512])
		o.past = past
		o.copyOut(b[64:][:512], b[:512])
		require.Equal(t, past && layout.Past, !bytes.Equal(want, b[64:][:512]), "past the caches: %v", past)
	}
}

// TestPlaces: pieces of different lengths follow each other through buffers that have room for several, in the order
// in which the members happen to run, and none lies where another is still read.
func TestPlaces(t *testing.T) {
	r := rand.New(rand.NewPCG(75, 76))
	used := map[int]bool{} // places in a buffer
	for _, size := range []int{2, 5} {
		h := newHeap(size, Flat, false)
		for _, team := range h.teams {
			team.buffer = min(4*DataSize, bufferSize(size))
		}
		for range 40 {
			var jobs [3]job
			var ops [3][]Op
			for k := range jobs {
				kind := allKinds[1+r.IntN(len(allKinds)-1)]
				jobs[k] = serial(r, kind, size, DataSize/elem+r.IntN(8*DataSize/elem), r.IntN(size), r.IntN(2) == 0, false)
				ops[k] = make([]Op, size)
				for i, team := range h.teams {
					team.Enqueue(&ops[k][i], &jobs[k].calls[i])
					ops[k][i].Release()
				}
			}
			for left := true; left; {
				i := r.IntN(size)
				require.NoError(t, h.teams[i].Advance())
				left = false
				for k := range ops {
					if o := &ops[k][i]; o.piece != 0 && !o.Over() {
						_, data := o.stage(i)
						used[int(uintptr(unsafe.Pointer(&data[0]))-uintptr(unsafe.Pointer(h.teams[i].mine)))] = true
					}
					for m := range ops[k] {
						left = left || !ops[k][m].Over()
					}
				}
			}
			for k := range jobs {
				jobs[k].check(t, fmt.Sprintf("%v, %d members", jobs[k].calls[0].Kind, size))
			}
		}
	}
	require.Greater(t, len(used), 3*buffers)
}
