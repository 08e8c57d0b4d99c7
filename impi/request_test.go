package impi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// settle has everything arrive at b that a has sent: a message with a tag of its own,
// and one back.
func settle(t testing.TB, a, b *Comm) {
	t.Helper()
	const tag = 32767
	for _, way := range [][2]*Comm{{a, b}, {b, a}} {
		q := issend(t, way[0], nil, way[1].Rank(), tag)
		received(t, way[1], nil, way[0].Rank(), tag)
		completed(t, q)
	}
}

func pending(t testing.TB, q Request) {
	t.Helper()
	ok, st := tested(t, q)
	require.False(t, ok)
	require.Zero(t, st)
}

// long is more than a packet, wherever.
const long = 100_000

// TestMatchedOnly: a synchronous send and one of a long message are complete only when
// a receive has met the message.
func TestMatchedOnly(t *testing.T) {
	eachWay(t, func(t *testing.T, a, b *Comm) {
		for _, c := range []struct {
			size  int
			start func([]byte, int, int) (Request, error)
		}{{0, a.Issend}, {8, a.Issend}, {5000, a.Issend}, {long, a.Issend}, {long, a.Isend}} {
			msg, got := pattern(c.size, 1), make([]byte, c.size)
			q, err := c.start(msg, 1, 4)
			require.NoError(t, err)
			settle(t, a, b)
			pending(t, q)
			r := irecv(t, b, got, 0, 3) // of another tag
			settle(t, a, b)
			pending(t, q)
			received(t, b, got, 0, 4)
			require.Equal(t, msg, got)
			st := completed(t, q)
			require.Equal(t, Status{Source: 0, Tag: 4, Len: c.size}, st)
			require.NoError(t, r.Cancel())
			st = completed(t, r)
			require.True(t, st.Cancelled)
		}
	})
}

// TestEager: a short send is complete whether or not it is received.
func TestEager(t *testing.T) {
	eachWay(t, func(t *testing.T, a, b *Comm) {
		for _, n := range []int{0, 8, 5000} {
			msg := pattern(n, 1)
			require.NoError(t, a.Send(within(t), msg, 1, 0))
			want := append([]byte{}, msg...)
			clear(msg) // it is ours again
			got := make([]byte, n)
			received(t, b, got, 0, 0)
			require.Equal(t, want, got)
		}
	})
}

// TestEnded: a request that has been waited for is none any more, in all its copies.
func TestEnded(t *testing.T) {
	eachWay(t, func(t *testing.T, a, b *Comm) {
		var zero Request
		r := irecv(t, b, make([]byte, 8), 0, 0)
		pending(t, r)
		require.NoError(t, a.Send(within(t), pattern(8, 1), 1, 0))
		st := completed(t, r)
		require.Equal(t, 8, st.Len)
		other := irecv(t, b, nil, 0, 1) // may have the place of the first
		for _, q := range []Request{zero, r} {
			require.NoError(t, q.Cancel())
			q.Free()
			ok, st := tested(t, q)
			require.True(t, ok)
			require.Zero(t, st)
			st = completed(t, q)
			require.Zero(t, st)
		}
		i, st, err := WaitAny(within(t), zero, r, zero)
		require.NoError(t, err)
		require.Equal(t, -1, i)
		require.Zero(t, st)
		i, _, err = WaitAny(within(t))
		require.NoError(t, err)
		require.Equal(t, -1, i)
		require.NoError(t, WaitAll(within(t), nil, zero, r))
		pending(t, other)
		require.NoError(t, other.Cancel())
		completed(t, other)
	})
}

// fiveReceives are receives of rank 1 with tags 0 to 4.
func fiveReceives(t *testing.T, b *Comm) []Request {
	list := make([]Request, 5)
	for i := range list {
		list[i] = irecv(t, b, make([]byte, 8), 0, i)
	}
	return list
}

func TestWaitAny(t *testing.T) {
	eachWay(t, func(t *testing.T, a, b *Comm) {
		list := fiveReceives(t, b)
		for _, tag := range []int{3, 0, 4} {
			require.NoError(t, a.Send(within(t), make([]byte, tag), 1, tag))
			i, st, err := WaitAny(within(t), list...)
			require.NoError(t, err)
			require.Equal(t, tag, i)
			require.Equal(t, Status{Tag: tag, Len: tag}, st)
		}
		for _, tag := range []int{2, 1} {
			require.NoError(t, a.Send(within(t), nil, 1, tag))
		}
		settle(t, a, b)
		i, _, err := WaitAny(within(t), list...)
		require.NoError(t, err)
		require.Equal(t, 1, i) // of several the first
		st := make([]Status, len(list))
		require.NoError(t, WaitAll(within(t), st, list...))
		require.Equal(t, []Status{{}, {}, {Tag: 2}, {}, {}}, st)
	})
}

