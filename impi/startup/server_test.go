package startup

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/leak"
	"github.com/sluice-hpc/sluice/internal/logbuf"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

func TestMain(m *testing.M) { leak.Main(m) }

// limit bounds every test: what takes longer hangs.
const limit = 60 * time.Second

const testKey = 0x1234567890abcdef

// served is a server under test.
type served struct {
	addr string
	log  logbuf.Buffer
	done chan struct{}
	res  *Result
	err  error
}

// serve runs s on a socket of the loopback interface until the test ends.
func serve(t testing.TB, s Server) *served {
	t.Helper()
	l := ranks.Listen(t)
	return serveOn(t, s, l)
}

func serveOn(t testing.TB, s Server, l net.Listener) *served {
	return serveWithin(context.Background(), t, s, l)
}

func serveWithin(ctx context.Context, t testing.TB, s Server, l net.Listener) *served {
	v := &served{addr: l.Addr().String(), done: make(chan struct{})}
	if s.Log == nil {
		s.Log = slog.New(slog.NewTextHandler(&v.log, nil))
	}
	if s.Auth == 0 && s.Key == 0 {
		s.Auth = AuthNone
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	go func() {
		defer close(v.done)
		v.res, v.err = s.Serve(ctx, l)
	}()
	t.Cleanup(func() { cancel(); <-v.done })
	return v
}

// logs waits for a line in the log that has all the parts.
func (v *served) logs(t testing.TB, parts ...string) {
	t.Helper()
	require.Eventually(t, func() bool {
		return slices.ContainsFunc(strings.Split(v.log.String(), "\n"), func(line string) bool { return containsAll(line, parts...) })
	}, limit, time.Millisecond)
}

// wait returns how the job ended.
func (v *served) wait() (*Result, error) {
	<-v.done
	return v.res, v.err
}

// config is of a client with rank%3+1 hosts, of which the k-th has k+1 processes.
func config(rank int) Config {
	c := Config{Rank: rank}
	for k := range rank%3 + 1 {
		h := Host{ID: HostIDOf(netip.AddrFrom4([4]byte{10, 0, byte(rank), byte(k + 1)})), Port: uint16(7000 + k)}
		for p := range k + 1 {
			h.Processes = append(h.Processes, Process{PID: uint64(100*rank + p)})
		}
		c.Hosts = append(c.Hosts, h)
	}
	return c
}

// dialAll starts n clients and returns what they have agreed on.
func dialAll(t testing.TB, addr string, n int, edit func(*Config)) ([]*Job, []error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	jobs, errs := make([]*Job, n), make([]error, n)
	var group sync.WaitGroup
	for rank := range n {
		group.Go(func() {
			c := config(rank)
			if edit != nil {
				edit(&c)
			}
			jobs[rank], errs[rank] = Dial(ctx, addr, c)
		})
	}
	group.Wait()
	return jobs, errs
}

func TestJob(t *testing.T) {
	for _, n := range []int{1, 2, 3, 4, 5, 8, 16, 31, 32} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			v := serve(t, Server{Clients: n})
			jobs, errs := dialAll(t, v.addr, n, nil)
			for rank, j := range jobs {
				require.NoError(t, errs[rank])
				require.Equal(t, rank, j.Rank)
				require.Equal(t, jobs[0].Clients, j.Clients)
				require.Len(t, j.Clients, n)
				require.False(t, j.Foreign())
				require.EqualValues(t, 1024, j.XSize)
				require.EqualValues(t, 4, j.MaxLinear)
				require.EqualValues(t, 1<<31-1, j.TagUB)
			}
			for rank, got := range jobs[0].Clients {
				want := config(rank)
				require.NoError(t, want.fillHosts())
				require.Equal(t, Client{Hosts: want.Hosts, Versions: []Version{{}}, PacketLen: 64 << 10}, got)
			}
			for _, j := range jobs {
				require.NoError(t, j.Finish())
				require.NoError(t, j.Finish())
			}
			res, err := v.wait()
			require.NoError(t, err)
			require.Zero(t, res.Refused)
			for _, c := range res.Clients {
				require.NoError(t, c.Err)
				require.Equal(t, PhaseEnd, c.Phase)
				require.NotNil(t, c.Addr)
			}
			require.Contains(t, v.log.String(), "startup: job finished")
		})
	}
}

