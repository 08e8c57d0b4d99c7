package impi

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

// pattern is n bytes that depend on seed.
func pattern(n int, seed uint64) []byte {
	return random(n, rand.NewPCG(seed, 1))
}

// random is n bytes of a source.
func random(n int, src rand.Source) []byte {
	b := make([]byte, n, n+8)
	for i := 0; i < n; i += 8 {
		binary.NativeEndian.PutUint64(b[i:i+8], src.Uint64())
	}
	return b[:n:n]
}

var sizes = []int{0, 1, 7, 8, 127, 128, 4096, 8 << 10, 8<<10 + 1, 16 << 10, 16<<10 + 1, 64<<10 - 1, 64 << 10, 64<<10 + 1, 200_000, 1<<20 + 5}

func TestSizes(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Comm) {
		for _, n := range sizes {
			for _, early := range []bool{true, false} {
				msg, got := pattern(n, uint64(n)), make([]byte, n)
				var st Status
				both(t,
					func() error { return a.Send(within(t), msg, 1, 5) },
					func() (err error) {
						if !early {
							if st, err = b.Probe(within(t), AnySource, AnyTag); err != nil {
								return err
							}
						}
						st, err = b.Recv(within(t), got, 0, 5)
						return err
					})
				require.Equal(t, Status{Source: 0, Tag: 5, Len: n}, st)
				require.Equal(t, msg, got)
			}
		}
	})
}

// TestWays: the rest of long messages comes in each way, into one piece of memory and into several, also
// if it is longer than the receive.
func TestWays(t *testing.T) {
	t.Cleanup(func() { wayForced = -1 })
	for way := range ways {
		wayForced = way
		t.Run(fmt.Sprint(way), func(t *testing.T) {
			w := worlds(t, place{"shm", 2, 1, Config{Providers: []string{"shm"}}})
			rng := rand.New(rand.NewPCG(12, uint64(way)))
			for i := range 60 {
				n := 1 + rng.IntN(1<<(14+rng.IntN(8)))
				room := n
				if i%5 == 0 {
					room = rng.IntN(n)
				}
				from, to := contiguous(n), contiguous(room)
				if i%3 == 0 {
					from, to = scatter(rng, n), scatter(rng, room)
				}
				src, dst := random(from.size, rng), random(to.size, rng)
				want, msg := bytes.Clone(dst), bytes.Join(from.in(src), nil)
				for _, b := range to.in(want) {
					msg = msg[copy(b, msg):]
				}
				both(t,
					func() error {
						q, err := w[0].IsendVec(from.in(src), 1, 5)
						require.NoError(t, err)
						_, err = q.Wait(within(t))
						return err
					},
					func() error {
						q, err := w[1].IrecvVec(to.in(dst), 0, 5)
						require.NoError(t, err)
						_, err = q.Wait(within(t))
						if room < n {
							require.ErrorIs(t, err, ErrTruncated)
							return nil
						}
						return err
					})
				require.True(t, bytes.Equal(want, dst), "%d bytes of %d, in %d pieces to %d", room, n, len(from.pieces), len(to.pieces))
			}
		})
	}
}

// scattered is where in memory of some size the bytes of a message are.
type scattered struct {
	size   int
	pieces [][2]int // begins and ends
}

func contiguous(n int) scattered { return scattered{n, [][2]int{{0, n}}} }

// scatter draws pieces of n bytes in all, which lie in any order, with gaps.
func scatter(rng *rand.Rand, n int) (s scattered) {
	for n > 0 {
		k := 1 + rng.IntN(n)
		s.pieces = append(s.pieces, [2]int{0, k})
		n -= k
	}
	for _, i := range rng.Perm(len(s.pieces)) {
		at := s.size + rng.IntN(100)
		s.size = at + s.pieces[i][1]
		s.pieces[i] = [2]int{at, s.size}
	}
	return s
}

// in returns the pieces in such memory.
func (s scattered) in(b []byte) (list [][]byte) {
	for _, p := range s.pieces {
		list = append(list, b[p[0]:p[1]])
	}
	return list
}

// TestSelf: a process sends to itself.
func TestSelf(t *testing.T) {
	eachWay(t, func(t *testing.T, a, _ *Comm) {
		for _, n := range sizes {
			msg, got := pattern(n, 3), make([]byte, n)
			s := isend(t, a, msg, 0, 1)
			st := received(t, a, got, AnySource, AnyTag)
			require.Equal(t, Status{Tag: 1, Len: n}, st)
			require.Equal(t, msg, got)
			completed(t, s)
			r := irecv(t, a, got, 0, 2)
			require.NoError(t, a.Ssend(within(t), msg, 0, 2))
			st = completed(t, r)
			require.Equal(t, Status{Tag: 2, Len: n}, st)
		}
	})
}

