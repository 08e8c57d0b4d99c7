package impi

import (
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/memory"
	"github.com/sluice-hpc/sluice/internal/span"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs"
)

// lenders makes two jobs of this process, one at a place and one that has memory of the kind that is mapped.
func lenders(t *testing.T, p place) (w []*Comm, lend []*Job) {
	t.Helper()
	p.needs(t)
	need.Provider(t, "shm")
	lend = join(t, place{"shm", 2, 1, Config{Providers: []string{"shm"}}})
	t.Cleanup(func() { closeAll(t, lend) })
	return worlds(t, p), lend
}

// carry sends a message and checks what arrives.
func carry(t *testing.T, w []*Comm, src, dst []byte, seed uint64) {
	t.Helper()
	msg := pattern(len(src), seed)
	copy(src, msg)
	clear(dst)
	r := irecv(t, w[1], dst, 0, 5)
	s := isend(t, w[0], src, 1, 5)
	both(t, func() error { _, err := s.Wait(within(t)); return err }, func() error { _, err := r.Wait(within(t)); return err })
	require.Equal(t, msg, dst[:len(msg)])
}

// TestMemoryOfOthers: Alloc memory of something else in the process is as good as a job's own: nothing is
// staged, and nothing is registered for a message.
func TestMemoryOfOthers(t *testing.T) {
	for _, p := range places {
		t.Run(p.name, func(t *testing.T) {
			w, lend := lenders(t, p)
			far := p.hosts > 1 && len(p.config.Providers) > 0
			small, big := allocate(t, lend[0], 300_000), allocate(t, lend[1], 2<<20)
			own, heap := allocate(t, w[0].job, 2<<20), make([]byte, 2<<20)
			for i, c := range []struct{ out, in []byte }{
				{small.Bytes(), big.Bytes()}, {big.Bytes(), own.Bytes()}, {big.Bytes()[4097:], heap}, {heap, big.Bytes()},
				{big.Bytes()[:long], big.Bytes()[1<<20:][:long]}, {small.Bytes()[5:][:long], heap},
			} {
				n := min(len(c.out), len(c.in))
				before := [2]Stats{w[0].job.Stats(), w[1].job.Stats()}
				carry(t, w, c.out[:n], c.in[:n], uint64(i))
				for side, b := range [][]byte{c.out, c.in} {
					got := w[side].job.Stats()
					require.Equal(t, before[side].Staged, got.Staged, "%d, side %d", i, side)
					if w[0].job == w[1].job {
						continue
					}
					registered := uint64(0)
					if far && memory.Shared(b) == nil {
						registered = 1
					}
					require.Equal(t, registered, got.Registered-before[side].Registered, "%d, side %d", i, side)
				}
			}
		})
	}
}

// TestUnmappedMemoryOfOthers: memory that no provider maps is moved as that of the heap, and is not taken
// away from its owner.
func TestUnmappedMemoryOfOthers(t *testing.T) {
	eachWay(t, func(t *testing.T, a, b *Comm) {
		lend := join(t, places[0])
		t.Cleanup(func() { closeAll(t, lend) })
		w := []*Comm{a, b}
		for i, size := range []int{300_000, 2 << 20} { // of the heap, and not
			m := allocate(t, lend[0], size)
			for _, n := range []int{100, size} {
				carry(t, w, m.Bytes()[:n], make([]byte, n), uint64(i))
				carry(t, w, make([]byte, n), m.Bytes()[:n], uint64(i))
			}
			old := m.Bytes()
			require.NoError(t, m.Close())
			if i == 0 {
				carry(t, w, old, make([]byte, size), 7) // it lives as long as the slice
			} else {
				require.ErrorIs(t, a.Send(within(t), old, 1, 0), ErrClosed)
			}
		}
	})
}

// TestMemoryOfOthersClosed: memory in which another job has an active request, of any length, is not closed. When it
// has been, messages that name it fail, until the place is memory again.
func TestMemoryOfOthersClosed(t *testing.T) {
	seldomAt(t, places, func(t *testing.T, p place) {
		w, lend := lenders(t, p)
		for round := range 3 {
			m := allocate(t, lend[0], 1<<20)
			b := m.Bytes()
			if round != 1 { // else no message has been there before
				carry(t, w, b[:500_000], b[500_000:][:500_000], 1)
			}
			for _, n := range []int{1, len(b)} {
				r := irecv(t, w[1], b[len(b)-n:], 0, 9)
				err := m.Close()
				require.ErrorIs(t, err, ErrBusy)
				require.ErrorIs(t, err, memory.ErrUsed)
				carry(t, w, make([]byte, 700_000), b[:700_000], 2) // it has not been closed
				require.NoError(t, r.Cancel())
				completed(t, r)
			}
			require.NoError(t, m.Close())
			for _, c := range w {
				require.ErrorIs(t, c.Send(within(t), b[:10], 1-c.Rank(), 0), ErrClosed)
				_, err := c.Irecv(b, AnySource, 0)
				require.ErrorIs(t, err, ErrClosed)
			}
			again := allocate(t, lend[0], 1<<20)
			require.Equal(t, span.Of(b), span.Of(again.Bytes()))
			carry(t, w, again.Bytes()[:100], make([]byte, 100), 3)
			require.NoError(t, again.Close())
		}
	})
}

