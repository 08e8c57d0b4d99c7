package boot

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/leak"
	"github.com/sluice-hpc/sluice/internal/limits"
	"github.com/sluice-hpc/sluice/internal/logbuf"
	"github.com/sluice-hpc/sluice/internal/proof"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// TestMain makes the test binary a rank if a launcher has started it as one.
func TestMain(m *testing.M) {
	ranks.Play(acts, ranks.Exit)
	// What runs in parallel waits for clocks and processes: more of it than there are CPUs.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	// Nor is a name server asked: a lookup whose context has ended outlives its test.
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("no name server is asked in tests")
	}}
	leak.Main(m)
}

// limit bounds every test: what takes longer hangs.
const limit = 60 * time.Second

// world is a rendezvous and the environment of its ranks.
type world struct {
	*Server
	env Environment // Rank is to be filled in
	log *logbuf.Buffer
}

func newWorld(t *testing.T, size int, strangers int) *world {
	t.Helper()
	ln := ranks.Listen(t)
	return serveWorld(t, ln, size, strangers)
}

func serveWorld(t *testing.T, ln net.Listener, size int, strangers int) *world {
	t.Helper()
	secret := []byte("the secret of a job of a test...")
	log := new(logbuf.Buffer)
	s, err := serve(t.Context(), ln, ServerOptions{
		Size:   size,
		Job:    "test",
		Secret: secret,
		Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}, strangers)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return &world{
		Server: s,
		env:    Environment{Size: size, LocalSize: size, Server: s.Addr().String(), Job: "test", Secret: secret, Launched: true},
		log:    log,
	}
}

// join makes a rank; it is closed with the test.
func (w *world) join(t *testing.T, rank int) *Job {
	t.Helper()
	e := w.env
	e.Rank, e.LocalRank = rank, rank
	j, err := joinFrom(ranks.Within(t), variables(e.Environ()...))
	require.NoError(t, err)
	t.Cleanup(func() { j.Close() })
	return j
}

func (w *world) joinAll(t *testing.T) []*Job {
	t.Helper()
	jobs := make([]*Job, w.env.Size)
	each(len(jobs), func(rank int) {
		e := w.env
		e.Rank, e.LocalRank = rank, rank
		jobs[rank], _ = joinFrom(ranks.Within(t), variables(e.Environ()...))
	})
	for rank, j := range jobs {
		require.NotNil(t, j, "rank %d did not join", rank)
	}
	t.Cleanup(func() { each(len(jobs), func(rank int) { jobs[rank].Close() }) })
	return jobs
}

// kill ends a rank as kill -9 would: the connection ends, and nothing is said.
func kill(j *Job) {
	c := j.x.(*client)
	c.conn.Close()
	<-c.readerDone
}

// each calls f for 0..n-1 at the same time and waits for all.
func each(n int, f func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}

// payload is what a rank gives to a round: any size, the bytes a function of
// both.
func payload(rank, round, size int) []byte {
	seed := sha256.Sum256(fmt.Appendf(nil, "%d %d", rank, round))
	b := make([]byte, size)
	rand.NewChaCha8(seed).Read(b)
	return b
}

func TestExchange(t *testing.T) {
	for _, c := range []struct{ size, rounds, bytes int }{
		{1, 20, MaxData},
		{2, 20, MaxData},
		{16, 8, 1 << 16},
		{256, 5, 1 << 8},
	} {
		t.Run(fmt.Sprint(c.size), func(t *testing.T) {
			if c.size > 100 {
				need.Full(t)
			}
			ctx := ranks.Within(t)
			w := newWorld(t, c.size, maxStrangers)
			jobs := w.joinAll(t)
			all := make([][][]byte, c.rounds) // what each gives
			for round := range all {
				for rank := range c.size {
					n := int(binary.BigEndian.Uint16(payload(rank, -round, 2))) % c.bytes
					switch {
					case round == 0:
						n = 0
					case round == 1 && rank == 0:
						n = c.bytes
					}
					all[round] = append(all[round], payload(rank, round, n))
				}
			}
			errs := make([]error, c.size)
			each(c.size, func(rank int) {
				j := jobs[rank]
				for round := range c.rounds {
					if round%3 == 2 {
						if errs[rank] = j.Barrier(ctx); errs[rank] != nil {
							return
						}
						continue
					}
					mine := bytes.Clone(all[round][rank])
					got, err := j.Exchange(ctx, mine)
					clear(mine) // ours again
					if err != nil {
						errs[rank] = err
						return
					}
					for r, data := range got {
						if !bytes.Equal(data, all[round][r]) {
							errs[rank] = fmt.Errorf("round %d: wrong data of rank %d", round, r)
							return
						}
					}
				}
			})
			for rank, err := range errs {
				require.NoError(t, err, "rank %d", rank)
				j := jobs[rank]
				require.Equal(t, rank, j.Rank())
				require.Equal(t, c.size, j.Size())
				require.Equal(t, rank, j.LocalRank())
				require.Equal(t, c.size, j.LocalSize())
				require.Equal(t, "test", j.ID())
				require.Equal(t, w.env.Secret, j.Secret())
				require.NoError(t, j.Err())
			}
			each(c.size, func(rank int) { errs[rank] = jobs[rank].Close() })
			for rank, err := range errs {
				require.NoError(t, err)
				require.ErrorIs(t, jobs[rank].Err(), ErrClosed)
			}
			require.NoError(t, w.Wait(ctx))
		})
	}
}

