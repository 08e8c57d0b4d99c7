package channel

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/wait"
	"github.com/sluice-hpc/sluice/verbs"
)

// TestOptionDefaults: zero stands for what the documentation says, and works.
func TestOptionDefaults(t *testing.T) {
	zero := []Option{WithConnectTimeout(0), WithPeerTimeout(0), WithLogger(nil), WithReport(nil, 0), WithProviders(), nil}
	none, err := newOptions(nil)
	require.NoError(t, err)
	same, err := newOptions(zero)
	require.NoError(t, err)
	require.Equal(t, none, same)
	require.Equal(t, DefaultConnectTimeout, same.connectTimeout)
	require.Equal(t, verbs.DefaultPeerTimeout, same.peerTimeout)
	require.Same(t, slog.Default(), same.logger)
	require.NotNil(t, same.report)
	require.Zero(t, same.stall)

	apart(t, func(t *testing.T, provider string) {
		nodes := join(t, 2, append(zero, WithProviders(provider))...)
		s, r, out, in := sendReceiveBytes(t, nodes[0], nodes[1], 8)
		copy(out, "a messag")
		require.NoError(t, errors.Join(s.Start(), r.Start()))
		require.NoError(t, errors.Join(s.WaitContext(within(t)), r.WaitContext(within(t))))
		require.Equal(t, out, in)
	})
}

// TestBadOptions: what cannot be meant is an error of its own type, before the job
// hears of this process.
func TestBadOptions(t *testing.T) {
	for says, o := range map[string]Option{
		"connect timeout of -1ns":       WithConnectTimeout(-1),
		"peer timeout of -1s":           WithPeerTimeout(-time.Second),
		"time without progress of -1ns": WithReport(io.Discard, -1),
		`provider "tcp" is named twice`: WithProviders("tcp", "shm", "tcp"),
		"port -1":                       WithConnect(verbs.ConnectAttr{Port: -1}),
		"GID index 256":                 WithConnect(verbs.ConnectAttr{SGIDIndex: 256}),
		"local ACK timeout code 32":     WithConnect(verbs.ConnectAttr{Timeout: 32}),
		"path MTU code 6, at most 5":    WithConnect(verbs.ConnectAttr{PathMTU: 6}),
		"service level 16, at most 15":  WithConnect(verbs.ConnectAttr{ServiceLevel: 16}),
		`wait as "nap"`:                 WithWait("nap"),
		"access LOCAL_WRITE":            WithConnect(verbs.ConnectAttr{AccessFlags: verbs.AccessLocalWrite}),
	} {
		n, err := Join(t.Context(), o)
		require.Nil(t, n)
		var e *Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, "join", e.Op)
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorContains(t, err, says)
	}
}

// TestWaitSetting: a rank waits as the program says, or else the environment.
func TestWaitSetting(t *testing.T) {
	t.Setenv(EnvWait, "yield")
	for name, c := range map[string]struct {
		opts []Option
		has  func(n *Node) bool // waited so
	}{
		"yield": {nil, func(n *Node) bool { return n.policy.Yields() > 100 && n.sleeps.Load() == 0 }},
		"sleep": {[]Option{WithWait("sleep")}, func(n *Node) bool { return n.sleeps.Load() > 1 && n.policy.Yields() == 0 }},
	} {
		t.Run(name, func(t *testing.T) {
			nodes := join(t, 2, c.opts...)
			s, r := sendReceive(t, nodes[0], nodes[1], 8)
			require.NoError(t, r.Start())
			waited := make(chan error, 1)
			go func() { waited <- r.WaitContext(within(t)) }()
			require.True(t, wait.Until(within(t), func() bool { return c.has(nodes[1]) }))
			require.NoError(t, s.Start())
			require.NoError(t, <-waited)
			require.NoError(t, s.WaitContext(within(t)))
		})
	}
}

// TestUnknownProvider: the error names those that there are.
func TestUnknownProvider(t *testing.T) {
	err := joinErrors(t, 2, WithProviders("tcp", "carrier-pigeon"))[0]
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, `provider "carrier-pigeon" has no device here (this program links no provider of that name); usable here: `)
}

// TestLogger: what the node tells goes to the logger that it was given.
func TestLogger(t *testing.T) {
	var b lockedBuffer
	nodes := join(t, 2, WithProviders("tcp"), WithLogger(slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{Level: slog.LevelDebug}))))
	s, r := sendReceive(t, nodes[0], nodes[1], 8)
	require.NoError(t, errors.Join(s.Start(), r.Start()))
	require.NoError(t, r.WaitContext(within(t)))
	p := peerOf(t, nodes[0], 1)
	p.mu.Lock()
	conn := p.conn
	p.mu.Unlock()
	require.NoError(t, conn.Close())
	err := r.Start()
	if err == nil {
		err = r.WaitContext(within(t))
	}
	require.ErrorIs(t, err, ErrPeerDied)
	require.Eventually(t, func() bool {
		return bytes.Contains([]byte(b.String()), []byte(`msg="channel: lost a peer" rank=1 peer=0`))
	}, limit, time.Millisecond)
}

// TestAckTimeout: all retries together take the time that a peer has to prove itself,
// and not more than that of a peer that is silent, though a device quadruple it.
func TestAckTimeout(t *testing.T) {
	for _, c := range []struct {
		bound, most time.Duration
		want        uint8
	}{
		{time.Second, verbs.DefaultPeerTimeout, 16},
		{time.Second, time.Second, 16},
		{time.Second, time.Minute, 18},
		{5 * time.Second, time.Second, 18},
		{time.Second, 24 * time.Hour, 29},
		{time.Second, 1 << 62, 31},
	} {
		code := ackTimeout(c.bound, c.most)
		require.Equal(t, c.want, code)
		require.True(t, code == 31 || tries*verbs.AckTimeout(code) >= c.bound)
		require.True(t, tries*verbs.AckTimeout(code-1) < c.bound || 4*tries*verbs.AckTimeout(code) <= c.most)
	}
}
