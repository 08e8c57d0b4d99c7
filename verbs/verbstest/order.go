package verbstest

import (
	"fmt"
	"testing"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs"
)

// testOrder is about the order in which one queue pair's operations take effect
// and complete.
func testOrder(t *testing.T, s *suite) {
	s.in(t, everywhere, func(w *world) {
		w.run("completions in posting order", completionOrder)
		for _, k := range []kind{own, heap} {
			w.run(fmt.Sprintf("write before send/%v", k), func(w *world) { writeBeforeSend(w, k) })
			w.run(fmt.Sprintf("last write wins/%v", k), func(w *world) { lastWriteWins(w, k) })
			w.run(fmt.Sprintf("read after write/%v", k), func(w *world) { readAfterWrite(w, k) })
			w.run(fmt.Sprintf("fence after read/%v", k), func(w *world) { fenceAfterRead(w, k) })
		}
	})
}

// completionOrder mixes long and short operations of all kinds.
func completionOrder(w *world) {
	rng := seeded(w.suite.Seed, w.t.Name())
	const largest = 300_000
	near, far := w.pair(qpSpec{SendWR: 64, RecvWR: 64}, usual)
	out, in := w.alloc(w.near, largest, 0, own), w.alloc(w.near, largest, verbs.AccessLocalWrite, own)
	there := w.alloc(w.far, largest, verbs.AccessAll, heap)
	ops := moves
	if w.suite.attr.AtomicCap != verbs.AtomicNone {
		ops = append(ops[:len(ops):len(ops)], verbs.OpAtomicFetchAndAdd, verbs.OpAtomicCmpAndSwp)
	}
	for range w.suite.Rounds {
		var wrs []verbs.SendWR
		var wantSent, wantReceived []verbs.WC
		for i := range 64 {
			op := ops[rng.IntN(len(ops))]
			n := rng.IntN(64)
			if rng.IntN(4) == 0 {
				n = rng.IntN(largest)
			}
			if op == verbs.OpAtomicFetchAndAdd || op == verbs.OpAtomicCmpAndSwp {
				n = 8
			}
			wr := onto(signalled(uint64(i), op, out.sge(0, n)), there, 0)
			want := sent(wr.WRID, op)
			if op >= verbs.OpRDMARead {
				wr.SGList[0] = in.sge(0, n)
				want.ByteLen = uint32(n)
			}
			wrs, wantSent = append(wrs, wr), append(wantSent, want)
			recv := received(wr.WRID, n)
			switch op {
			case verbs.OpSend:
			case verbs.OpSendWithImm:
				recv.Flags = verbs.WCWithImm
			case verbs.OpRDMAWriteWithImm:
				recv.Opcode, recv.Flags = verbs.WCRecvRDMAWithImm, verbs.WCWithImm
			default:
				continue
			}
			far.recv(receive(wr.WRID, there.sge(0, largest)))
			wantReceived = append(wantReceived, recv)
		}
		near.post(wrs...)
		near.want(sends, wantSent...)
		far.want(recvs, wantReceived...)
	}
}

// again is how often an order is tried where memory was used before: n times in long tests.
func again(n int) int {
	if need.WantLong() {
		return n
	}
	return 2
}

// writeBeforeSend: when a send has arrived, all that was written before it is there.
func writeBeforeSend(w *world, k kind) {
	near, far := w.pair(qpSpec{}, usual)
	for i, n := range []int{1, 8, 64, 4097, 300_000} {
		src, dst := w.alloc(w.near, n, 0, k), w.alloc(w.far, n+8, verbs.AccessAll, k).fill(99)
		for round := range again(5) {
			seed := uint64(10*i + round)
			src.fill(seed)
			far.recv(receive(seed, dst.sge(n, 8)))
			near.post(onto(verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGList: []verbs.SGE{src.sge(0, n)}}, dst, 0), signalled(seed, verbs.OpSend))
			far.want(recvs, received(seed, 0))
			dst.expect(0, src.image)
			dst.verify("%d bytes written before the send", n)
			near.want(sends, sent(seed, verbs.OpSend))
		}
	}
}