// TestManyOutstanding: thousands of sends and receives, posted in either order.
func TestManyOutstanding(t *testing.T) {
	count := need.InLong(2_000, 10_000)
	everywhere(t, func(t *testing.T, a, b *Comm) {
		for _, early := range []bool{true, false} {
			sends, recvs := make([]Request, count), make([]Request, count)
			out, in := make([][8]byte, count), make([][8]byte, count)
			post := func() error {
				for i := range recvs {
					var err error
					if recvs[i], err = b.Irecv(in[i][:], 0, i%7); err != nil {
						return err
					}
				}
				return nil
			}
			if early {
				require.NoError(t, post())
			}
			for i := range sends {
				binary.LittleEndian.PutUint64(out[i][:], uint64(i))
				var err error
				if i%10 == 0 {
					sends[i], err = a.Issend(out[i][:], 1, i%7)
				} else {
					sends[i], err = a.Isend(out[i][:], 1, i%7)
				}
				require.NoError(t, err)
			}
			if !early {
				require.NoError(t, post())
			}
			st := make([]Status, count)
			both(t, func() error { return WaitAll(within(t), nil, sends...) }, func() error { return WaitAll(within(t), st, recvs...) })
			require.Equal(t, out, in)
			for i := range st {
				require.Equal(t, Status{Tag: i % 7, Len: 8}, st[i])
			}
		}
	})
}

// cut cuts b into pieces at random, some of them empty.
func cut(r *rand.Rand, b []byte) [][]byte {
	list := [][]byte{}
	for len(b) > 0 {
		n := r.IntN(2 * len(b))
		if n > len(b) || r.IntN(8) == 0 {
			n = 0
		}
		if r.IntN(3) == 0 {
			n = min(n, 5)
		}
		list = append(list, b[:n:n])
		b = b[n:]
	}
	if r.IntN(2) == 0 {
		list = append(list, nil)
	}
	return list
}

// TestVectors: the pieces of a message are in other places at either end, and there
// may be more of them than a system call takes.
func TestVectors(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Comm) {
		r := rand.New(rand.NewPCG(2, 2))
		rounds := need.InLong(2, 10)
		for i := range rounds {
			for _, n := range sizes {
				msg, got := pattern(n, uint64(i)), make([]byte, n)
				src, dst := cut(r, msg), cut(r, got)
				if i == 0 && n >= 4096 { // all pieces short
					src, dst = nil, nil
					for k := 0; k < n; k += n / 200 {
						src, dst = append(src, msg[k:min(n, k+n/200)]), append(dst, got[k:min(n, k+n/200)])
					}
				}
				var st Status
				both(t,
					func() error {
						q, err := a.IsendVec(src, 1, i)
						if i%2 == 1 && err == nil {
							_, err = q.Wait(within(t))
							if err == nil {
								q, err = a.IssendVec(src, 1, i)
							}
						}
						if err == nil {
							_, err = q.Wait(within(t))
						}
						return err
					},
					func() error {
						for range 1 + i%2 {
							clear(got)
							q, err := b.IrecvVec(dst, 0, i)
							if err != nil {
								return err
							}
							if st, err = q.Wait(within(t)); err != nil {
								return err
							}
						}
						return nil
					})
				require.Equal(t, Status{Tag: i, Len: n}, st)
				require.Equal(t, msg, got)
			}
		}
		q, err := a.IsendVec(nil, 1, 0)
		require.NoError(t, err)
		require.Equal(t, Status{}, received(t, b, nil, 0, 0))
		completed(t, q)
	})
}

