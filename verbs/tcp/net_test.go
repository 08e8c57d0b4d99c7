package tcp

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/leak"
	"github.com/sluice-hpc/sluice/internal/logbuf"
	"github.com/sluice-hpc/sluice/internal/proof"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
	"github.com/sluice-hpc/sluice/verbs"
)

// Over real sockets: strangers, secrets, addresses, many QPs.

// drivers lists the drivers of this system.
var drivers = map[string]bool{"raw": false, "portable": true}

// site is an open context with one of everything.
type site struct {
	testing.TB
	ctx *verbs.Context
	pd  *verbs.PD
	cq  *verbs.CQ
	mr  *verbs.MR
}

func openSite(t testing.TB, cfg verbs.Config) *site {
	t.Helper()
	d, err := verbs.Find(loop(t))
	require.NoError(t, err)
	s := &site{TB: t}
	s.ctx, err = d.Open(cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := s.ctx.Close(); !errors.Is(err, verbs.ErrClosed) { // by the test
			require.NoError(t, err)
		}
	})
	s.pd, err = s.ctx.AllocPD()
	require.NoError(t, err)
	s.cq, err = s.ctx.CreateCQ(4096, nil)
	require.NoError(t, err)
	s.mr, err = s.pd.AllocMR(1<<20, verbs.AccessAll)
	require.NoError(t, err)
	return s
}

func (s *site) qp() *verbs.QP {
	s.Helper()
	q, err := s.pd.CreateQP(verbs.QPInitAttr{SendCQ: s.cq, RecvCQ: s.cq,
		Cap: verbs.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 2, MaxRecvSGE: 2}})
	require.NoError(s, err)
	return q
}

// port returns the port that the site listens on.
func (s *site) port() int {
	s.Helper()
	p, err := s.ctx.QueryPort(1)
	require.NoError(s, err)
	return int(p.LID)
}

func connectQPs(t testing.TB, a, b *verbs.QP, opt verbs.ConnectAttr) {
	t.Helper()
	ea, err := a.Endpoint()
	require.NoError(t, err)
	eb, err := b.Endpoint()
	require.NoError(t, err)
	require.NoError(t, a.Connect(eb, opt))
	require.NoError(t, b.Connect(ea, opt))
}

// await polls until there are n completions.
func (s *site) await(n int) []verbs.WC {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), 30*time.Second)
	defer cancel()
	var got []verbs.WC
	wcs := make([]verbs.WC, n)
	for len(got) < n {
		k, err := s.cq.Wait(ctx, wcs[:n-len(got)])
		require.NoError(s, err, "%d of %d completions came", len(got), n)
		got = append(got, wcs[:k]...)
	}
	return got
}

// echo sends n messages there and back.
func echo(a, b *site, qa, qb *verbs.QP, n int) {
	a.Helper()
	for i := range n {
		for _, d := range []struct {
			from, to *site
			q, p     *verbs.QP
		}{{a, b, qa, qb}, {b, a, qb, qa}} {
			_, err := d.p.PostRecv([]verbs.RecvWR{{WRID: uint64(i), SGList: []verbs.SGE{d.to.mr.SGE(0, 8)}}})
			require.NoError(a, err)
			_, err = d.q.PostSend([]verbs.SendWR{{WRID: uint64(i), Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{d.from.mr.SGE(8, 8)}}})
			require.NoError(a, err)
			for _, wc := range append(d.to.await(1), d.from.await(1)...) {
				require.NoError(a, wc.Err())
				require.EqualValues(a, i, wc.WRID)
			}
		}
	}
}