// lastWriteWins: writes to the same place happen in order.
func lastWriteWins(w *world, k kind) {
	near, _ := w.pair(qpSpec{}, usual)
	const n, writes = 10_000, 8
	src, dst := w.alloc(w.near, writes*n, 0, k), w.alloc(w.far, n, verbs.AccessAll, k)
	for round := range again(5) {
		src.fill(uint64(round))
		for i := range writes {
			// Shrinking, so that an early long one that comes late shows.
			wr := onto(verbs.SendWR{WRID: uint64(i), Opcode: verbs.OpRDMAWrite, SGList: []verbs.SGE{src.sge(i*n, n>>i)}}, dst, 0)
			if i == writes-1 {
				wr.Flags = verbs.SendSignaled
			}
			near.post(wr)
			dst.expect(0, src.image[i*n:i*n+n>>i])
		}
		near.want(sends, sent(writes-1, verbs.OpRDMAWrite))
		dst.verify("round %d", round)
	}
}

// readAfterWrite: a read sees what was written before it.
func readAfterWrite(w *world, k kind) {
	near, _ := w.pair(qpSpec{}, usual)
	for i, n := range []int{1, 64, 4097, 300_000} {
		src, back := w.alloc(w.near, n, 0, k), w.alloc(w.near, n, verbs.AccessLocalWrite, k)
		dst := w.alloc(w.far, n, verbs.AccessAll, k)
		for round := range again(3) {
			src.fill(uint64(10*i + round))
			near.post(onto(verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGList: []verbs.SGE{src.sge(0, n)}}, dst, 0),
				onto(signalled(1, verbs.OpRDMARead, back.sge(0, n)), dst, 0))
			want := sent(1, verbs.OpRDMARead)
			want.ByteLen = uint32(n)
			near.want(sends, want)
			back.expect(0, src.image)
			back.verify("%d bytes read back", n)
		}
	}
}

// fenceAfterRead: a fenced operation takes what earlier reads and atomics have
// brought.
func fenceAfterRead(w *world, k kind) {
	near, far := w.pair(qpSpec{}, usual)
	for i, n := range []int{8, 64, 4097, 300_000} {
		src, dst := w.alloc(w.far, n, verbs.AccessAll, k), w.alloc(w.far, n, verbs.AccessAll, k)
		via := w.alloc(w.near, n, verbs.AccessLocalWrite, k)
		for round := range again(3) {
			seed := uint64(10*i + round)
			src.fill(seed)
			far.recv(receive(seed, dst.sge(0, n)))
			send := signalled(seed, verbs.OpSend, via.sge(0, n))
			send.Flags |= verbs.SendFence
			near.post(onto(verbs.SendWR{Opcode: verbs.OpRDMARead, SGList: []verbs.SGE{via.sge(0, n)}}, src, 0), send)
			near.want(sends, sent(seed, verbs.OpSend))
			far.want(recvs, received(seed, n))
			dst.expect(0, src.image)
			dst.verify("%d bytes read and sent back", n)
		}
	}
	if w.suite.attr.AtomicCap == verbs.AtomicNone {
		return
	}
	counter, dst := w.alloc(w.far, 8, verbs.AccessAll, k), w.alloc(w.far, 8, verbs.AccessAll, k)
	via := w.alloc(w.near, 8, verbs.AccessLocalWrite, k)
	add := onto(verbs.SendWR{Opcode: verbs.OpAtomicFetchAndAdd, SGList: []verbs.SGE{via.sge(0, 8)}, CompareAdd: 1}, counter, 0)
	write := onto(signalled(1, verbs.OpRDMAWrite, via.sge(0, 8)), dst, 0)
	write.Flags |= verbs.SendFence
	for i := range 10 {
		near.post(add, write)
		near.want(sends, sent(1, verbs.OpRDMAWrite))
		dst.expect(0, nativeWord(uint64(i)))
		dst.verify("round %d", i)
	}
}
