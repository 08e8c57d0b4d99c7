package boot

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/impi/startup"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// impiServer is a startup server that runs until the test ends.
type impiServer struct {
	addr string
	done chan struct{}
	res  *startup.Result
	err  error
}

func serveIMPI(t *testing.T, s startup.Server) *impiServer { return serveLate(t, s, 0) }

// serveLate is serveIMPI that begins when so many clients have connected.
func serveLate(t *testing.T, s startup.Server, connected int) *impiServer {
	t.Helper()
	if s.Auth == 0 && s.Key == 0 {
		s.Auth = startup.AuthNone
	}
	ln := ranks.Listen(t)
	v := &impiServer{addr: ln.Addr().String(), done: make(chan struct{})}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	go func() {
		defer close(v.done)
		first := &accepted{Listener: ln}
		for range connected {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			first.conns = append(first.conns, conn)
		}
		v.res, v.err = s.Serve(ctx, first)
	}()
	t.Cleanup(func() { cancel(); ln.Close(); <-v.done })
	return v
}

// accepted is a listener that has accepted some connections already.
type accepted struct {
	net.Listener
	conns []net.Conn
}

func (a *accepted) Accept() (net.Conn, error) {
	if len(a.conns) == 0 {
		return a.Listener.Accept()
	}
	conn := a.conns[0]
	a.conns = a.conns[1:]
	return conn, nil
}

// env is that of a client of the server.
func (v *impiServer) env(rank int, more ...string) func(string) (string, bool) {
	return variables(append([]string{"SLUICE_IMPI_SERVER=" + v.addr, fmt.Sprint("SLUICE_RANK=", rank), "SLUICE_SECRET=" + hexSecret}, more...)...)
}

// joinAll has n clients join, and closes those that do when the test ends.
func (v *impiServer) joinAll(t *testing.T, n int, more ...string) ([]*Job, []error) {
	t.Helper()
	jobs, errs := make([]*Job, n), make([]error, n)
	ctx := ranks.Within(t)
	each(n, func(rank int) { jobs[rank], errs[rank] = joinFrom(ctx, v.env(rank, more...)) })
	t.Cleanup(func() {
		each(n, func(rank int) {
			if jobs[rank] != nil {
				jobs[rank].Close()
			}
		})
	})
	return jobs, errs
}

func TestIMPI(t *testing.T) {
	for _, c := range []struct {
		n    int
		s    startup.Server
		more []string
	}{
		{1, startup.Server{}, nil},
		{2, startup.Server{Key: 271828}, []string{"IMPI_AUTH_KEY=271828", "SLUICE_SIZE=2"}},
		{5, startup.Server{}, []string{"SLUICE_JOB=named", "IMPI_AUTH_KEY="}},
		{startup.MaxClients, startup.Server{Key: 1<<64 - 1}, []string{"IMPI_AUTH_KEY=18446744073709551615"}},
	} {
		t.Run(fmt.Sprint(c.n), func(t *testing.T) {
			ctx := ranks.Within(t)
			c.s.Clients = c.n
			v := serveIMPI(t, c.s)
			jobs, errs := v.joinAll(t, c.n, c.more...)
			for rank, j := range jobs {
				require.NoError(t, errs[rank])
				require.Equal(t, [2]int{rank, c.n}, [2]int{j.Rank(), j.Size()})
				require.Equal(t, [2]int{-1, 0}, [2]int{j.LocalRank(), j.LocalSize()})
				require.Len(t, j.Secret(), len(hexSecret)/2)
				require.Equal(t, slices.Contains(c.more, "SLUICE_JOB=named"), j.ID() == "named")
			}
			for round, size := range []int{10, 0, 1 << 12} {
				want := make([][]byte, c.n)
				for rank := range want {
					want[rank] = payload(rank, round, size)
				}
				all := make([][][]byte, c.n)
				each(c.n, func(rank int) { all[rank], errs[rank] = jobs[rank].Exchange(ctx, payload(rank, round, size)) })
				for rank := range jobs {
					require.NoError(t, errs[rank])
					require.Equal(t, want, all[rank])
				}
			}
			each(c.n, func(rank int) { errs[rank] = jobs[rank].Close() })
			require.NoError(t, errors.Join(errs...))
			<-v.done
			require.NoError(t, v.err)
			for _, r := range v.res.Clients {
				require.Equal(t, startup.PhaseEnd, r.Phase)
			}
		})
	}
}