// TestStrangers floods the listener with connections that are not peers, while two QPs work
// and others connect: nothing breaks, and nothing is left behind.
func TestStrangers(t *testing.T) {
	for name, portable := range drivers {
		t.Run(name, func(t *testing.T) {
			if portable {
				need.Long(t) // one listener is before both drivers
			}
			leak.Check(t)
			j := new(logbuf.Buffer)
			cfg := verbs.Config{Secret: secret, Portable: portable, Logger: slog.New(slog.NewTextHandler(j, nil))}
			a, b := openSite(t, cfg), openSite(t, cfg)
			qa, qb := a.qp(), b.qp()
			connectQPs(t, qa, qb, verbs.ConnectAttr{})
			echo(a, b, qa, qb, 10)

			addr := net.JoinHostPort("127.0.0.1", fmt.Sprint(a.port()))
			stop := make(chan struct{})
			var storm sync.WaitGroup
			once := func(what func(nc net.Conn)) {
				nc := ranks.Dial(t, addr)
				what(nc)
				nc.Close()
			}
			attack := func(what func(nc net.Conn)) {
				storm.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
						}
						nc, err := net.Dial("tcp", addr)
						if err != nil {
							continue // out of ports, at the worst
						}
						nc.SetDeadline(time.Now().Add(time.Second))
						what(nc)
						nc.Close()
					}
				})
			}
			garbage := make([]byte, 1<<16)
			rand.Read(garbage)
			noise := func(nc net.Conn) { nc.Write(garbage); io.ReadAll(nc) }
			guess := func(nc net.Conn) {
				proof.Dial(nc, proof.Params{Secret: []byte("guessed"), Protocol: protocolName, Major: wireMajor, Self: make([]byte, identitySize)}, nil)
			}
			// By themselves first: the journal takes ten records a second.
			once(noise)
			once(guess)
			logged := func() bool {
				return strings.Contains(j.String(), proof.ErrSecret.Error()) && strings.Contains(j.String(), proof.ErrGarbage.Error())
			}
			require.Eventually(t, logged, ranks.Limit, time.Millisecond, "%s", j)
			attack(func(net.Conn) {}) // a port scan
			attack(noise)
			attack(func(nc net.Conn) { nc.Write([]byte("GET / HTTP/1.0\r\n")) }) // a stray client
			attack(func(nc net.Conn) { nc.(*net.TCPConn).SetLinger(0) })         // reset
			attack(guess)                                                        // another job
			attack(func(nc net.Conn) {                                           // a peer gone mad
				proof.Dial(nc, proof.Params{Secret: secret, Protocol: protocolName, Major: wireMajor, Self: make([]byte, identitySize)}, nil)
				nc.Write(garbage[:handshakeSize])
				io.ReadAll(nc)
			})
			// Half-open connections, more than are held.
			var idle []net.Conn
			for range maxStrangers + 50 {
				nc := ranks.Dial(t, addr)
				idle = append(idle, nc)
			}
			rounds := need.InLong(2, 5)
			for i := range rounds {
				qc, qd := a.qp(), b.qp()
				if i%2 == 0 {
					qc, qd = qd, qc
				}
				connectQPs(t, qc, qd, verbs.ConnectAttr{Timeout: 18})
				if i%2 == 0 {
					qc, qd = qd, qc
				}
				echo(a, b, qc, qd, 5)
				echo(a, b, qa, qb, 5)
			}
			close(stop)
			storm.Wait()
			// The ones too many were closed, the oldest first.
			idle[0].SetReadDeadline(time.Now().Add(ranks.Limit))
			_, err := idle[0].Read(make([]byte, 1))
			require.ErrorIs(t, err, io.EOF)
			for _, nc := range idle {
				nc.Close()
			}
			echo(a, b, qa, qb, 10)
		})
	}
}

// TestSilentStranger: a connection that sends nothing is closed after the peer timeout.
func TestSilentStranger(t *testing.T) {
	leak.Check(t)
	a := openSite(t, verbs.Config{Secret: secret, PeerTimeout: 50 * time.Millisecond})
	for name, say := range map[string][]byte{"nothing": nil, "the beginning of a hello": []byte("SLUICE\x00\x01")} {
		nc := ranks.Dial(t, net.JoinHostPort("127.0.0.1", fmt.Sprint(a.port())))
		nc.Write(say)
		nc.SetReadDeadline(time.Now().Add(ranks.Limit))
		_, err := nc.Read(make([]byte, 1))
		if errors.Is(err, syscall.ECONNRESET) { // closed before it had read what was said
			continue
		}
		require.ErrorIs(t, err, io.EOF, name)
	}
}