func TestAuth(t *testing.T) {
	const key = testKey
	for _, c := range []struct {
		name   string
		server Server
		client Config
		fails  error
	}{
		{"none", Server{Auth: AuthNone}, Config{}, nil},
		{"key", Server{Key: key}, Config{Key: key}, nil},
		{"both, key", Server{Auth: AuthNone | AuthKey, Key: key}, Config{Auth: AuthNone | AuthKey, Key: key}, nil},
		{"both, none", Server{Auth: AuthNone | AuthKey, Key: key}, Config{}, nil},
		{"client has both", Server{Auth: AuthNone}, Config{Auth: AuthNone | AuthKey, Key: key}, nil},
		{"old form", Server{Key: key}, Config{Key: key, OldAuth: true}, nil},
		{"old form, none", Server{Auth: AuthNone}, Config{Key: key, OldAuth: true}, nil},
		{"wrong key", Server{Key: key}, Config{Key: key ^ 1}, ErrAuth},
		{"wrong key, old form", Server{Key: key}, Config{Key: key ^ 1<<63, OldAuth: true}, ErrAuth},
		{"wrong key, though none would do", Server{Auth: AuthNone | AuthKey, Key: key}, Config{Auth: AuthNone | AuthKey, Key: 1}, ErrAuth},
		{"nothing in common", Server{Key: key}, Config{Auth: AuthNone}, ErrAuth},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.server.Clients = 1
			v := serve(t, c.server)
			c.client.Hosts = config(0).Hosts
			j, err := Dial(t.Context(), v.addr, c.client)
			if c.fails != nil {
				require.ErrorIs(t, err, ErrLost)
				// The rank is still free.
				good := config(0)
				good.Key = key
				j, err = Dial(t.Context(), v.addr, good)
			}
			require.NoError(t, err)
			require.NoError(t, j.Finish())
			res, err := v.wait()
			require.NoError(t, err)
			if c.fails != nil {
				require.Equal(t, 1, res.Refused)
				require.Contains(t, v.log.String(), c.fails.Error())
			}
		})
	}
}

// raw is a client that says what a test wants it to.
type raw struct {
	net.Conn
	t testing.TB
}

func dialRaw(t testing.TB, addr string) raw {
	conn := ranks.Dial(t, addr)
	return raw{conn, t}
}

func (r raw) send(parts ...[]byte) {
	for _, b := range parts {
		_, err := r.Write(b)
		require.NoError(r.t, err)
	}
}

func (r raw) expect(want []byte) {
	r.t.Helper()
	got, err := readPayload(r, len(want))
	require.NoError(r.t, err)
	require.Equal(r.t, want, got)
}

// cut expects that the server ends the connection without another byte.
func (r raw) cut() {
	r.t.Helper()
	n, err := r.Read(make([]byte, 1))
	require.Error(r.t, err)
	require.Zero(r.t, n)
	var timeout net.Error
	require.False(r.t, isTimeout(err, &timeout), "still open")
}

// enter joins with method NONE.
func (r raw) enter(rank int) {
	r.send(authCommand{methods: AuthNone}.append(nil))
	r.expect(authReply{}.append(nil))
	r.send(appendImpi(nil, rank))
}

var (
	doneWire = header{cmd: cmdDone}.append(nil)
	finiWire = header{cmd: cmdFini}.append(nil)
)

func coll(l Label, data string) []byte { return collCommand{l, []byte(data)}.append(nil) }

func answer(l Label, mask uint32, data string) []byte {
	return collReply{l, mask, []byte(data)}.append(nil)
}