// After startup the ranks learn of aborts and deaths as in any job.
func TestIMPIEnds(t *testing.T) {
	t.Parallel() // it waits for seconds
	need.Full(t)
	ctx := ranks.Within(t)
	t.Run("abort", func(t *testing.T) {
		jobs, errs := serveIMPI(t, startup.Server{Clients: 3}).joinAll(t, 3)
		require.NoError(t, errors.Join(errs...))
		jobs[1].Abort(7, "enough")
		for _, j := range jobs {
			<-j.Done()
			abort := (*AbortError)(nil)
			require.ErrorAs(t, j.Err(), &abort)
			require.Equal(t, AbortError{Rank: 1, Code: 7, Why: "enough"}, *abort)
		}
	})
	t.Run("death", func(t *testing.T) {
		v := serveIMPI(t, startup.Server{Clients: 3})
		jobs, errs := v.joinAll(t, 3)
		require.NoError(t, errors.Join(errs...))
		dead := jobs[2].x.(*startedByIMPI)
		dead.startup.Close()
		c := dead.exchanger.(*client)
		c.conn.Close()
		<-c.readerDone
		for _, j := range jobs[:2] {
			err := j.Barrier(ctx)
			rank := (*RankError)(nil)
			require.ErrorAs(t, err, &rank)
			require.Equal(t, 2, rank.Rank)
			require.ErrorIs(t, err, ErrDied)
		}
		each(2, func(rank int) { errs[rank] = jobs[rank].Close() })
		require.NoError(t, errors.Join(errs...))
		<-v.done
		lost := (*startup.Error)(nil)
		require.ErrorAs(t, v.err, &lost)
		require.Equal(t, [2]int{int(startup.PhaseRun), 2}, [2]int{int(lost.Phase), lost.Rank})
	})
}

func TestIMPIEnvironment(t *testing.T) {
	good := []string{"SLUICE_IMPI_SERVER=127.0.0.1:1", "SLUICE_RANK=1", "SLUICE_SIZE=2", "SLUICE_SECRET=" + hexSecret}
	c, err := parseIMPI(&values{lookup: variables(good...)})
	require.NoError(t, err)
	require.Equal(t, [2]int{1, 2}, [2]int{c.Rank, c.Size})
	for _, c := range []struct{ set, name, value, says string }{
		{"SLUICE_IMPI_SERVER=host", "", "host", "missing port"},
		{"SLUICE_IMPI_SERVER=host:0", "", "host:0", `port "0"`},
		{"SLUICE_SERVER=host:1", "", "host:1", "SLUICE_IMPI_SERVER is also set"},
		{"SLUICE_RANK=", "", "", "not set"},
		{"SLUICE_RANK=2", "", "2", "want 0 to 1"},
		{"SLUICE_SIZE=33", "", "33", "want 1 to 32"},
		{"SLUICE_LOCAL_RANK=0", "SLUICE_LOCAL_SIZE", "", "not set"},
		{"SLUICE_JOB=" + strings.Repeat("j", 65), "", strings.Repeat("j", 65), "the most is 64"},
		{"SLUICE_SECRET=", "", "", "not set: set SLUICE_SECRET or SLUICE_SECRET_FILE"},
		{"IMPI_AUTH_KEY=0x10", "", "", "not a decimal number"},
		{"IMPI_AUTH_KEY=0", "", "", "not a decimal number"},
	} {
		_, err := joinFrom(ranks.Within(t), variables(append(good[:len(good):len(good)], c.set)...))
		var e *EnvError
		require.ErrorAs(t, err, &e, c.set)
		name, _, _ := strings.Cut(c.set, "=")
		if c.name != "" {
			name = c.name
		}
		require.Equal(t, name, e.Name, c.set)
		require.Equal(t, c.value, e.Value, c.set)
		require.ErrorContains(t, err, c.says, c.set)
	}
	_, err = parseIMPI(&values{lookup: variables("SLUICE_IMPI_SERVER=h:1", "SLUICE_INSECURE=1", "SLUICE_RANK=32")})
	require.ErrorContains(t, err, "want 0 to 31")
	c, err = parseIMPI(&values{lookup: variables("SLUICE_IMPI_SERVER=h:1", "SLUICE_INSECURE=1", "JOB_COMPLETION_INDEX=3")})
	require.NoError(t, err)
	require.Equal(t, 3, c.Rank)
}