func TestAlone(t *testing.T) {
	ctx := ranks.Within(t)
	j, err := joinFrom(ctx, variables())
	require.NoError(t, err)
	require.Equal(t, []int{0, 1, 0, 1}, []int{j.Rank(), j.Size(), j.LocalRank(), j.LocalSize()})
	require.Len(t, j.Secret(), 32)
	require.NotEmpty(t, j.ID())
	data := []byte("data")
	got, err := j.Exchange(ctx, data)
	require.NoError(t, err)
	clear(data)
	require.Equal(t, [][]byte{[]byte("data")}, got)
	require.NoError(t, j.Barrier(ctx))
	_, err = j.Exchange(ctx, make([]byte, MaxData+1))
	require.ErrorIs(t, err, ErrTooLarge)
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	require.ErrorIs(t, j.Barrier(canceled), context.Canceled)
	require.NoError(t, j.Barrier(ctx), "nothing was given: the round is still to come")
	require.NoError(t, j.Err())
	j.Abort(3, "why")
	<-j.Done()
	want := &AbortError{Rank: 0, Code: 3, Why: "why"}
	require.Equal(t, want, j.Err())
	var a *AbortError
	require.ErrorAs(t, j.Barrier(ctx), &a)
	require.Equal(t, want, a)
	require.NoError(t, j.Close())
	require.NoError(t, j.Close())

	other, err := joinFrom(ctx, variables("SLUICE_RANK=0", "SLUICE_SIZE=1", "SLUICE_JOB=me", "SLUICE_SECRET="+hexSecret))
	require.NoError(t, err)
	require.Equal(t, "me", other.ID())
	require.Equal(t, hexSecret, hex.EncodeToString(other.Secret()))
	require.NoError(t, other.Close())
	<-other.Done()
	require.ErrorIs(t, other.Barrier(ctx), ErrClosed)
	require.NotEqual(t, j.Secret(), other.Secret())

	_, err = joinFrom(canceled, variables())
	require.ErrorIs(t, err, context.Canceled)
}

func TestInsecure(t *testing.T) {
	ctx := ranks.Within(t)
	ln := ranks.Listen(t)
	s, err := Serve(ctx, ln, ServerOptions{Size: 2, Insecure: true})
	require.NoError(t, err)
	defer s.Close()
	errs := make([]error, 2)
	each(2, func(rank int) {
		j, err := joinFrom(ctx, variables(fmt.Sprint("SLUICE_RANK=", rank), "SLUICE_SIZE=2", "SLUICE_INSECURE=1", "SLUICE_SERVER="+s.Addr().String()))
		if err != nil {
			errs[rank] = err
			return
		}
		defer j.Close()
		if j.Secret() != nil {
			errs[rank] = errors.New("an insecure job has a secret")
			return
		}
		errs[rank] = j.Barrier(ctx)
	})
	require.NoError(t, errors.Join(errs...))
}