// TestWrongSecret: both ends log the reason, and sends fail because the peer does not answer.
func TestWrongSecret(t *testing.T) {
	for name, portable := range drivers {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			j := new(logbuf.Buffer)
			text := slog.New(slog.NewTextHandler(j, nil))
			a := openSite(t, verbs.Config{Secret: secret, Portable: portable, Logger: text})
			b := openSite(t, verbs.Config{Secret: []byte("another"), Portable: portable, Logger: text})
			c := openSite(t, verbs.Config{Insecure: true, Portable: portable, Logger: text})
			d := openSite(t, verbs.Config{Secret: secret, Job: "another", Portable: portable, Logger: text})
			for _, other := range []struct {
				*site
				why []error
			}{
				{b, []error{proof.ErrSecret, proof.ErrRefused}},
				{c, []error{proof.ErrInsecure}},
				{d, []error{proof.ErrJob}},
			} {
				qa, qb := a.qp(), other.qp()
				connectQPs(t, qa, qb, verbs.ConnectAttr{Timeout: 10, RetryCnt: verbs.Retries(1)})
				// They dial until a send has waited in vain, which may be sooner than an attempt fails.
				for _, why := range other.why {
					logged := func() bool { return strings.Contains(j.String(), why.Error()) }
					require.Eventually(t, logged, ranks.Limit, time.Millisecond, "%v, not in\n%s", why, j)
				}
				for s, q := range map[*site]*verbs.QP{a: qa, other.site: qb} {
					_, err := q.PostSend([]verbs.SendWR{{WRID: 1, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled}})
					require.NoError(t, err)
					wc := s.await(1)[0]
					require.Equal(t, verbs.WCRetryExcErr, wc.Status)
					require.EqualValues(t, vendorNotConnected, wc.VendorErr)
				}
			}
		})
	}
}

func TestOpen(t *testing.T) {
	d, err := verbs.Find(loop(t))
	require.NoError(t, err)
	require.Equal(t, "tcp_"+d.Netdev(), d.Name())
	for _, c := range []struct {
		cfg  verbs.Config
		want error
	}{
		{verbs.Config{}, verbs.ErrSecret},
		{verbs.Config{Secret: secret, Insecure: true}, verbs.ErrInvalid},
		{verbs.Config{Secret: secret, Address: "localhost"}, verbs.ErrInvalid},
		{verbs.Config{Secret: secret, Address: "fe80::1%lo"}, verbs.ErrInvalid},
		{verbs.Config{Secret: secret, Address: "0.0.0.0"}, verbs.ErrInvalid},
		{verbs.Config{Secret: secret, Address: "224.0.0.1"}, verbs.ErrInvalid},
	} {
		_, err := d.Open(c.cfg)
		require.ErrorIs(t, err, c.want, "%+v", c.cfg)
	}
	_, err = d.Open(verbs.Config{Secret: secret, Address: "192.0.2.77"}) // RFC 5737: reserved for documentation
	require.Error(t, err)
	_, err = (provider{}).Open("tcp_nothing", verbs.Config{Secret: secret})
	require.ErrorIs(t, err, verbs.ErrNoDevice)
}

