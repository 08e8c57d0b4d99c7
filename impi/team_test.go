package impi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/impi/startup"
	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
	"github.com/sluice-hpc/sluice/verbs/verbstest"
)

// teams makes a job of so many ranks, as channel's nodes have one.
func teams(t testing.TB, size int) []*boot.Job {
	t.Helper()
	secret := []byte("0123456789abcdef0123456789abcdef")
	l := ranks.Listen(t)
	s, err := boot.Serve(context.Background(), l, boot.ServerOptions{Size: size, Secret: secret})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	list, errs := make([]*boot.Job, size), make([]error, size)
	var wg sync.WaitGroup
	for i := range list {
		wg.Go(func() {
			e := boot.Environment{Rank: i, Size: size, Server: s.Addr().String(), Secret: secret, Launched: true}
			list[i], errs[i] = e.Join(within(t))
		})
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	t.Cleanup(func() {
		var wg sync.WaitGroup
		for _, j := range list {
			wg.Go(func() { require.NoError(t, j.Close()) })
		}
		wg.Wait()
	})
	return list
}

func quietConfig() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// TestJoinTeams: the ranks of a job are one client, with a host each.
func TestJoinTeams(t *testing.T) {
	for _, byProtocol := range []bool{false, true} {
		t.Run(fmt.Sprintf("by protocol %v", byProtocol), func(t *testing.T) {
			if byProtocol {
				need.Full(t)
			}
			joinTeams(t, byProtocol)
		})
	}
}

func joinTeams(t *testing.T, byProtocol bool) {
	sizes := []int{3, 2}
	l := ranks.Listen(t)
	s := startup.Server{Clients: len(sizes), Key: 99, Log: quietConfig()}
	served := make(chan error, 1)
	go func() {
		_, err := s.Serve(context.Background(), l)
		served <- err
	}()
	var wg sync.WaitGroup
	jobs, errs := make([]*Job, 5), make([]error, 5)
	first := 0
	for client, size := range sizes {
		for rank, n := range teams(t, size) {
			i := first + rank
			wg.Go(func() {
				c := Config{Client: client, Key: 99, Addr: netip.MustParseAddr("127.0.0.1"), XSize: 2048, Log: quietConfig(), PacketLen: uint32(1000 * (i + 1)), Providers: []string{}}
				if i == 1 {
					c.Processes = 2
				}
				c, err := c.complete()
				require.NoError(t, err)
				jobs[i], errs[i] = joinTeam(within(t), l.Addr().String(), n, c)
			})
		}
		first += size
	}
	wg.Wait()
	var w []*Comm
	for i, err := range errs {
		require.NoError(t, err)
		if byProtocol {
			jobs[i].followProtocol()
		}
		require.Equal(t, 2048, jobs[i].roster.settings.XSize)
		w = append(w, jobs[i].Worlds()...)
	}
	require.Len(t, w, 6)
	for i, c := range w {
		require.Equal(t, i, c.Rank())
		require.Equal(t, 6, c.Size())
	}
	sums(t, w)
	if byProtocol { // two masters
		require.Equal(t, []int{0, 4}, w[0].calls.clients.masters)
		require.Equal(t, []int{0, 1, 2, 3}, w[2].calls.clients.within.Ranks())
	}
	closeAll(t, jobs)
	require.NoError(t, <-served)
}

// TestJoinTeamRefused: what keeps rank 0 from joining all ranks are told.
func TestJoinTeamRefused(t *testing.T) {
	server := ranks.Refusing(t)
	for rank, err := range func() []error {
		ranks := teams(t, 3)
		errs := make([]error, len(ranks))
		var wg sync.WaitGroup
		for i, n := range ranks {
			wg.Go(func() {
				c, err := Config{Addr: netip.MustParseAddr("127.0.0.1"), Log: quietConfig()}.complete()
				require.NoError(t, err)
				_, errs[i] = joinTeam(within(t), server, n, c)
			})
		}
		wg.Wait()
		return errs
	}() {
		require.ErrorIs(t, err, errRefused, "rank %d", rank)
		require.ErrorContains(t, err, "connection refused", "rank %d", rank)
	}
}

// TestFromTeam: a job without a server, of several ranks.
func TestFromTeam(t *testing.T) {
	jobs, errs := make([]*Job, 3), make([]error, 3)
	var wg sync.WaitGroup
	for i, n := range teams(t, 3) {
		wg.Go(func() {
			jobs[i], errs[i] = fromTeam(within(t), n, n.Secret(), Config{Processes: 1 + i%2, Log: quietConfig(), Providers: []string{}})
		})
	}
	wg.Wait()
	var w []*Comm
	for i, err := range errs {
		require.NoError(t, err)
		w = append(w, jobs[i].Worlds()...)
	}
	require.Len(t, w, 4)
	sums(t, w)
	all(t, w, func(c *Comm) error { return c.Run(within(t), channel.Barrier()) })
	closeAll(t, jobs)
}

// held is a rank that goes on from Exchange when it is let, and a log that lets it when another has
// waited for it.
type held struct {
	*boot.Job
	slog.Handler
	let chan struct{}
}

func (h *held) Exchange(ctx context.Context, data []byte) ([][]byte, error) {
	all, err := h.Job.Exchange(ctx, data)
	<-h.let
	return all, err
}

func (h *held) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "do not answer") {
		select {
		case h.let <- struct{}{}:
		default:
		}
	}
	return nil
}