// A rank that ends in the middle of a round fails it for all, by name, and
// every later one; the reason says how it ended.
func TestRankEnds(t *testing.T) {
	const size, culprit = 8, 5
	for _, c := range []struct {
		name string
		end  func(t *testing.T, w *world, j *Job)
		err  error
		says string
	}{
		{"killed", func(_ *testing.T, _ *world, j *Job) { kill(j) }, ErrDied, "its connection ended"},
		{"killed in the middle of a message", func(_ *testing.T, _ *world, j *Job) {
			m := part{rank: culprit, data: make([]byte, 1000)}.Append(nil)
			j.x.(*client).conn.Write(m[:500])
			kill(j)
		}, ErrDied, io.ErrUnexpectedEOF.Error()},
		{"killed after it had given", func(t *testing.T, w *world, j *Job) {
			j.x.(*client).conn.Write(part{rank: culprit, data: []byte("last words")}.Append(nil))
			w.waitGiven(t, size-1)
			kill(j)
		}, ErrDied, "its connection ended"},
		{"closed", func(t *testing.T, _ *world, j *Job) { require.NoError(t, j.Close()) }, ErrLeft, ""},
		{"gave up", func(t *testing.T, w *world, j *Job) {
			ctx, cancel := context.WithCancelCause(t.Context())
			done := make(chan error)
			go func() { done <- j.Barrier(ctx) }()
			w.waitGiven(t, size-1)
			cancel(errors.New("enough"))
			require.ErrorIs(t, <-done, context.Canceled)
			require.ErrorIs(t, j.Barrier(ranks.Within(t)), ErrGaveUp)
			require.NoError(t, j.Err(), "the job goes on")
		}, ErrGaveUp, "enough"},
		{"left in the middle of a round", func(t *testing.T, w *world, j *Job) {
			ctx, cancel := context.WithCancelCause(t.Context())
			done := make(chan error)
			go func() { done <- j.Barrier(ctx) }()
			w.waitGiven(t, size-1)
			second := make(chan error)
			go func() { second <- j.Barrier(ctx) }() // waits for its turn
			cancel(fmt.Errorf("the node: %w", ErrClosed))
			require.ErrorIs(t, <-done, ErrClosed)
			require.ErrorIs(t, <-second, ErrClosed)
			require.ErrorIs(t, j.Barrier(ranks.Within(t)), ErrClosed)
			require.NoError(t, j.Err(), "it is Close that ends the job")
		}, ErrLeft, ""},
		{"spoke out of turn", func(t *testing.T, _ *world, j *Job) {
			j.x.(*client).conn.Write(part{round: 9, rank: culprit}.Append(nil))
			<-j.Done()
			require.ErrorIs(t, j.Err(), ErrServerLost)
		}, ErrDied, "part for round 9 in round 0"},
		{"spoke in the name of another", func(_ *testing.T, _ *world, j *Job) {
			j.x.(*client).conn.Write(part{rank: culprit - 1}.Append(nil))
		}, ErrDied, "in the name of rank 4"},
		{"sent garbage", func(_ *testing.T, _ *world, j *Job) {
			io.WriteString(j.x.(*client).conn, "what is this, and why is it here?")
		}, ErrDied, "protocol violation"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx := ranks.Within(t)
			w := newWorld(t, size, maxStrangers)
			jobs := w.joinAll(t)
			// One rank is late: the round cannot complete meanwhile.
			const late = 2
			errs := make([]error, size)
			var wg sync.WaitGroup
			for rank, j := range jobs {
				if rank != culprit && rank != late {
					wg.Go(func() { errs[rank] = j.Barrier(ctx) })
				}
			}
			w.waitGiven(t, size-2)
			c.end(t, w, jobs[culprit])
			wg.Wait()
			errs[late] = jobs[late].Barrier(ctx)
			for range 2 {
				for rank, err := range errs {
					if rank == culprit {
						continue
					}
					var e *RankError
					require.ErrorAs(t, err, &e, "rank %d", rank)
					require.Equal(t, culprit, e.Rank)
					require.ErrorIs(t, err, c.err)
					require.ErrorContains(t, err, fmt.Sprintf("before all ranks had joined, rank %d %v", culprit, c.err))
					require.ErrorContains(t, err, c.says)
					require.NoError(t, jobs[rank].Err(), "the death of another does not end the job")
				}
				each(size, func(rank int) {
					if rank != culprit {
						errs[rank] = jobs[rank].Barrier(ctx)
					}
				})
			}
			each(size, func(rank int) { jobs[rank].Close() })
			err := w.Wait(ctx)
			if c.err == ErrDied {
				require.ErrorIs(t, err, ErrDied)
			} else {
				require.NoError(t, err)
			}
		})
	}
}

// waitGiven returns when n ranks have given to the round in progress.
func (w *world) waitGiven(t *testing.T, n int) {
	t.Helper()
	w.waitFor(t, fmt.Sprintf("%d parts", n), func() bool { return w.given >= n })
}

// waitFor polls the state of the server, under its lock.
func (w *world) waitFor(t *testing.T, what string, is func() bool) {
	t.Helper()
	require.Eventually(t, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return is()
	}, limit, time.Millisecond, what)
}

// A rank that leaves after its last round does not disturb the ranks that are still busy with
// theirs.
func TestLeaveAfterLastRound(t *testing.T) {
	ctx := ranks.Within(t)
	w := newWorld(t, 4, maxStrangers)
	jobs := w.joinAll(t)
	errs := make([]error, len(jobs))
	each(len(jobs), func(rank int) {
		for range 10 {
			if _, err := jobs[rank].Exchange(ctx, make([]byte, 1<<18)); err != nil {
				errs[rank] = err
			}
		}
		errs[rank] = errors.Join(errs[rank], jobs[rank].Close())
	})
	require.NoError(t, errors.Join(errs...))
	require.NoError(t, w.Wait(ctx))
}

// trickle is a connection that writes a few bytes at a time.
type trickle struct {
	net.Conn
	most int
}