// What the environment says of the size has to be what the server says.
func TestIMPISize(t *testing.T) {
	for set, name := range map[string]string{"SLUICE_SIZE=3": EnvSize, "SLUICE_LOCAL_SIZE=3": EnvLocalSize} {
		more := []string{set}
		if name == EnvLocalSize {
			more = append(more, "SLUICE_LOCAL_RANK=0")
		}
		_, errs := serveIMPI(t, startup.Server{Clients: 2}).joinAll(t, 2, more...)
		for _, err := range errs {
			var e *EnvError
			require.ErrorAs(t, err, &e)
			require.Equal(t, name, e.Name)
			require.ErrorContains(t, err, "has 2 clients")
		}
	}
}

// A client that cannot join hears so, and does not keep the others from it.
func TestIMPIKey(t *testing.T) {
	v := serveIMPI(t, startup.Server{Clients: 2, Key: 7})
	ctx := ranks.Within(t)
	for _, set := range []string{"IMPI_AUTH_KEY=8", "IMPI_AUTH_KEY="} {
		_, err := joinFrom(ctx, v.env(0, set))
		var e *startup.Error
		require.ErrorAs(t, err, &e, set)
		require.ErrorContains(t, err, v.addr)
		require.NotContains(t, err.Error(), "8:")
	}
	jobs, errs := v.joinAll(t, 2, "IMPI_AUTH_KEY=7")
	require.NoError(t, errors.Join(errs...))
	each(2, func(rank int) { errs[rank] = jobs[rank].Close() })
	require.NoError(t, errors.Join(errs...))
}

// A process with another secret is a client, but not a rank.
func TestIMPISecret(t *testing.T) {
	t.Parallel() // it waits for seconds
	need.Full(t)
	v := serveIMPI(t, startup.Server{Clients: 2})
	ctx, cancel := context.WithCancel(ranks.Within(t))
	stranger := make(chan error, 1)
	go func() {
		_, err := joinFrom(ctx, v.env(1, "SLUICE_SECRET="+strings.Repeat("ab", 16)))
		stranger <- err
	}()
	host, err := joinFrom(ctx, v.env(0))
	require.NoError(t, err)
	require.Error(t, <-stranger)
	cancel()
	require.NoError(t, host.Close())
}

