package verbstest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs"
)

// moves are the operations that move bytes.
var moves = []verbs.Opcode{verbs.OpSend, verbs.OpSendWithImm, verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpRDMARead}

func hasImm(op verbs.Opcode) bool {
	return op == verbs.OpSendWithImm || op == verbs.OpRDMAWriteWithImm
}

// sizes returns sizes around those that implementations treat differently: words, cache lines, pages,
// packets. Long tests have all around a cache line, -short a choice.
func sizes() []int {
	if testing.Short() {
		return []int{0, 1, 8, 33, 49, 64, 65, 4096, 4097, 1 << 20}
	}
	l := []int{0, 1, 7, 8}
	if need.WantLong() {
		for n := 31; n <= 65; n++ {
			l = append(l, n)
		}
	} else {
		l = append(l, 31, 32, 33, 40, 47, 48, 49, 56, 57, 63, 64, 65)
	}
	return append(l, 255, 256, 4095, 4096, 4097, 65536, 1<<20)
}

// huge returns a size larger than a device, a socket or a ring takes at once.
func huge() int {
	if need.WantLong() {
		return 16<<20 + 3
	}
	return 4<<20 + 3
}

// guard is how many bytes around a destination are watched; it also makes
// addresses unaligned.
const guard = 67

// piece is a part of a region.
type piece struct {
	m      *mem
	off, n int
}

// cut makes count pieces of together n bytes out of m, in order, gap bytes apart.
func cut(m *mem, off, n, count, gap int) []piece {
	l := make([]piece, count)
	for i := range l {
		size := n / count
		if i < n%count {
			size++
		}
		l[i] = piece{m, off, size}
		off += size + gap
	}
	return l
}

func elements(ps []piece) []verbs.SGE {
	l := make([]verbs.SGE, len(ps))
	for i, p := range ps {
		l[i] = p.m.sge(p.off, p.n)
	}
	return l
}

// gathered is what the images hold at ps.
func gathered(ps []piece) []byte {
	var b []byte
	for _, p := range ps {
		b = append(b, p.m.image[p.off:p.off+p.n]...)
	}
	return b
}

// scattered says that data will be found at ps.
func scattered(ps []piece, data []byte) {
	for _, p := range ps {
		n := min(p.n, len(data))
		p.m.expect(p.off, data[:n])
		data = data[n:]
	}
}

// move moves src to dst by one operation of near and verifies its completions
// and every byte of the regions involved. For RDMA the far side is the first
// piece alone.
func move(near, far *end, op verbs.Opcode, id uint64, src, dst []piece) {
	t := near.w.t
	t.Helper()
	data := gathered(src)
	near.w.doing = fmt.Sprintf("%v of %d bytes, %d pieces to %d", op, len(data), len(src), len(dst))
	wr := verbs.SendWR{WRID: id, Opcode: op, Flags: verbs.SendSignaled, Imm: uint32(mix(id))}
	want := sent(id, op)
	recv := verbs.WC{WRID: ^id, Opcode: verbs.WCRecv, ByteLen: uint32(len(data))}
	if hasImm(op) {
		recv.Imm, recv.Flags = wr.Imm, verbs.WCWithImm
	}
	switch op {
	case verbs.OpSend, verbs.OpSendWithImm:
		far.recv(receive(recv.WRID, elements(dst)...))
		wr.SGList = elements(src)
	case verbs.OpRDMAWriteWithImm:
		far.recv(receive(recv.WRID))
		recv.Opcode = verbs.WCRecvRDMAWithImm
		fallthrough
	case verbs.OpRDMAWrite:
		wr.SGList = elements(src)
		wr = onto(wr, dst[0].m, dst[0].off)
	case verbs.OpRDMARead:
		wr.SGList = elements(dst)
		wr = onto(wr, src[0].m, src[0].off)
		want.ByteLen = uint32(len(data))
	}
	near.post(wr)
	near.want(sends, want)
	if op != verbs.OpRDMAWrite && op != verbs.OpRDMARead {
		far.want(recvs, recv)
	}
	scattered(dst, data)
	var ms []*mem
	for _, p := range append(src, dst...) {
		if !slices.Contains(ms, p.m) {
			ms = append(ms, p.m)
		}
	}
	near.w.compare(ms, "%s", near.w.doing)
}

// testOpcodes moves messages of all sizes by all operations, between memory of each kind. Moves between
// different kinds, and immediate data with heap memory, are for long tests: testSGE and testModel draw
// both.
func testOpcodes(t *testing.T, s *suite) {
	s.in(t, everywhere, func(w *world) {
		for _, op := range moves {
			for _, from := range []kind{own, heap} {
				for _, to := range []kind{own, heap} {
					if !need.WantLong() && (from != to || from == heap && hasImm(op)) {
						continue
					}
					w.run(fmt.Sprintf("%v/%v→%v", op, from, to), func(w *world) { moveAllSizes(w, op, from, to) })
				}
			}
		}
		w.run("zero length needs no key", zeroLengthNeedsNoKey)
	})
}