func (c trickle) Write(b []byte) (n int, err error) {
	for len(b) > 0 && err == nil {
		var k int
		k, err = c.Conn.Write(b[:min(c.most, len(b))])
		n, b = n+k, b[k:]
	}
	return n, err
}

func TestSlowRank(t *testing.T) {
	ctx := ranks.Within(t)
	w := newWorld(t, 3, maxStrangers)
	jobs := w.joinAll(t)
	slow := jobs[1].x.(*client)
	slow.conn = trickle{slow.conn, 3}
	play := func(rank, round int) error {
		got, err := jobs[rank].Exchange(ctx, payload(rank, round, 5000))
		if err != nil {
			return err
		}
		for r, data := range got {
			if !bytes.Equal(data, payload(r, round, 5000)) {
				return fmt.Errorf("round %d: wrong data of rank %d", round, r)
			}
		}
		return nil
	}
	for round := range 5 {
		errs := make([]error, len(jobs))
		var wg sync.WaitGroup
		for _, rank := range []int{0, 2} {
			wg.Go(func() { errs[rank] = play(rank, round) })
		}
		w.waitGiven(t, 2) // slow, and late as well
		errs[1] = play(1, round)
		wg.Wait()
		require.NoError(t, errors.Join(errs...))
	}
}

// A rank that is stopped in the middle of a message is waited for.
func TestHalfMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		defer here.Close()
		defer there.Close()
		s := &Server{members: make([]member, 2), parts: make([][]byte, 2)}
		c := &session{rank: 1, conn: here}
		s.members[1] = member{state: joined, session: c}
		m := part{rank: 1, data: []byte("data")}.Append(nil)
		go func() {
			for _, half := range [][]byte{m[:len(m)/2], m[len(m)/2:]} {
				time.Sleep(time.Hour)
				there.Write(half)
			}
		}()
		require.NoError(t, s.receive(c, bufio.NewReader(here)))
		require.Equal(t, 1, s.given)
	})
}

func TestTooLarge(t *testing.T) {
	ctx := ranks.Within(t)
	jobs := newWorld(t, 1, maxStrangers).joinAll(t)
	_, err := jobs[0].Exchange(ctx, make([]byte, MaxData+1))
	require.ErrorIs(t, err, ErrTooLarge)
	require.ErrorContains(t, err, "1048577 bytes, the most is 1048576")
	got, err := jobs[0].Exchange(ctx, make([]byte, MaxData))
	require.NoError(t, err)
	require.Len(t, got[0], MaxData)
}

// A context that has ended before anything was given takes nothing with it.
func TestCanceledBefore(t *testing.T) {
	ctx := ranks.Within(t)
	jobs := newWorld(t, 2, maxStrangers).joinAll(t)
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	require.ErrorIs(t, jobs[0].Barrier(canceled), context.Canceled)
	require.NoError(t, barrier(ctx, jobs))
}

// Calls of several goroutines take turns.
func TestConcurrentExchange(t *testing.T) {
	ctx := ranks.Within(t)
	jobs := newWorld(t, 2, maxStrangers).joinAll(t)
	errs := make([]error, 2*8)
	each(len(errs), func(i int) {
		for range 20 {
			if err := jobs[i%2].Barrier(ctx); err != nil {
				errs[i] = err
			}
		}
	})
	require.NoError(t, errors.Join(errs...))
}

func TestAbort(t *testing.T) {
	ctx := ranks.Within(t)
	const size = 8
	w := newWorld(t, size, maxStrangers)
	jobs := make([]*Job, size-1) // the last one comes too late
	for rank := range jobs {
		jobs[rank] = w.join(t, rank)
	}
	errs := make([]error, len(jobs))
	var wg sync.WaitGroup
	for rank, j := range jobs[:4] {
		wg.Go(func() { errs[rank] = j.Barrier(ctx) })
	}
	w.waitGiven(t, 4)
	long := strings.Repeat("w", 2000)
	jobs[6].Abort(42, long)
	wg.Wait()
	want := &AbortError{Rank: 6, Code: 42, Why: long[:1024]}
	<-w.Aborted()
	require.Equal(t, want, w.Server.Abort())
	for rank, j := range jobs {
		<-j.Done()
		require.Equal(t, want, j.Err(), "rank %d", rank)
		if rank >= 4 {
			errs[rank] = j.Barrier(ctx)
		}
		var e *AbortError
		require.ErrorAs(t, errs[rank], &e, "rank %d", rank)
		require.Equal(t, want, e)
	}
	jobs[0].Abort(43, "too late")
	e := w.env
	e.Rank = size - 1
	_, err := joinFrom(ctx, variables(e.Environ()...))
	var refused *RefusedError
	require.ErrorAs(t, err, &refused)
	require.Contains(t, refused.Why, "aborted by rank 6 with code 42")
	each(len(jobs), func(rank int) { jobs[rank].Close() })
	w.Ended(size - 1)
	require.Equal(t, want, w.Wait(ctx))
}