// TestSeveral: TestAny reports one, TestSome and WaitSome all that are complete, each once.
func TestSeveral(t *testing.T) {
	eachWay(t, func(t *testing.T, a, b *Comm) {
		list := fiveReceives(t, b)
		i, _, err := TestAny(list...)
		require.NoError(t, err)
		require.Equal(t, -1, i)
		got, err := TestSome(nil, list...)
		require.NoError(t, err)
		require.Empty(t, got)
		require.True(t, list[0].Active())
		for _, tag := range []int{4, 1, 3} {
			require.NoError(t, a.Send(within(t), make([]byte, tag), 1, tag))
		}
		settle(t, a, b)
		i, st, err := TestAny(list...)
		require.NoError(t, err)
		require.Equal(t, 1, i)
		require.Equal(t, Status{Tag: 1, Len: 1}, st)
		got, err = TestSome(nil, list...)
		require.NoError(t, err)
		require.Equal(t, []Completion{{3, Status{Tag: 3, Len: 3}, nil}, {4, Status{Tag: 4, Len: 4}, nil}}, got)
		i, _, err = TestAny(list...)
		require.NoError(t, err)
		require.Equal(t, -1, i)
		for _, tag := range []int{0, 2} {
			require.NoError(t, a.Send(within(t), nil, 1, tag))
		}
		for len(got) < 4 {
			got, err = WaitSome(within(t), got, list...)
			require.NoError(t, err)
		}
		require.ElementsMatch(t, []Completion{{0, Status{}, nil}, {2, Status{Tag: 2}, nil}}, got[2:])
		got, err = WaitSome(within(t), nil, list...)
		require.NoError(t, err)
		require.Empty(t, got)
		require.False(t, list[0].Active())
		i, _, err = TestAny(list...)
		require.NoError(t, err)
		require.Equal(t, -1, i)
	})
}

// TestWaitAllFails: one that fails keeps the others from nothing.
func TestWaitAllFails(t *testing.T) {
	eachWay(t, func(t *testing.T, a, b *Comm) {
		var list []Request
		for i := range 3 {
			list = append(list, irecv(t, b, make([]byte, 8), 0, i))
		}
		for i := range list {
			require.NoError(t, a.Send(within(t), make([]byte, 7+i), 1, i))
		}
		st := make([]Status, 3)
		err := WaitAll(within(t), st, list...)
		require.ErrorIs(t, err, ErrTruncated)
		require.Equal(t, []Status{{Tag: 0, Len: 7}, {Tag: 1, Len: 8}, {Tag: 2, Len: 9}}, st)
	})
}

// TestFree: an operation that is not waited for takes place nevertheless.
func TestFree(t *testing.T) {
	eachWay(t, func(t *testing.T, a, b *Comm) {
		for _, n := range []int{8, long} {
			msg, got := pattern(n, 1), make([]byte, n)
			s := issend(t, a, msg, 1, 0)
			s.Free()
			r := irecv(t, b, got, 0, 0)
			r.Free()
			require.Eventually(t, func() bool {
				iprobe(t, b, 0, 9)
				s, _ := tested(t, s)
				r, _ := tested(t, r)
				return s && r
			}, limit, time.Microsecond)
			require.Equal(t, msg, got)
			done := isend(t, a, nil, 1, 1)
			received(t, b, nil, 0, 1)
			done.Free()
			ok, st := tested(t, done)
			require.True(t, ok)
			require.Zero(t, st)
		}
	})
}