// No rank waits for a client that does not come or that is gone in the middle of the startup: the
// server ends it for all.
func TestIMPIMissing(t *testing.T) {
	lost := func(t *testing.T, err error) {
		var e *startup.Error
		require.ErrorAs(t, err, &e)
		require.ErrorIs(t, err, startup.ErrLost)
	}
	t.Run("never comes", func(t *testing.T) {
		v := serveLate(t, startup.Server{Clients: 3, Join: time.Second}, 2)
		_, errs := v.joinAll(t, 2)
		for _, err := range errs {
			lost(t, err)
		}
	})
	t.Run("dies in startup", func(t *testing.T) {
		v := serveIMPI(t, startup.Server{Clients: 3})
		dead := make(chan error, 1)
		go func() {
			s := dialRaw(t, v.addr, 2)
			defer s.conn.Close()
			dead <- s.enter()
		}()
		_, errs := v.joinAll(t, 2)
		require.NoError(t, <-dead)
		for _, err := range errs {
			lost(t, err)
		}
	})
	t.Run("dies behind startup", func(t *testing.T) {
		v := serveIMPI(t, startup.Server{Clients: 3})
		ctx := ranks.Within(t)
		clients, starts := make([]impiClient, 3), make([]*started, 3)
		each(3, func(rank int) {
			clients[rank], _ = parseIMPI(&values{lookup: v.env(rank)})
			clients[rank].arrival = time.Millisecond
			starts[rank], _ = clients[rank].start(ctx)
		})
		require.NotContains(t, starts, (*started)(nil))
		starts[2].close()
		host, err := clients[0].meet(ctx, starts[0])
		require.NoError(t, err)
		defer starts[0].close()
		defer host.Close()
		defer starts[1].close()
		// Rank 1 may be late as well, in so short a time.
		err = host.Barrier(ctx)
		var rank *RankError
		require.ErrorAs(t, err, &rank)
		require.ErrorIs(t, err, ErrDied)
		require.ErrorContains(t, err, "did not come")
	})
	t.Run("no server", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(ranks.Within(t), 50*time.Millisecond)
		defer cancel()
		v := impiServer{addr: "127.0.0.1:1"}
		_, err := joinFrom(ctx, v.env(0))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, v.addr)
	})
}

// A client that is no rank of ours fails all that would be, and is named.
func TestIMPIStranger(t *testing.T) {
	for _, c := range []struct {
		name   string
		client func(t *testing.T, addr string) error
		reason error
		label  startup.Label
	}{
		{"foreign", func(t *testing.T, addr string) error {
			s := dialRaw(t, addr, 1)
			defer s.conn.Close()
			return errors.Join(s.enter(), s.protocol(), s.done())
		}, startup.ErrForeign, startup.LabelSluice},
		{"of the startup alone", func(t *testing.T, addr string) error {
			return dialStartup(t, addr, nil)
		}, startup.ErrDisagree, labelRendezvous},
		{"of another version", func(t *testing.T, addr string) error {
			return dialStartup(t, addr, []byte("sluice-boot 2"))
		}, startup.ErrDisagree, labelRendezvous},
		{"with addresses", func(t *testing.T, addr string) error {
			return dialStartup(t, addr, []byte(rendezvousMagic+"\nh:1"))
		}, startup.ErrProtocol, labelRendezvous},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := serveIMPI(t, startup.Server{Clients: 3})
			ctx := ranks.Within(t)
			errs := make([]error, 3)
			each(3, func(rank int) {
				if rank == 1 {
					errs[rank] = c.client(t, v.addr)
					return
				}
				_, errs[rank] = joinFrom(ctx, v.env(rank))
			})
			require.NoError(t, errs[1])
			for _, rank := range []int{0, 2} {
				var e *startup.Error
				require.ErrorAs(t, errs[rank], &e)
				require.ErrorIs(t, errs[rank], c.reason)
				require.Equal(t, 1, e.Rank)
				require.Equal(t, c.label, e.Label)
			}
		})
	}
}

func TestParseCalling(t *testing.T) {
	good := rendezvousMagic + "\n10.0.0.1:80\n[::1]:80"
	list, err := parseCalling([]byte(good), true)
	require.NoError(t, err)
	require.Equal(t, []string{"10.0.0.1:80", "[::1]:80"}, list)
	for text, reason := range map[string]error{
		"":                   startup.ErrDisagree,
		"sluice-boot 2\nh:1": startup.ErrDisagree,
		rendezvousMagic:      startup.ErrProtocol,
		good + "\n":          startup.ErrProtocol,
		good + "\nh":         startup.ErrProtocol,
		good + strings.Repeat("\nh:1", maxAddresses): startup.ErrProtocol,
	} {
		_, err := parseCalling([]byte(text), true)
		require.ErrorIs(t, err, reason, text)
	}
}

