package channel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/leak"
	"github.com/sluice-hpc/sluice/internal/proof"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// TestBothConnect: all ranks connect to each other at once, with messages in
// flight. Of two connections one survives, nothing is lost, doubled or out of order, and nothing
// stays behind.
func TestBothConnect(t *testing.T) {
	const size, messages = 6, 20
	jobs := need.InLong(2, 40)
	apart(t, func(t *testing.T, provider string) {
		leak.Check(t)
		pairs, lower := 0, 0
		for range jobs {
			nodes, errs := tryJoin(t, size, WithProviders(provider))
			require.NoError(t, errors.Join(errs...))
			ready := make(chan struct{})
			var wg sync.WaitGroup
			for i, n := range nodes {
				wg.Go(func() {
					<-ready
					errs[i] = crowd(t, n, messages)
				})
			}
			close(ready)
			wg.Wait()
			require.NoError(t, errors.Join(errs...))
			for i, n := range nodes {
				for _, p := range n.allPeers() {
					theirs := peerOf(t, nodes[p.rank], i)
					// The dialer is known by the acceptor's port.
					dialed := p.conn.RemoteAddr().(*net.TCPAddr).Port == nodes[p.rank].listener.Addr().(*net.TCPAddr).Port
					if p.rank > i {
						pairs++
						if dialed {
							lower++
						}
					}
					require.Equal(t, p.conn.LocalAddr().String(), theirs.conn.RemoteAddr().String(), "one connection")
				}
			}
			closeAll(t, nodes)
		}
		t.Logf("the lower rank's connection is used by %d of %d pairs", lower, pairs)
	})
}

// TestOneReaches: ranks that connect to each other at once, of which one does not get an answer, use
// the connection of the other.
func TestOneReaches(t *testing.T) {
	apart(t, func(t *testing.T, provider string) {
		leak.Check(t)
		for mute := range 2 {
			nodes, errs := tryJoin(t, 2, WithProviders(provider))
			require.NoError(t, errors.Join(errs...))
			l := ranks.Listen(t)
			to := &nodes[mute].addresses[1-mute]
			to.port = uint16(l.Addr().(*net.TCPAddr).Port)
			to.addrs = []netip.Addr{netip.MustParseAddr("127.0.0.1")}
			p := peerOf(t, nodes[mute], 1-mute)
			p.connect()
			conn, err := l.Accept()
			require.NoError(t, err)
			defer conn.Close()
			ranks.Each(t, 2, func(i int) error { return crowd(t, nodes[i], 5) })
			require.Zero(t, p.retries.Load())
			closeAll(t, nodes)
		}
	})
}

