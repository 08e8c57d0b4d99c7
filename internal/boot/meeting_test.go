package boot

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/logbuf"
	"github.com/sluice-hpc/sluice/internal/proof"
	"github.com/sluice-hpc/sluice/internal/reach"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// byHand joins all ranks of a job as their user would tell them to.
func byHand(ctx context.Context, t *testing.T, size int, server string, env ...string) []*Job {
	t.Helper()
	jobs, errs := make([]*Job, size), make([]error, size)
	each(size, func(rank int) {
		jobs[rank], errs[rank] = joinFrom(ctx, variables(append([]string{
			fmt.Sprint("SLUICE_RANK=", rank), fmt.Sprint("SLUICE_SIZE=", size), "SLUICE_SERVER=" + server, "SLUICE_SECRET=" + hexSecret,
		}, env...)...))
	})
	require.NoError(t, errors.Join(errs...))
	t.Cleanup(func() { each(size, func(rank int) { jobs[size-1-rank].Close() }) })
	return jobs
}

func barrier(ctx context.Context, jobs []*Job) error {
	errs := make([]error, len(jobs))
	each(len(jobs), func(rank int) { errs[rank] = jobs[rank].Barrier(ctx) })
	return errors.Join(errs...)
}

// Rank 0 runs the rendezvous; what launchers around say does not count.
func TestByHand(t *testing.T) {
	ctx := ranks.Within(t)
	address := ranks.Free(t)
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	for _, server := range []string{address, "localhost:" + port} {
		jobs := byHand(ctx, t, 4, server, "PMI_FD=7", "PMI_RANK=9", "OMPI_COMM_WORLD_RANK=9", "SLURM_STEP_ID=1", "SLURM_PROCID=9", "JOB_COMPLETION_INDEX=9")
		require.NoError(t, barrier(ctx, jobs))
		got := make([][][]byte, 4)
		each(4, func(rank int) { got[rank], _ = jobs[rank].Exchange(ctx, payload(rank, 1, MaxData)) })
		for rank := range got {
			require.Len(t, got[rank], 4)
			require.Equal(t, payload(3, 1, MaxData), got[rank][3])
		}
		closeAll(t, jobs)
	}
}

// If the rendezvous already runs elsewhere, rank 0 does not run it.
func TestByHandServed(t *testing.T) {
	ctx := ranks.Within(t)
	ln := ranks.Listen(t)
	s, err := Serve(ctx, ln, ServerOptions{Size: 2, Secret: []byte("0123456789abcdef")})
	require.NoError(t, err)
	defer s.Close()
	jobs := byHand(ctx, t, 2, s.Addr().String(), "SLUICE_SECRET=30313233343536373839616263646566")
	require.NoError(t, barrier(ctx, jobs))
	closeAll(t, jobs)
	require.NoError(t, s.Wait(ctx))
}

// Rank 0 logs, in words, which processes it refuses and why; and of a death, which all
// ranks return as an error, nothing.
func TestRefusalsAreTold(t *testing.T) {
	ctx := ranks.Within(t)
	server := ranks.Free(t)
	var log logbuf.Buffer
	told := WithLogger(ctx, slog.New(slog.NewTextHandler(&log, nil)))
	rank := func(ctx context.Context, rank, size int, secret string) (*Job, error) {
		return joinFrom(ctx, variables(fmt.Sprint("SLUICE_RANK=", rank), fmt.Sprint("SLUICE_SIZE=", size), "SLUICE_SERVER="+server, "SLUICE_SECRET="+secret))
	}
	first, err := rank(told, 0, 3, hexSecret)
	require.NoError(t, err)
	defer first.Close()
	second, err := rank(ctx, 1, 3, hexSecret)
	require.NoError(t, err)
	for _, c := range []struct {
		rank, size int
		secret     string
		says       string
	}{
		{2, 3, strings.Repeat("ab", 16), "peer claiming to be rank 2: the peer does not know the secret of the job"},
		{1, 3, hexSecret, "refused rank 1: two processes have this number: "},
		{2, 4, hexSecret, "refused rank 2: it believes that the job has 4 ranks, but the job has 3"},
	} {
		_, err := rank(ctx, c.rank, c.size, c.secret)
		require.Error(t, err)
		ranks.Eventually(t, func() bool { return strings.Contains(log.String(), c.says) })
	}
	kill(second)
	ranks.Eventually(t, func() bool { return first.Gone(ctx, 1) != nil })
	require.NotContains(t, log.String(), "died")
	for _, j := range []*Job{first, second} { // the first mistake of a process of this job has ended the round
		err := j.Barrier(ctx)
		if j == first {
			require.ErrorIs(t, err, ErrRefused)
			require.ErrorContains(t, err, "before all ranks had joined, rank 1 was refused: two processes have this number: ")
		}
	}
	first.x.(*host).server.Close() // rank 2 will not come, and Close would wait for it
}

