package verbstest

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs"
)

// testInline is about payloads that are copied when posted.
func testInline(t *testing.T, s *suite) {
	need.Capability(t, "inline data", s.attr.MaxInlineData > 0)
	s.in(t, everywhere, func(w *world) {
		for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpSendWithImm, verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm} {
			w.run(op.String(), func(w *world) { inlineSizes(w, op) })
		}
		w.run("queue of inline sends", inlineQueue)
		w.run("refused", inlineRefused)
	})
}

// inlineSizes sends payloads of lengths up to the limit, as a slice and by
// elements, and overwrites the memory as soon as they are posted.
func inlineSizes(w *world, op verbs.Opcode) {
	limit := w.suite.attr.MaxInlineData
	elems := min(3, w.suite.attr.MaxSGE)
	near, far := w.pair(qpSpec{Inline: limit, SendSGE: elems}, usual)
	src, dst := w.alloc(w.near, limit+2*elems, 0, own), w.alloc(w.far, limit+2*guard, verbs.AccessAll, own)
	var lengths []int
	steps := 8
	switch {
	case need.WantLong():
		steps = 128
	case testing.Short() || hasImm(op):
		steps = 3
	}
	for n := 0; n < limit; n += max(1, limit/steps) {
		lengths = append(lengths, n)
	}
	for _, n := range append(lengths, limit) {
		for _, bySlice := range []bool{true, false} {
			id := uint64(2 * n)
			dst.fill(id)
			wr := verbs.SendWR{WRID: id, Opcode: op, Flags: verbs.SendSignaled | verbs.SendInline, Imm: 7}
			var payload []byte
			if bySlice {
				payload = patterned(n, id+1)
				wr.Inline = slices.Clone(payload)
			} else {
				src.fill(id + 1)
				from := cut(src, 1, n, elems, 1)
				payload = gathered(from)
				wr.SGList = elements(from)
			}
			if op == verbs.OpRDMAWrite || op == verbs.OpRDMAWriteWithImm {
				wr = onto(wr, dst, guard)
			}
			if op != verbs.OpRDMAWrite {
				far.recv(receive(id, dst.sge(guard, n)))
			}
			near.post(wr)
			clear(wr.Inline)
			src.fill(0)
			near.want(sends, sent(id, op))
			if op != verbs.OpRDMAWrite {
				want := received(id, n)
				if op == verbs.OpRDMAWriteWithImm {
					want.Opcode = verbs.WCRecvRDMAWithImm
				}
				if hasImm(op) {
					want.Flags, want.Imm = verbs.WCWithImm, 7
				}
				far.want(recvs, want)
			}
			dst.expect(guard, payload)
			dst.verify("%v of %d inline bytes, by slice: %v", op, n, bySlice)
		}
	}
}

// inlineQueue: one buffer serves a queue full of different messages, which wait
// there for the peer's receives.
func inlineQueue(w *world) {
	n := w.suite.attr.MaxInlineData
	near, far := w.pair(qpSpec{Inline: n}, usual)
	const count = 16
	dst := w.alloc(w.far, count*n, verbs.AccessAll, own)
	buf := make([]byte, n)
	for i := range count {
		pattern(buf, uint64(i))
		dst.expect(i*n, buf)
		near.post(verbs.SendWR{WRID: uint64(i), Opcode: verbs.OpSend, Flags: verbs.SendInline | verbs.SendSignaled, Inline: buf})
	}
	clear(buf)
	var recv []verbs.RecvWR
	var wantSent, wantReceived []verbs.WC
	for i := range count {
		id := uint64(i)
		recv = append(recv, receive(id, dst.sge(i*n, n)))
		wantSent, wantReceived = append(wantSent, sent(id, verbs.OpSend)), append(wantReceived, received(id, n))
	}
	far.recv(recv...)
	near.want(sends, wantSent...)
	far.want(recvs, wantReceived...)
	dst.verify("%d inline messages", count)
}

// inlineRefused: what cannot be inline is an error when posting.
func inlineRefused(w *world) {
	const limit = 16
	near, far := w.pair(qpSpec{Inline: min(limit, w.suite.attr.MaxInlineData)}, usual)
	m := w.alloc(w.near, 1<<20, verbs.AccessAll, own)
	inline := verbs.SendInline | verbs.SendSignaled
	tooLong := near.Cap.MaxInlineData + 1
	for name, wr := range map[string]verbs.SendWR{
		"slice too long":     {Opcode: verbs.OpSend, Flags: inline, Inline: make([]byte, tooLong)},
		"elements too long":  {Opcode: verbs.OpSend, Flags: inline, SGList: []verbs.SGE{m.sge(0, tooLong)}},
		"slice, no flag":     {Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: make([]byte, 1)},
		"slice and elements": {Opcode: verbs.OpSend, Flags: inline, Inline: make([]byte, 1), SGList: []verbs.SGE{m.sge(0, 1)}},
		"RDMA_READ":          onto(verbs.SendWR{Opcode: verbs.OpRDMARead, Flags: inline, SGList: []verbs.SGE{m.sge(0, 8)}}, m, 0),
		"atomic":             onto(verbs.SendWR{Opcode: verbs.OpAtomicFetchAndAdd, Flags: inline, SGList: []verbs.SGE{m.sge(0, 8)}}, m, 0),
	} {
		n, err := near.tryPost(wr)
		require.ErrorIs(w.t, err, verbs.ErrInvalid, name)
		require.Zero(w.t, n, name)
	}
	// The queue still works.
	far.recv(receive(1))
	near.post(signalled(1, verbs.OpSend))
	near.want(sends, sent(1, verbs.OpSend))
	near.quiet(sends)
}