// TestOffers: the higher rank of two uses the connection of which the lower one says so, which the test
// plays.
func TestOffers(t *testing.T) {
	type game struct {
		nodes []*Node
		l     net.Listener // at which rank 1 dials rank 0
		p     *peer        // of rank 1
	}
	start := func(t *testing.T) *game {
		g := &game{}
		var errs []error
		g.nodes, errs = tryJoin(t, 2, WithProviders("tcp"))
		require.NoError(t, errors.Join(errs...))
		g.l = ranks.Listen(t)
		to := &g.nodes[1].addresses[0]
		to.port, to.addrs = uint16(g.l.Addr().(*net.TCPAddr).Port), []netip.Addr{netip.MustParseAddr("127.0.0.1")}
		g.p = peerOf(t, g.nodes[1], 0)
		return g
	}
	dial := func(t *testing.T, g *game) (net.Conn, error) {
		a := &g.nodes[0].addresses[1]
		conn := ranks.Dial(t, netip.AddrPortFrom(a.addrs[0], a.port).String())
		_, err := proof.Dial(conn, g.nodes[0].proofParams(), rankID(1))
		return conn, err
	}
	offer := func(t *testing.T, g *game) net.Conn {
		conn, err := dial(t, g)
		require.NoError(t, err)
		return conn
	}
	accept := func(t *testing.T, g *game) net.Conn {
		conn, err := g.l.Accept()
		require.NoError(t, err)
		_, err = proof.Accept(conn, g.nodes[0].proofParams(), nil)
		require.NoError(t, err)
		return conn
	}
	ended := func(t *testing.T, conn net.Conn) {
		_, err := conn.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
	}
	used := func(g *game) string {
		g.p.mu.Lock()
		defer g.p.mu.Unlock()
		if g.p.conn == nil {
			return ""
		}
		return g.p.conn.RemoteAddr().String()
	}
	t.Run("offered", func(t *testing.T) {
		leak.Check(t)
		g := start(t)
		conn := offer(t, g)
		g.p.connect()
		require.NoError(t, accept(t, g).Close())
		_, err := conn.Write([]byte{taken})
		require.NoError(t, err)
		<-g.p.met
		require.Equal(t, conn.LocalAddr().String(), used(g))
		require.Zero(t, g.p.retries.Load())
		require.NoError(t, conn.Close())
		require.NoError(t, g.nodes[1].Close())
		require.NoError(t, g.nodes[0].Close())
	})
	t.Run("an offer that ends", func(t *testing.T) {
		leak.Check(t)
		g := start(t)
		conn := offer(t, g)
		g.p.connect()
		require.NoError(t, accept(t, g).Close())
		require.NoError(t, conn.Close())
		again := accept(t, g)
		_, err := again.Write([]byte{taken})
		require.NoError(t, err)
		<-g.p.met
		require.Equal(t, again.LocalAddr().String(), used(g))
		require.NoError(t, again.Close())
		require.NoError(t, g.nodes[1].Close())
		require.NoError(t, g.nodes[0].Close())
	})
	t.Run("left while the other one connects", func(t *testing.T) {
		leak.Check(t)
		setTo(t, &goodbyeTime, limit)
		g := start(t)
		conn := offer(t, g)
		_, err := conn.Write([]byte{taken})
		require.NoError(t, err)
		<-g.p.met
		require.NoError(t, conn.Close())
		require.NoError(t, g.nodes[0].Close())
		ranks.Eventually(t, func() bool { return g.p.state.Load() >= peerFailed })
		require.ErrorIs(t, *g.p.err.Load(), ErrPeerLeft)
		require.NoError(t, g.nodes[1].Close())
	})
	t.Run("none", func(t *testing.T) {
		need.Full(t) // it asks what has become of rank 0, for a while
		t.Parallel()
		g := start(t)
		g.p.connect()
		for range refusals {
			require.NoError(t, accept(t, g).Close())
		}
		ranks.Eventually(t, func() bool { return g.p.state.Load() >= peerFailed })
		require.ErrorIs(t, *g.p.err.Load(), ErrUnreachable)
		require.ErrorIs(t, *g.p.err.Load(), errNotTaken)
		closeAll(t, g.nodes)
	})
	t.Run("nonsense", func(t *testing.T) {
		need.Full(t)
		t.Parallel()
		g := start(t)
		g.p.connect()
		conn := accept(t, g)
		_, err := conn.Write([]byte{taken + 1})
		require.NoError(t, err)
		ranks.Eventually(t, func() bool { return g.p.state.Load() >= peerFailed })
		require.ErrorIs(t, *g.p.err.Load(), ErrProtocol)
		closeAll(t, g.nodes)
	})
	t.Run("too many", func(t *testing.T) {
		leak.Check(t)
		setTo(t, &goodbyeTime, time.Millisecond) // what is offered is not taken any more
		g := start(t)
		for range maxOffers {
			offer(t, g)
		}
		_, err := dial(t, g)
		require.ErrorIs(t, err, proof.ErrRefused)
		require.NoError(t, g.nodes[1].Close())
		require.NoError(t, g.nodes[0].Close())
	})
	t.Run("an offer while closing", func(t *testing.T) {
		leak.Check(t)
		setTo(t, &goodbyeTime, time.Millisecond)
		g := start(t)
		conn := offer(t, g)
		require.NoError(t, g.nodes[1].Close())
		ended(t, conn)
		require.NoError(t, g.nodes[0].Close())
	})
}

// crowd sends numbered messages of several sizes to all other ranks and receives
// theirs, all started before any two ranks are connected.
func crowd(t *testing.T, n *Node, messages int) error {
	var handles []*Handle
	var check []func() error
	for peer := range n.Size() {
		if peer == n.Rank() {
			continue
		}
		for k := range messages {
			size := []int{8, 900, 20_000}[k%3]
			out, in := make([]byte, size), make([]byte, size)
			binary.BigEndian.PutUint32(out, uint32(n.Rank()))
			binary.BigEndian.PutUint32(out[4:], uint32(k))
			s := declareSend(t, n, Contiguous(out), peer)
			r := declareReceive(t, n, Contiguous(in), peer)
			if err := errors.Join(s.Start(), r.Start()); err != nil {
				return err
			}
			handles = append(handles, s, r)
			check = append(check, func() error {
				if from, number := binary.BigEndian.Uint32(in), binary.BigEndian.Uint32(in[4:]); int(from) != peer || int(number) != k {
					return fmt.Errorf("message %d of rank %d in place of %d of %d", number, from, k, peer)
				}
				return nil
			})
		}
	}
	if err := WaitAllContext(within(t), handles...); err != nil {
		return err
	}
	for _, c := range check {
		if err := c(); err != nil {
			return err
		}
	}
	return nil
}