// TestMemoryOfOthersOutlived: a job that ends first leaves memory of others alone. One that ends while others use its
// memory does not free it, and says so.
func TestMemoryOfOthersOutlived(t *testing.T) {
	need.Provider(t, "shm")
	shm := place{"shm", 2, 1, Config{Providers: []string{"shm"}}}
	lend, jobs := join(t, shm), join(t, shm)
	w := []*Comm{jobs[0].World(), jobs[1].World()}
	m := allocate(t, lend[0], 1<<20)
	carry(t, w, m.Bytes()[:400_000], m.Bytes()[500_000:][:400_000], 1)
	closeAll(t, jobs)
	jobs = join(t, shm)
	w = []*Comm{jobs[0].World(), jobs[1].World()}
	carry(t, w, m.Bytes()[:400_000], m.Bytes()[500_000:][:400_000], 2)
	b := m.Bytes()
	r := irecv(t, w[1], b[:600_000], 0, 1)
	both(t, func() error {
		err := lend[0].Close(within(t))
		require.ErrorIs(t, err, ErrBusy)
		require.ErrorIs(t, err, memory.ErrUsed)
		return nil
	}, func() error { return lend[1].Close(within(t)) })
	msg := pattern(600_000, 3)
	s := isend(t, w[0], msg, 1, 1)
	both(t, func() error { _, err := s.Wait(within(t)); return err }, func() error { _, err := r.Wait(within(t)); return err })
	require.Equal(t, msg, b[:600_000])
	closeAll(t, jobs)
}

// TestMemoryOfOthersVec: messages of pieces of several kinds of memory, of any lengths, while memory comes
// and goes and garbage is collected.
func TestMemoryOfOthersVec(t *testing.T) {
	const room = 256 << 10
	seldomAt(t, places, func(t *testing.T, p place) {
		w, lend := lenders(t, p)
		r := rand.New(rand.NewPCG(5, 8))
		rounds := need.InShort(10, 30)
		for round := range rounds {
			var mine []*Memory
			cut := func(n int) (vec [][]byte) {
				for n > 0 {
					k := 1 + r.IntN(min(n, room))
					b := make([]byte, k)
					if i := r.IntN(3); i > 0 {
						from := lend[r.IntN(2)]
						if i == 1 {
							from = w[r.IntN(2)].job
						}
						m := allocate(t, from, room)
						mine = append(mine, m)
						b = m.Bytes()[r.IntN(room-k+1):][:k]
					}
					vec = append(vec, b)
					n -= k
				}
				return vec
			}
			n := 1 + r.IntN(1<<20)
			src, dst, msg := cut(n), cut(n), pattern(n, uint64(round))
			rest := msg
			for _, b := range src {
				rest = rest[copy(b, rest):]
			}
			s, err := w[0].IsendVec(src, 1, round)
			require.NoError(t, err)
			in, err := w[1].IrecvVec(dst, 0, round)
			require.NoError(t, err)
			runtime.GC()
			both(t, func() error { _, err := s.Wait(within(t)); return err }, func() error { _, err := in.Wait(within(t)); return err })
			for _, b := range dst {
				require.Equal(t, msg[:len(b)], b)
				msg = msg[len(b):]
			}
			for _, m := range mine {
				require.NoError(t, m.Close())
			}
		}
	})
}

// TestRegistrationRefused: where a device has no room, registrations of memory of others that is not in use make
// room, the least recently used first; if they are not enough, messages go in packets.
func TestRegistrationRefused(t *testing.T) {
	const size, most = 1 << 20, 3
	for _, p := range places {
		if p.hosts == 1 || len(p.config.Providers) == 0 {
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			p.seldom(t)
			w, lend := lenders(t, p)
			d := w[0].job.devices[0]
			refusals := 0
			regMR := d.regMR
			d.regMR = func(b []byte, access verbs.AccessFlags) (*verbs.MR, error) {
				room := most * size
				for g := range d.e.joined() {
					room -= g.Size
				}
				if room < len(b) {
					refusals++
					return nil, verbs.Errorf(d.name, "register MR", verbs.ErrNoMemory, "%d bytes; there is room for %d", len(b), room)
				}
				return regMR(b, access)
			}
			var memories [5]*Memory
			for i := range memories {
				memories[i] = allocate(t, lend[0], size)
			}
			registered := func() (list []int) {
				for i, m := range memories {
					if k := d.e.memories.Find(m.Bytes()); k != nil && k.regs.Len() > 0 {
						list = append(list, i)
					}
				}
				return list
			}
			dst := make([]byte, size)
			for _, step := range []struct {
				i        int
				then     []int
				refusals int
			}{{0, []int{0}, 0}, {1, []int{0, 1}, 0}, {2, []int{0, 1, 2}, 0}, {0, []int{0, 1, 2}, 0}, {3, []int{0, 2, 3}, 1}, {4, []int{0, 3, 4}, 1}, {0, []int{0, 3, 4}, 0}} {
				refusals = 0
				carry(t, w, memories[step.i].Bytes(), dst, uint64(step.i))
				require.Equal(t, step.then, registered(), "after %d", step.i)
				require.Equal(t, step.refusals, refusals, "after %d", step.i)
			}
			if !d.maps { // else the heap is not registered
				carry(t, w, make([]byte, size), dst, 9)
				require.Equal(t, []int{0, 4}, registered())
			}
			big := allocate(t, lend[1], (most+1)*size)
			carry(t, w, big.Bytes(), make([]byte, len(big.Bytes())), 7)
			require.Empty(t, registered(), "it was tried")
			if !d.maps { // else its own memory is not registered beside
				carry(t, w, memories[1].Bytes(), dst, 8)
				require.Equal(t, []int{1}, registered())
				require.NoError(t, allocate(t, w[0].job, most*size).Close())
				require.Empty(t, registered(), "the job's own memory comes first")
				_, err := w[0].job.Alloc(most*size + 1)
				require.ErrorIs(t, err, verbs.ErrNoMemory)
			}
			for _, m := range memories {
				require.NoError(t, m.Close())
			}
		})
	}
}