// A rank that waits for the first round is told that another process has its number.
func TestTwinIsTold(t *testing.T) {
	ctx := ranks.Within(t)
	server := ranks.Free(t)
	rank := func(rank int) (*Job, error) {
		return joinFrom(ctx, variables(fmt.Sprint("SLUICE_RANK=", rank), "SLUICE_SIZE=3", "SLUICE_SERVER="+server, "SLUICE_SECRET="+hexSecret))
	}
	zero, err := rank(0)
	require.NoError(t, err)
	defer zero.Close()
	one, err := rank(1)
	require.NoError(t, err)
	defer one.Close()
	told := make(chan error, 1)
	go func() { told <- one.Barrier(ctx) }()
	s := zero.x.(*host).server
	ranks.Eventually(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.parts[1] != nil
	})
	const why = "two processes have this number: "
	_, err = rank(1)
	require.ErrorContains(t, err, why)
	err = <-told
	require.ErrorIs(t, err, ErrRefused)
	require.ErrorContains(t, err, "before all ranks had joined, rank 1 was refused: "+why)
	s.Close() // rank 2 will not come, and Close would wait for it
}

// A rank that waits in Join says so, and for what: also while an attempt goes on.
func TestSilenceIsTold(t *testing.T) {
	defer func(was time.Duration) { silencePatience = was }(silencePatience)
	silencePatience = 0
	mute := ranks.Listen(t) // the kernel accepts
	nowhere := ranks.Free(t)
	for _, c := range []struct{ name, rank, server, says string }{
		{"no rendezvous", "1", "SLUICE_SERVER=" + nowhere, "at " + nowhere},
		{"mute rendezvous", "1", "SLUICE_SERVER=" + mute.Addr().String(), "at " + mute.Addr().String() + ": "},
		{"no such name", "0", "SLUICE_SERVER=no-such-host.invalid:1", "lookup no-such-host.invalid"},
		{"no IMPI server", "0", "SLUICE_IMPI_SERVER=" + nowhere, "at " + nowhere},
		{"mute IMPI server", "1", "SLUICE_IMPI_SERVER=" + mute.Addr().String(), "at " + mute.Addr().String() + ": no answer yet"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log logbuf.Buffer
			ctx, cancel := context.WithCancel(WithLogger(ranks.Within(t), slog.New(slog.NewTextHandler(&log, nil))))
			joined := make(chan error)
			go func() {
				_, err := joinFrom(ctx, variables("SLUICE_RANK="+c.rank, "SLUICE_SIZE=2", c.server, "SLUICE_SECRET="+hexSecret))
				joined <- err
			}()
			ranks.Eventually(t, func() bool { return strings.Contains(log.String(), "waiting for the") })
			cancel()
			require.ErrorIs(t, <-joined, context.Canceled)
			require.Contains(t, log.String(), c.says)
			require.Regexp(t, `waited=[0-9]+s "at most"=(1m0s|[0-9]+s)\n`, log.String(), "the deadline of Join comes before that of dial")
		})
	}
}