// stream hides of a connection that it is one: [io.Copy] between two leaves pipes behind.
type stream struct{ io.Reader }

// TestSlowPeer: a peer that takes a connection and says nothing for a while, as one that is
// stopped does, is waited for.
func TestSlowPeer(t *testing.T) {
	nodes := join(t, 2, WithProviders("tcp"))
	real := nodes[1].listener.Addr().(*net.TCPAddr).Port
	ln := ranks.Listen(t)
	nodes[0].addresses[1].addrs = []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	nodes[0].addresses[1].port = uint16(ln.Addr().(*net.TCPAddr).Port)
	taken, goes := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		slow, err := ln.Accept()
		require.NoError(t, err)
		defer slow.Close()
		close(taken)
		<-goes
		conn := ranks.Dial(t, fmt.Sprintf("127.0.0.1:%d", real))
		defer conn.Close()
		wg.Go(func() {
			io.Copy(slow, stream{conn})
			slow.Close()
		})
		io.Copy(conn, stream{slow})
	})
	s, _ := send(t, nodes[0], 1, 8)
	r, _ := receive(t, nodes[0], 1, 8)
	require.NoError(t, errors.Join(s.Start(), r.Start()))
	<-taken
	require.Equal(t, "connecting", nodes[0].Stats().Peers[0].State)
	close(goes)
	echo, _ := send(t, nodes[1], 0, 8)
	take, _ := receive(t, nodes[1], 0, 8)
	require.NoError(t, errors.Join(echo.Start(), take.Start(), WaitAllContext(within(t), s, r), WaitAllContext(within(t), echo, take)))
	require.Zero(t, nodes[0].Stats().Peers[0].Retries)
	require.NoError(t, nodes[0].Close())
}

// TestGonePeer: a rank that has left before it was connected has left, as any; that a
// stranger has its port now makes no difference.
func TestGonePeer(t *testing.T) {
	apart(t, func(t *testing.T, provider string) {
		nodes := join(t, 3, WithProviders(provider))
		require.NoError(t, nodes[0].Close())
		require.NoError(t, nodes[2].Close())
		for _, gone := range []int{0, 2} {
			r, _ := receive(t, nodes[1], gone, 8)
			err := r.Start()
			if err == nil {
				err = r.WaitContext(within(t))
			}
			require.ErrorIs(t, err, ErrPeerLeft)
			require.NotErrorIs(t, err, ErrUnreachable)
			require.ErrorContains(t, err, fmt.Sprintf("from rank %d", gone))
			require.ErrorContains(t, err, fmt.Sprintf(": peer left: rank %d closed its node before the two ranks were connected", gone))
			require.NotContains(t, err.Error(), "dial")
		}
	})
}

// TestBrokenConnection: the error of a rank whose connection ends says where to look.
func TestBrokenConnection(t *testing.T) {
	nodes := join(t, 2, WithProviders("tcp"))
	talk(t, nodes[0], nodes[1])
	r, _ := receive(t, nodes[1], 0, 8)
	require.NoError(t, r.Start())
	p := nodes[0].peers[1].Load()
	p.mu.Lock()
	conn := p.conn
	p.mu.Unlock()
	require.NoError(t, conn.Close())
	err := r.WaitContext(within(t))
	require.ErrorIs(t, err, ErrPeerDied)
	require.ErrorContains(t, err, ": peer died: the connection to its process ended; look at the output of rank 0")
}

// TestSilentAndGone: a rank that does not answer is waited for no longer than it runs.
func TestSilentAndGone(t *testing.T) {
	nodes := join(t, 2, WithProviders("tcp"), func(o *options) { o.warnAfter = 50 * time.Millisecond })
	ln := ranks.Listen(t) // never accepts
	nodes[0].addresses[1].addrs = []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	nodes[0].addresses[1].port = uint16(ln.Addr().(*net.TCPAddr).Port)
	r, _ := receive(t, nodes[0], 1, 8)
	require.NoError(t, r.Start())
	require.NoError(t, nodes[1].Close())
	require.ErrorIs(t, r.WaitContext(within(t)), ErrPeerLeft)
}
