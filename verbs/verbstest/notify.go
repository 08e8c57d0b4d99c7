package verbstest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs"
)

// testNotify is about waiting: completion channels, their descriptors, and
// CQ.Wait.
func testNotify(t *testing.T, s *suite) {
	s.in(t, everywhere, func(w *world) {
		w.run("one event an arming", oneEvent)
		w.run("solicited only", solicitedOnly)
		w.run("error is solicited", errorIsSolicited)
		w.run("send side", notifySend)
		w.run("two CQs of a channel", twoCQs)
		w.run("Get ends with its context", getCancelled)
		w.run("descriptor", descriptor)
		w.run("no lost wakeup/Get", func(w *world) { noLostWakeup(w, armAndGet) })
		w.run("no lost wakeup/descriptor", func(w *world) { noLostWakeup(w, armAndPollFD) })
		w.run("no lost wakeup/Wait", noLostWait)
		w.run("Wait ends with its context", waitCancelled)
	})
}

// channel is the completion channel of a queue pair opened with Events.
func (e *end) channel() *verbs.CompChannel { return e.p.node.objs[e.ID].ch }

// arm requests an event of one of the CQs.
func (e *end) arm(which which, solicitedOnly bool) {
	e.w.t.Helper()
	require.NoError(e.w.t, e.cq(which).ReqNotify(solicitedOnly))
}

// wantEvent waits for an event of one of the CQs.
func (e *end) wantEvent(which which) {
	e.w.t.Helper()
	cq, err := e.channel().Get(e.w.ctx)
	require.NoError(e.w.t, err, "waiting for a completion event")
	require.Same(e.w.t, e.cq(which), cq)
}

// noEvent requires that there is no event: the next one is of the send CQ, which is not
// armed before.
func (e *end) noEvent() {
	e.w.t.Helper()
	e.arm(sends, false)
	e.post(signalled(77, verbs.OpRDMAWrite))
	e.wantEvent(sends)
	e.want(sends, sent(77, verbs.OpRDMAWrite))
}

// notifyPair connects a near end with channel and a far end that sends to it.
func notifyPair(w *world) (near, far *end) {
	near, far = w.open(w.near, qpSpec{Events: true}), w.open(w.far, qpSpec{})
	near.connect(far, usual)
	far.connect(near, usual)
	return near, far
}

// message has far send an empty message that near receives.
func message(near, far *end, id uint64, flags verbs.SendFlags) {
	near.w.t.Helper()
	near.recv(receive(id))
	wr := signalled(id, verbs.OpSend)
	wr.Flags |= flags
	far.post(wr)
	far.want(sends, sent(id, verbs.OpSend))
}

// oneEvent: no event unarmed; armed, one for the next completion, and none for
// those after it.
func oneEvent(w *world) {
	near, far := notifyPair(w)
	message(near, far, 1, 0)
	near.want(recvs, received(1, 0))
	near.noEvent()
	for i := range uint64(5) {
		near.arm(recvs, false)
		message(near, far, 10*i+1, 0)
		message(near, far, 10*i+2, 0)
		near.wantEvent(recvs)
		near.want(recvs, received(10*i+1, 0), received(10*i+2, 0))
		near.noEvent()
	}
	// Arming twice gives one event; the stronger request counts.
	near.arm(recvs, false)
	near.arm(recvs, true)
	message(near, far, 90, 0)
	near.wantEvent(recvs)
	near.want(recvs, received(90, 0))
	near.noEvent()
}

func solicitedOnly(w *world) {
	near, far := notifyPair(w)
	near.arm(recvs, true)
	message(near, far, 1, 0)
	near.want(recvs, received(1, 0))
	near.noEvent()
	message(near, far, 2, verbs.SendSolicited)
	near.wantEvent(recvs)
	near.want(recvs, received(2, 0))
	// Solicited counts for any event as well, and on RDMA_WRITE_WITH_IMM.
	near.arm(recvs, false)
	message(near, far, 3, verbs.SendSolicited)
	near.wantEvent(recvs)
	near.want(recvs, received(3, 0))
	near.arm(recvs, true)
	near.recv(receive(4))
	far.post(verbs.SendWR{WRID: 4, Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled | verbs.SendSolicited, Imm: 5})
	near.wantEvent(recvs)
	near.want(recvs, verbs.WC{WRID: 4, Opcode: verbs.WCRecvRDMAWithImm, Flags: verbs.WCWithImm, Imm: 5})
}

// errorIsSolicited: a failed completion sends an event even if the CQ is armed for solicited ones.
func errorIsSolicited(w *world) {
	near, _ := notifyPair(w)
	near.recv(receive(1))
	near.arm(recvs, true)
	near.setState(verbs.QPErr)
	near.wantEvent(recvs)
	near.want(recvs, failedRecv(1, verbs.WCWRFlushErr))
}

func notifySend(w *world) {
	near, far := notifyPair(w)
	near.arm(sends, false)
	near.post(verbs.SendWR{WRID: 1, Opcode: verbs.OpRDMAWrite}) // unsignalled: no completion, no event
	near.arm(recvs, false)
	message(near, far, 1, 0)
	near.wantEvent(recvs) // which is the first
	near.want(recvs, received(1, 0))
	near.post(signalled(2, verbs.OpRDMAWrite))
	near.wantEvent(sends)
	near.want(sends, sent(2, verbs.OpRDMAWrite))
}

func twoCQs(w *world) {
	near, far := notifyPair(w)
	near.arm(sends, false)
	near.arm(recvs, false)
	far.recv(receive(1))
	near.post(signalled(1, verbs.OpSend))
	near.wantEvent(sends)
	message(near, far, 2, 0)
	near.wantEvent(recvs)
	near.want(sends, sent(1, verbs.OpSend))
	near.want(recvs, received(2, 0))
	near.noEvent()
}

