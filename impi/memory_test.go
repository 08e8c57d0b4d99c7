package impi

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs"
)

// allocate returns memory of a job that ends with the test.
func allocate(t testing.TB, j *Job, n int) *Memory {
	t.Helper()
	m, err := j.Alloc(n)
	require.NoError(t, err)
	require.Len(t, m.Bytes(), n)
	require.Equal(t, make([]byte, n), m.Bytes())
	require.Zero(t, uintptr(unsafe.Pointer(unsafe.SliceData(m.Bytes())))%uintptr(os.Getpagesize()))
	return m
}

// TestMemoryNotFreed: that the memory of a job cannot be freed is an error of Close like others.
func TestMemoryNotFreed(t *testing.T) {
	w := worlds(t, places[0])
	m := allocate(t, w[0].job, 1)
	cause := errors.New("still mapped")
	m.free = func() error { return cause } // it is of the heap
	requireError(t, w[0].job.Close(within(t)), cause, -1)
}

// TestAlloc: long messages move between Alloc memory without a ring in between, and
// without registering anything; where one end is of the heap, that alone is registered.
func TestAlloc(t *testing.T) {
	room, lengths := 2<<20, []int{long, 1<<20 + 5}
	if need.WantLong() {
		room, lengths = 5<<20, []int{long, 1 << 20, 3<<20 + 5}
	}
	for _, p := range places {
		t.Run(p.name, func(t *testing.T) {
			p.needs(t)
			need.Full(t)
			w := worlds(t, p)
			jobs := []*Job{w[0].job, w[1].job}
			out, in := allocate(t, jobs[0], room), allocate(t, jobs[1], room)
			far := p.hosts > 1 && len(p.config.Providers) > 0
			for k, c := range []struct{ out, in bool }{{true, true}, {true, false}, {false, true}} {
				for i, n := range lengths {
					for _, order := range []string{"receive first", "send first"} {
						src, dst := make([]byte, room), make([]byte, room)
						if c.out {
							src = out.Bytes()
						}
						if c.in {
							dst = in.Bytes()
						}
						skip := i * 4099
						src, dst = src[skip:][:n], dst[room-n-skip:][:n]
						msg := pattern(n, uint64(k*10+i))
						copy(src, msg)
						clear(dst)
						before := [2]Stats{jobs[0].Stats(), jobs[1].Stats()}
						var q, r Request
						var err error
						if order == "receive first" {
							r = irecv(t, w[1], dst, 0, 5)
						}
						q = isend(t, w[0], src, 1, 5)
						if order != "receive first" {
							_, err = w[1].Probe(within(t), 0, 5)
							require.NoError(t, err)
							r = irecv(t, w[1], dst, 0, 5)
						}
						both(t, func() error { _, err := q.Wait(within(t)); return err }, func() error { _, err := r.Wait(within(t)); return err })
						require.Equal(t, msg, dst)
						for side, alloc := range []bool{c.out, c.in} {
							got := jobs[side].Stats()
							require.Equal(t, before[side].Staged, got.Staged, "side %d, %+v, %s", side, c, order)
							if jobs[0] == jobs[1] {
								continue
							}
							registered := uint64(0)
							if far && !alloc {
								registered = 1
							}
							require.Equal(t, registered, got.Registered-before[side].Registered, "side %d, %+v, %s", side, c, order)
						}
					}
				}
			}
		})
	}
}

// TestAllocVec: messages of pieces of several kinds of memory, of any lengths, into
// others, also too short ones.
func TestAllocVec(t *testing.T) {
	const room = 1 << 20
	eachWay(t, func(t *testing.T, a, b *Comm) {
		need.Full(t)
		r := rand.New(rand.NewPCG(1, 2))
		memories := map[*Comm][]*Memory{a: {allocate(t, a.job, room), allocate(t, a.job, room)}, b: {allocate(t, b.job, room), allocate(t, b.job, room)}}
		cut := func(c *Comm, n int) (vec [][]byte) {
			free := [][]byte{memories[c][0].Bytes(), memories[c][1].Bytes(), make([]byte, room)}
			for n > 0 {
				i, k := r.IntN(len(free)), 1+r.IntN(min(n, 200_000))
				if k > len(free[i]) {
					continue
				}
				vec = append(vec, free[i][:k:k])
				free[i] = free[i][k:]
				n -= k
			}
			return vec
		}
		for round := range 12 {
			n := 1 + r.IntN(700_000)
			fits := n
			if round%4 == 3 {
				fits = n/2 + 1
			}
			src, dst, msg := cut(a, n), cut(b, fits), pattern(n, uint64(round))
			rest := msg
			for _, p := range src {
				rest = rest[copy(p, rest):]
			}
			q, err := a.IsendVec(src, 1, round)
			require.NoError(t, err)
			in, err := b.IrecvVec(dst, 0, round)
			require.NoError(t, err)
			both(t, func() error { _, err := q.Wait(within(t)); return err }, func() error {
				_, err := in.Wait(within(t))
				if fits < n {
					require.ErrorIs(t, err, ErrTruncated)
					return nil
				}
				return err
			})
			for _, p := range dst {
				require.Equal(t, msg[:len(p)], p)
				msg = msg[len(p):]
			}
		}
	})
}