// When rank 0 has closed its job and does not wait any longer, the others go
// on as if it had left, which it has.
func TestHostLeaves(t *testing.T) {
	ctx := ranks.Within(t)
	jobs := byHand(ctx, t, 3, ranks.Free(t))
	require.NoError(t, barrier(ctx, jobs))
	h := jobs[0].x.(*host)
	require.NoError(t, h.client.close())
	h.server.retire()
	for _, j := range jobs[1:] {
		err := j.Barrier(ctx)
		var r *RankError
		require.ErrorAs(t, err, &r)
		require.Equal(t, 0, r.Rank)
		require.ErrorIs(t, err, ErrLeft)
		<-j.x.(*client).readerDone
		require.NoError(t, j.Err(), "the job goes on")
		require.ErrorIs(t, j.Gone(ctx, 0), ErrLeft)
		require.ErrorIs(t, j.Gone(ctx, 2), ErrUnknown)
		require.ErrorIs(t, j.Barrier(ctx), ErrLeft)
	}
	jobs[1].Abort(3, "the others are not told")
	require.Equal(t, &AbortError{Rank: 1, Code: 3, Why: "the others are not told"}, jobs[1].Err())
	require.NoError(t, jobs[2].Err())
	require.NoError(t, jobs[1].Close())
	require.NoError(t, jobs[2].Close())
	require.NoError(t, jobs[0].Close())
}

// When rank 0 dies, so does the rendezvous, and the error says which rank it
// was.
func TestHostDies(t *testing.T) {
	ctx := ranks.Within(t)
	jobs := byHand(ctx, t, 3, ranks.Free(t))
	require.NoError(t, barrier(ctx, jobs))
	require.NoError(t, jobs[0].x.(*host).server.Close())
	for _, j := range jobs[1:] {
		<-j.Done()
		for _, err := range []error{j.Err(), j.Barrier(ctx)} {
			require.ErrorIs(t, err, ErrServerLost)
			require.ErrorIs(t, err, ErrDied)
			var r *RankError
			require.ErrorAs(t, err, &r)
			require.Equal(t, 0, r.Rank)
		}
		require.NoError(t, j.Close())
	}
}

// All are told of an abort, rank 0 when the others have gone: its process may
// end then.
func TestHostedAbort(t *testing.T) {
	for culprit := range 3 {
		t.Run(fmt.Sprint(culprit), func(t *testing.T) {
			ctx := ranks.Within(t)
			jobs := byHand(ctx, t, 3, ranks.Free(t))
			require.NoError(t, barrier(ctx, jobs))
			jobs[culprit].Abort(5, "why")
			want := &AbortError{Rank: culprit, Code: 5, Why: "why"}
			for _, rank := range []int{1, 2, 0} {
				j := jobs[rank]
				<-j.Done()
				require.Equal(t, want, j.Err())
				var a *AbortError
				require.ErrorAs(t, j.Barrier(ctx), &a)
				require.Equal(t, want, a)
				if rank == 1 && culprit != 0 {
					require.NoError(t, jobs[0].Err(), "rank 2 is still here")
				}
				if rank != 0 {
					kill(j)
				}
			}
		})
	}
}