// dialStartup is a client of package startup, which submits data under our label.
func dialStartup(t *testing.T, addr string, data []byte) error {
	c := startup.Config{Rank: 1, Hosts: []startup.Host{{ID: startup.HostIDOf(netip.MustParseAddr("127.0.0.1")), Processes: []startup.Process{{PID: 1}}}}}
	if data != nil {
		c.Extra = []startup.Extra{{Label: labelRendezvous, Data: data}}
	}
	j, err := startup.Dial(ranks.Within(t), addr, c)
	if err != nil {
		return err
	}
	return j.Finish()
}

// rawClient is a client of another implementation.
type rawClient struct {
	conn net.Conn
	rank int
}

func dialRaw(t *testing.T, addr string, rank int) *rawClient {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Error(err)
	}
	conn.SetDeadline(time.Now().Add(limit))
	return &rawClient{conn, rank}
}

func (c *rawClient) say(cmd string, words ...uint32) error {
	b := binary.BigEndian.AppendUint32([]byte(cmd), uint32(4*len(words)))
	for _, w := range words {
		b = binary.BigEndian.AppendUint32(b, w)
	}
	_, err := c.conn.Write(b)
	return err
}

func (c *rawClient) hear() error {
	var head [8]byte
	if _, err := io.ReadFull(c.conn, head[:]); err != nil {
		return err
	}
	_, err := io.CopyN(io.Discard, c.conn, int64(binary.BigEndian.Uint32(head[4:])))
	return err
}

// enter authenticates by method NONE, and waits for all clients.
func (c *rawClient) enter() error {
	return errors.Join(c.say("AUTH", 1), c.hear(), c.say("IMPI", uint32(c.rank)), c.hear())
}

// protocol submits the labels of the protocol, of one host with one process.
func (c *rawClient) protocol() (err error) {
	for _, words := range [][]uint32{
		{0x1000, 0, 0}, {0x1100, 1}, {0x1200, 1}, {0x1300, 1 << 16}, {0x1400, 1<<31 - 1}, {0x1500, 1024}, {0x1600, 4},
		{0x2000, 0, 0, 0, 0x7f000001}, {0x2100, 1}, {0x2200, 1}, {0x2300, 10}, {0x2400, 20},
		{0x3000, 0, 0, 0, 0x7f000001}, {0x3100, 0, 1},
	} {
		err = errors.Join(err, c.say("COLL", words...), c.hear())
	}
	return err
}

func (c *rawClient) done() error { return errors.Join(c.say("DONE"), c.hear(), c.say("FINI")) }

// Processes, each a client: they exchange, and one of them ends the job.
func TestIMPIProcesses(t *testing.T) {
	const n = 3
	run := func(t *testing.T, do string) (list []string, v *impiServer) {
		v = serveIMPI(t, startup.Server{Clients: n, Key: 31415})
		out := make([]outcome, n)
		each(n, func(rank int) {
			out[rank] = start(t, do, []string{"SLUICE_IMPI_SERVER=" + v.addr, "IMPI_AUTH_KEY=31415", fmt.Sprint("SLUICE_RANK=", rank),
				"SLUICE_JOB=processes", "SLUICE_SECRET=" + hexSecret}, ranks.Program())
		})
		for _, o := range out {
			list = append(list, fmt.Sprintf("%d %s", o.status, strings.Join(o.lines(), ", ")))
		}
		<-v.done
		return list, v
	}
	t.Run("exchange", func(t *testing.T) {
		list, v := run(t, "exchange")
		for rank, text := range list {
			require.Equal(t, fmt.Sprintf("0 rank %d of %d, -1 of 0 here, secret of %d", rank, n, len(hexSecret)/2), text)
		}
		require.NoError(t, v.err)
	})
	t.Run("abort", func(t *testing.T) {
		list, v := run(t, "abort")
		require.Equal(t, "7 ", list[1])
		for _, rank := range []int{0, 2} {
			require.Contains(t, list[rank], "aborted by rank 1 with code 7: enough")
		}
		require.ErrorIs(t, v.err, startup.ErrLost)
	})
}