// announceAndEnd ends a rank when it has announced where it listens, where nothing answers.
func announceAndEnd(t *testing.T, n *boot.Job, c Config) error {
	c.Addr = netip.MustParseAddr("127.0.0.1")
	c, err := c.complete()
	if err != nil {
		return err
	}
	l, m, err := announce(within(t), "", &c)
	if err != nil {
		return err
	}
	t.Cleanup(func() { l.Close() })
	if m.settings, err = coll.ParseSettings(c.env); err != nil {
		return err
	}
	_, err = n.Exchange(within(t), m.append(nil))
	return errors.Join(err, n.Close())
}

// TestFromTeamHeld: a rank that takes longer to connect than a peer may is waited for, whether others
// connect to it or it to them; one that ends meanwhile is not.
func TestFromTeamHeld(t *testing.T) {
	for slow := range 2 {
		for _, dies := range []bool{false, true} {
			t.Run(fmt.Sprint(slow, dies), func(t *testing.T) {
				ranks := teams(t, 2)
				h := &held{ranks[slow], quietConfig().Handler(), make(chan struct{})}
				var jobs [2]*Job
				var errs [2]error
				var wg sync.WaitGroup
				for i, n := range ranks {
					wg.Go(func() {
						c := Config{Log: slog.New(h), Providers: []string{}, warnAfter: 50 * time.Millisecond}
						switch {
						case i != slow:
							jobs[i], errs[i] = fromTeam(within(t), n, n.Secret(), c)
						case dies:
							errs[i] = announceAndEnd(t, n, c)
						default:
							jobs[i], errs[i] = fromTeam(within(t), h, n.Secret(), c)
						}
					})
				}
				wg.Wait()
				require.NoError(t, errs[slow])
				if dies {
					require.ErrorIs(t, errs[1-slow], boot.ErrLeft)
					return
				}
				require.NoError(t, errs[1-slow])
				closeAll(t, jobs[:])
			})
		}
	}
}