func moveAllSizes(w *world, op verbs.Opcode, from, to kind) {
	spec := qpSpec{SendSGE: w.suite.attr.MaxSGE, RecvSGE: w.suite.attr.MaxSGE}
	near, far := w.pair(spec, usual)
	srcEnd, dstEnd := w.near, w.far
	if op == verbs.OpRDMARead {
		srcEnd, dstEnd = dstEnd, srcEnd
	}
	// As many elements on either side as fit the operation, in turn.
	counts := []int{1, 2, spec.SendSGE}
	const gap = 3
	room := func(n int) int { return n + 2*guard + 8 + gap*spec.SendSGE }
	const small = 4097
	var src, dst *mem
	list := sizes()
	if from == to && (need.WantLong() || from == own && !testing.Short() && op == verbs.OpSend && (w.place == processes || w.suite.Local)) {
		list = append(list, huge())
	}
	for i, n := range list {
		if i == 0 || n > small {
			if i > 0 {
				src.close()
				dst.close()
			}
			src = w.alloc(srcEnd, room(max(n, small)), verbs.AccessAll, from)
			dst = w.alloc(dstEnd, room(max(n, small)), verbs.AccessAll, to)
			for _, m := range []*mem{src, dst} {
				if m.p != w.near {
					m.fill(uint64(i))
				}
			}
		}
		// What moves differs from what is there if one of the two is new. That of the
		// near end is: the far one would have to be asked each time.
		for _, m := range []*mem{src, dst} {
			if m.p == w.near {
				m.fill(uint64(100 + i))
			}
		}
		srcCount, dstCount := counts[i%3], counts[i/3%3]
		switch op {
		case verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm:
			dstCount = 1
		case verbs.OpRDMARead:
			srcCount = 1
		}
		move(near, far, op, uint64(i), cut(src, guard+i%8, n, srcCount, gap), cut(dst, guard+i/8%8, n, dstCount, gap))
	}
}

// zeroLengthNeedsNoKey: RDMA of zero bytes names no memory, and neither key nor
// address is checked (InfiniBand architecture, C9-88). Nor are those of elements
// of length zero.
func zeroLengthNeedsNoKey(w *world) {
	near, far := w.pair(qpSpec{SendSGE: 1}, usual)
	far.recv(receive(1), receive(2, verbs.SGE{Addr: 1, LKey: 2}))
	for i, op := range moves {
		wr := verbs.SendWR{WRID: uint64(i), Opcode: op, Flags: verbs.SendSignaled}
		if i%2 == 0 {
			wr.SGList = []verbs.SGE{{Addr: 3, LKey: 4}}
		}
		if op != verbs.OpSend && op != verbs.OpSendWithImm {
			wr.RemoteAddr, wr.RKey = ^uint64(0), 0xdeadbeef
		}
		if op == verbs.OpRDMAWriteWithImm {
			far.recv(receive(3))
		}
		near.post(wr)
		near.want(sends, sent(wr.WRID, op))
	}
	require.Len(w.t, far.take(recvs, 3), 3)
}

// testMessageLimit sends the longest message that there is, and one byte more.
// Its elements all name the same memory, so that it need not be that large.
func testMessageLimit(t *testing.T, s *suite) {
	n := s.attr.MaxSGE
	region := (int(s.attr.MaxMsgSize) + n) / n
	need.Capability(t, "elements for the longest message in 512 MiB", region <= 1<<29 && uint64(region) <= s.attr.MaxMRSize)
	s.in(t, []place{processes}, func(w *world) {
		spec := qpSpec{SendSGE: n, RecvSGE: n}
		list := func(m *mem, total int) []verbs.SGE {
			l := make([]verbs.SGE, 0, n)
			for ; total > 0; total -= min(total, region) {
				l = append(l, m.sge(0, min(total, region)))
			}
			return l
		}
		longest := int(s.attr.MaxMsgSize)

		w.run("longest", func(w *world) {
			if longest > 1<<28 {
				need.Long(w.t)
				need.NoRace(w.t, "gigabytes would take it minutes")
			}
			near, far := w.pair(spec, usual)
			src := w.alloc(w.near, region, verbs.AccessAll, heap).fill(1)
			dst := w.alloc(w.far, region, verbs.AccessAll, heap)
			far.recv(receive(1, list(dst, longest)...))
			near.post(signalled(1, verbs.OpSend, list(src, longest)...))
			near.want(sends, sent(1, verbs.OpSend))
			far.want(recvs, received(1, longest))
			dst.expect(0, src.image[:min(region, longest)])
			dst.verify("message of %d bytes", longest)
		})
		w.run("one byte longer", func(w *world) {
			need.Capability(w.t, "a limit of messages that it enforces", !s.Deviations.NoMessageLimit)
			need.Full(w.t)
			// A device without the limit would find that dst is too short, which has another status.
			src := w.alloc(w.near, region, verbs.AccessAll, heap)
			dst := w.alloc(w.far, 4096, verbs.AccessAll, heap).fill(1)
			for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpRDMAWrite, verbs.OpRDMARead} {
				near, far := w.pair(spec, usual)
				far.recv(receive(1, dst.sge(0, 4096)))
				near.post(onto(signalled(1, op, list(src, longest+1)...), dst, 0), signalled(2, verbs.OpSend))
				near.want(sends, failed(1, op, verbs.WCLocLenErr), failed(2, verbs.OpSend, verbs.WCWRFlushErr))
				near.wantState(verbs.QPErr)
				far.unharmed(1)
			}
			dst.verify("nothing moved")
		})
	})
}