// TestAddresses: a port has a GID for each address of the interface, and can be
// reached by each.
func TestAddresses(t *testing.T) {
	leak.Check(t)
	cfg := verbs.Config{Secret: secret}
	a, b := openSite(t, cfg), openSite(t, cfg)
	port, err := a.ctx.QueryPort(1)
	require.NoError(t, err)
	require.Equal(t, verbs.LinkLayerEthernet, port.LinkLayer)
	for i := range port.GIDTblLen {
		gid, err := b.ctx.QueryGID(1, i)
		if errors.Is(err, verbs.ErrInvalid) {
			continue // that address is not free at this port
		}
		require.NoError(t, err)
		qa, qb := a.qp(), b.qp()
		ea, err := qa.Endpoint()
		require.NoError(t, err)
		eb, err := qb.Endpoint()
		require.NoError(t, err)
		ea.GID, eb.GID = gid, gid // the same device: the same addresses
		require.NoError(t, qa.Connect(eb, verbs.ConnectAttr{SGIDIndex: i}))
		require.NoError(t, qb.Connect(ea, verbs.ConnectAttr{SGIDIndex: i}))
		echo(a, b, qa, qb, 3)
	}
	c := openSite(t, verbs.Config{Secret: secret, Address: "127.0.0.5"})
	gid, err := c.ctx.QueryGID(1, 0)
	require.NoError(t, err)
	require.Equal(t, netip.MustParseAddr("127.0.0.5"), gid.Addr())
	qa, qc := a.qp(), c.qp()
	connectQPs(t, qa, qc, verbs.ConnectAttr{})
	echo(a, c, qa, qc, 3)
}

// TestManyQPs: more QPs on a CQ than are read one by one. Messages of all of them arrive,
// even while one of them waits for a receive and others are closed.
func TestManyQPs(t *testing.T) {
	for name, portable := range drivers {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			cfg := verbs.Config{Secret: secret, Portable: portable}
			a, b := openSite(t, cfg), openSite(t, cfg)
			const count = 40
			var qa, qb []*verbs.QP
			for range count {
				qa, qb = append(qa, a.qp()), append(qb, b.qp())
				connectQPs(t, qa[len(qa)-1], qb[len(qb)-1], verbs.ConnectAttr{})
			}
			// The first QP of b has no receive.
			_, err := qa[0].PostSend([]verbs.SendWR{{WRID: 1000, Opcode: verbs.OpSend, Flags: verbs.SendSignaled}})
			require.NoError(t, err)
			rounds := need.InLong(12, 200)
			for round := range rounds {
				for i := 1; i < count; i++ {
					n := 1 + (round*i)%5000
					_, err := qb[i].PostRecv([]verbs.RecvWR{{WRID: uint64(i), SGList: []verbs.SGE{b.mr.SGE(5000*i, n)}}})
					require.NoError(t, err)
					_, err = qa[i].PostSend([]verbs.SendWR{{WRID: uint64(i), Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{a.mr.SGE(5000*i, n)}}})
					require.NoError(t, err)
				}
				seen := map[uint64]int{}
				for _, wc := range append(a.await(count-1), b.await(count-1)...) {
					require.NoError(t, wc.Err())
					seen[wc.WRID]++
				}
				for i := uint64(1); i < count; i++ {
					require.Equal(t, 2, seen[i], "QP %d, round %d", i, round)
				}
				if round == rounds/2 {
					require.NoError(t, qa[count-1].Close())
					qb = qb[:count-1]
				}
				if round >= rounds/2 {
					break
				}
			}
			_, err = qb[0].PostRecv([]verbs.RecvWR{{WRID: 1000}})
			require.NoError(t, err)
			for _, s := range []*site{a, b} {
				require.EqualValues(t, 1000, s.await(1)[0].WRID)
			}
		})
	}
}

// TestCloseDelivers: data handed to the transport before a QP, or its whole context, is
// closed still arrives, whatever the other side has sent meanwhile.
func TestCloseDelivers(t *testing.T) {
	for name, portable := range drivers {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			cfg := verbs.Config{Secret: secret, Portable: portable}
			rounds := need.InLong(6, 20)
			for round := range rounds {
				a, b := openSite(t, cfg), openSite(t, cfg)
				qa, qb := a.qp(), b.qp()
				connectQPs(t, qa, qb, verbs.ConnectAttr{})
				echo(a, b, qa, qb, 1)
				const count = 50
				for i := range count {
					_, err := qb.PostRecv([]verbs.RecvWR{{WRID: uint64(i), SGList: []verbs.SGE{b.mr.SGE(0, 100)}}})
					require.NoError(t, err)
				}
				// Unread data at the closing side would turn the close into a reset.
				for range 10 {
					_, err := qb.PostSend([]verbs.SendWR{{Opcode: verbs.OpRDMAWrite, SGList: []verbs.SGE{b.mr.SGE(0, 50_000)}, RKey: a.mr.RKey(), RemoteAddr: a.mr.Addr()}})
					require.NoError(t, err)
				}
				for i := range count {
					_, err := qa.PostSend([]verbs.SendWR{{WRID: uint64(i), Opcode: verbs.OpSend, SGList: []verbs.SGE{a.mr.SGE(0, 100)}}})
					require.NoError(t, err)
				}
				if round%2 == 0 {
					require.NoError(t, qa.Close())
				} else {
					require.NoError(t, a.ctx.Close())
				}
				got := 0
				for got < count {
					wc := b.await(1)[0]
					if wc.Opcode != verbs.WCRecv {
						continue // a write that was not acknowledged any more
					}
					require.NoError(t, wc.Err(), "message %d of %d, round %d", got, count, round)
					require.EqualValues(t, got, wc.WRID)
					got++
				}
			}
		})
	}
}