// TestJoinedMost: a device has a bounded number of registrations of memory of others; the least recently used one
// goes when there would be more.
func TestJoinedMost(t *testing.T) {
	w, lend := lenders(t, places[3])
	e := w[0].job.e
	var memories [joinedMost + 2]*Memory
	dst := make([]byte, long)
	for i := range memories {
		memories[i] = allocate(t, lend[0], long)
		carry(t, w, memories[i].Bytes(), dst, uint64(i))
	}
	count := 0
	for range e.joined() {
		count++
	}
	require.Equal(t, joinedMost, count)
	for i, m := range memories {
		require.Equal(t, i >= 2, e.memories.Find(m.Bytes()).regs.Len() > 0, "memory %d", i)
	}
}

// TestMemoryOfOthersClosedAtEnd: memory is closed while a job that has had messages in it ends: not before the job has
// let go of it.
func TestMemoryOfOthersClosedAtEnd(t *testing.T) {
	need.Provider(t, "shm")
	shm := place{"shm", 2, 1, Config{Providers: []string{"shm"}}}
	lend, jobs := join(t, shm), join(t, shm)
	defer closeAll(t, lend)
	w := []*Comm{jobs[0].World(), jobs[1].World()}
	m := allocate(t, lend[0], 1<<20)
	carry(t, w, m.Bytes()[:400_000], make([]byte, 400_000), 1) // the other job has nothing to let go of
	of := jobs[0].e.memories.Find(m.Bytes())
	require.True(t, of.others)
	var early error
	of.free = func() error { // the job is letting go
		early = m.Close()
		return nil
	}
	closeAll(t, jobs)
	require.ErrorIs(t, early, memory.ErrUsed)
	require.NoError(t, m.Close())
}

// TestAddressesAgain: where memory was that cannot be deregistered, there is other memory once its owner has ended.
func TestAddressesAgain(t *testing.T) {
	jobs := join(t, place{"shm", 2, 1, Config{Providers: []string{"shm"}}})
	defer closeAll(t, jobs)
	e := jobs[0].e
	find := func(b []byte) *Memory {
		e.lock.Lock()
		defer e.lock.Unlock()
		return e.find(b)
	}
	usable := func(b []byte) error {
		e.lock.Lock()
		defer e.lock.Unlock()
		return e.usable(b, nil)
	}
	b := make([]byte, 4096)
	once := memory.Share(b, memory.Kind{Freed: true})
	m := find(b)
	m.free = func() error { return verbs.ErrBusy }
	require.ErrorIs(t, once.End(), verbs.ErrBusy)
	require.Same(t, m, find(b))
	require.ErrorIs(t, usable(b), ErrBusy)
	next := memory.Share(b, memory.Kind{Freed: true})
	require.NoError(t, usable(b))
	require.Same(t, next, find(b).shared)
	require.NoError(t, next.End())
	require.ErrorIs(t, usable(b), ErrClosed)
}

// TestUnusedMemoryEnds: memory that a job has never used ends without it, however long the job takes to close.
func TestUnusedMemoryEnds(t *testing.T) {
	jobs := join(t, place{"shm", 2, 1, Config{Providers: []string{"shm"}}})
	e := jobs[0].e
	closing := func(yes bool) {
		e.lock.Lock()
		defer e.lock.Unlock()
		e.closing = yes
	}
	closing(true) // as while Close waits for another host
	defer closeAll(t, jobs)
	defer closing(false)
	k := memory.Share(make([]byte, 4096), memory.Kind{Freed: true})
	ended := make(chan error, 1)
	go func() { ended <- k.End() }()
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-within(t).Done():
		require.Fail(t, "it waits for the job")
	}
}