func getCancelled(w *world) {
	near, far := notifyPair(w)
	ctx, cancel := context.WithCancel(w.ctx)
	got := make(chan error, 1)
	go func() {
		_, err := near.channel().Get(ctx)
		got <- err
	}()
	Asleep(w.t, "getCancelled.func1", 1)
	cancel()
	require.ErrorIs(w.t, <-got, context.Canceled)
	// An event is not lost when a call stops waiting.
	near.arm(recvs, false)
	message(near, far, 1, 0)
	near.wantEvent(recvs)
}

func descriptor(w *world) {
	near, far := notifyPair(w)
	fd, err := near.channel().FD()
	need.Capability(w.t, "descriptors of completion channels", !errors.Is(err, verbs.ErrNotSupported))
	require.NoError(w.t, err)
	for i := range uint64(3) {
		near.arm(recvs, false)
		require.False(w.t, readable(w.t, fd, 0), "readable without an event")
		message(near, far, i, 0)
		require.True(w.t, readable(w.t, fd, bound), "readable with an event")
		near.wantEvent(recvs)
		require.False(w.t, readable(w.t, fd, 0), "readable after Get")
		near.want(recvs, received(i, 0))
	}
	// An event that came before the first call of FD.
	other, far2 := notifyPair(w)
	other.arm(recvs, false)
	message(other, far2, 1, 0)
	other.want(recvs, received(1, 0))
	fd, err = other.channel().FD()
	require.NoError(w.t, err)
	require.True(w.t, readable(w.t, fd, bound), "readable with an earlier event")
	other.wantEvent(recvs)
}

// noLostWakeup arms, polls once more, and blocks, while the peer sends at random moments. A lost wakeup
// leaves it blocked for ever.
func noLostWakeup(w *world, block func(w *world, near *end)) {
	near, far := notifyPair(w)
	_, err := near.channel().FD()
	need.Capability(w.t, "descriptors of completion channels", !errors.Is(err, verbs.ErrNotSupported))
	count := 50 * w.suite.Rounds
	got, slept := 0, 0
	trickle(w, near, far, count, func(wcs []verbs.WC) {
		n, err := near.cq(recvs).Poll(wcs)
		require.NoError(w.t, err)
		if n == 0 {
			near.arm(recvs, false)
			if n, err = near.cq(recvs).Poll(wcs); n == 0 && err == nil {
				slept++
				block(w, near)
			}
			require.NoError(w.t, err)
		}
		got += n
		near.check(wcs[:n], got-n)
		near.refill(n)
	}, func() bool { return got == count })
	w.t.Logf("%d messages, slept %d times", got, slept)
}

func armAndGet(_ *world, near *end) { near.wantEvent(recvs) }

func armAndPollFD(w *world, near *end) {
	fd, err := near.channel().FD()
	require.NoError(w.t, err)
	require.True(w.t, readable(w.t, fd, bound), "lost wakeup")
	near.wantEvent(recvs)
}

// noLostWait is the same for CQ.Wait.
func noLostWait(w *world) {
	near, far := w.pair(qpSpec{}, usual)
	count := 50 * w.suite.Rounds
	got := 0
	trickle(w, near, far, count, func(wcs []verbs.WC) {
		n, err := near.cq(recvs).Wait(w.ctx, wcs)
		require.NoError(w.t, err)
		require.NotZero(w.t, n)
		got += n
		near.check(wcs[:n], got-n)
		near.refill(n)
	}, func() bool { return got == count })
}

// trickle has far send count messages at random moments, and calls take until
// done says that all have come.
func trickle(w *world, near, far *end, count int, take func([]verbs.WC), done func() bool) {
	near.refill(16)
	finish := w.far.begin(w.ctx, trickleCmd{ID: far.ID, Count: count, Seed: w.suite.Seed})
	wcs := make([]verbs.WC, 4)
	for !done() {
		take(wcs)
	}
	_, err := finish()
	require.NoError(w.t, err)
}

// refill posts n empty receives.
func (e *end) refill(n int) {
	for range n {
		e.recv(receive(0))
	}
}

// check requires that wcs are the messages of trickleCmd from the given one on.
func (e *end) check(wcs []verbs.WC, from int) {
	e.w.t.Helper()
	for i := range wcs {
		require.NoError(e.w.t, wcs[i].Err())
		require.EqualValues(e.w.t, from+i, wcs[i].Imm, "messages in order")
	}
}

func waitCancelled(w *world) {
	near, _ := w.pair(qpSpec{}, usual)
	ctx, cancel := context.WithCancel(w.ctx)
	got := make(chan error, 1)
	go func() {
		_, err := near.cq(recvs).Wait(ctx, make([]verbs.WC, 1))
		got <- err
	}()
	Asleep(w.t, "waitCancelled.func1", 1)
	cancel()
	require.ErrorIs(w.t, <-got, context.Canceled)
	ctx, cancel = context.WithTimeout(w.ctx, time.Millisecond)
	defer cancel()
	_, err := near.cq(recvs).Wait(ctx, make([]verbs.WC, 1))
	require.ErrorIs(w.t, err, context.DeadlineExceeded)
	_, err = near.cq(recvs).Wait(w.ctx, nil)
	require.ErrorIs(w.t, err, verbs.ErrInvalid)

	withChannel, _ := notifyPair(w)
	_, err = withChannel.cq(recvs).Wait(w.ctx, make([]verbs.WC, 1))
	require.ErrorIs(w.t, err, verbs.ErrInvalid)
}