// TestMasks: labels that only some clients have are answered in their order, to all
// clients that have not said DONE before.
func TestMasks(t *testing.T) {
	v := serve(t, Server{Clients: 3})
	var c [3]raw
	for rank := range c {
		c[rank] = dialRaw(t, v.addr)
		c[rank].enter(rank)
	}
	for _, r := range c {
		r.expect(appendImpi(nil, 3))
	}
	c[1].send(coll(5, "one"))
	c[2].send(coll(9, "two"))
	c[0].send(coll(5, "zero"))
	for _, r := range c {
		r.expect(answer(5, 0b011, "zeroone"))
	}
	c[0].send(coll(7, ""), coll(9, "ZERO"))
	c[1].send(doneWire)
	for _, r := range []raw{c[0], c[2]} {
		r.expect(answer(7, 0b001, ""))
		r.expect(answer(9, 0b101, "ZEROtwo"))
	}
	c[2].send(coll(1<<31-1, "last"), doneWire)
	c[0].send(doneWire)
	c[2].expect(answer(1<<31-1, 0b100, "last"))
	for _, r := range c {
		r.expect(doneWire)
	}
	for _, r := range c {
		r.send(finiWire)
		r.cut()
	}
	_, err := v.wait()
	require.NoError(t, err)
}

// TestAhead: a client may send all it has without waiting for an answer.
func TestAhead(t *testing.T) {
	v := serve(t, Server{Clients: 2, NoAuth: true})
	a, b := dialRaw(t, v.addr), dialRaw(t, v.addr)
	a.send(appendImpi(nil, 0), coll(1, "a"), coll(2, "b"), doneWire)
	b.send(appendImpi(nil, 1), coll(2, "c"), doneWire)
	a.expect(appendImpi(nil, 2))
	a.expect(answer(1, 0b01, "a"))
	b.expect(appendImpi(nil, 2))
	b.expect(answer(1, 0b01, "a"))
	for _, r := range []raw{a, b} {
		r.expect(answer(2, 0b11, "bc"))
		r.expect(doneWire)
		r.send(finiWire)
	}
	_, err := v.wait()
	require.NoError(t, err)
}

// TestNegativeLabels: labels are of 4 bytes with a sign, and their order is by that.
func TestNegativeLabels(t *testing.T) {
	v := serve(t, Server{Clients: 2, NoAuth: true})
	a, b := dialRaw(t, v.addr), dialRaw(t, v.addr)
	a.send(appendImpi(nil, 0), coll(-1<<31, "least"), coll(-5, "a"), coll(1<<31-1, "c"), doneWire)
	b.send(appendImpi(nil, 1))
	for _, r := range []raw{a, b} {
		r.expect(appendImpi(nil, 2))
	}
	b.send(coll(-5, "b")) // nothing is complete before
	for _, r := range []raw{a, b} {
		r.expect(answer(-1<<31, 0b01, "least"))
		r.expect(answer(-5, 0b11, "ab"))
	}
	b.send(coll(-1, ""), coll(1<<31-1, "d"), doneWire)
	for _, r := range []raw{a, b} {
		r.expect(answer(-1, 0b10, ""))
		r.expect(answer(1<<31-1, 0b11, "cd"))
		r.expect(doneWire)
		r.send(finiWire)
	}
	_, err := v.wait()
	require.NoError(t, err)
}