// TestDeadline: a deadline that passes leaves everything active.
func TestDeadline(t *testing.T) {
	eachWay(t, func(t *testing.T, a, b *Comm) {
		gone, cancel := context.WithDeadline(t.Context(), time.Unix(1, 0))
		defer cancel()
		got := make([]byte, long)
		r := irecv(t, b, got, 0, 0)
		_, err := r.Wait(gone)
		require.ErrorIs(t, err, ErrTimeout)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		var e *Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, "receive", e.Op)
		_, _, err = WaitAny(gone, r)
		require.ErrorIs(t, err, ErrTimeout)
		_, err = b.Probe(gone, 0, 1)
		require.ErrorIs(t, err, ErrTimeout)
		stopped, stop := context.WithCancel(t.Context())
		stop()
		_, err = r.Wait(stopped)
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, ErrTimeout)

		_, err = b.Recv(gone, nil, 0, 1) // is taken back
		require.ErrorIs(t, err, ErrTimeout)
		require.NoError(t, a.Send(within(t), make([]byte, 3), 1, 1))
		st := received(t, b, make([]byte, 3), 0, 1)
		require.Equal(t, Status{Tag: 1, Len: 3}, st)

		msg := pattern(long, 1)
		for _, n := range []int{8, 5000, long} {
			require.ErrorIs(t, a.Ssend(gone, msg[:n], 1, 2), ErrTimeout) // likewise
			settle(t, a, b)                                              // until b has been asked to
			require.NoError(t, a.Send(within(t), msg[:7], 1, 2))
			st = received(t, b, make([]byte, 7), 0, 2)
			require.Equal(t, Status{Tag: 2, Len: 7}, st)
		}
		require.NoError(t, a.Send(within(t), msg, 1, 0))
		completed(t, r)
		require.Equal(t, msg, got)
	})
}

// TestWaiters: several goroutines wait for one request, and one of them gets it.
func TestWaiters(t *testing.T) {
	need.Full(t)
	eachWay(t, func(t *testing.T, a, b *Comm) {
		for range 50 {
			r := irecv(t, b, make([]byte, 8), 0, 0)
			got := make(chan Status, 4)
			wait := func() error {
				st, err := r.Wait(within(t))
				got <- st
				return err
			}
			both(t, wait, wait, func() error {
				_, st, err := WaitAny(within(t), r)
				got <- st
				return err
			}, func() error {
				for {
					ok, st, err := r.Test()
					if ok || err != nil {
						got <- st
						return err
					}
					runtime.Gosched()
				}
			}, func() error { return a.Send(within(t), make([]byte, 8), 1, 0) })
			n := 0
			for range 4 {
				n += (<-got).Len
			}
			require.Equal(t, 8, n)
		}
	})
}

// TestWaitAnyLate: what a completion has found for a WaitAny may be collected before that looks.
func TestWaitAnyLate(t *testing.T) {
	eachWay(t, func(t *testing.T, a, b *Comm) {
		r := irecv(t, b, make([]byte, 8), 0, 0)
		require.NoError(t, a.Send(within(t), make([]byte, 8), 1, 0))
		for complete := false; !complete; runtime.Gosched() {
			b.e.lock.Lock()
			b.e.progress()
			complete = r.over()
			b.e.lock.Unlock()
		}
		any := &anyOf{list: []Request{r}, i: -1}
		b.e.lock.Lock()
		require.True(t, any.over())
		require.Zero(t, any.i)
		b.e.lock.Unlock()
		require.Equal(t, 8, completed(t, r).Len)
		b.e.lock.Lock()
		defer b.e.lock.Unlock()
		require.True(t, any.over())
		require.Equal(t, -1, any.i)
	})
}

// TestProbe: a message that has been probed is received by what the probe says.
func TestProbe(t *testing.T) {
	eachWay(t, func(t *testing.T, a, b *Comm) {
		nothing(t, b, AnySource, AnyTag)
		for i, n := range []int{0, 5, 5000, long} {
			q := isend(t, a, pattern(n, 1), 1, i)
			want := Status{Source: 0, Tag: i, Len: n}
			for _, src := range []int{0, AnySource} {
				for _, tag := range []int{i, AnyTag} {
					st, err := b.Probe(within(t), src, tag)
					require.NoError(t, err)
					require.Equal(t, want, st)
					ok, st := iprobe(t, b, src, tag)
					require.True(t, ok)
					require.Equal(t, want, st)
				}
			}
			nothing(t, b, 0, i+1)
			nothing(t, b, 1, i)
			received(t, b, make([]byte, n), 0, i)
			completed(t, q)
		}
		// One that sleeps is woken.
		both(t, func() error {
			st, err := b.Probe(within(t), AnySource, 7)
			if err == nil && st.Len != 9 {
				err = fmt.Errorf("probed %+v", st)
			}
			if err == nil {
				_, err = b.Recv(within(t), make([]byte, 9), 0, 7)
			}
			return err
		}, func() error {
			asleep(t, b.e)
			return a.Send(within(t), make([]byte, 9), 1, 7)
		})
	})
}

