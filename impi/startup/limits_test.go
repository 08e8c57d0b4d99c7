package startup

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// TestSlow: each phase ends in time, and the error names the clients that were waited for.
func TestSlow(t *testing.T) {
	const soon = 20 * time.Millisecond
	t.Run("handshake", func(t *testing.T) {
		v := serve(t, Server{Clients: 1, Handshake: soon})
		slow := dialRaw(t, v.addr)
		slow.Write([]byte("AUT")) // fails if that comes too late already
		slow.cut()
		require.Eventually(t, func() bool { return containsAll(v.log.String(), ErrTimeout.Error()) }, limit, time.Millisecond)
	})
	t.Run("join", func(t *testing.T) {
		v := serve(t, Server{Clients: 3, Join: soon})
		_, err := v.wait()
		require.ErrorIs(t, err, ErrTimeout)
		require.ErrorContains(t, err, "clients that did not join: 0, 1, 2")
	})
	t.Run("collect", func(t *testing.T) {
		v := serve(t, Server{Clients: 2, Collect: soon})
		a, b := dialRaw(t, v.addr), dialRaw(t, v.addr)
		a.enter(0)
		b.enter(1)
		a.Write(doneWire) // fails if that comes too late already
		_, err := v.wait()
		require.ErrorIs(t, err, ErrTimeout)
		require.ErrorContains(t, err, "clients that did not send DONE:")
		require.ErrorContains(t, err, "1")
	})
	t.Run("finish", func(t *testing.T) {
		v := serve(t, Server{Clients: 2, Finish: soon})
		a, b := dialRaw(t, v.addr), dialRaw(t, v.addr)
		a.enter(0)
		b.enter(1)
		a.expect(appendImpi(nil, 2))
		a.send(doneWire)
		b.send(doneWire)
		a.expect(doneWire)
		a.send(finiWire)
		res, err := v.wait()
		require.ErrorIs(t, err, ErrTimeout)
		require.ErrorContains(t, err, "clients that did not send FINI: 1")
		require.NoError(t, res.Clients[0].Err)
		require.Error(t, res.Clients[1].Err)
	})
}

// TestCrowd: connections that say nothing give way to those that come later.
func TestCrowd(t *testing.T) {
	v := serve(t, Server{Clients: 1, MaxPending: 4})
	var idle []raw
	for range 8 {
		idle = append(idle, dialRaw(t, v.addr))
	}
	for _, r := range idle[:4] {
		r.cut()
	}
	j, err := Dial(t.Context(), v.addr, config(0))
	require.NoError(t, err)
	for _, r := range idle[4:] {
		r.cut()
	}
	require.NoError(t, j.Finish())
	res, err := v.wait()
	require.NoError(t, err)
	require.Equal(t, 8, res.Refused)
	require.Contains(t, v.log.String(), ErrCrowded.Error())
	require.Contains(t, v.log.String(), ErrLate.Error())
}

// TestDeaf: a client that does not read its answers does not hold up the others.
func TestDeaf(t *testing.T) {
	need.Full(t)
	const size = 1 << 20
	v := serve(t, Server{Clients: 2, MaxClientBytes: 32 << 20})
	deaf, good := dialRaw(t, v.addr), dialRaw(t, v.addr)
	deaf.enter(0)
	good.enter(1)
	good.expect(appendImpi(nil, 2))
	data := string(make([]byte, size))
	for l := Label(1); l <= 16; l++ {
		deaf.send(coll(l, data))
		good.send(coll(l, data))
		good.expect(answer(l, 3, data+data))
	}
	deaf.send(doneWire)
	good.send(doneWire)
	good.expect(doneWire)
	good.send(finiWire)
	deaf.Close()
	_, err := v.wait()
	require.ErrorIs(t, err, ErrLost)
	require.ErrorContains(t, err, "run, client 0")
}

func TestServeCancelled(t *testing.T) {
	l := ranks.Listen(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := Server{Clients: 1, Key: 1}
	res, err := s.Serve(ctx, l)
	require.ErrorIs(t, err, context.Canceled)
	require.Error(t, res.Clients[0].Err)
}

func TestServeInvalid(t *testing.T) {
	for name, c := range map[string]struct {
		addr string
		s    Server
	}{
		"no clients":           {"127.0.0.1:0", Server{Key: 1}},
		"33 clients":           {"127.0.0.1:0", Server{Clients: 33, Key: 1}},
		"no key":               {"127.0.0.1:0", Server{Clients: 1}},
		"unknown method":       {"127.0.0.1:0", Server{Clients: 1, Auth: 4}},
		"open to all":          {":0", Server{Clients: 1, Auth: AuthNone}},
		"open to all, old":     {"127.0.0.1:0", Server{Clients: 1, Key: 1, NoAuth: true}},
		"negative limit":       {"127.0.0.1:0", Server{Clients: 1, Key: 1, MaxLabels: -1}},
		"negative time":        {"127.0.0.1:0", Server{Clients: 1, Key: 1, Handshake: -1}},
		"answers over 2 GiB":   {"127.0.0.1:0", Server{Clients: 32, Key: 1, MaxLabelBytes: 64 << 20}},
		"NONE and KEY, no key": {"127.0.0.1:0", Server{Clients: 1, Auth: AuthNone | AuthKey}},
	} {
		l, err := net.Listen("tcp", c.addr)
		require.NoError(t, err)
		_, err = c.s.Serve(t.Context(), l)
		require.ErrorIs(t, err, ErrInvalid, name)
	}
	l := ranks.Listen(t)
	require.NoError(t, l.Close())
	_, err := (&Server{Clients: 1, Key: 1}).Serve(t.Context(), l)
	require.ErrorIs(t, err, net.ErrClosed)
}