// TestVacated: the place of a client that ends before all have joined, for whatever
// reason, is free again; nothing of it is left but a line in the log.
func TestVacated(t *testing.T) {
	for _, c := range []struct {
		name  string
		sends []byte
		says  error
	}{
		{"lost", nil, ErrLost},
		{"lost within a label", coll(3, "something")[:14], ErrLost},
		{"lost after DONE", append(coll(3, "old"), doneWire...), ErrLost},
		{"breaks a rule", append(coll(3, "old"), coll(3, "old")...), ErrProtocol},
		{"sends FINI", append(doneWire[:8:8], finiWire...), ErrProtocol},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := serve(t, Server{Clients: 2})
			first := dialRaw(t, v.addr)
			first.enter(1)
			first.send(c.sends)
			addr := first.LocalAddr().String()
			v.logs(t, "client joined")
			first.Conn.(*net.TCPConn).CloseWrite() // fails if the server has cut it off already
			v.logs(t, "its rank is free again", "client=1", "addr="+addr, "missing=2", c.says.Error())
			first.cut()
			other, second := dialRaw(t, v.addr), dialRaw(t, v.addr)
			other.enter(0)
			second.enter(1)
			for _, r := range []raw{other, second} {
				r.expect(appendImpi(nil, 2))
				r.send(coll(3, "new"), doneWire)
			}
			for _, r := range []raw{other, second} {
				r.expect(answer(3, 3, "newnew"))
				r.expect(doneWire)
				r.send(finiWire)
			}
			res, err := v.wait()
			require.NoError(t, err)
			require.Equal(t, 1, res.Refused)
			require.Equal(t, second.LocalAddr().String(), res.Clients[1].Addr.String())
		})
	}
}

// TestVacant: a place that has become free and is not taken again is one that was never
// taken.
func TestVacant(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	l := ranks.Listen(t)
	v := serveWithin(ctx, t, Server{Clients: 2}, l)
	r := dialRaw(t, v.addr)
	r.enter(1)
	v.logs(t, "client joined")
	r.Close()
	v.logs(t, "its rank is free again")
	cancel()
	res, err := v.wait()
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, 1, res.Refused)
	require.Nil(t, res.Clients[1].Addr)
	require.Equal(t, PhaseAuth, res.Clients[1].Phase)
	require.ErrorIs(t, res.Clients[1].Err, ErrLost)
}

// TestVanish: a client that is lost between the joining of all and the DONE of all fails
// the job at once, for all; later it is reported, and the others finish.
func TestVanish(t *testing.T) {
	for _, c := range []struct {
		name  string
		until func(r, other raw)
		phase Phase
	}{
		{"before a label", func(r, other raw) {
			r.enter(1)
			other.enter(0)
			r.expect(appendImpi(nil, 2))
		}, PhaseCollect},
		{"within a label", func(r, other raw) {
			r.enter(1)
			other.enter(0)
			r.expect(appendImpi(nil, 2))
			r.send(coll(3, "something")[:14])
		}, PhaseCollect},
		{"after DONE", func(r, other raw) {
			r.enter(1)
			other.enter(0)
			r.expect(appendImpi(nil, 2))
			r.send(doneWire)
		}, PhaseCollect},
		{"before FINI", func(r, other raw) {
			r.enter(1)
			other.enter(0)
			r.expect(appendImpi(nil, 2))
			r.send(doneWire)
			other.send(doneWire)
			r.expect(doneWire)
		}, PhaseRun},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := serve(t, Server{Clients: 2})
			other, r := dialRaw(t, v.addr), dialRaw(t, v.addr)
			c.until(r, other)
			r.Close()
			if c.phase == PhaseRun {
				other.expect(appendImpi(nil, 2))
				other.expect(doneWire)
				other.send(finiWire)
			}
			res, err := v.wait()
			var e *Error
			require.ErrorAs(t, err, &e)
			require.ErrorIs(t, err, ErrLost)
			require.Equal(t, 1, e.Rank)
			require.Equal(t, c.phase, e.Phase)
			require.Equal(t, err, res.Clients[1].Err)
			if c.phase == PhaseRun {
				require.NoError(t, res.Clients[0].Err)
				require.Equal(t, PhaseEnd, res.Clients[0].Phase)
			} else {
				require.ErrorIs(t, res.Clients[0].Err, ErrLost)
			}
		})
	}
}

