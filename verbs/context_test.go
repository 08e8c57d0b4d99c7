package verbs

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// soon fails the test if f does not return.
func soon(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(ranks.Limit):
		require.FailNow(t, "hangs: "+what)
	}
}

// A region that a stopped peer is accessing takes long to close. Only calls that depend
// on the region wait for that.
func TestCloseOfOneWaits(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	stuck := errors.New("stuck")
	f := &fakeContext{}
	c, err := openFake(f)
	require.NoError(t, err)
	pd, err := c.AllocPD()
	require.NoError(t, err)
	mr, err := pd.RegMR(make([]byte, 1), 0)
	require.NoError(t, err)
	f.closeMR = func() error {
		close(entered)
		<-leave
		return stuck
	}
	closed := make(chan error, 1)
	go func() { closed <- mr.Close() }()
	<-entered
	f.closeMR = nil

	soon(t, "calls while a region is being closed", func() {
		_, err = c.QueryDevice()
		require.NoError(t, err)
		other, err := pd.RegMR(make([]byte, 1), 0)
		require.NoError(t, err)
		require.NoError(t, other.Close())
		cq, err := c.CreateCQ(1, nil)
		require.NoError(t, err)
		qp, err := pd.CreateQP(QPInitAttr{SendCQ: cq, RecvCQ: cq})
		require.NoError(t, err)
		require.NoError(t, qp.Close())
		require.NoError(t, cq.Close())
		require.ErrorIs(t, pd.Close(), ErrBusy, "the region is not gone yet")
		require.ErrorIs(t, mr.Close(), ErrClosed)
		require.Nil(t, mr.Bytes())
	})

	// The context ends with its last child, and says at once that it is closed.
	ended := make(chan error, 1)
	go func() { ended <- c.Close() }()
	soon(t, "calls while the context is being closed", func() {
		for err = nil; !errors.Is(err, ErrClosed); {
			_, err = c.AllocPD()
		}
		require.ErrorIs(t, c.Close(), ErrClosed)
		require.ErrorIs(t, pd.Close(), ErrClosed)
	})
	select {
	case err := <-ended:
		require.FailNow(t, "the context is closed before its region", "%v", err)
	default:
	}
	close(leave)
	require.ErrorIs(t, <-closed, stuck)
	require.NoError(t, <-ended)
}

// A device may grant more than was requested; Cap returns what it granted.
func TestCapIsWhatWasGranted(t *testing.T) {
	granted := QPCap{MaxSendWR: 64, MaxRecvWR: 32, MaxSendSGE: 8, MaxRecvSGE: 4, MaxInlineData: 60}
	c, err := openFake(&fakeContext{grant: func(asked QPCap) QPCap {
		require.Equal(t, QPCap{MaxSendWR: 3, MaxRecvWR: 2, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: 5}, asked)
		return granted
	}})
	require.NoError(t, err)
	pd, err := c.AllocPD()
	require.NoError(t, err)
	cq, err := c.CreateCQ(1, nil)
	require.NoError(t, err)
	init := QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: QPCap{MaxSendWR: 3, MaxRecvWR: 2, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: 5}}
	qp, err := pd.CreateQP(init)
	require.NoError(t, err)
	require.Equal(t, granted, qp.Cap())
	require.NoError(t, c.Close())
}

// TestWaitSetting: Wait waits as SLUICE_WAIT says, which is read only for queues that it is for.
func TestWaitSetting(t *testing.T) {
	for how, sleeps := range map[string]bool{"sleep": true, "spin": false, "yield": false, "": true} {
		t.Setenv("SLUICE_WAIT", how)
		ctx, cancel := context.WithCancel(t.Context())
		polls, blocks := 0, 0
		f := &fakeContext{polled: func() {
			if polls++; polls == 100_000 {
				cancel()
			}
		}, blocked: func() {
			blocks++
			cancel()
		}}
		c, err := openFake(f)
		require.NoError(t, err)
		q, err := c.CreateCQ(1, nil)
		require.NoError(t, err)
		_, err = q.Wait(ctx, make([]WC, 1))
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, sleeps, blocks > 0, "%q: %d polls", how, polls)
		require.NoError(t, c.Close())
	}
	t.Setenv("SLUICE_WAIT", "nap")
	c, err := openFake(&fakeContext{})
	require.NoError(t, err)
	_, err = c.CreateCQ(1, nil)
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, `SLUICE_WAIT="nap": want spin, yield or sleep, optionally with a duration: spin:50us`)
	require.NoError(t, c.Close())
}

// TestGIDIndex: an index that does not fit the attribute of a QP is an error; it is not
// truncated to the index of another GID.
func TestGIDIndex(t *testing.T) {
	c, err := openFake(&fakeContext{gids: 1000})
	require.NoError(t, err)
	pd, err := c.AllocPD()
	require.NoError(t, err)
	cq, err := c.CreateCQ(1, nil)
	require.NoError(t, err)
	qp, err := pd.CreateQP(QPInitAttr{SendCQ: cq, RecvCQ: cq})
	require.NoError(t, err)
	for index, want := range map[int]error{-1: ErrInvalid, 0: nil, 255: nil, 256: ErrInvalid, 999: ErrInvalid, 1000: ErrInvalid} {
		require.ErrorIs(t, qp.Connect(Endpoint{Provider: "fake"}, ConnectAttr{SGIDIndex: index}), want, "%d", index)
	}
	require.NoError(t, c.Close())
}

// TestFailsAsItConnects: a QP that fails before it is in RTS says why.
func TestFailsAsItConnects(t *testing.T) {
	why := errors.New("the peer is not there")
	c, err := openFake(&fakeContext{gids: 1, fails: why})
	require.NoError(t, err)
	pd, err := c.AllocPD()
	require.NoError(t, err)
	cq, err := c.CreateCQ(1, nil)
	require.NoError(t, err)
	qp, err := pd.CreateQP(QPInitAttr{SendCQ: cq, RecvCQ: cq})
	require.NoError(t, err)
	require.ErrorIs(t, qp.Connect(Endpoint{Provider: "fake"}, ConnectAttr{}), why)
	require.NoError(t, c.Close())
}