// A process that ends before it joins would be waited for; the launcher tells.
func TestEnded(t *testing.T) {
	ctx := ranks.Within(t)
	w := newWorld(t, 2, maxStrangers)
	j := w.join(t, 0)
	done := make(chan error)
	go func() { done <- j.Barrier(ctx) }()
	w.waitGiven(t, 1)
	w.Ended(0) // it has joined: its connection tells, and it is alive
	w.Ended(7) // there is no such rank
	w.Ended(1)
	err := <-done
	require.ErrorIs(t, err, ErrDied)
	require.ErrorContains(t, err, "rank 1 died: it ended before it joined the job")
	require.NoError(t, j.Close())
	require.ErrorIs(t, w.Wait(ctx), ErrDied)
}

func TestServerLost(t *testing.T) {
	ctx := ranks.Within(t)
	w := newWorld(t, 3, maxStrangers)
	jobs := w.joinAll(t)
	done := make(chan error)
	go func() { done <- jobs[0].Barrier(ctx) }()
	w.waitGiven(t, 1)
	require.NoError(t, w.Close())
	require.ErrorIs(t, <-done, ErrServerLost)
	for _, j := range jobs {
		<-j.Done()
		require.ErrorIs(t, j.Err(), ErrServerLost)
		require.ErrorIs(t, j.Barrier(ctx), ErrServerLost)
		j.Abort(1, "no rank hears it")
		require.NoError(t, j.Close())
	}
	require.ErrorIs(t, w.Wait(ctx), ErrClosed)
	require.NoError(t, w.Close())
}

func TestServeContext(t *testing.T) {
	ctx, cancel := context.WithCancel(ranks.Within(t))
	ln := ranks.Listen(t)
	s, err := Serve(ctx, ln, ServerOptions{Size: 1, Insecure: true})
	require.NoError(t, err)
	waiting, stop := context.WithCancel(t.Context())
	stop()
	require.ErrorIs(t, s.Wait(waiting), context.Canceled)
	cancel()
	require.ErrorIs(t, s.Wait(t.Context()), ErrClosed)
}

func TestServeOptions(t *testing.T) {
	secret := []byte(hexSecret)
	for _, o := range []ServerOptions{
		{Size: 0, Secret: secret},
		{Size: MaxSize + 1, Secret: secret},
		{Size: 1},
		{Size: 1, Secret: secret, Insecure: true},
		{Size: 1, Secret: secret, Job: strings.Repeat("j", 65)},
	} {
		ln := ranks.Listen(t)
		_, err := Serve(t.Context(), ln, o)
		require.ErrorIs(t, err, ErrOptions)
		_, err = ln.Accept()
		require.ErrorIs(t, err, net.ErrClosed)
	}
}

func TestRefused(t *testing.T) {
	ctx := ranks.Within(t)
	w := newWorld(t, 4, maxStrangers)
	first := w.join(t, 2)
	for _, c := range []struct {
		name       string
		rank, size int
		says       string
	}{
		{"twice", 2, 4, fmt.Sprintf("two processes have this number: %s and %[1]s", processName())},
		{"beyond", 4, 5, "it believes that the job has 5 ranks, but the job has 4"},
		{"other size", 1, 2, "it believes that the job has 2 ranks, but the job has 4"},
	} {
		e := w.env
		e.Rank, e.Size, e.LocalSize = c.rank, c.size, 0
		_, err := joinFrom(ctx, variables(e.Environ()...))
		var refused *RefusedError
		require.ErrorAs(t, err, &refused, c.name)
		require.Equal(t, c.rank, refused.Rank, c.name)
		require.Equal(t, c.says, refused.Why, c.name)
	}
	require.NoError(t, first.Close())
	e := w.env
	e.Rank = 2
	_, err := joinFrom(ctx, variables(e.Environ()...))
	require.ErrorContains(t, err, "rank 2 has left")
	// The rank is told before the log is.
	w.waitFor(t, "all refusals in the log", func() bool { return strings.Count(w.log.String(), "not admitted") == 4 })
}

func TestWrongSecret(t *testing.T) {
	ctx := ranks.Within(t)
	w := newWorld(t, 2, maxStrangers)
	e := w.env
	e.Secret = []byte("some other secret of a test")
	_, err := joinFrom(ctx, variables(e.Environ()...))
	require.ErrorIs(t, err, proof.ErrRefused)
	require.ErrorContains(t, err, "rank 0 of 2: at "+w.Addr().String())
	e = w.env
	e.Job = "another job"
	_, err = joinFrom(ctx, variables(e.Environ()...))
	require.ErrorIs(t, err, proof.ErrJob)
	e = w.env
	e.Secret, e.Insecure = nil, true
	_, err = joinFrom(ctx, variables(e.Environ()...))
	require.ErrorIs(t, err, proof.ErrInsecure)
	// And ranks that know it are not disturbed.
	jobs := w.joinAll(t)
	require.NoError(t, barrier(ctx, jobs))
}