// FuzzRoster: whatever rank 0 tells, it is understood as it was meant, or refused.
func FuzzRoster(f *testing.F) {
	m := member{client: 1, foreign: true, packetLen: 5, ackMark: 1, hiWater: 2, addrs: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:7")}, procs: processes(startup.HostID{15: 1}, 2)}
	own := m
	own.client, own.foreign, own.procs = 0, false, processes(startup.HostID{15: 2}, 1)
	r := &roster{tagUB: 1 << 20, hosts: []member{own, m}}
	r.settings.Segment = 1
	f.Add(r.append(nil), 0)
	f.Add(appendRefusal(nil, errRefused), 1)
	f.Add([]byte{tellsRoster}, 0)
	f.Fuzz(func(t *testing.T, b []byte, rank int) {
		if rank < 0 || rank > 1<<20 {
			return
		}
		r, err := parseRoster(b, rank)
		if err != nil {
			return
		}
		r.me -= rank
		again, err := parseRoster(r.append(nil), rank)
		require.NoError(t, err)
		require.Equal(t, len(r.hosts), len(again.hosts))
		require.Equal(t, r.tagUB, again.tagUB)
		require.Equal(t, r.foreign, again.foreign)
		for i := range r.hosts {
			require.Equal(t, r.hosts[i].procs, again.hosts[i].procs)
			require.Equal(t, r.hosts[i].addrs, again.hosts[i].addrs)
		}
	})
}

func FuzzNotice(f *testing.F) {
	f.Add(appendNotice(nil, 3, &Error{Op: "x", Rank: 2, Tag: -1, Err: ErrPeerDied}), 1, 4)
	f.Add(appendNotice(nil, 3, ErrClosed), 1, 4)
	f.Add([]byte{0, 0, 0, 1, 99}, 1, 4)
	f.Fuzz(func(t *testing.T, b []byte, from, size int) {
		var e *Error
		require.ErrorAs(t, parseNotice(b, from, size), &e)
		if size > 0 && from >= 0 && from < size {
			require.Less(t, e.Rank, size)
		}
	})
}

// TestCloseEndsJoin: a rank that makes a job ends with its node, whatever it waits for.
func TestCloseEndsJoin(t *testing.T) {
	silent := ranks.Listen(t)
	c, err := Config{Addr: netip.MustParseAddr("127.0.0.1"), Log: quietConfig(), Providers: []string{}}.complete()
	require.NoError(t, err)
	from := func(n *boot.Job) (*Job, error) { return fromTeam(within(t), n, n.Secret(), c) }
	join := func(n *boot.Job) (*Job, error) { return joinTeam(within(t), silent.Addr().String(), n, c) }
	none := func(*boot.Job) error { return nil }
	listens := func(n *boot.Job) error { // and accepts nothing
		l, m, err := announce(within(t), silent.Addr().String(), &c)
		if err != nil {
			return err
		}
		t.Cleanup(func() { l.Close() })
		if m.settings, err = coll.ParseSettings(c.env); err == nil {
			_, err = n.Exchange(within(t), m.append(nil))
		}
		return err
	}
	joins := func(n *boot.Job) error {
		_, err := join(n)
		return err
	}
	for _, w := range []struct {
		name  string
		rank  int
		call  func(n *boot.Job) (*Job, error)
		other func(n *boot.Job) error
		in    string
	}{
		{"exchange", 0, from, none, "boot.(*Job).Exchange"},
		{"is connected", 0, from, listens, "impi.(*roster).connectHosts"},
		{"connects", 1, from, listens, "impi.(*roster).connectHosts"},
		{"server", 0, join, joins, "startup.Dial"},
	} {
		t.Run(w.name, func(t *testing.T) {
			ranks := teams(t, 2)
			n, other := ranks[w.rank], ranks[1-w.rank]
			over, others := make(chan error, 1), make(chan error, 1)
			go func() { others <- w.other(other) }()
			go func() {
				_, err := w.call(n)
				over <- err
			}()
			verbstest.Asleep(t, w.in, 1)
			require.NoError(t, n.Close())
			err := <-over
			require.ErrorIs(t, err, ErrClosed)
			require.Regexp(t, "^impi: join: (boot: .*)?closed by this process$", err.Error())
			if err := <-others; err != nil {
				require.ErrorIs(t, err, boot.ErrLeft)
			}
		})
	}
}