// TestStrangers: what is no client yet can do nothing to a job.
func TestStrangers(t *testing.T) {
	auth := authCommand{methods: AuthNone}.append(nil)
	for _, c := range []struct {
		name string
		send []byte
		says error
	}{
		{"nothing", nil, ErrLost},
		{"half a header", auth[:5], ErrLost},
		{"HTTP", []byte("GET / HTTP/1.1\r\n\r\n"), ErrProtocol},
		{"no AUTH", appendImpi(nil, 1), ErrProtocol},
		{"AUTH of 2 GiB", header{cmdAuth, maxPayload}.append(nil), ErrProtocol},
		{"AUTH without methods", authCommand{}.append(nil), ErrAuth},
		{"unknown method", authCommand{methods: 1 << 31}.append(nil), ErrAuth},
		{"DONE for IMPI", append(auth[:12:12], doneWire...), ErrProtocol},
		{"IMPI of 5 bytes", append(auth[:12:12], header{cmdImpi, 5}.append(nil)...), ErrProtocol},
		{"negative rank", append(auth[:12:12], appendImpi(nil, -1)...), ErrRank},
		{"rank too high", append(auth[:12:12], appendImpi(nil, 2)...), ErrRank},
		{"rank taken", append(auth[:12:12], appendImpi(nil, 0)...), ErrRank},
		{"rank taken, and more", append(append(auth[:12:12], appendImpi(nil, 0)...), doneWire...), ErrRank},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := serve(t, Server{Clients: 2})
			first := dialRaw(t, v.addr)
			first.enter(0)
			v.logs(t, "client joined")
			r := dialRaw(t, v.addr)
			r.send(c.send)
			require.NoError(t, r.Conn.(*net.TCPConn).CloseWrite())
			v.logs(t, "connection refused", c.says.Error())
			second := dialRaw(t, v.addr)
			second.enter(1)
			for _, r := range []raw{first, second} {
				r.expect(appendImpi(nil, 2))
				r.send(doneWire)
			}
			for _, r := range []raw{first, second} {
				r.expect(doneWire)
				r.send(finiWire)
			}
			res, err := v.wait()
			require.NoError(t, err)
			require.Equal(t, 1, res.Refused)
		})
	}
}

// TestRefusalsAreBounded: strangers do not fill the log.
func TestRefusalsAreBounded(t *testing.T) {
	var log logbuf.Buffer
	j := newJob(Server{Clients: 1, Log: slog.New(slog.NewTextHandler(&log, nil))}, nil)
	for range 2 * 64 {
		j.refused(&net.TCPAddr{}, ErrAuth)
	}
	require.Equal(t, 64, strings.Count(log.String(), "connection refused"))
	require.Equal(t, 65, strings.Count(log.String(), "\n"), log.String())
}

// TestBadClient: one that breaks a rule is refused, and the error names it and says why;
// the others go on as if it had sent DONE, and what it had submitted is not answered.
func TestBadClient(t *testing.T) {
	long := make([]byte, 101)
	for _, c := range []struct {
		name string
		send []byte
		says error
	}{
		{"unknown command", header{0x01020304, 0}.append(nil), ErrProtocol},
		{"AUTH again", authCommand{methods: AuthNone}.append(nil), ErrProtocol},
		{"negative length", unhex(t, "434f4c4c fffffff0"), ErrProtocol},
		{"COLL without label", header{cmdColl, 3}.append(nil), ErrProtocol},
		{"label 0", coll(0, "x"), ErrProtocol},
		{"label twice", append(coll(5, "x"), coll(5, "x")...), ErrProtocol},
		{"labels descend", append(coll(5, "x"), coll(4, "x")...), ErrProtocol},
		{"DONE with data", append(header{cmdDone, 1}.append(nil), 0), ErrProtocol},
		{"FINI before DONE", finiWire, ErrProtocol},
		{"label too long", coll(5, string(long)), ErrLimit},
		{"2 GiB announced", header{cmdColl, maxPayload}.append(nil), ErrLimit},
		{"all labels too long", append(append(coll(5, string(long[:100])), coll(6, string(long[:100]))...), coll(7, "x")...), ErrLimit},
		{"too many labels", append(append(append(coll(5, ""), coll(6, "")...), coll(7, "")...), coll(8, "")...), ErrLimit},
		{"FINI with DONE", append(doneWire[:8:8], finiWire...), ErrProtocol},
		{"COLL after DONE", append(doneWire[:8:8], coll(5, "x")...), ErrProtocol},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := serve(t, Server{Clients: 2, MaxLabels: 3, MaxLabelBytes: 100, MaxClientBytes: 200})
			good, bad := dialRaw(t, v.addr), dialRaw(t, v.addr)
			good.enter(0)
			bad.enter(1)
			good.expect(appendImpi(nil, 2))
			bad.send(c.send)
			v.logs(t, "client refused", "client=1", "addr="+bad.LocalAddr().String(), c.says.Error())
			good.send(coll(100, "good"), doneWire)
			good.expect(answer(100, 1, "good"))
			good.expect(doneWire)
			good.send(finiWire)
			res, err := v.wait()
			var e *Error
			require.ErrorAs(t, err, &e)
			require.ErrorIs(t, err, c.says)
			require.Equal(t, 1, e.Rank)
			require.Equal(t, PhaseCollect, e.Phase)
			require.Equal(t, err, res.Clients[1].Err)
			require.Equal(t, PhaseCollect, res.Clients[1].Phase)
			require.NoError(t, res.Clients[0].Err)
			require.Equal(t, PhaseEnd, res.Clients[0].Phase)
		})
	}
}

