package shm

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/leak"
	"github.com/sluice-hpc/sluice/internal/limits"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
	"github.com/sluice-hpc/sluice/verbs"
)

// two opens two contexts and connects a QP of each.
func two(t *testing.T) (a, b *side) { return twoWithin(t, ranks.Limit) }

func twoWithin(t *testing.T, peerTimeout time.Duration) (a, b *side) {
	leak.Check(t)
	x, y := openWithin(t, peerTimeout), openWithin(t, peerTimeout)
	t.Cleanup(func() {
		require.NoError(t, x.Close())
		require.NoError(t, y.Close())
	})
	a, b = newSide(t, x), newSide(t, y)
	join(t, a, b)
	return a, b
}

func (s *side) receive(t *testing.T, id uint64) {
	n, err := s.q.PostRecv([]verbs.RecvWR{{WRID: id, SGList: []verbs.SGE{{Addr: s.mr.Addr(), Length: 4096, LKey: s.mr.Key}}}})
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

func (s *side) send(t *testing.T, id uint64) {
	n, err := s.q.PostSend([]verbs.SendWR{{WRID: id, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{{Addr: s.mr.Addr(), Length: 8, LKey: s.mr.Key}}}})
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

// eventually polls both sides until a condition holds that also needs the links' goroutines.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for limit := time.Now().Add(ranks.Limit); !ok(); runtime.Gosched() {
		require.True(t, time.Now().Before(limit), what)
	}
}

// A reset QP tells its peer, which leaves the inbox before its memory is used again.
func TestResetTellsThePeer(t *testing.T) {
	a, b := two(t)
	in := a.q.in.Load()
	require.NoError(t, a.q.Modify(&verbs.QPAttr{QPState: verbs.QPReset}, verbs.MaskState))
	eventually(t, "the peer has not left", func() bool {
		a.c.mu.Lock()
		defer a.c.mu.Unlock()
		_, waits := a.c.zombies[in]
		return !waits
	})
	require.False(t, b.joined(), "the inbox is free, and the peer still sends to it")
	b.send(t, 1)
	wcs := make([]verbs.WC, 1)
	require.Equal(t, 1, polled(t, b.cq, wcs))
	require.ErrorIs(t, wcs[0].Err(), verbs.WCRetryExcErr)
}

// The end of the peer's process is the cause of an error, whatever has failed before it.
func TestCauseOfDeath(t *testing.T) {
	a, b := two(t)
	l := a.q.link
	require.NoError(t, a.q.Cause())
	l.unusable(limits.ErrFiles)
	require.Equal(t, verbs.QPErr, a.q.State())
	require.ErrorIs(t, a.q.Cause(), limits.ErrFiles)
	require.NotErrorIs(t, a.q.Cause(), verbs.ErrPeerDied, "it may still write here")
	require.NoError(t, b.q.link.conn.Close()) // as the kernel does
	eventually(t, "its end is not noticed", func() bool { return errors.Is(a.q.Cause(), verbs.ErrPeerDied) })
}

// Links for which there are too few descriptors end at once, and say so; none has less than it would
// with enough of them.
func TestLinkWithoutDescriptors(t *testing.T) {
	leak.Check(t)
	x, y := open(t), open(t)
	join(t, newSide(t, x), newSide(t, y))
	full := x.links[y.gid].canRead.Load()
	require.NoError(t, errors.Join(x.Close(), y.Close()))
	for more := range uint64(8) {
		x, y := open(t), open(t)
		a, b := newSide(t, x), newSide(t, y)
		next, err := unix.Dup(0)
		require.NoError(t, err)
		require.NoError(t, unix.Close(next))
		var limit unix.Rlimit
		require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
		require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(next) + more, Max: limit.Max}))
		func() {
			defer func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)) }()
			const never = 0 // it gives up
			for from, to := range map[*side]*side{a: b, b: a} {
				if err := from.connectWithin(to, never); err != nil { // it has failed meanwhile
					require.ErrorIs(t, from.q.Cause(), limits.ErrFiles, "%v", err)
				}
			}
			eventually(t, "neither connected nor failed", func() bool {
				return a.joined() && b.joined() || errors.Is(errors.Join(a.q.Cause(), b.q.Cause()), limits.ErrFiles)
			})
			if why := errors.Join(a.q.Cause(), b.q.Cause()); why != nil {
				require.ErrorContains(t, why, fmt.Sprintf("RLIMIT_NOFILE (ulimit -n) is %d", uint64(next)+more))
			} else {
				require.Equal(t, full, a.q.link.canRead.Load())
				require.Equal(t, full, b.q.link.canRead.Load())
			}
		}()
		require.NoError(t, errors.Join(x.Close(), y.Close()))
	}
}