// Each refusal is a warning once, and strangers cause no more than maxWarnings. Those of ranks
// that know the secret are warnings all the same.
func TestRefusalsAreToldOnce(t *testing.T) {
	w := newWorld(t, 2, maxStrangers)
	stranger := func(rank int) {
		conn := ranks.Dial(t, w.Addr().String())
		_, err := proof.Dial(conn, proof.Params{
			Secret: []byte("some other secret of a test"), Protocol: protocolName, Major: protocolMajor, Job: w.env.Job, Self: rankID(rank),
		}, nil)
		require.ErrorIs(t, err, proof.ErrRefused) // after the line in the log
	}
	warnings := func() int { return strings.Count(w.log.String(), "level=WARN") }
	for range 3 {
		stranger(1)
	}
	require.Equal(t, 1, warnings(), w.log.String())
	for rank := range maxWarnings + 3 {
		stranger(rank)
	}
	require.Equal(t, maxWarnings+1, warnings(), w.log.String())
	require.Equal(t, 1, strings.Count(w.log.String(), "more processes are not admitted"))
	require.Equal(t, maxWarnings+6, strings.Count(w.log.String(), "rendezvous: not admitted"))
	for range 2 {
		e := w.env
		e.Size, e.LocalSize = 3, 0
		_, err := joinFrom(ranks.Within(t), variables(e.Environ()...))
		require.ErrorAs(t, err, new(*RefusedError))
	}
	w.waitFor(t, "both refusals", func() bool {
		return strings.Count(w.log.String(), "refused rank 0: it believes that the job has 3 ranks, but the job has 2") == 2
	})
	require.Equal(t, maxWarnings+2, warnings(), w.log.String())
}

// An identity that was proved is the one that joins.
func TestJoinAsAnother(t *testing.T) {
	w := newWorld(t, 2, maxStrangers)
	conn := ranks.Dial(t, w.Addr().String())
	_, err := proof.Dial(conn, proof.Params{
		Secret: w.env.Secret, Protocol: protocolName, Major: protocolMajor, Job: w.env.Job, Self: rankID(1),
	}, nil)
	require.NoError(t, err)
	_, err = conn.Write(join{rank: 0, size: 2}.Append(nil))
	require.NoError(t, err)
	_, err = io.ReadAll(conn)
	require.NoError(t, err)
	require.Contains(t, w.log.String(), "rank 1 asks to be rank 0")
}

// Strangers are dropped one by one, whatever they say or do not say, and the
// job does not notice.
func TestStrangers(t *testing.T) {
	ctx := ranks.Within(t)
	const size, most = 4, 8
	w := newWorld(t, size, most)
	dial := func() net.Conn {
		conn := ranks.Dial(t, w.Addr().String())
		return conn
	}
	for _, say := range []string{
		"GET / HTTP/1.1\r\n\r\n",
		strings.Repeat("\x00", 1<<16),
		"SLUICE\x00\x01" + strings.Repeat("\xff", 1<<16),
	} {
		conn := dial()
		io.WriteString(conn, say)
		// The server hangs up, maybe with a reset, on account of what it did
		// not read.
		_, err := io.ReadAll(conn)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	}
	// A port scan.
	for range 100 {
		dial().Close()
	}
	w.waitFor(t, "the port scan to be over", func() bool { return len(w.strangers) == 0 })
	// Half-open ones: the oldest goes when there are too many.
	var silent []net.Conn
	for i := range size + most {
		silent = append(silent, dial())
		w.waitFor(t, "one stranger more", func() bool { return len(w.strangers) == i+1 })
	}
	for rank := range size {
		j := w.join(t, rank)
		_, err := silent[rank].Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF, "the oldest makes room")
		require.NoError(t, j.Err())
		silent = append(silent, dial())
		w.waitFor(t, "room taken", func() bool { return len(w.strangers) == size+most })
	}
	require.Contains(t, w.log.String(), "too many strangers")
	require.NoError(t, w.Close())
	for _, conn := range silent[size:] {
		_, err := conn.Read(make([]byte, 1))
		require.Error(t, err)
	}
	require.NoError(t, ctx.Err())
}

// A rank that gives without ever reading does not make the server grow.
func TestRankDoesNotRead(t *testing.T) {
	w := newWorld(t, 1, maxStrangers)
	conn := ranks.Dial(t, w.Addr().String())
	e := w.env
	_, _, _, err := introduce(conn, &e, false, func() error { return nil })
	require.NoError(t, err)
	data := make([]byte, MaxData)
	for round := range uint32(1000) {
		if _, err = conn.Write(part{round: round, data: data}.Append(nil)); err != nil {
			break
		}
	}
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	require.ErrorIs(t, w.Wait(ranks.Within(t)), ErrDied)
	require.Contains(t, w.log.String(), "rank does not read")
}

