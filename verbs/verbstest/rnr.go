package verbstest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/verbs"
)

// testRNR is about messages that find no receive (receiver not ready).
func testRNR(t *testing.T, s *suite) {
	s.in(t, everywhere, func(w *world) {
		for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpRDMAWriteWithImm} {
			w.run("retries exceeded/"+op.String(), func(w *world) { rnrExceeded(w, op) })
			w.run("for ever/"+op.String(), func(w *world) { rnrForEver(w, op) })
		}
		w.run("receive within the retries", rnrInTime)
		w.run("much waits behind it", rnrMuchBehind)
		w.run("one stalls, others do not", rnrOthers)
	})
}

// rnrExceeded: the sender gives up after its retries, at once with none; the receiver is not affected.
func rnrExceeded(w *world, op verbs.Opcode) {
	for _, retries := range []int{0, 2} {
		conn := usual
		conn.RNRRetries, conn.RNRTimer = retries, 10 // 0.32 ms
		near, far := w.pair(qpSpec{}, conn)
		near.recv(receive(9))
		start := time.Now()
		near.post(verbs.SendWR{WRID: 1, Opcode: op}, signalled(2, verbs.OpRDMAWrite), signalled(3, verbs.OpSend))
		near.want(sends, failed(1, op, verbs.WCRNRRetryExcErr), failed(2, verbs.OpRDMAWrite, verbs.WCWRFlushErr), failed(3, verbs.OpSend, verbs.WCWRFlushErr))
		require.GreaterOrEqual(w.t, time.Since(start), time.Duration(retries)*verbs.RNRTimer(conn.RNRTimer), "gave up early, %d retries", retries)
		near.want(recvs, failedRecv(9, verbs.WCWRFlushErr))
		near.wantState(verbs.QPErr)
		far.unharmed()
	}
}

// rnrForEver: with 7 retries the message waits, and everything behind it too.
func rnrForEver(w *world, op verbs.Opcode) {
	near, far := w.pair(qpSpec{}, usual)
	src := w.alloc(w.near, 5000, verbs.AccessAll, own).fill(1)
	first, second := w.alloc(w.far, 5000, verbs.AccessAll, own), w.alloc(w.far, 5000, verbs.AccessAll, own)
	near.post(
		onto(signalled(1, op, src.sge(0, 5000)), first, 0),
		onto(signalled(2, verbs.OpRDMAWrite, src.sge(0, 5000)), second, 0),
		onto(signalled(3, verbs.OpRDMARead, src.sge(0, 1)), first, 0),
		signalled(4, verbs.OpSend),
	)
	for range 20 { // more often than a finite number of retries takes
		near.quiet(sends)
	}
	second.verify("written although the message before it stalls")
	if op == verbs.OpSend {
		first.verify("nothing arrives without a receive")
	}
	far.recv(receive(1, first.sge(0, 5000)))
	read := sent(3, verbs.OpRDMARead)
	read.ByteLen = 1
	near.want(sends, sent(1, op), sent(2, verbs.OpRDMAWrite), read)
	near.quiet(sends)
	first.expect(0, src.image)
	second.expect(0, src.image)
	first.verify("message")
	second.verify("write behind it")
	far.recv(receive(4))
	near.want(sends, sent(4, verbs.OpSend))
	require.Len(w.t, far.take(recvs, 2), 2)
}

// rnrInTime: a receive posted within the retries works like one posted before. The delay is the
// receiver's, and long.
func rnrInTime(w *world) {
	conn := usual
	conn.RNRRetries, conn.RNRTimer = 6, 28 // 164 ms
	near, far := w.pair(qpSpec{}, conn)
	near.post(signalled(1, verbs.OpSend))
	near.quiet(sends)
	far.recv(receive(1))
	near.want(sends, sent(1, verbs.OpSend))
	far.want(recvs, received(1, 0))
}

// rnrMuchBehind: sends that wait for receives, with more data between them than the buffers of the
// transport hold, go on one by one as receives are posted.
func rnrMuchBehind(w *world) {
	near, far := w.pair(qpSpec{SendWR: 64}, usual)
	const n, writes = 10_000, 7
	src, dst := w.alloc(w.near, (writes+1)*n, 0, heap), w.alloc(w.far, (writes+1)*n, verbs.AccessAll, heap)
	for round := range uint64(w.suite.Rounds) {
		src.fill(round)
		for group := range uint64(8) {
			near.post(signalled(group, verbs.OpSend, src.sge(0, 100*int(group))))
			for i := range writes {
				near.post(onto(verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGList: []verbs.SGE{src.sge((i+1)*n, n-i)}}, dst, (i+1)*n))
			}
		}
		for group := range uint64(8) {
			far.recv(receive(group, dst.sge(0, n)))
			near.want(sends, sent(group, verbs.OpSend))
			far.want(recvs, received(group, 100*int(group)))
		}
		near.post(signalled(9, verbs.OpRDMAWrite))
		near.want(sends, sent(9, verbs.OpRDMAWrite))
		dst.expect(0, src.image[:700])
		for i := range writes {
			dst.expect((i+1)*n, src.image[(i+1)*n:(i+2)*n-i])
		}
		dst.verify("round %d", round)
	}
}

// rnrOthers: a stalled queue pair holds up neither another one between the same two nodes, nor its own
// other direction, however much data goes there.
func rnrOthers(w *world) {
	stalled, stalledFar := w.pair(qpSpec{}, usual)
	near, far := w.pair(qpSpec{}, usual)
	stalled.post(signalled(1, verbs.OpSend))
	for range 10 * w.suite.Rounds {
		messages(near, far, queueDepth)
		messages(stalledFar, stalled, queueDepth)
	}
	stalled.quiet(sends)
	stalledFar.recv(receive(1))
	stalled.want(sends, sent(1, verbs.OpSend))
	stalledFar.want(recvs, received(1, 0))
}

// messages sends n empty messages.
func messages(from, to *end, n int) {
	from.w.t.Helper()
	var wrs []verbs.SendWR
	var rs []verbs.RecvWR
	var sentAll, receivedAll []verbs.WC
	for i := range uint64(n) {
		wrs, sentAll = append(wrs, signalled(i, verbs.OpSend)), append(sentAll, sent(i, verbs.OpSend))
		rs, receivedAll = append(rs, receive(i)), append(receivedAll, received(i, 0))
	}
	to.recv(rs...)
	from.post(wrs...)
	from.want(sends, sentAll...)
	to.want(recvs, receivedAll...)
}