// TestTruncated: what does not fit a receive is dropped, and nothing else.
func TestTruncated(t *testing.T) {
	eachWay(t, func(t *testing.T, a, b *Comm) {
		need.Full(t)
		for _, n := range sizes[1:] {
			for i, room := range []int{0, 1, n / 2, n - 1} {
				for _, early := range []bool{true, false} {
					if room >= n || early != (i%2 == 0) && !need.WantLong() {
						continue
					}
					msg, next := pattern(n, 1), pattern(100, 2)
					memory := make([]byte, n+128)
					var st Status
					both(t,
						func() error {
							q := isend(t, a, msg, 1, 0)
							if err := a.Send(within(t), next, 1, 0); err != nil {
								return err
							}
							_, err := q.Wait(within(t))
							return err
						},
						func() (err error) {
							if !early {
								if st, err = b.Probe(within(t), 0, 0); err != nil || st.Len != n {
									return fmt.Errorf("probed %+v: %w", st, err)
								}
							}
							st, err = b.Recv(within(t), memory[:room], AnySource, 0)
							var e *Error
							if !errors.Is(err, ErrTruncated) || !errors.As(err, &e) || e.Rank != 0 {
								return fmt.Errorf("received %+v: %w", st, err)
							}
							return nil
						})
					require.Equal(t, Status{Tag: 0, Len: n}, st)
					require.Equal(t, msg[:room], memory[:room])
					require.Equal(t, make([]byte, len(memory)-room), memory[room:])
					clear(memory)
					st = received(t, b, memory, 0, 0)
					require.Equal(t, 100, st.Len)
					require.Equal(t, next, memory[:100])
				}
			}
		}
	})
}

// TestGoroutines: several goroutines of each process send and receive at the same
// time, each with a tag of its own.
func TestGoroutines(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Comm) {
		each := need.InLong(5, 50)
		var sides []func() error
		for tag := range 6 {
			n := []int{0, 8, 300, 9000, 70_000, 200_000}[tag]
			out := pattern(n, uint64(tag))
			talk := func(c *Comm, peer int, first bool) func() error {
				in := make([]byte, n)
				return func() error {
					for range each {
						if first {
							if err := c.Send(within(t), out, peer, tag); err != nil {
								return err
							}
						}
						clear(in)
						st, err := c.Recv(within(t), in, peer, tag)
						if err != nil || st != (Status{peer, tag, n, false}) || !bytes.Equal(out, in) {
							return fmt.Errorf("received %+v: %w", st, err)
						}
						if !first {
							if err := c.Send(within(t), out, peer, tag); err != nil {
								return err
							}
						}
					}
					return nil
				}
			}
			sides = append(sides, talk(a, 1, tag%2 == 0), talk(b, 0, tag%2 != 0))
		}
		both(t, sides...)
	})
}

func TestInvalid(t *testing.T) {
	eachWay(t, func(t *testing.T, a, _ *Comm) {
		for _, c := range []struct{ rank, tag int }{{-1, 0}, {2, 0}, {0, -1}, {-2, 0}, {0, a.job.TagUB() + 1}} {
			_, err := a.Isend(nil, c.rank, c.tag)
			require.ErrorIs(t, err, ErrInvalid)
			var e *Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, Error{"send", c.rank, c.tag, e.Err}, *e)
			if c.rank != AnySource && c.tag != AnyTag {
				_, err = a.Irecv(nil, c.rank, c.tag)
				require.ErrorIs(t, err, ErrInvalid)
				_, err = a.Probe(within(t), c.rank, c.tag)
				require.ErrorIs(t, err, ErrInvalid)
				_, _, err = a.Iprobe(c.rank, c.tag)
				require.ErrorIs(t, err, ErrInvalid)
			}
		}
	})
}

// TestManyWrites: more pieces of long messages than a queue pair has room for at once,
// and messages behind them.
func TestManyWrites(t *testing.T) {
	const messages, pieces, size = 8, 64, 4 << 10
	everywhere(t, func(t *testing.T, a, b *Comm) {
		cut := func(buf []byte) (vec [][]byte) {
			for i := range pieces {
				vec = append(vec, buf[i*size:(i+1)*size])
			}
			return vec
		}
		both(t,
			func() error {
				var list []Request
				for i := range messages {
					q, err := a.IsendVec(cut(pattern(pieces*size, uint64(i))), 1, 1)
					if err != nil {
						return err
					}
					list = append(list, q)
				}
				q := issend(t, a, []byte{1}, 1, 2)
				return WaitAll(within(t), nil, append(list, q)...)
			},
			func() error {
				var list []Request
				var bufs [][]byte
				for range messages {
					buf := make([]byte, pieces*size)
					q, err := b.IrecvVec(cut(buf), 0, 1)
					if err != nil {
						return err
					}
					list, bufs = append(list, q), append(bufs, buf)
				}
				if err := WaitAll(within(t), nil, list...); err != nil {
					return err
				}
				for i, buf := range bufs {
					if !bytes.Equal(buf, pattern(pieces*size, uint64(i))) {
						return fmt.Errorf("message %d differs", i)
					}
				}
				_, err := b.Recv(within(t), make([]byte, 1), 0, 2)
				return err
			})
	})
}