// asleep returns when a waiter sleeps.
func asleep(t testing.TB, e *engine) {
	ctx := within(t)
	for ctx.Err() == nil {
		e.lock.Lock()
		n := len(e.sleepers)
		e.lock.Unlock()
		if n > 0 {
			return
		}
		time.Sleep(100 * time.Microsecond) // a waiter yields the CPU many times before it sleeps
	}
	panic(errors.New("no waiter sleeps"))
}

// TestClosed: what is active when a job is closed fails, and so does what comes after.
func TestClosed(t *testing.T) {
	for _, p := range places {
		t.Run(p.name, func(t *testing.T) {
			jobs := join(t, p)
			w := worldsOf(jobs)
			a, b := w[0], w[1]
			recv := irecv(t, a, make([]byte, 8), 1, 0)
			wild := irecv(t, a, make([]byte, 8), AnySource, 0)
			freed := irecv(t, a, make([]byte, 8), 1, 0)
			freed.Free()
			require.NoError(t, a.Send(within(t), make([]byte, 5), 1, 3))
			sleeper := irecv(t, a, nil, 1, 6)
			slept := make(chan error)
			go func() {
				_, err := sleeper.Wait(within(t))
				slept <- err
			}()
			asleep(t, a.e)
			if len(jobs) == 2 {
				theirs := irecv(t, b, make([]byte, 8), 0, 9)
				any := irecv(t, b, make([]byte, 8), AnySource, 9)
				closing := make(chan error)
				go func() { closing <- jobs[0].Close(context.Background()) }()
				fails(t, theirs, ErrPeerLeft, 0)
				fails(t, any, ErrPeerLeft, 0)
				_, err := b.Probe(within(t), 0, 9)
				requireError(t, err, ErrPeerLeft, 0)
				err = b.Send(within(t), nil, 0, 0)
				requireError(t, err, ErrPeerLeft, 0)
				st := received(t, b, make([]byte, 5), 0, 3) // had been sent
				require.Equal(t, 5, st.Len)
				require.NoError(t, <-closing)
			}
			closeAll(t, jobs)
			closeAll(t, jobs)
			require.ErrorIs(t, <-slept, ErrClosed)
			for _, q := range []Request{recv, wild} {
				_, err := q.Wait(within(t))
				require.ErrorIs(t, err, ErrClosed)
			}
			ok, _ := tested(t, freed)
			require.True(t, ok)
			for _, err := range []error{
				a.Send(within(t), nil, 1, 0),
				func() error { _, err := a.Recv(within(t), nil, 1, 0); return err }(),
				func() error { _, err := a.Probe(within(t), 1, 0); return err }(),
				func() error { _, _, err := a.Iprobe(1, 0); return err }(),
			} {
				require.ErrorIs(t, err, ErrClosed)
			}
		})
	}
}

// requireError: the reason and the rank are those.
func requireError(t testing.TB, err, reason error, rank int) {
	t.Helper()
	require.ErrorIs(t, err, reason)
	var e *Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, rank, e.Rank, "%v", err)
}

// begun returns once a job is being closed.
func begun(t testing.TB, j *Job) {
	ctx := within(t)
	for closing := false; !closing; time.Sleep(100 * time.Microsecond) {
		require.NoError(t, ctx.Err())
		j.e.lock.Lock()
		closing = j.e.closing
		j.e.lock.Unlock()
	}
}

// active starts sends of all kinds from a to rank 1, with tags from 0, and frees those with even ones.
func active(t testing.TB, a *Comm) (lengths []int, kept []Request) {
	lengths = []int{0, 0, 60_000, 60_000, long, 5 * long}
	for tag, n := range lengths {
		start := a.Isend
		if n == 0 {
			start = a.Issend
		}
		q, err := start(bytes.Repeat([]byte{byte(tag)}, n), 1, tag)
		require.NoError(t, err)
		if tag%2 == 0 {
			q.Free()
		} else {
			kept = append(kept, q)
		}
	}
	return lengths, kept
}