// TestAdopted: once a QP has taken over a connection, the end of the context's guests does not cut it,
// even if the goroutine that has welcomed it still runs.
func TestAdopted(t *testing.T) {
	for name, portable := range drivers {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			b := openLab(t, portable)
			h := b.waiting(7)
			l := ranks.Listen(t)
			nc := ranks.Dial(t, l.Addr().String())
			accepted, err := l.Accept()
			require.NoError(t, err)
			require.True(t, b.a.hall.strangers.Enter(accepted))
			admitted := make(chan error, 1)
			go func() { admitted <- b.a.admit(accepted, b.a.gids[0]) }()
			_, err = proof.Dial(nc, b.a.proofParams(identity{far, farPort, farQPN}), nil)
			require.NoError(t, err)
			require.NoError(t, writeHandshake(nc, &frame{kind: kindOpen, flags: flagFinal, dst: h.q.Num, src: farQPN, psn: psn, expectPSN: psn}))
			f, err := readHandshake(nc)
			require.NoError(t, err)
			require.Equal(t, kindOpened, f.kind)
			require.NoError(t, writeHandshake(nc, &frame{kind: kindConfirm, dst: h.q.Num, src: farQPN}))
			require.NoError(t, <-admitted)
			b.a.hall.close()
			m := b.reg(fill(make([]byte, 10), 1))
			h.post(signalled(1, verbs.OpSend, sge(m, 0, 10)))
			require.NoError(t, h.q.Close())
			got, err := io.ReadAll(nc)
			require.NoError(t, err)
			require.Contains(t, string(got), string(m.Bytes()))
		})
	}
}

// TestAttendance: while a CQ is polled, only polling drives the connection; when polling
// stops, the engine finishes the work.
func TestAttendance(t *testing.T) {
	leak.Check(t)
	b := openSite(t, verbs.Config{Secret: secret})
	a := openSite(t, verbs.Config{Secret: secret})
	qa, qb := a.qp(), b.qp()
	connectQPs(t, qa, qb, verbs.ConnectAttr{})
	echo(a, b, qa, qb, 20)
	wcs := make([]verbs.WC, 1)
	send := func(id uint64) {
		_, err := qb.PostSend([]verbs.SendWR{{WRID: id, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled,
			SGList: []verbs.SGE{b.mr.SGE(0, 1)}, RKey: a.mr.RKey(), RemoteAddr: a.mr.Addr() + 100}})
		require.NoError(t, err)
	}
	// a does not poll: its engine answers.
	for i := range uint64(20) {
		send(i)
		require.Equal(t, verbs.WCSuccess, b.await(1)[0].Status)
	}
	// a polls: its engine does not wake up.
	rounds := need.InLong[uint64](200, 2000)
	for i := range rounds {
		send(i)
		for {
			_, err := a.cq.Poll(wcs)
			require.NoError(t, err)
			if n, err := b.cq.Poll(wcs); n == 1 {
				require.Equal(t, verbs.WCSuccess, wcs[0].Status)
				break
			} else {
				require.NoError(t, err)
			}
		}
	}
}