// A rank may be in its next program while rank 0 is in the last one: it waits
// for the next rendezvous at the same address.
func TestNextProgram(t *testing.T) {
	ctx := ranks.Within(t)
	server := ranks.Free(t)
	var log logbuf.Buffer
	told := WithLogger(ctx, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	jobs := byHand(told, t, 2, server)
	require.NoError(t, barrier(ctx, jobs))
	require.NoError(t, jobs[1].Close())

	type result struct {
		j   *Job
		err error
	}
	next := make(chan result)
	go func() {
		j, err := joinFrom(ctx, variables("SLUICE_RANK=1", "SLUICE_SIZE=2", "SLUICE_SERVER="+server, "SLUICE_SECRET="+hexSecret))
		next <- result{j, err}
	}()
	ranks.Eventually(t, func() bool { return strings.Contains(log.String(), ending) }) // it is early
	require.NoError(t, jobs[0].Close())
	require.NotRegexp(t, "level=(INFO|WARN|ERROR) .*not admitted", log.String(), "to be early is no fault")
	first, err := joinFrom(ctx, variables("SLUICE_RANK=0", "SLUICE_SIZE=2", "SLUICE_SERVER="+server, "SLUICE_SECRET="+hexSecret))
	require.NoError(t, err)
	r := <-next
	require.NoError(t, r.err)
	require.NoError(t, barrier(ctx, []*Job{first, r.j}))
	closeAll(t, []*Job{first, r.j})
}

// Rank 0 waits in Close for those that have not even come yet.
func TestHostWaits(t *testing.T) {
	ctx := ranks.Within(t)
	server := ranks.Free(t)
	first, err := joinFrom(ctx, variables("SLUICE_RANK=0", "SLUICE_SIZE=2", "SLUICE_SERVER="+server, "SLUICE_INSECURE=1"))
	require.NoError(t, err)
	closed := make(chan error)
	go func() { closed <- first.Close() }()
	<-first.Done()
	second, err := joinFrom(ctx, variables("SLUICE_RANK=1", "SLUICE_SIZE=2", "SLUICE_SERVER="+server, "SLUICE_INSECURE=1"))
	require.NoError(t, err)
	require.ErrorIs(t, second.Barrier(ctx), ErrLeft)
	require.NoError(t, second.Err())
	require.NoError(t, second.Close())
	require.NoError(t, <-closed)
}

// What the program itself says goes before all variables.
func TestEnvironmentJoin(t *testing.T) {
	ctx := ranks.Within(t)
	good := Environment{Size: 2, Server: ranks.Free(t), Job: "j", Secret: []byte("0123456789abcdef")}
	jobs, errs := make([]*Job, 2), make([]error, 2)
	each(2, func(rank int) {
		e := good
		e.Rank = rank
		jobs[rank], errs[rank] = e.Join(ctx)
	})
	require.NoError(t, errors.Join(errs...))
	require.Equal(t, []int{-1, 0}, []int{jobs[1].LocalRank(), jobs[1].LocalSize()})
	require.NoError(t, barrier(ctx, jobs))
	closeAll(t, jobs)
	for says, spoil := range map[string]func(*Environment){
		"size 0, want 1 to 1048576":                           func(e *Environment) { e.Size = 0 },
		"rank 2, want 0 to 1":                                 func(e *Environment) { e.Rank = 2 },
		"local size 3, want 1 to 2":                           func(e *Environment) { e.LocalSize = 3 },
		"local rank 1, want 0 to 0":                           func(e *Environment) { e.LocalSize, e.LocalRank = 1, 1 },
		"job id of 65 bytes, the most is 64":                  func(e *Environment) { e.Job = string(make([]byte, 65)) },
		"no Secret, and Insecure is not set: set one of them": func(e *Environment) { e.Secret = nil },
		"both Secret and Insecure are set":                    func(e *Environment) { e.Insecure = true },
		"secret of 3 bytes, want 16 to 512":                   func(e *Environment) { e.Secret = e.Secret[:3] },
		"no Server":                                           func(e *Environment) { e.Server = "" },
		`server "x": missing port in address`:                 func(e *Environment) { e.Server = "x" },
		`server ":1": no host before the port`:                func(e *Environment) { e.Server = ":1" },
		`server "h:0": port "0", want 1 to 65`:                func(e *Environment) { e.Server = "h:0" },
	} {
		e := good
		spoil(&e)
		_, err := e.Join(ctx)
		require.ErrorIs(t, err, ErrOptions)
		require.ErrorContains(t, err, says)
	}
}

// Of several addresses some may lead nowhere, or to another process.
func TestSeveralAddresses(t *testing.T) {
	ctx := ranks.Within(t)
	secret := []byte("the secret of a job of a test...")
	serve := func(job string, secret []byte) *Server {
		ln := ranks.Listen(t)
		s, err := Serve(ctx, ln, ServerOptions{Size: 1, Job: job, Secret: secret})
		require.NoError(t, err)
		t.Cleanup(func() { s.Close() })
		return s
	}
	other, ours := serve("other", secret), serve("ours", secret)
	stranger := serve("ours", []byte("the secret of another job......."))
	m := meeting{Environment: Environment{Size: 1, Job: "ours", Secret: secret}, hosted: true}
	m.find = at(ranks.Free(t), other.Addr().String(), stranger.Addr().String(), ours.Addr().String())
	j, err := m.join(ctx)
	require.NoError(t, err)
	require.NoError(t, j.Barrier(ctx))
	require.NoError(t, j.Close())

	// A rendezvous that knows the secret can refuse: trying the next one is of no use.
	m.find = at(ours.Addr().String(), ranks.Free(t))
	_, err = m.join(ctx)
	var refused *RefusedError
	require.ErrorAs(t, err, &refused)

	// Where all addresses refuse, the rank gives up.
	m.find = at(stranger.Addr().String(), stranger.Addr().String())
	_, err = m.join(ctx)
	require.ErrorIs(t, err, proof.ErrRefused)
	require.NoError(t, ctx.Err())
	require.NotErrorIs(t, err, context.DeadlineExceeded)

	m.find = at(ranks.Free(t), stranger.Addr().String())
	short, cancel := context.WithTimeoutCause(ctx, limit/600, errors.New("enough"))
	defer cancel()
	_, err = m.join(short)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "at "+stranger.Addr().String())
}