// TestCloseCarries: Close carries out the sends that have been started, also those that nothing
// waits for; a peer's sends that nothing will receive end at once.
func TestCloseCarries(t *testing.T) {
	seldomAt(t, places[1:], func(t *testing.T, p place) {
		jobs := join(t, p)
		a, b := jobs[0].Worlds()[0], jobs[1].Worlds()[0]
		matched := make([]byte, 5*long)
		receive := irecv(t, a, matched, 1, 7) // its message comes while Close waits for sends
		lengths, kept := active(t, a)
		for tag := range 2 { // one is here before Close, the other comes later
			theirs := isend(t, b, make([]byte, long), 0, tag)
			if tag == 0 {
				_, err := a.Probe(within(t), 1, 0)
				require.NoError(t, err)
				go func() { require.NoError(t, jobs[0].Close(context.Background())) }()
				begun(t, jobs[0])
			}
			fails(t, theirs, ErrPeerLeft, 0)
		}
		sent := isend(t, b, bytes.Repeat([]byte{7}, len(matched)), 0, 7)
		for tag, n := range lengths {
			got := make([]byte, n)
			st := received(t, b, got, 0, tag)
			require.Equal(t, bytes.Repeat([]byte{byte(tag)}, n), got)
			require.Equal(t, n, st.Len)
		}
		completed(t, sent)
		closeAll(t, jobs)
		require.NoError(t, WaitAll(within(t), nil, append(kept, receive)...))
		require.Equal(t, bytes.Repeat([]byte{7}, len(matched)), matched)
	})
}

// TestCloseDrops: what Close cannot carry out, it names.
func TestCloseDrops(t *testing.T) {
	seldomAt(t, places, func(t *testing.T, p place) {
		p.config.PeerTimeout = time.Hour
		for _, late := range []bool{true, false} {
			jobs := join(t, p)
			apart := len(jobs) == 2
			_, kept := active(t, jobs[0].Worlds()[0])
			completed(t, kept[1]) // it needs no receive, nor does the one before it
			ctx, cancel := context.WithCancel(context.Background())
			closing := make(chan error)
			go func() { closing <- jobs[0].Close(ctx) }()
			begun(t, jobs[0])
			if late {
				cancel()
			} else if apart { // it will receive nothing
				require.NoError(t, jobs[1].Close(context.Background()))
			}
			err := <-closing
			require.ErrorContains(t, err, "first: impi: send to rank 1, tag 0: ")
			switch {
			case !apart:
				require.ErrorIs(t, err, ErrClosed)
				require.ErrorContains(t, err, "4 sends")
			case late:
				require.ErrorIs(t, err, context.Canceled)
				require.ErrorContains(t, err, "4 sends")
				_, err := jobs[1].Worlds()[0].Recv(within(t), make([]byte, long), 0, 4)
				requireError(t, err, ErrPeerLeft, 0)
			default: // those that are kept say so themselves
				require.ErrorIs(t, err, ErrPeerLeft)
				require.ErrorContains(t, err, "2 sends")
			}
			reason := ErrClosed
			if apart && !late {
				reason = ErrPeerLeft
			}
			for _, i := range []int{0, 2} {
				_, err := kept[i].Wait(within(t))
				require.ErrorIs(t, err, reason)
			}
			cancel()
			closeAll(t, jobs)
		}
	})
}

// TestFreeFailed: a send that has failed, which nothing else has said, is named by Close when it is freed.
func TestFreeFailed(t *testing.T) {
	seldomAt(t, places[1:], func(t *testing.T, p place) {
		jobs := join(t, p)
		q := issend(t, jobs[0].Worlds()[0], make([]byte, 100), 1, 0)
		require.NoError(t, jobs[1].Close(within(t)))
		ranks.Eventually(t, func() bool {
			q.r.e.lock.Lock()
			defer q.r.e.lock.Unlock()
			q.r.e.progress()
			return q.r.over()
		})
		q.Free()
		err := jobs[0].Close(within(t))
		require.ErrorIs(t, err, ErrPeerLeft)
		require.ErrorContains(t, err, "send to rank 1, tag 0")
		closeAll(t, jobs)
	})
}

