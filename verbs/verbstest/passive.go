package verbstest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/verbs"
)

// testPassive: the target of one-sided operations need not call anything. Its
// process sits in a loop that only looks at memory, or is blocked in read(2).
func testPassive(t *testing.T, s *suite) {
	s.in(t, []place{contexts, processes}, func(w *world) {
		for _, k := range []kind{own, heap} {
			w.run("busy loop/"+k.String(), func(w *world) { passive(w, k, true) })
			w.run("blocked/"+k.String(), func(w *world) { passive(w, k, false) })
		}
	})
}

func passive(w *world, k kind, busy bool) {
	near, far := w.pair(qpSpec{}, usual)
	const n = 300_000
	local, remote := w.alloc(w.near, n, verbs.AccessAll, own), w.alloc(w.far, n, verbs.AccessAll, k)
	flag := w.alloc(w.far, 8, verbs.AccessAll, heap)
	far.recv(receive(1, remote.sge(0, n)), receive(2))
	finish := func() (any, error) { return nil, nil }
	if busy {
		finish = w.far.begin(w.ctx, spinCmd{ID: flag.ID, Limit: bound / 2})
	}
	for round := range 3 {
		for _, size := range []int{0, 8, 4097, n} {
			local.fill(uint64(round))
			near.post(onto(signalled(1, verbs.OpRDMAWrite, local.sge(0, size)), remote, 0))
			near.want(sends, sent(1, verbs.OpRDMAWrite))
			copy(remote.image, local.image[:size])
			local.fill(uint64(100 + round))
			near.post(onto(signalled(2, verbs.OpRDMARead, local.sge(0, size)), remote, 0))
			read := sent(2, verbs.OpRDMARead)
			read.ByteLen = uint32(size)
			near.want(sends, read)
			local.expect(0, remote.image[:size])
			local.verify("%d bytes read from a passive peer", size)
		}
		if w.suite.attr.AtomicCap != verbs.AtomicNone {
			add := onto(signalled(3, verbs.OpAtomicFetchAndAdd, local.sge(0, 8)), remote, 0)
			add.CompareAdd = 0
			near.post(add)
			did := sent(3, verbs.OpAtomicFetchAndAdd)
			did.ByteLen = 8
			near.want(sends, did)
			local.expect(0, remote.image[:8])
			local.verify("atomic on a passive peer")
		}
	}
	// Receives that were posted before are used as well.
	local.fill(7)
	near.post(signalled(4, verbs.OpSend, local.sge(0, n)), verbs.SendWR{WRID: 5, Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled})
	near.want(sends, sent(4, verbs.OpSend), sent(5, verbs.OpRDMAWriteWithImm))
	remote.expect(0, local.image)

	local.poke(0, nativeWord(1))
	near.post(onto(signalled(6, verbs.OpRDMAWrite, local.sge(0, 8)), flag, 0))
	near.want(sends, sent(6, verbs.OpRDMAWrite))
	_, err := finish()
	require.NoError(w.t, err)
	remote.verify("after all operations")
	far.want(recvs, received(1, n), verbs.WC{WRID: 2, Opcode: verbs.WCRecvRDMAWithImm, Flags: verbs.WCWithImm})
}