func TestListenAt(t *testing.T) {
	ctx := ranks.Within(t)
	ln, err := listenAt(ctx, ranks.Free(t))
	require.NoError(t, err)
	require.NotNil(t, ln)
	defer ln.Close()
	require.True(t, ln.Addr().(*net.TCPAddr).IP.IsLoopback())
	again, err := listenAt(ctx, ln.Addr().String())
	require.NoError(t, err)
	require.Nil(t, again, "the port is in use")
	foreign, err := listenAt(ctx, "192.0.2.77:4711") // RFC 5737: no host's
	require.NoError(t, err)
	require.Nil(t, foreign)
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	_, err = listenAt(canceled, "no-such-host.invalid:1")
	require.ErrorIs(t, err, context.Canceled)
}

func TestReachable(t *testing.T) {
	ln, err := net.Listen("tcp", ":0")
	require.NoError(t, err)
	defer ln.Close()
	list, err := reachable(t.Context(), ln)
	require.NoError(t, err)
	require.NotEmpty(t, list)
	require.LessOrEqual(t, len(list), maxAddresses)
	for _, a := range list {
		require.NoError(t, checkAddress(a))
	}
	loopback, err := reach.ListenLoopback(t.Context())
	require.NoError(t, err)
	defer loopback.Close()
	list, err = reachable(t.Context(), loopback)
	require.NoError(t, err)
	require.Equal(t, []string{loopback.Addr().String()}, list)
}

// TestNearby: a process of this host that has accepted a connection and says nothing is there until its
// address is refused or given up, also when its queue is full.
func TestNearby(t *testing.T) {
	n := &nearby{silent: map[string]bool{}}
	ln := ranks.Listen(t)
	conn := ranks.Dial(t, ln.Addr().String())
	late := &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}
	n.failed("a", late)
	require.False(t, n.some.Load(), "nothing has accepted")
	n.meet(conn)
	require.True(t, n.some.Load())
	n.failed("a", os.ErrDeadlineExceeded)
	n.failed("a", late)
	require.True(t, n.some.Load(), "its queue is full")
	n.keep([]string{"a"})
	require.True(t, n.some.Load())
	n.failed("a", syscall.ECONNREFUSED)
	require.False(t, n.some.Load())
	n.meet(conn)
	n.failed("a", os.ErrDeadlineExceeded)
	n.keep([]string{"b"})
	require.False(t, n.some.Load())
}

// Rank 0 names the ranks that have not come.
func TestAbsentAreNamed(t *testing.T) {
	defer func(was time.Duration) { silencePatience = was }(silencePatience)
	silencePatience = 0
	var log logbuf.Buffer
	ctx := WithLogger(ranks.Within(t), slog.New(slog.NewTextHandler(&log, nil)))
	server := ranks.Free(t)
	join := func(rank string) (*Job, error) {
		return joinFrom(ctx, variables("SLUICE_RANK="+rank, "SLUICE_SIZE=4", "SLUICE_SERVER="+server, "SLUICE_SECRET="+hexSecret))
	}
	first, err := join("0")
	require.NoError(t, err)
	ranks.Eventually(t, func() bool { return strings.Contains(log.String(), "waiting for ranks ") })
	require.Contains(t, log.String(), `msg="waiting for ranks 1-3 of 4 at `+server+`" rank=0 size=4`)
	first.x.(*host).server.Close()
}