// A message that waits for a receive does not hold up the acknowledgements carried by later
// messages.
func TestAcknowledgementsBehindAStalledMessage(t *testing.T) {
	a, b := two(t)
	a.receive(t, 100)
	a.send(t, 1) // waits: b has no receive
	b.send(t, 2)
	require.EqualValues(t, 100, a.take(t).WRID)
	a.send(t, 3) // carries the acknowledgement
	require.EqualValues(t, 2, b.take(t).WRID)
	b.receive(t, 200)
	b.receive(t, 201)
	require.EqualValues(t, 200, b.take(t).WRID)
	require.EqualValues(t, 201, b.take(t).WRID)
	require.EqualValues(t, 1, a.take(t).WRID)
	require.EqualValues(t, 3, a.take(t).WRID)
}

// A slot that claims two places for its payload breaks only the connection.
func TestSlotPackedAndPulled(t *testing.T) {
	a, b := two(t)
	a.receive(t, 1)
	b.q.Lock.Lock()
	for _, bits := range []uint8{bitPacked | bitPull, 0} {
		sl := b.q.out.next()
		sl.length = 100
		*sl.packed() = packed{0, 8}
		b.q.publish(sl, uint8(verbs.OpSend), bits, 0)
	}
	b.q.Unlock()
	wcs := make([]verbs.WC, 1)
	eventually(t, "no end", func() bool {
		return polled(t, a.cq, wcs) == 1
	})
	require.ErrorIs(t, wcs[0].Err(), verbs.WCWRFlushErr)
	require.Equal(t, verbs.QPErr, a.q.State())
}

// The receive that half a message has taken is flushed when its sender goes.
func TestSenderGoesInMidMessage(t *testing.T) {
	a, b := two(t)
	a.receive(t, 7)
	b.q.Lock.Lock()
	sl := b.q.out.next()
	sl.length = 100
	*sl.packed() = packed{0, 8}
	b.q.publish(sl, uint8(verbs.OpSend), bitPacked, 0)
	b.q.Unlock()
	wcs := make([]verbs.WC, 2)
	require.Zero(t, polled(t, a.cq, wcs))
	require.NoError(t, b.q.Close())
	n := 0
	eventually(t, "the receive is lost", func() bool {
		n = polled(t, a.cq, wcs)
		return n > 0
	})
	require.Equal(t, 1, n)
	require.EqualValues(t, 7, wcs[0].WRID)
	require.ErrorIs(t, wcs[0].Err(), verbs.WCWRFlushErr)
}

// A CQ of one entry overruns while a message arrives: the QP fails, once.
func TestOverrunWhileReceiving(t *testing.T) {
	leak.Check(t)
	x, y := open(t), open(t)
	a, b := newSide(t, x), newSide(t, y)
	scq, err := x.CreateCQ(1, nil)
	require.NoError(t, err)
	q, err := a.pd.CreateQP(verbs.ProviderQPInit{SendCQ: scq, RecvCQ: a.cq, Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1}})
	require.NoError(t, err)
	require.NoError(t, a.q.Close())
	a.q = q.(*QP)
	join(t, a, b)
	for i := range uint64(4) {
		b.receive(t, i)
		a.send(t, i)
	}
	// The engine may come before b has them all, and meet the overrun by itself.
	over := func() bool { return a.q.State() == verbs.QPErr }
	wcs := make([]verbs.WC, 4)
	for n := 0; n < 4 && !over(); {
		k := polled(t, b.cq, wcs)
		n += k
	}
	if !over() {
		b.send(t, 9)
	}
	eventually(t, "no overrun", func() bool {
		polled(t, a.cq, wcs)
		return over()
	})
	_, err = scq.Poll(wcs)
	for err == nil {
		_, err = scq.Poll(wcs)
	}
	require.ErrorIs(t, err, verbs.ErrCQOverrun)
	require.NoError(t, x.Close())
	require.NoError(t, y.Close())
}

// A write that SQD held goes on in RTS however long it is.
func TestLongWriteAfterSQD(t *testing.T) {
	a, b := two(t)
	const size = 4 * burst
	from := allocMR(t, a.pd, size)
	to := allocMR(t, b.pd, size)
	from.Bytes()[size-1] = 77
	require.NoError(t, a.q.Modify(&verbs.QPAttr{QPState: verbs.QPSQD}, verbs.MaskState))
	n, err := a.q.PostSend([]verbs.SendWR{{WRID: 1, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, RKey: to.RKey(), RemoteAddr: to.Addr(),
		SGList: []verbs.SGE{{Addr: from.Addr(), Length: size, LKey: from.LKey()}}}})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.NoError(t, a.q.Modify(&verbs.QPAttr{QPState: verbs.QPRTS}, verbs.MaskState))
	a.take(t)
	require.EqualValues(t, 77, to.Bytes()[size-1])
}

// All calls that wait for one CQ return when it is closed, and a call whose context ends does
// not disarm the CQ for the others.
func TestSeveralBlock(t *testing.T) {
	a, b := two(t)
	given, cancel := context.WithCancel(t.Context())
	done := make(chan error, 3)
	for _, ctx := range []context.Context{given, t.Context(), t.Context()} {
		go func() { done <- a.cq.Block(ctx) }()
	}
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	a.receive(t, 1)
	b.send(t, 1)
	require.NoError(t, <-done)
	require.NoError(t, <-done)
}