// TestAllocClosed: memory that is in use stays; what has been freed cannot be sent or
// received into until it has been allocated again.
func TestAllocClosed(t *testing.T) {
	seldomAt(t, places, func(t *testing.T, p place) {
		jobs := join(t, p)
		c := jobs[0].World()
		for _, n := range []int{0, -1} {
			_, err := jobs[0].Alloc(n)
			require.ErrorIs(t, err, ErrInvalid)
		}
		other := allocate(t, jobs[0], 10_000)
		m := allocate(t, jobs[0], 3<<20)
		old := m.Bytes()
		r := irecv(t, c, old[100:200], 1, 0)
		v, err := c.IrecvVec([][]byte{nil, make([]byte, 3), old[200:300]}, 1, 0)
		require.NoError(t, err)
		for _, q := range []Request{r, v} {
			require.ErrorIs(t, m.Close(), ErrBusy)
			require.NotNil(t, m.Bytes())
			require.NoError(t, q.Cancel())
			completed(t, q)
		}
		require.NoError(t, m.Close())
		require.Nil(t, m.Bytes())
		require.NoError(t, m.Close())
		if len(jobs[0].devices) > 0 {
			for _, b := range [][]byte{old, old[:1], old[len(old)-1:], old[5000:][:100]} {
				var e *Error
				_, err := c.Isend(b, 1, 0)
				require.ErrorAs(t, err, &e)
				require.ErrorIs(t, err, ErrClosed)
				_, err = c.IsendVec([][]byte{{1}, b}, 1, 0)
				require.ErrorIs(t, err, ErrClosed)
				_, err = c.Irecv(b, 1, 0)
				require.ErrorIs(t, err, ErrClosed)
				_, err = c.Recv(within(t), b, AnySource, 0)
				require.ErrorIs(t, err, ErrClosed)
				require.ErrorIs(t, c.Send(within(t), b, 1, 0), ErrClosed)
			}
		}
		// What is open is not concerned, and what is allocated again is not either.
		for range 2 {
			next := allocate(t, jobs[0], 3<<20)
			for _, b := range [][]byte{other.Bytes(), next.Bytes()} {
				r := irecv(t, c, b, 1, 0)
				require.NoError(t, r.Cancel())
				completed(t, r)
			}
		}
		closeAll(t, jobs)
		require.Nil(t, other.Bytes())
		require.NoError(t, other.Close())
		_, err = jobs[0].Alloc(100)
		require.ErrorIs(t, err, ErrClosed)
	})
}

// BenchmarkAlloc: a long message and its answer, between Alloc memory, also that of another job of the
// process, and memory of the heap.
func BenchmarkAlloc(b *testing.B) {
	for _, p := range places {
		if p.hosts == 1 || len(p.config.Providers) == 0 {
			continue
		}
		for _, n := range []int{64 << 10, 1 << 20, 8 << 20} {
			for _, c := range []struct {
				name    string
				out, in bool
				others  bool
			}{{"heap", false, false, false}, {"out", true, false, false}, {"in", false, true, false}, {"both", true, true, false}, {"others", true, true, true}} {
				b.Run(fmt.Sprintf("%s/%d/%s", p.name, n, c.name), func(b *testing.B) {
					w := worlds(b, p)
					from := []*Job{w[0].job, w[1].job}
					if c.others {
						from = join(b, place{"shm", 2, 1, Config{Providers: []string{"shm"}}})
						b.Cleanup(func() { closeAll(b, from) })
					}
					side := func(w *Comm, first bool) func() error {
						out, in := make([]byte, n), make([]byte, n)
						if c.out {
							out = allocate(b, from[w.Rank()], n).Bytes()
						}
						if c.in {
							in = allocate(b, from[w.Rank()], n).Bytes()
						}
						return func() error {
							for i := range 2 * b.N {
								var err error
								if (i%2 == 0) == first {
									err = w.Send(b.Context(), out, 1-w.Rank(), 0)
								} else {
									_, err = w.Recv(b.Context(), in, 1-w.Rank(), 0)
								}
								if err != nil {
									return err
								}
							}
							return nil
						}
					}
					sides := []func() error{side(w[0], true), side(w[1], false)}
					b.SetBytes(2 * int64(n))
					b.ResetTimer()
					both(b, sides...)
				})
			}
		}
	}
}

// BenchmarkRegister is what the registration of heap memory for one message costs, without the message.
func BenchmarkRegister(b *testing.B) {
	for _, p := range places {
		if p.hosts == 1 || len(p.config.Providers) == 0 {
			continue
		}
		for _, n := range []int{64 << 10, 1 << 20, 16 << 20} {
			b.Run(fmt.Sprintf("%s/%d", p.name, n), func(b *testing.B) {
				d := worlds(b, p)[0].job.devices[0]
				mem := make([]byte, n)
				for b.Loop() {
					mr, err := d.regMR(mem, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
					require.NoError(b, err)
					require.NoError(b, mr.Close())
				}
			})
		}
	}
}