// flaky is a listener that fails, after its first connection, before it works again, as one does when
// there are no descriptors left. If its failures are negative, it fails once after each connection.
type flaky struct {
	net.Listener
	failures int
	begun    bool
}

func (l *flaky) Accept() (net.Conn, error) {
	if l.begun && l.failures != 0 {
		l.failures--
		l.begun = l.failures >= 0
		return nil, limits.ErrFiles
	}
	l.begun = true
	return l.Listener.Accept()
}

// TestAcceptFails: strangers give their descriptors back when there are none left.
func TestAcceptFails(t *testing.T) {
	ctx := ranks.Within(t)
	for _, failures := range []int{3, math.MaxInt} {
		ln := ranks.Listen(t)
		s, err := Serve(ctx, &flaky{Listener: ln, failures: failures}, ServerOptions{Size: 1, Insecure: true})
		require.NoError(t, err)
		stranger := ranks.Dial(t, ln.Addr().String())
		_, err = stranger.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
		if failures == 3 {
			j, err := joinFrom(ctx, variables("SLUICE_RANK=0", "SLUICE_SIZE=1", "SLUICE_INSECURE=1", "SLUICE_SERVER="+s.Addr().String()))
			require.NoError(t, err)
			require.NoError(t, j.Close())
		}
		require.NoError(t, s.Close())
	}
}

// TestAcceptFailsAgain: strangers that come and go while there are no descriptors are told of once.
func TestAcceptFailsAgain(t *testing.T) {
	ln := ranks.Listen(t)
	var log logbuf.Buffer
	o := ServerOptions{Size: 1, Insecure: true, Logger: slog.New(slog.NewTextHandler(&log, nil))}
	s, err := Serve(ranks.Within(t), &flaky{Listener: ln, failures: -1}, o)
	require.NoError(t, err)
	for range 5 {
		stranger := ranks.Dial(t, ln.Addr().String())
		_, err := stranger.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
		require.NoError(t, stranger.Close())
	}
	require.NoError(t, s.Close())
	require.Equal(t, 1, strings.Count(log.String(), "cannot accept"), log.String())
}

// Join waits for a rendezvous that is not there yet.
func TestServerComesLate(t *testing.T) {
	ctx := ranks.Within(t)
	addr := ranks.Free(t)
	env := variables("SLUICE_RANK=0", "SLUICE_SIZE=2", "SLUICE_INSECURE=1", "SLUICE_LAUNCHER=run", "SLUICE_SERVER="+addr)

	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	_, err := joinFrom(short, env)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, addr)

	type result struct {
		j   *Job
		err error
	}
	joined := make(chan result)
	go func() {
		j, err := joinFrom(ctx, env)
		joined <- result{j, err}
	}()
	// The first comer hangs up at once, as a rendezvous does that is closing.
	ln, err := net.Listen("tcp", addr)
	require.NoError(t, err)
	conn, err := ln.Accept()
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	s, err := Serve(ctx, ln, ServerOptions{Size: 2, Insecure: true})
	require.NoError(t, err)
	defer s.Close()
	r := <-joined
	require.NoError(t, r.err)
	require.NoError(t, r.j.Close())
}