// inside makes a peer access the region of a, as if stopped in mid-copy, until the function that
// it returns is called.
func (b *side) inside(t *testing.T, a *side) (leave func()) {
	b.q.Lock.Lock()
	_, how := b.q.enter(a.mr.Key, a.mr.Addr(), 8, verbs.AccessRemoteWrite, b.q.out.pd, true)
	require.Equal(t, reachMapped, how)
	leave = sync.OnceFunc(func() {
		b.q.leave()
		b.q.Unlock()
	})
	t.Cleanup(leave)
	return leave
}

// ERR and RESET end the peer's accesses, so they wait for them, within limits. Closing the region
// detects accesses that have not ended.
func TestLeavingWaitsForAnAccess(t *testing.T) {
	need.Full(t)
	for _, s := range []verbs.QPState{verbs.QPErr, verbs.QPReset} {
		t.Run(s.String(), func(t *testing.T) {
			a, b := twoWithin(t, soon)
			to := verbs.QPAttr{QPState: s}
			leave := b.inside(t, a)
			require.ErrorIs(t, a.q.Modify(&to, verbs.MaskState), verbs.ErrBusy)
			require.Equal(t, s, a.q.State(), "the state is the new one nevertheless")
			require.ErrorIs(t, a.q.Modify(&to, verbs.MaskState), verbs.ErrBusy, "and the peer still there")
			require.ErrorIs(t, a.mr.Close(), verbs.ErrBusy)
			leave()
			require.NoError(t, a.q.Modify(&to, verbs.MaskState))
		})
		t.Run(s.String()+" in time", func(t *testing.T) {
			a, b := two(t)
			leave := b.inside(t, a)
			go func() {
				for a.q.State() != s {
					runtime.Gosched()
				}
				leave()
			}()
			require.NoError(t, a.q.Modify(&verbs.QPAttr{QPState: s}, verbs.MaskState))
			require.NoError(t, a.mr.Close())
		})
	}
}

// A failure moves a QP to ERR from within a poll, which does not wait. Modifying it to ERR again
// does.
func TestErrAfterFailureWaits(t *testing.T) {
	a, b := twoWithin(t, soon)
	leave := b.inside(t, a)
	a.q.Lock.Lock()
	a.q.fail(nil, verbs.WCRemOpErr)
	a.q.Unlock()
	to := verbs.QPAttr{QPState: verbs.QPErr}
	require.ErrorIs(t, a.q.Modify(&to, verbs.MaskState), verbs.ErrBusy)
	leave()
	require.NoError(t, a.q.Modify(&to, verbs.MaskState))
}

// The owner may reuse the payload of a flushed send: a peer that has not fetched it yet does not
// take the new contents for the message.
func TestFlushedSendIsNotReceived(t *testing.T) {
	for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpRDMAWriteWithImm} {
		t.Run(op.String(), func(t *testing.T) {
			a, b := two(t)
			n, err := a.q.PostSend([]verbs.SendWR{{WRID: 1, Opcode: op, Flags: verbs.SendSignaled, RKey: b.mr.Key, RemoteAddr: b.mr.Addr(),
				SGList: []verbs.SGE{{Addr: a.mr.Addr(), Length: 4096, LKey: a.mr.Key}}}})
			require.NoError(t, err)
			require.Equal(t, 1, n)
			b.q.Lock.Lock() // a's word that it leaves arrives after the receive below
			unlock := sync.OnceFunc(b.q.Unlock)
			t.Cleanup(unlock)
			require.NoError(t, a.q.Modify(&verbs.QPAttr{QPState: verbs.QPErr}, verbs.MaskState))
			wcs := make([]verbs.WC, 1)
			require.Equal(t, 1, polled(t, a.cq, wcs))
			require.ErrorIs(t, wcs[0].Err(), verbs.WCWRFlushErr)
			for i := range a.mr.Buf {
				a.mr.Buf[i] = 99 // its owner has other things to say
			}
			_, err = b.q.RQ.Post([]verbs.RecvWR{{WRID: 2, SGList: []verbs.SGE{{Addr: b.mr.Addr(), Length: 4096, LKey: b.mr.Key}}}})
			require.NoError(t, err)
			b.q.progress(nil)
			unlock()
			eventually(t, "the receive is lost", func() bool {
				return polled(t, b.cq, wcs) > 0
			})
			require.EqualValues(t, 2, wcs[0].WRID)
			require.ErrorIs(t, wcs[0].Err(), verbs.WCWRFlushErr)
		})
	}
}

// A region that a peer does not leave stays pinned: the garbage collector does not report a
// leaked pin.
func TestKeptRegionStaysPinned(t *testing.T) {
	a, _ := twoWithin(t, soon)
	mr := regMR(t, a.pd, make([]byte, 4096))
	in := a.q.in.Load()
	in.hazard = uint64(mr.(*MR).Index()) + 1
	require.ErrorIs(t, mr.Close(), verbs.ErrBusy)
	in.hazard = 0
	runtime.GC()
	runtime.GC()
}
