package impi

import (
	"context"
	"io"
	"log/slog"
	"net/netip"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/impi/startup"
	"github.com/sluice-hpc/sluice/internal/nettest"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// limit bounds every test: what takes longer hangs.
const limit = ranks.Limit

var within, closes, open = ranks.Within, ranks.Closes, ranks.Open

// place is where the two processes of a test are.
type place struct {
	name      string
	hosts     int
	processes int // of a host
	config    Config
}

var places = []place{
	{"here", 1, 2, Config{}},
	{"tcp", 2, 1, Config{Providers: []string{}}},
	{"shm", 2, 1, Config{Providers: []string{"shm"}}},
	{"verbs-tcp", 2, 1, Config{Providers: []string{"tcp"}}},
	{"roce", 2, 1, Config{Providers: []string{"roce"}}},
	{"ibv", 2, 1, Config{Providers: []string{"ibv"}}},
}

// another says that a place is like others to this package, by a provider that has tests of
// its own: with -short few tests go there.
func (p place) another() bool { return p.name == "verbs-tcp" || p.name == "roce" }

// needs states what a test at this place needs.
func (p place) needs(t testing.TB) {
	t.Helper()
	for _, provider := range p.config.Providers {
		need.Provider(t, provider)
	}
	if p.another() {
		need.Full(t)
	}
}

// seldom states what a test needs at this place, if it is one of what this package does the
// same way whatever carries its messages. It goes to places that are like others in its long
// form only; with -short shm speaks for all hosts.
func (p place) seldom(t testing.TB) {
	t.Helper()
	p.needs(t)
	switch {
	case p.another():
		need.Long(t)
	case p.name == "tcp":
		need.Full(t)
	}
}

func init() {
	for _, provider := range nettest.Providers() {
		places = append(places, place{provider, 2, 1, Config{Providers: []string{provider}}})
		collectivePlaces = append(collectivePlaces, place{provider, 3, 2, Config{Providers: []string{provider}}})
	}
}

// everywhere runs a test for each place, with the worlds of its processes: a test of what
// this package asks of a provider.
func everywhere(t *testing.T, test func(t *testing.T, a, b *Comm)) {
	for _, p := range places {
		t.Run(p.name, func(t *testing.T) {
			p.needs(t)
			w := worlds(t, p)
			test(t, w[0], w[1])
		})
	}
}

// eachWay runs a test for each way that messages take in this package, see [place.seldom].
func eachWay(t *testing.T, test func(t *testing.T, a, b *Comm)) {
	seldomAt(t, places, func(t *testing.T, p place) {
		w := worlds(t, p)
		test(t, w[0], w[1])
	})
}

// seldomAt runs a test at those of the places that [place.seldom] leaves.
func seldomAt(t *testing.T, places []place, test func(t *testing.T, p place)) {
	for _, p := range places {
		t.Run(p.name, func(t *testing.T) {
			p.seldom(t)
			test(t, p)
		})
	}
}

// worlds makes a job of several hosts in this process, through a server, and returns
// the world of each process.
func worlds(t testing.TB, p place) []*Comm {
	t.Helper()
	jobs := join(t, p)
	t.Cleanup(func() { closeAll(t, jobs) })
	for _, j := range jobs {
		for _, l := range j.e.links {
			if l != nil {
				_, rc := l.carrier.(*rcCarrier)
				require.Equal(t, len(p.config.Providers) > 0, rc, "carrier of host %d", l.host)
			}
		}
	}
	return worldsOf(jobs)
}

// worldsOf returns the world of each process of a job.
func worldsOf(jobs []*Job) (list []*Comm) {
	for _, j := range jobs {
		list = append(list, j.Worlds()...)
	}
	return list
}

func join(t testing.TB, p place) []*Job {
	t.Helper()
	p.needs(t)
	jobs, errs := tryJoin(t, p)
	for _, err := range errs {
		require.NoError(t, err)
	}
	return jobs
}

// tryJoin has the hosts of a place join a job, and returns what each got.
func tryJoin(t testing.TB, p place) ([]*Job, []error) {
	t.Helper()
	l := ranks.Listen(t)
	const key = 4711
	s := startup.Server{Clients: p.hosts, Key: key}
	served := make(chan error, 1)
	go func() {
		_, err := s.Serve(context.Background(), l)
		served <- err
	}()
	t.Cleanup(func() { <-served })
	jobs := make([]*Job, p.hosts)
	errs := make([]error, p.hosts)
	var wg sync.WaitGroup
	for i := range jobs {
		wg.Go(func() {
			c := p.config
			c.Client, c.Key, c.Processes, c.Addr = i, key, p.processes, netip.MustParseAddr("127.0.0.1")
			if c.Log == nil {
				c.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
			}
			jobs[i], errs[i] = Join(within(t), l.Addr().String(), c)
		})
	}
	wg.Wait()
	return jobs, errs
}

// closeAll closes all jobs at the same time.
func closeAll(t testing.TB, jobs []*Job) {
	var wg sync.WaitGroup
	for _, j := range jobs {
		wg.Go(func() { require.NoError(t, j.Close(context.WithoutCancel(t.Context()))) })
	}
	wg.Wait()
}

// both runs the two sides of an exchange at the same time.
func both(t testing.TB, sides ...func() error) {
	t.Helper()
	errs := make([]error, len(sides))
	var wg sync.WaitGroup
	for i, side := range sides {
		wg.Go(func() { errs[i] = side() })
	}
	wg.Wait()
	for i, err := range errs {
		require.NoError(t, err, "side %d", i)
	}
}

// The calls of tests that must succeed: irecv, isend and issend start a request, completed waits for
// it, received receives a message, tested and iprobe look at what is there.

func irecv(t testing.TB, c *Comm, b []byte, source, tag int) Request {
	t.Helper()
	q, err := c.Irecv(b, source, tag)
	require.NoError(t, err)
	return q
}

func isend(t testing.TB, c *Comm, b []byte, dest, tag int) Request {
	t.Helper()
	q, err := c.Isend(b, dest, tag)
	require.NoError(t, err)
	return q
}

func issend(t testing.TB, c *Comm, b []byte, dest, tag int) Request {
	t.Helper()
	q, err := c.Issend(b, dest, tag)
	require.NoError(t, err)
	return q
}

func completed(t testing.TB, q Request) Status {
	t.Helper()
	st, err := q.Wait(within(t))
	require.NoError(t, err)
	return st
}

func received(t testing.TB, c *Comm, b []byte, source, tag int) Status {
	t.Helper()
	st, err := c.Recv(within(t), b, source, tag)
	require.NoError(t, err)
	return st
}

func tested(t testing.TB, q Request) (bool, Status) {
	t.Helper()
	done, st, err := q.Test()
	require.NoError(t, err)
	return done, st
}

func iprobe(t testing.TB, c *Comm, source, tag int) (bool, Status) {
	t.Helper()
	there, st, err := c.Iprobe(source, tag)
	require.NoError(t, err)
	return there, st
}

// nothing: no message is there.
func nothing(t testing.TB, c *Comm, source, tag int) {
	t.Helper()
	there, _ := iprobe(t, c, source, tag)
	require.False(t, there)
}

// fails waits for a request that must fail, for that reason, with that rank.
func fails(t testing.TB, q Request, reason error, rank int) {
	t.Helper()
	_, err := q.Wait(within(t))
	requireError(t, err, reason, rank)
}