// A rendezvous that accepts and says nothing holds a rank no longer than its
// context.
func TestMuteServer(t *testing.T) {
	ln := ranks.Listen(t)
	ctx, cancel := context.WithTimeout(ranks.Within(t), 50*time.Millisecond)
	defer cancel()
	_, err := joinFrom(ctx, variables("SLUICE_RANK=0", "SLUICE_SIZE=2", "SLUICE_INSECURE=1", "SLUICE_SERVER="+ln.Addr().String()))
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// Close fails an Exchange that is in progress.
func TestCloseDuringExchange(t *testing.T) {
	ctx := ranks.Within(t)
	w := newWorld(t, 2, maxStrangers)
	jobs := w.joinAll(t)
	done := make(chan error)
	go func() { done <- jobs[0].Barrier(ctx) }()
	w.waitGiven(t, 1)
	require.NoError(t, jobs[0].Close())
	require.ErrorIs(t, <-done, ErrClosed)
	err := jobs[1].Barrier(ctx)
	require.ErrorIs(t, err, ErrLeft)
}

// After an unexpected message of the server no more messages are read.
func TestBadServer(t *testing.T) {
	for name, say := range map[string]message{
		"part before the round": part{round: 0, rank: 0},
		"welcome again":         welcome{},
		"garbage":               fail{reason: 9},
		"where, twice":          twice{where{rank: 3}},
	} {
		w := newWorld(t, 1, maxStrangers)
		j := w.join(t, 0)
		w.mu.Lock()
		w.send(w.members[0].session, delivery{message: say.Append(nil)})
		w.mu.Unlock()
		<-j.Done()
		require.ErrorIs(t, j.Err(), ErrServerLost, name)
		require.ErrorIs(t, j.Err(), errProtocol, name)
	}
}

// twice is a message that comes twice.
type twice struct{ message }

func (m twice) Append(b []byte) []byte { return m.message.Append(m.message.Append(b)) }

// The rendezvous answers a rank whether another has left or died, also when others have gone
// before; of many questions at once each is answered.
func TestGone(t *testing.T) {
	ctx := ranks.Within(t)
	w := newWorld(t, 4, maxStrangers)
	jobs := w.joinAll(t)
	for rank := range jobs {
		require.NoError(t, jobs[0].Gone(ctx, rank))
	}
	require.NoError(t, jobs[2].Close())
	kill(jobs[3])
	w.waitFor(t, "the death is noticed", func() bool { return w.members[3].state == dead })
	want := []error{nil, nil, ErrLeft, ErrDied}
	each(100, func(i int) {
		rank, asks := i%4, i/4%2
		err := jobs[asks].Gone(ctx, rank)
		assert.ErrorIs(t, err, want[rank])
		if err != nil {
			var e *RankError
			assert.ErrorAs(t, err, &e)
			assert.Equal(t, rank, e.Rank)
		}
	})
	require.ErrorIs(t, jobs[0].Barrier(ctx), ErrLeft)
	require.ErrorIs(t, jobs[0].Gone(ctx, 2), ErrLeft)
	over, cancel := context.WithCancel(ctx)
	cancel()
	for range 10 { // a question that was given up does not answer the next
		_ = jobs[0].Gone(over, 2)
		require.ErrorIs(t, jobs[0].Gone(ctx, 3), ErrDied)
	}
	_ = jobs[1].Gone(over, 2) // which may be too late to be told
	require.NoError(t, w.Close())
	require.ErrorIs(t, jobs[0].Gone(ctx, 3), ErrUnknown, "the rendezvous is closed")
}

// A rendezvous that does not read a question is slow, and there.
func TestGoneUnread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		defer here.Close()
		c := &client{conn: here, size: 2, minor: whereMinor, asking: make(chan struct{}, 1), told: make(chan where, 1), readerDone: make(chan struct{})}
		require.NoError(t, c.whyGone(t.Context(), 1))
		there.Close()
		require.ErrorIs(t, c.whyGone(t.Context(), 1), ErrUnknown)
	})
}

// A rank that asks for none of the job is hung up on.
func TestGoneBeyond(t *testing.T) {
	w := newWorld(t, 2, maxStrangers)
	jobs := w.joinAll(t)
	require.ErrorIs(t, jobs[0].Gone(ranks.Within(t), 2), ErrUnknown)
	<-jobs[0].Done()
	require.ErrorIs(t, jobs[0].Err(), ErrServerLost)
}

// A round that cannot be written, because the context ends first, breaks the
// connection, in the middle of a message at once, or before it when nothing else can
// be written either; the rank sees why.
func TestCanceledWhileWriting(t *testing.T) {
	for _, read := range []int{0, 10} {
		synctest.Test(t, func(t *testing.T) {
			here, there := net.Pipe()
			defer there.Close()
			c := &client{
				conn: here, size: 2, turn: make(chan struct{}, 1),
				ended: make(chan struct{}), readerDone: make(chan struct{}),
			}
			close(c.readerDone)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			go io.ReadFull(there, make([]byte, read)) // and no more
			begun := time.Now()
			_, err := c.exchange(ctx, make([]byte, 100))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			<-c.done()
			require.ErrorIs(t, c.err(), ErrServerLost)
			require.NoError(t, c.close())
			want := time.Second
			if read == 0 {
				want += farewellPatience
			}
			require.Equal(t, want, time.Since(begun))
		})
	}
}

// TestServesLater: what has the address when rank 0 comes, and is no rendezvous, may be gone later, as a
// connection that happens to use its port, or an earlier program that is ending. Then rank 0 runs the
// rendezvous there.
func TestServesLater(t *testing.T) {
	other, err := net.Listen("tcp", ranks.Free(t))
	require.NoError(t, err)
	var gone sync.WaitGroup
	gone.Go(func() {
		conn, err := other.Accept()
		other.Close()
		if err == nil {
			conn.Close()
		}
	})
	defer gone.Wait()
	j, err := joinFrom(ranks.Within(t), variables("SLUICE_RANK=0", "SLUICE_SIZE=1", "SLUICE_INSECURE=1", "SLUICE_SERVER="+other.Addr().String()))
	require.NoError(t, err)
	require.NoError(t, j.Close())
}