// TestCloseConcurrently: goroutines that send, receive, probe and wait while the job
// is closed end, with an error.
func TestCloseConcurrently(t *testing.T) {
	need.Full(t)
	rounds := need.InLong(1, 10)
	seldomAt(t, places, func(t *testing.T, p place) {
		for range rounds {
			jobs := join(t, p)
			w := worldsOf(jobs)
			a, b := w[0], w[1]
			until := func(step func() error) func() error {
				return func() error {
					for {
						err := step()
						if errors.Is(err, ErrClosed) || errors.Is(err, ErrPeerLeft) || errors.Is(err, ErrPeerDied) {
							return nil
						}
						if err != nil && !errors.Is(err, ErrTruncated) {
							return err
						}
					}
				}
			}
			ready := make(chan struct{}, 2)
			n := 0
			closer := func(j *Job) func() error {
				return func() error {
					<-ready
					if err := j.Close(context.Background()); !errors.Is(err, ErrClosed) { // of a send that waits
						return err
					}
					return nil
				}
			}
			sides := []func() error{
				until(func() error { return a.Ssend(within(t), make([]byte, long), 1, 0) }),
				until(func() error {
					if n++; n == 5 {
						close(ready)
					}
					_, err := b.Recv(within(t), make([]byte, 2*long), 0, 0)
					return err
				}),
				until(func() error { return b.Ssend(within(t), make([]byte, 8), 0, 1) }),
				until(func() error { _, err := a.Recv(within(t), make([]byte, 8), 1, 1); return err }),
				until(func() error { _, err := a.Probe(within(t), 1, 2); return err }),
				until(func() error { _, err := b.Recv(within(t), nil, AnySource, 3); return err }),
			}
			for _, j := range jobs {
				sides = append(sides, closer(j), closer(j))
			}
			both(t, sides...)
		}
	})
}

// TestWaitAcrossJobs: requests of two jobs are not waited for together.
func TestWaitAcrossJobs(t *testing.T) {
	need.Full(t)
	eachWay(t, func(t *testing.T, a, b *Comm) {
		other := worlds(t, place{"", 1, 1, Config{}})[0]
		var list []Request
		for _, c := range []*Comm{a, other} {
			r := irecv(t, c, nil, c.Rank(), 0)
			list = append(list, Request{}, r)
		}
		i, _, err := WaitAny(within(t), list...)
		requireError(t, err, ErrInvalid, -1)
		require.Equal(t, -1, i)
		requireError(t, WaitAll(within(t), nil, list...), ErrInvalid, -1)
		for _, r := range list {
			require.NoError(t, r.Cancel())
			completed(t, r)
		}
	})
}

// TestLeavingIsNotDying: a receive from any source goes on when a member leaves in order, and
// fails when all others have.
func TestLeavingIsNotDying(t *testing.T) {
	for _, providers := range [][]string{{}, {"shm"}} {
		t.Run(strings.Join(append([]string{"tcp"}, providers...), " and "), func(t *testing.T) {
			jobs := join(t, place{"", 3, 1, Config{Providers: providers}})
			t.Cleanup(func() { closeAll(t, jobs) })
			w := worldsOf(jobs)
			leave := func(rank int) {
				closed := make(chan error)
				go func() { closed <- jobs[rank].Close(within(t)) }()
				ranks.Eventually(t, func() bool {
					w[0].e.lock.Lock()
					defer w[0].e.lock.Unlock()
					w[0].e.progress()
					return w[0].e.links[rank].err != nil
				})
				require.NoError(t, <-closed)
			}
			first := irecv(t, w[0], nil, AnySource, 0)
			leave(2)
			pending(t, first)
			require.NoError(t, w[1].Send(within(t), nil, 0, 0))
			require.Equal(t, 1, completed(t, first).Source)
			require.NoError(t, w[1].Send(within(t), nil, 0, 0))
			received(t, w[0], nil, AnySource, 0)

			last := irecv(t, w[0], nil, AnySource, 0)
			leave(1)
			fails(t, last, ErrPeerLeft, 1)
			for range 2 { // and every later one
				_, err := w[0].Recv(within(t), nil, AnySource, 0)
				requireError(t, err, ErrPeerLeft, 1)
				_, err = w[0].Probe(within(t), AnySource, 0)
				requireError(t, err, ErrPeerLeft, 1)
			}
			w[0].NotifyLeft()
			for _, rank := range []int{2, 1} {
				_, err := w[0].Recv(within(t), nil, AnySource, 0)
				requireError(t, err, ErrPeerLeft, rank)
			}
			there, _, err := w[0].Iprobe(AnySource, 0)
			require.NoError(t, err, "it has been told of all")
			require.False(t, there)
		})
	}
}