// TestTwice: the error names the client that submits a label twice, and the label.
func TestTwice(t *testing.T) {
	v := serve(t, Server{Clients: 2})
	good, bad := dialRaw(t, v.addr), dialRaw(t, v.addr)
	good.enter(0)
	bad.enter(1)
	good.expect(appendImpi(nil, 2))
	bad.send(coll(LabelNHosts, "one"), coll(LabelNHosts, "one"))
	v.logs(t, "client refused")
	good.send(doneWire)
	good.expect(doneWire)
	good.send(finiWire)
	_, err := v.wait()
	require.EqualError(t, err, "impi/startup: collection, client 1, label C_NHOSTS: protocol violation: the label was submitted twice")
}

// TestRefusedAndFinish: the time for FINI runs from the first, not from a refusal.
func TestRefusedAndFinish(t *testing.T) {
	v := serve(t, Server{Clients: 3, Finish: 20 * time.Millisecond})
	var c [3]raw
	for rank := range c {
		c[rank] = dialRaw(t, v.addr)
		c[rank].enter(rank)
	}
	for _, r := range c[:2] {
		r.expect(appendImpi(nil, 3))
	}
	c[2].send(coll(1, ""), coll(1, ""))
	v.logs(t, "client refused")
	for _, r := range c[:2] {
		r.send(doneWire)
	}
	c[0].expect(doneWire)
	c[0].send(finiWire)
	res, err := v.wait() // of client 1 there is no FINI
	require.ErrorIs(t, err, ErrProtocol)
	require.NoError(t, res.Clients[0].Err)
	require.ErrorIs(t, res.Clients[1].Err, ErrLost)
	require.Equal(t, PhaseRun, res.Clients[1].Phase)
}

// BenchmarkServer starts a job of 32 clients that submit 64 labels each, one after
// the other, over loopback; connecting is part of it.
func BenchmarkServer(b *testing.B) {
	const clients, labels = 32, 64
	for b.Loop() {
		v := serve(b, Server{Clients: clients, Log: slog.New(slog.DiscardHandler)})
		var group sync.WaitGroup
		for rank := range clients {
			group.Go(func() {
				r := dialRaw(b, v.addr)
				defer r.Close()
				r.enter(rank)
				r.expect(appendImpi(nil, clients))
				data := binary.BigEndian.AppendUint32(nil, uint32(rank))
				for l := Label(1); l <= labels; l++ {
					r.send(collCommand{l, data}.append(nil))
					if _, err := readPayload(r, headerLen+chdrLen+4*clients); err != nil {
						b.Error(err)
						return
					}
				}
				r.send(doneWire)
				r.expect(doneWire)
				r.send(finiWire)
			})
		}
		group.Wait()
		_, err := v.wait()
		require.NoError(b, err)
	}
}
