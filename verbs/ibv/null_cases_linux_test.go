//go:build cgo

package ibv_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/test/ranks"
	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/ibv"
	"github.com/sluice-hpc/sluice/verbs/verbstest"
)

var nullTests = []nullTest{
	{name: "Opcodes", test: testOpcodes},
	{name: "Immediate", test: testImmediate},
	{name: "Failure", test: testFailure},
	{name: "FailureOfTwo", test: testFailureOfTwo},
	{name: "RemoteFailure", test: testRemoteFailure},
	{name: "Chain", test: testChain},
	{name: "Partial", test: testPartial},
	{name: "Middle", test: testMiddle},
	{name: "Full", test: testFull},
	{name: "Unsignalled", test: testUnsignalled},
	{name: "Purge", test: testPurge},
	{name: "PollError", test: testPollError},
	{name: "PostLooks", test: testPostLooks},
	{name: "PostLooksRarely", test: testPostLooksRarely},
	{name: "PostLooksNot", test: testPostLooksNot},
	{name: "PostLooksError", test: testPostLooksError},
	{name: "PostLooksOverrun", test: testPostLooksOverrun},
	{name: "PostLooksPurge", test: testPostLooksPurge},
	{name: "PostLooksSRQ", test: testPostLooksSRQ},
	{name: "PostLooksOrder", test: testPostLooksOrder},
	{name: "PostLooksMany", test: testPostLooksMany},
	{name: "PostLooksAsleep", test: testPostLooksAsleep},
	{name: "Inline", test: testInline, env: []string{"NULL_INLINE=64"}},
	{name: "NoInline", test: testNoInline, env: []string{"NULL_INLINE=0"}},
	{name: "Ethernet", test: testEthernet},
	{name: "Address", test: testAddress},
	{name: "LID", test: testLID, env: []string{"NULL_IB=7", "NULL_DEVICES=2"}},
	{name: "NoLID", test: testNoLID, env: []string{"NULL_IB=0"}},
	{name: "AddressOfHost", test: testAddressOfHost, env: []string{"NULL_IB=7"}},
	{name: "Port", test: testPort, env: []string{"NULL_IB=7"}},
	{name: "ConnectAttr", test: testConnectAttr, env: []string{"NULL_IB=7"}},
	{name: "Registration", test: testRegistration},
	{name: "OnDemand", test: testOnDemand, env: []string{"NULL_ODP=0x1f"}},
	{name: "OnDemandPartly", test: testNoOnDemand, env: []string{"NULL_ODP=3"}},
	{name: "OnDemandUnknown", test: testNoOnDemand, env: []string{"NULL_ODP=0x1f", "NULL_NO_EX=1"}},
	{name: "RelaxedOrdering", test: testRelaxed(2, verbs.AccessRelaxedOrdering)},
	{name: "RelaxedOrderingUnknown", test: testRelaxed(1, 0), lacks: "ibv_reg_mr_iova2"},
	{name: "Available", test: testProbe(verbs.Yes, ""), env: []string{"NULL_DEVICES=3"}},
	{name: "IWARP", test: testIWARP, env: []string{"NULL_DEVICES=2"}},
	{name: "NoDevice", test: testProbe(verbs.No, "no RDMA device"), env: []string{"NULL_DEVICES=0"}},
	{name: "NoKernel", test: testProbe(verbs.No, "the kernel has no RDMA support (is module ib_uverbs loaded?)"), env: []string{"NULL_LIST_ERRNO=38"}},
	{name: "ListFails", test: testProbe(verbs.Unknown, "cannot list devices: permission denied"), env: []string{"NULL_LIST_ERRNO=13"}},
	{name: "NoSymbol", test: testProbe(verbs.No, "no symbol ibv_query_qp@IBVERBS_1.1"), lacks: "ibv_query_qp"},
	{name: "NoLibrary", test: testNoLibrary},
	{name: "Events", test: testEvents},
	{name: "DeviceFatal", test: testDeviceFatal},
	{name: "DeviceGone", test: testDeviceGone},
	{name: "OverrunWait", test: testOverrunWait},
	{name: "OverrunGet", test: testOverrunGet},
	{name: "Notify", test: testNotify},
	{name: "Waiters", test: testWaiters},
	{name: "SRQ", test: testSRQ},
	{name: "CloseOrder", test: testCloseOrder},
	{name: "CloseAll", test: testCloseAll},
	{name: "UseAfterClose", test: testUseAfterClose},
	{name: "CloseUnderway", test: testCloseUnderway},
	{name: "Allocs", test: testAllocs},
	{name: "Crossings", test: testCrossings},
}

// The device gets a work request with the user's values, and its completion matches it.
func testOpcodes(t *testing.T) {
	n := openNull(t, "ibv", verbs.Config{})
	a, b := n.pair(verbs.QPInitAttr{})
	at := func(off int) uint64 { return n.mr.Addr() + uint64(off) }
	word := func(off int) []byte { return n.mem[off : off+8] }
	want := func(wc verbs.WC) {
		wc.QPNum = a.qp.QPNum()
		require.Equal(t, []verbs.WC{wc}, a.poll())
	}
	copy(n.mem, "one  two")
	wr := verbs.SendWR{Flags: verbs.SendSignaled, RKey: n.mr.RKey(), RemoteAddr: at(1 << 12)}

	wr.WRID, wr.Opcode, wr.SGList = 1<<63|5, verbs.OpRDMAWrite, []verbs.SGE{n.mr.SGE(0, 3), n.mr.SGE(5, 3)}
	a.post(wr)
	want(verbs.WC{WRID: 1<<63 | 5, Opcode: verbs.WCRDMAWrite})
	require.Equal(t, "onetwo\x00\x00", string(word(1<<12)))

	wr.WRID, wr.Opcode, wr.SGList = 6, verbs.OpRDMARead, []verbs.SGE{n.mr.SGE(100, 2), n.mr.SGE(200, 4)}
	a.post(wr)
	want(verbs.WC{WRID: 6, Opcode: verbs.WCRDMARead, ByteLen: 6})
	require.Equal(t, "on", string(n.mem[100:102]))
	require.Equal(t, "etwo", string(n.mem[200:204]))

	binary.NativeEndian.PutUint64(word(2<<12), 40)
	wr.RemoteAddr, wr.SGList = at(2<<12), n.sge(300, 8)
	wr.WRID, wr.Opcode, wr.CompareAdd, wr.Swap = 7, verbs.OpAtomicFetchAndAdd, 1<<40+2, 0
	a.post(wr)
	want(verbs.WC{WRID: 7, Opcode: verbs.WCFetchAdd, ByteLen: 8})
	require.EqualValues(t, 40, binary.NativeEndian.Uint64(word(300)))
	wr.WRID, wr.Opcode, wr.CompareAdd, wr.Swap = 8, verbs.OpAtomicCmpAndSwp, 1<<40+42, 1<<41
	a.post(wr)
	want(verbs.WC{WRID: 8, Opcode: verbs.WCCompSwap, ByteLen: 8})
	require.EqualValues(t, 1<<40+42, binary.NativeEndian.Uint64(word(300)))
	require.EqualValues(t, 1<<41, binary.NativeEndian.Uint64(word(2<<12)))

	b.recv(verbs.RecvWR{WRID: 1<<63 | 9, SGList: []verbs.SGE{n.mr.SGE(400, 5), n.mr.SGE(500, 50)}})
	a.post(verbs.SendWR{WRID: 9, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGList: n.sge(0, 8)})
	want(verbs.WC{WRID: 9, Opcode: verbs.WCSend})
	require.Equal(t, []verbs.WC{{WRID: 1<<63 | 9, Opcode: verbs.WCRecv, ByteLen: 8, QPNum: b.qp.QPNum(), SrcQP: a.qp.QPNum()}}, b.poll())
	require.Equal(t, "one  two", string(n.mem[400:405])+string(n.mem[500:503]))
}

// Immediate data keeps its value.
func testImmediate(t *testing.T) {
	n := openNull(t, "ibv", verbs.Config{})
	a, b := n.pair(verbs.QPInitAttr{SQSigAll: true})
	b.recv(verbs.RecvWR{WRID: 1, SGList: n.sge(4096, 8)}, verbs.RecvWR{WRID: 2})
	a.post(verbs.SendWR{WRID: 1, Opcode: verbs.OpSendWithImm, Imm: 0x01020304, SGList: n.sge(0, 8)},
		verbs.SendWR{WRID: 2, Opcode: verbs.OpRDMAWriteWithImm, Imm: 0xfffefdfc, SGList: n.sge(0, 8), RemoteAddr: n.mr.Addr() + 8192, RKey: n.mr.RKey()})
	num, src := b.qp.QPNum(), a.qp.QPNum()
	require.Equal(t, []verbs.WC{
		{WRID: 1, Opcode: verbs.WCRecv, ByteLen: 8, Imm: 0x01020304, Flags: verbs.WCWithImm, QPNum: num, SrcQP: src},
		{WRID: 2, Opcode: verbs.WCRecvRDMAWithImm, ByteLen: 8, Imm: 0xfffefdfc, Flags: verbs.WCWithImm, QPNum: num, SrcQP: src},
	}, b.poll())
	require.Equal(t, []verbs.WC{{WRID: 1, QPNum: src}, {WRID: 2, Opcode: verbs.WCRDMAWrite, QPNum: src}}, a.poll())
}

// mixed is work requests of all kinds, unsignalled.
func (n *null) mixed() []verbs.SendWR {
	var wrs []verbs.SendWR
	for op := range verbs.OpAtomicFetchAndAdd + 1 {
		wrs = append(wrs, verbs.SendWR{WRID: 100 + uint64(op), Opcode: op, SGList: n.sge(0, 8), RKey: n.mr.RKey(), RemoteAddr: n.mr.Addr() + 4096})
	}
	return wrs
}

// A failed completion has its opcode, which libibverbs does not set, and later requests are flushed,
// unsignalled or not.
func testFailure(t *testing.T) {
	n := openNull(t, "ibv", verbs.Config{})
	a, b := n.pair(verbs.QPInitAttr{})
	a.recv(verbs.RecvWR{WRID: 50, SGList: n.sge(0, 8)}, verbs.RecvWR{WRID: 51})
	b.recv(series(3, 1, func(id uint64) verbs.RecvWR { return verbs.RecvWR{WRID: id, SGList: n.sge(8192, 8)} })...)
	n.ctl.FailStatus.Store(uint32(verbs.WCRemOpErr))
	n.ctl.FailIn.Store(4)
	wrs := n.mixed()
	a.post(wrs...)
	got := a.poll()
	require.Len(t, got, 6)
	var sends, recvs []verbs.WC
	for _, wc := range got {
		require.Error(t, wc.Err())
		require.Equal(t, a.qp.QPNum(), wc.QPNum)
		require.EqualValues(t, 0x77, wc.VendorErr)
		if wc.WRID < 100 {
			recvs = append(recvs, wc)
		} else {
			sends = append(sends, wc)
		}
	}
	for i, wc := range sends {
		require.Equal(t, wrs[3+i].WRID, wc.WRID)
		require.Equal(t, wrs[3+i].Opcode.WCOpcode(), wc.Opcode)
		status := verbs.WCWRFlushErr
		if i == 0 {
			status = verbs.WCRemOpErr
		}
		require.ErrorIs(t, wc.Err(), status)
	}
	for i, wc := range recvs {
		require.EqualValues(t, 50+i, wc.WRID)
		require.Equal(t, verbs.WCRecv, wc.Opcode)
		require.ErrorIs(t, wc.Err(), verbs.WCWRFlushErr)
	}
	require.Equal(t, verbs.QPErr, a.qp.State())
	a.post(wrs[0])
	a.recv(verbs.RecvWR{WRID: 52})
	require.Len(t, a.poll(), 2)
}

// Each queue pair that a batch of completions shows to be in ERR is modified to ERR.
func testFailureOfTwo(t *testing.T) {
	n := openNull(t, "ibv", verbs.Config{})
	cq := n.cq(64, nil)
	var qps []*verbs.QP
	for range 3 {
		_, b := n.pair(verbs.QPInitAttr{})
		q := n.qp(verbs.QPInitAttr{SendCQ: cq})
		attach(t, q, b.qp)
		qps = append(qps, q)
	}
	n.ctl.FailStatus.Store(uint32(verbs.WCRetryExcErr))
	for _, q := range qps {
		n.ctl.FailIn.Store(1)
		_, err := q.PostSend(series(2, 1, n.write))
		require.NoError(t, err)
	}
	before := n.ctl.AskedErr.Load()
	require.Len(t, pollAll(t, cq), 6)
	require.Equal(t, before+3, n.ctl.AskedErr.Load())
}

// Requests that the peer refuses.
func testRemoteFailure(t *testing.T) {
	n := openNull(t, "ibv", verbs.Config{})
	for _, c := range []struct {
		want  verbs.WCStatus
		spoil func(*verbs.SendWR)
	}{
		{verbs.WCRemAccessErr, func(wr *verbs.SendWR) { wr.RKey++ }},
		{verbs.WCRemAccessErr, func(wr *verbs.SendWR) { wr.RemoteAddr = n.mr.Addr() + uint64(n.mr.Len()) - 7 }},
		{verbs.WCLocProtErr, func(wr *verbs.SendWR) { wr.SGList[0].LKey++ }},
		{verbs.WCLocProtErr, func(wr *verbs.SendWR) { wr.SGList[0].Length = 1 << 20 }},
		{verbs.WCRNRRetryExcErr, func(wr *verbs.SendWR) { wr.Opcode = verbs.OpSend }},
	} {
		a, _ := n.pair(verbs.QPInitAttr{})
		wr := n.write(3)
		c.spoil(&wr)
		wr.Flags = 0
		a.post(wr)
		got := a.poll()
		require.Len(t, got, 1)
		require.ErrorIs(t, got[0].Err(), c.want)
		require.Equal(t, wr.Opcode.WCOpcode(), got[0].Opcode)
	}
}

// More than one call into C takes, both ways.
func testChain(t *testing.T) {
	n := openNull(t, "ibv", verbs.Config{})
	a, b := n.pair(verbs.QPInitAttr{})
	const many = 200
	for round := range uint64(3) {
		first := round << 40
		b.recv(series(many, first, func(id uint64) verbs.RecvWR { return verbs.RecvWR{WRID: id, SGList: n.sge(4096, 8)} })...)
		a.post(series(many, first, func(id uint64) verbs.SendWR {
			return verbs.SendWR{WRID: id, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGList: n.sge(0, 8)}
		})...)
		require.Equal(t, series(many, first, same), ids(t, a.poll()))
		require.Equal(t, series(many, first, same), ids(t, b.poll()))
	}
	require.EqualValues(t, 64, n.ctl.Longest.Load())
}

// A device that accepts no more is a full queue; a request that it refuses is an error that says
// which.
func testPartial(t *testing.T) {
	n := openNull(t, "ibv", verbs.Config{})
	a, _ := n.pair(verbs.QPInitAttr{})
	srq, err := n.pd.CreateSRQ(verbs.SRQAttr{MaxWR: 256, MaxSGE: 1})
	require.NoError(t, err)
	recvs := func(id uint64) verbs.RecvWR { return verbs.RecvWR{WRID: id, SGList: n.sge(0, 8)} }
	for _, c := range []struct {
		errno unix.Errno
		want  error
	}{{unix.ENOMEM, nil}, {unix.EINVAL, verbs.ErrInvalid}, {unix.EIO, verbs.ErrNoDevice}} {
		n.ctl.PostErrno.Store(uint32(c.errno))
		check := func(got int, err error) {
			require.Equal(t, 100, got)
			if c.want == nil {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, c.want)
			}
		}
		n.ctl.PostsLeft.Store(100)
		check(a.qp.PostSend(series(150, 1, n.write)))
		n.ctl.PostsLeft.Store(100)
		check(a.qp.PostRecv(series(150, 1, recvs)))
		n.ctl.PostsLeft.Store(100)
		check(srq.PostRecv(series(150, 1, recvs)))
		n.ctl.PostsLeft.Store(unlimited)

		a.post(series(100, 101, n.write)...)
		require.Equal(t, series(200, 1, same), ids(t, a.poll()))
		a.qp.Modify(&verbs.QPAttr{QPState: verbs.QPErr}, verbs.MaskState)
		require.Len(t, a.poll(), 100)
		require.NoError(t, srq.Close())
		a, _ = n.pair(verbs.QPInitAttr{})
		srq, err = n.pd.CreateSRQ(verbs.SRQAttr{MaxWR: 256, MaxSGE: 1})
		require.NoError(t, err)
	}
}

// Requests before an invalid one are posted.
func testMiddle(t *testing.T) {
	n := openNull(t, "ibv", verbs.Config{})
	for _, at := range []int{0, 1, 63, 64, 70, 149} {
		for _, spoil := range []func(*verbs.SendWR){
			func(wr *verbs.SendWR) { wr.Opcode = 7 },
			func(wr *verbs.SendWR) { wr.SGList = make([]verbs.SGE, usualCap.MaxSendSGE+1) },
			func(wr *verbs.SendWR) { wr.SGList, wr.Inline = nil, make([]byte, 8) },
			func(wr *verbs.SendWR) { wr.Flags |= verbs.SendInline; wr.SGList[0].Length = 65 },
			func(wr *verbs.SendWR) { wr.Flags |= verbs.SendInline; wr.Opcode = verbs.OpRDMARead },
		} {
			a, b := n.pair(verbs.QPInitAttr{})
			wrs := series(150, 1, n.write)
			spoil(&wrs[at])
			got, err := a.qp.PostSend(wrs)
			require.ErrorIs(t, err, verbs.ErrInvalid)
			require.Equal(t, at, got)
			require.Equal(t, series(at, 1, same), ids(t, a.poll()))
			a.post(n.write(7))
			require.Equal(t, []uint64{7}, ids(t, a.poll()))

			recvs := make([]verbs.RecvWR, 150)
			recvs[at].SGList = make([]verbs.SGE, usualCap.MaxRecvSGE+1)
			got, err = b.qp.PostRecv(recvs)
			require.ErrorIs(t, err, verbs.ErrInvalid)
			require.Equal(t, at, got)
			require.NoError(t, a.qp.Close())
			require.NoError(t, b.qp.Close())
		}
	}
}

// A queue accepts as much as was granted and no more; polling makes room.
func testFull(t *testing.T) {
	n := openNull(t, "ibv", verbs.Config{})
	for _, size := range []int{1, 10, 64, 100} {
		c := usualCap
		c.MaxSendWR, c.MaxRecvWR = size, size
		a, b := n.pair(verbs.QPInitAttr{Cap: c})
		for range 3 {
			got, err := b.qp.PostRecv(make([]verbs.RecvWR, size+3))
			require.NoError(t, err)
			require.Equal(t, size, got)
			got, err = a.qp.PostSend(series(size+3, 1, func(id uint64) verbs.SendWR {
				return verbs.SendWR{WRID: id, Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
			}))
			require.NoError(t, err)
			require.Equal(t, size, got)
			require.Equal(t, series(size, 1, same), ids(t, a.poll()))
			require.Len(t, b.poll(), size)
		}
	}
}

// The completion of a request frees the places of those before it.
func testUnsignalled(t *testing.T) {
	n := openNull(t, "ibv", verbs.Config{})
	c := usualCap
	c.MaxSendWR = 12
	a, _ := n.pair(verbs.QPInitAttr{Cap: c})
	for round := range uint64(20) {
		wrs := series(12, 0, n.write)
		for i := range wrs {
			wrs[i].Flags = 0
		}
		last := &wrs[11-round%3]
		last.Flags, last.WRID = verbs.SendSignaled, round
		a.post(wrs[:12-round%3]...)
		require.Equal(t, []uint64{round}, ids(t, a.poll()))
	}
}

// Resetting or closing a queue pair removes its completions, and leaves those of others in order.
func testPurge(t *testing.T) {
	n := openNull(t, "ibv", verbs.Config{})
	cq := n.cq(1024, nil)
	_, b := n.pair(verbs.QPInitAttr{})
	var ends [3]end
	for i := range ends {
		ends[i] = end{n, n.qp(verbs.QPInitAttr{SendCQ: cq}), cq}
		attach(t, ends[i].qp, b.qp)
	}
	for id := range uint64(100) {
		for _, e := range ends {
			e.post(n.write(id))
		}
	}
	for taken := 0; taken < 5; {
		got, err := cq.Poll(make([]verbs.WC, 5-taken))
		require.NoError(t, err)
		require.NotZero(t, got)
		taken += got
	}
	require.NoError(t, ends[0].qp.Modify(&verbs.QPAttr{QPState: verbs.QPReset}, verbs.MaskState))
	require.NoError(t, ends[2].qp.Close())
	ends[1].post(n.write(100))
	require.Equal(t, series(99, 2, same), ids(t, ends[1].poll()))

	attach(t, ends[0].qp, b.qp) // and it works again, with all its places free
	ends[0].post(series(usualCap.MaxSendWR, 0, n.write)...)
	require.Equal(t, series(usualCap.MaxSendWR, 0, same), ids(t, ends[0].poll()))
}

func testPollError(t *testing.T) {
	n := openNull(t, "ibv", verbs.Config{})
	a, _ := n.pair(verbs.QPInitAttr{})
	n.ctl.Late.Store(1)
	a.post(n.write(1))
	n.ctl.Late.Store(0)
	n.ctl.PollErrno.Store(2) // as mlx5 says that it cannot make sense of an entry
	_, err := a.cq.Poll(make([]verbs.WC, 4))
	require.ErrorContains(t, err, "ibv_poll_cq returned -2")
	n.ctl.PollErrno.Store(0)
	require.Equal(t, []uint64{1}, ids(t, a.poll()))
}

func testInline(t *testing.T) {
	n := openNull(t, "ibv", verbs.Config{})
	attr, err := n.ctx.QueryDevice()
	require.NoError(t, err)
	require.Equal(t, 64, attr.MaxInlineData)
	a, _ := n.pair(verbs.QPInitAttr{})
	wrs := series(150, 1, n.write)
	for i := range wrs {
		wrs[i].Flags |= verbs.SendInline
		wrs[i].SGList, wrs[i].Inline = nil, []byte{1, byte(i)}
		wrs[i].RemoteAddr += uint64(2 * i)
	}
	wrs[7].Inline, wrs[7].SGList = nil, n.sge(0, 64) // it need not be registered
	wrs[7].SGList[0].LKey, wrs[7].RemoteAddr = 0, n.mr.Addr()+8192
	wrs[8].Inline = []byte{}
	copy(n.mem, "inline")
	a.post(wrs...)
	require.Equal(t, series(150, 1, same), ids(t, a.poll()))
	for i := range wrs {
		want := []byte{1, byte(i)}
		if i == 7 || i == 8 {
			want = []byte{0, 0}
		}
		require.Equal(t, want, n.mem[4096+2*i:][:2], i)
	}
	require.Equal(t, "inline", string(n.mem[8192:8198]))
	_, err = n.pd.CreateQP(verbs.QPInitAttr{SendCQ: a.cq, RecvCQ: a.cq, Cap: verbs.QPCap{MaxInlineData: 65}})
	require.ErrorIs(t, err, verbs.ErrInvalid)
}

func testNoInline(t *testing.T) {
	n := openNull(t, "ibv", verbs.Config{})
	attr, err := n.ctx.QueryDevice()
	require.NoError(t, err)
	require.Zero(t, attr.MaxInlineData)
	c := usualCap
	c.MaxInlineData = 0
	a, _ := n.pair(verbs.QPInitAttr{Cap: c})
	wr := n.write(1)
	wr.Flags |= verbs.SendInline
	_, err = a.qp.PostSend([]verbs.SendWR{wr})
	require.ErrorIs(t, err, verbs.ErrInvalid)
	wr.SGList, wr.Inline = nil, []byte{}
	a.post(wr)
	require.Equal(t, []uint64{1}, ids(t, a.poll()))
}

// On Ethernet the GID of an IPv4 address is chosen, and packets are routed.
func testEthernet(t *testing.T) {
	n := openNull(t, "ibv", verbs.Config{})
	a, b := n.pair(verbs.QPInitAttr{})
	e, err := a.qp.Endpoint()
	require.NoError(t, err)
	require.Equal(t, "10.0.0.1", e.GID.Addr().String())
	require.Equal(t, verbs.LinkLayerEthernet, e.LinkLayer)
	q, err := b.qp.Query()
	require.NoError(t, err)
	require.True(t, q.AHAttr.IsGlobal)
	require.Equal(t, e.GID, q.AHAttr.DGID)
	require.EqualValues(t, 2, q.AHAttr.SGIDIndex)
	require.Equal(t, a.qp.QPNum(), q.DestQPNum)
}

// On InfiniBand the GIDs are not the addresses of the host's IP over it.
func testAddressOfHost(t *testing.T) {
	n := openNull(t, "ibv", verbs.Config{Address: "10.0.0.1"})
	a, _ := n.pair(verbs.QPInitAttr{})
	e, err := a.qp.Endpoint()
	require.NoError(t, err)
	require.Equal(t, verbs.LinkLayerInfiniBand, e.LinkLayer)
	require.NotZero(t, e.LID)
}

func testAddress(t *testing.T) {
	for address, index := range map[string]uint8{"10.0.0.2": 3, "fe80::1": 0, "::ffff:10.0.0.1": 2} {
		n := openNull(t, "ibv", verbs.Config{Address: address})
		a, _ := n.pair(verbs.QPInitAttr{})
		q, err := a.qp.Query()
		require.NoError(t, err)
		require.Equal(t, index, q.AHAttr.SGIDIndex, address)
		n.close()
	}
	d, err := verbs.Find("null0")
	require.NoError(t, err)
	_, err = d.Open(verbs.Config{Address: "10.0.0.3"})
	require.ErrorIs(t, err, verbs.ErrInvalid)
	require.ErrorContains(t, err, `no GID has address 10.0.0.3; addresses of this device: ["fe80::1" "10.0.0.1" "10.0.0.2"]`)
	_, err = d.Open(verbs.Config{Address: "nonsense"})
	require.ErrorContains(t, err, `"nonsense"`)
}

// On InfiniBand the LID is the address, except between subnets.
func testLID(t *testing.T) {
	n, m := openNull(t, "null0", verbs.Config{}), openNull(t, "null1", verbs.Config{})
	a, b := n.qp(verbs.QPInitAttr{}), m.qp(verbs.QPInitAttr{})
	e, err := a.Endpoint()
	require.NoError(t, err)
	require.Equal(t, verbs.LinkLayerInfiniBand, e.LinkLayer)
	require.EqualValues(t, 7, e.LID)
	connect(t, a, b)
	q, err := b.Query()
	require.NoError(t, err)
	require.EqualValues(t, 7, q.AHAttr.DLID)
	require.EqualValues(t, 2, q.AHAttr.PortNum)
	require.True(t, q.AHAttr.IsGlobal, "fe80::/64 and fec0::/64 are two subnets")
	require.Equal(t, e.GID, q.AHAttr.DGID)

	c, _ := n.pair(verbs.QPInitAttr{})
	q, err = c.qp.Query()
	require.NoError(t, err)
	require.False(t, q.AHAttr.IsGlobal)
	require.EqualValues(t, 7, q.AHAttr.DLID)
	require.Zero(t, q.AHAttr.DGID)
}

func testNoLID(t *testing.T) {
	n := openNull(t, "ibv", verbs.Config{})
	a, b := n.pair(verbs.QPInitAttr{})
	e, err := a.qp.Endpoint()
	require.NoError(t, err)
	q, err := b.qp.Query()
	require.NoError(t, err)
	require.True(t, q.AHAttr.IsGlobal)
	require.Equal(t, e.GID, q.AHAttr.DGID)
	require.Zero(t, q.AHAttr.DLID)
}

// The first active port, or the one named.
func testPort(t *testing.T) {
	n := openNull(t, "ibv", verbs.Config{})
	for port, state := range map[int]verbs.PortState{1: verbs.PortDown, 2: verbs.PortActive} {
		p, err := n.ctx.QueryPort(port)
		require.NoError(t, err)
		require.Equal(t, state, p.State)
	}
	for ask, want := range map[int]uint8{0: 2, 1: 1, 2: 2} {
		n := openNull(t, "ibv", verbs.Config{Port: ask})
		a, _ := n.pair(verbs.QPInitAttr{})
		q, err := a.qp.Query()
		require.NoError(t, err)
		require.Equal(t, want, q.PortNum)
		require.Equal(t, want, q.AHAttr.PortNum)
		gid, err := n.ctx.QueryGID(int(want), 0)
		require.NoError(t, err)
		e, err := a.qp.Endpoint()
		require.NoError(t, err)
		require.Equal(t, gid, e.GID)
		n.close()
	}
	d, err := verbs.Find("null0")
	require.NoError(t, err)
	_, err = d.Open(verbs.Config{Port: 3})
	require.ErrorIs(t, err, verbs.ErrInvalid)
	require.ErrorContains(t, err, "port 3")
}

// The options of Connect reach the device.
func testConnectAttr(t *testing.T) {
	n := openNull(t, "ibv", verbs.Config{})
	a, b := n.qp(verbs.QPInitAttr{}), n.qp(verbs.QPInitAttr{})
	e, err := b.Endpoint()
	require.NoError(t, err)
	require.NoError(t, a.Connect(e, verbs.ConnectAttr{
		Port: 1, SGIDIndex: 1, AccessFlags: verbs.AccessLocalWrite | verbs.AccessRemoteRead, MinRNRTimer: 5, Timeout: 20,
		RetryCnt: verbs.Retries(3), RNRRetry: verbs.Retries(2), PKeyIndex: 6, ServiceLevel: 4, TrafficClass: 96,
	}))
	q, err := a.Query()
	require.NoError(t, err)
	require.EqualValues(t, 1, q.PortNum)
	require.Equal(t, verbs.AccessLocalWrite|verbs.AccessRemoteRead, q.AccessFlags)
	require.EqualValues(t, 6, q.PKeyIndex)
	require.EqualValues(t, 4, q.AHAttr.SL)
	require.EqualValues(t, 5, q.MinRNRTimer)
	require.EqualValues(t, 20, q.Timeout)
	require.EqualValues(t, 3, q.RetryCnt)
	require.EqualValues(t, 2, q.RNRRetry)
	require.Equal(t, e.PSN, q.RQPSN)
	require.Equal(t, verbs.MTU4096, q.PathMTU)
	require.EqualValues(t, 16, q.MaxRdAtomic)
	require.EqualValues(t, 16, q.MaxDestRdAtomic)

	c := n.qp(verbs.QPInitAttr{})
	e.LID = 0 // with a global route there is a traffic class
	require.NoError(t, c.Connect(e, verbs.ConnectAttr{SGIDIndex: 1, TrafficClass: 96, PathMTU: verbs.MTU2048}))
	q, err = c.Query()
	require.NoError(t, err)
	require.True(t, q.AHAttr.IsGlobal)
	require.EqualValues(t, 96, q.AHAttr.TrafficClass)
	require.EqualValues(t, 1, q.AHAttr.SGIDIndex)
	require.EqualValues(t, 64, q.AHAttr.HopLimit)
	require.Equal(t, verbs.MTU2048, q.PathMTU)
}

// The error of a failed registration has the size requested, and the limit.
func testRegistration(t *testing.T) {
	n := openNull(t, "ibv", verbs.Config{})
	var old unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &old))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: 64 << 10, Max: old.Max}))
	n.ctl.RegErrno.Store(uint32(unix.ENOMEM))
	buf := make([]byte, 12345)
	for _, reg := range []func() (*verbs.MR, error){
		func() (*verbs.MR, error) { return n.pd.RegMR(buf, verbs.AccessAll) },
		func() (*verbs.MR, error) { return n.pd.AllocMR(12345, verbs.AccessAll) },
	} {
		_, err := reg()
		require.ErrorIs(t, err, verbs.ErrNoMemory)
		require.ErrorIs(t, err, unix.ENOMEM)
		require.ErrorContains(t, err, "12345 bytes")
		require.ErrorContains(t, err, "RLIMIT_MEMLOCK (ulimit -l) is 64 KiB")
	}
	const large = 1 << 30
	before := addresses(t)
	_, err := n.pd.AllocMR(large, verbs.AccessAll)
	require.ErrorIs(t, err, unix.ENOMEM)
	require.Less(t, addresses(t), before+large/2, "addresses are kept that no slice has")
	n.ctl.RegErrno.Store(uint32(unix.EFAULT))
	_, err = n.pd.RegMR(buf, verbs.AccessAll)
	require.ErrorIs(t, err, unix.EFAULT)
	require.NotContains(t, err.Error(), "ulimit")
	n.ctl.RegErrno.Store(0)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &old))

	mr, err := n.pd.RegMR(buf, verbs.AccessLocalWrite)
	require.NoError(t, err)
	require.EqualValues(t, verbs.AccessLocalWrite, n.ctl.RegAccess.Load())
	require.EqualValues(t, 1, n.ctl.RegCall.Load())
	n.ctl.DeregErrno.Store(uint32(unix.EBUSY))
	err = mr.Close()
	require.ErrorIs(t, err, verbs.ErrBusy)
	require.ErrorContains(t, err, "12345 bytes stay pinned")
	n.ctl.DeregErrno.Store(0)
	// The library still has the region, and its domain stays in use.
	require.ErrorIs(t, n.ctx.Close(), verbs.ErrBusy)
	n.ctx = nil
	require.EqualValues(t, 2, n.ctl.Live.Swap(0)) // later tests start counting at 0
}

// addresses is how many bytes the process has mapped.
func addresses(t *testing.T) (n int) {
	b, err := os.ReadFile("/proc/self/statm")
	require.NoError(t, err)
	_, err = fmt.Sscan(string(b), &n)
	require.NoError(t, err)
	return n * os.Getpagesize()
}

func testOnDemand(t *testing.T) {
	n := openNull(t, "ibv", verbs.Config{})
	a, err := n.ctx.QueryDevice()
	require.NoError(t, err)
	require.True(t, a.OnDemandPaging)
	mr, err := n.pd.RegMR(make([]byte, 8), verbs.AccessAll|verbs.AccessOnDemand)
	require.NoError(t, err)
	require.EqualValues(t, verbs.AccessAll|verbs.AccessOnDemand, n.ctl.RegAccess.Load())
	require.NoError(t, mr.Close())
}

func testNoOnDemand(t *testing.T) {
	n := openNull(t, "ibv", verbs.Config{})
	a, err := n.ctx.QueryDevice()
	require.NoError(t, err)
	require.False(t, a.OnDemandPaging)
	_, err = n.pd.RegMR(make([]byte, 8), verbs.AccessAll|verbs.AccessOnDemand)
	require.ErrorIs(t, err, verbs.ErrNotSupported)
	require.ErrorContains(t, err, "on-demand paging")
}

// testRelaxed: the optional flag goes with one call and not with the other.
func testRelaxed(call uint32, flag verbs.AccessFlags) func(*testing.T) {
	return func(t *testing.T) {
		n := openNull(t, "ibv", verbs.Config{})
		mr, err := n.pd.RegMR(make([]byte, 8), verbs.AccessAll|verbs.AccessRelaxedOrdering)
		require.NoError(t, err)
		require.Equal(t, call, n.ctl.RegCall.Load())
		require.EqualValues(t, verbs.AccessAll|flag, n.ctl.RegAccess.Load())
		require.NoError(t, mr.Close())
	}
}

// testProbe checks the provider's Probe, and whether it has devices.
func testProbe(answer verbs.Answer, reason string) func(*testing.T) {
	return func(t *testing.T) {
		for _, p := range verbs.Providers() {
			if p.Name != "ibv" {
				continue
			}
			require.Equal(t, answer, p.Probe.Answer, p.Probe.Reason)
			require.Contains(t, p.Probe.Reason, reason)
		}
		d, err := verbs.Find("ibv")
		if answer == verbs.Yes {
			require.NoError(t, err)
			require.Equal(t, "null0", d.Name())
			d, err = verbs.Find("null2")
			require.NoError(t, err)
			ctx, err := d.Open(verbs.Config{})
			require.NoError(t, err)
			require.NoError(t, ctx.Close())
			return
		}
		require.ErrorIs(t, err, verbs.ErrNoDevice)
		require.ErrorContains(t, err, reason)
	}
}

// A process loads the library once: this test uses another process, whose library is missing.
func testNoLibrary(t *testing.T) {
	if os.Getenv(ibv.EnvLibrary) != missing {
		ranks.Again(t, "^TestNull$/^NoLibrary$", []string{nullEnv + "=1", ibv.EnvLibrary + "=" + missing})
		return
	}
	testProbe(verbs.No, missing+": cannot open shared object file: No such file or directory")(t)
}

var missing = filepath.Join(os.TempDir(), "no-such-libibverbs.so")

// Events name their objects, however many there are.
func testEvents(t *testing.T) {
	n := openNull(t, "ibv", verbs.Config{})
	a, b := n.pair(verbs.QPInitAttr{})
	cq := n.cq(1, nil)
	cqNum := n.ctl.LastCQ.Load()
	srq, err := n.pd.CreateSRQ(verbs.SRQAttr{MaxWR: 1, MaxSGE: 1})
	require.NoError(t, err)
	srqNum := n.ctl.LastSRQ.Load()
	num := a.qp.QPNum()
	for _, c := range []struct {
		number uint32
		want   verbs.AsyncEvent
	}{
		{num, verbs.AsyncEvent{Type: verbs.EventCommEst, QP: a.qp}},
		{b.qp.QPNum(), verbs.AsyncEvent{Type: verbs.EventSQDrained, QP: b.qp}},
		{num, verbs.AsyncEvent{Type: verbs.EventQPLastWQEReached, QP: a.qp}},
		{num, verbs.AsyncEvent{Type: verbs.EventQPAccessErr, QP: a.qp}},
		{srqNum, verbs.AsyncEvent{Type: verbs.EventSRQLimitReached, SRQ: srq}},
		{srqNum, verbs.AsyncEvent{Type: verbs.EventSRQErr, SRQ: srq}},
		{cqNum, verbs.AsyncEvent{Type: verbs.EventCQErr, CQ: cq}},
		{1, verbs.AsyncEvent{Type: verbs.EventPortErr, Port: 1}},
		{2, verbs.AsyncEvent{Type: verbs.EventPortActive, Port: 2}},
		{1, verbs.AsyncEvent{Type: verbs.EventLIDChange, Port: 1}},
		{1, verbs.AsyncEvent{Type: verbs.EventGIDChange, Port: 1}},
		{1, verbs.AsyncEvent{Type: verbs.EventClientReregister, Port: 1}},
	} {
		n.raise(c.want.Type, c.number)
		require.Equal(t, c.want, n.event())
	}
	// ACCESS_ERR means that the queue pair is in ERR.
	require.Equal(t, verbs.QPErr, a.qp.State())
	require.Equal(t, verbs.QPRTS, b.qp.State())

	// Events are not read for a while: the latest thousand are kept.
	for i := range uint32(2000) {
		n.raise(verbs.EventPortErr, i)
	}
	n.raise(verbs.EventPortActive, 9)
	// The last one does something that can be seen: then all before it are kept, or dropped.
	n.raise(verbs.EventQPAccessErr, b.qp.QPNum())
	require.Eventually(t, func() bool { return b.qp.State() == verbs.QPErr }, 30*time.Second, time.Millisecond)
	kept := []verbs.AsyncEvent{n.event()}
	for kept[len(kept)-1].QP == nil {
		kept = append(kept, n.event())
	}
	// It was kept itself before the first was taken, or just after.
	require.Contains(t, []int{1024, 1025}, len(kept))
	ports := kept[:len(kept)-2]
	for i, e := range ports {
		require.Equal(t, verbs.AsyncEvent{Type: verbs.EventPortErr, Port: 2000 - len(ports) + i}, e)
	}
	require.Equal(t, []verbs.AsyncEvent{{Type: verbs.EventPortActive, Port: 9}, {Type: verbs.EventQPAccessErr, QP: b.qp}}, kept[len(ports):])
	// Nor is there any more.
	n.raise(verbs.EventLIDChange, 1)
	require.Equal(t, verbs.AsyncEvent{Type: verbs.EventLIDChange, Port: 1}, n.event())
}

func testDeviceFatal(t *testing.T) {
	n := openNull(t, "ibv", verbs.Config{})
	n.raise(verbs.EventDeviceFatal, 0)
	require.Equal(t, verbs.AsyncEvent{Type: verbs.EventDeviceFatal}, n.event())
	n.raise(verbs.EventPortErr, 1)
	require.Equal(t, verbs.AsyncEvent{Type: verbs.EventPortErr, Port: 1}, n.event())
}

// A descriptor that returns errors means that the device is gone.
func testDeviceGone(t *testing.T) {
	n := openNull(t, "ibv", verbs.Config{})
	n.ctl.AsyncErrno.Store(uint32(unix.EIO))
	n.raise(verbs.EventPortErr, 1)
	e := n.event()
	if e.Type == verbs.EventPortErr { // it was being read when the device went
		e = n.event()
	}
	require.Equal(t, verbs.AsyncEvent{Type: verbs.EventDeviceFatal}, e)
	_, err := n.ctx.AsyncEvent(ranks.Within(t))
	require.ErrorIs(t, err, verbs.ErrClosed)
}

// An overrun queue wakes the calls that wait for it, returns what it has, and is broken.
func testOverrunWait(t *testing.T) {
	n := openNull(t, "ibv", verbs.Config{})
	cq := n.cq(4, nil)
	num := n.ctl.LastCQ.Load()
	a, b := n.qp(verbs.QPInitAttr{SendCQ: cq}), n.qp(verbs.QPInitAttr{})
	connect(t, a, b)
	woken := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := cq.Wait(ranks.Within(t), make([]verbs.WC, 1))
			woken <- err
		}()
	}
	verbstest.Asleep(t, "testOverrunWait.func1", 2)
	n.raise(verbs.EventCQErr, num)
	for range 2 {
		require.ErrorIs(t, <-woken, verbs.ErrCQOverrun)
	}
	require.Equal(t, verbs.AsyncEvent{Type: verbs.EventCQErr, CQ: cq}, n.event())
	_, err := cq.Poll(make([]verbs.WC, 1))
	require.ErrorIs(t, err, verbs.ErrCQOverrun)
	require.Eventually(t, func() bool { return a.State() == verbs.QPErr }, ranks.Limit, time.Millisecond)

	c, d := n.qp(verbs.QPInitAttr{SendCQ: n.cq(4, nil)}), n.qp(verbs.QPInitAttr{})
	connect(t, c, d)
	_, err = c.PostSend(series(10, 1, n.write))
	require.NoError(t, err)
	require.Equal(t, verbs.EventCQErr, n.event().Type)
}

func testOverrunGet(t *testing.T) {
	n := openNull(t, "ibv", verbs.Config{})
	ch, err := n.ctx.CreateCompChannel()
	require.NoError(t, err)
	cq := n.cq(4, ch)
	n.qp(verbs.QPInitAttr{SendCQ: cq})
	got := make(chan *verbs.CQ)
	go func() {
		q, _ := ch.Get(ranks.Within(t))
		got <- q
	}()
	verbstest.Asleep(t, "testOverrunGet.func1", 1)
	n.raise(verbs.EventCQErr, n.ctl.LastCQ.Load())
	require.Same(t, cq, <-got)
	_, err = cq.Poll(make([]verbs.WC, 1))
	require.ErrorIs(t, err, verbs.ErrCQOverrun)
}

// Channels: one event for each arming, for solicited completions only if requested.
func testNotify(t *testing.T) {
	n := openNull(t, "ibv", verbs.Config{})
	ch, err := n.ctx.CreateCompChannel()
	require.NoError(t, err)
	fd, err := ch.FD()
	require.NoError(t, err)
	readable := func() bool {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		got, err := unix.Poll(p, 0)
		require.NoError(t, err)
		return got > 0
	}
	cq := n.cq(64, ch)
	a, b := n.qp(verbs.QPInitAttr{}), n.qp(verbs.QPInitAttr{SendCQ: cq})
	connect(t, a, b)
	_, err = b.PostRecv(make([]verbs.RecvWR, 10))
	require.NoError(t, err)
	send := func(f verbs.SendFlags) {
		_, err := a.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend, Flags: f}})
		require.NoError(t, err)
	}
	send(0)
	require.False(t, readable())
	require.NoError(t, cq.ReqNotify(true))
	send(0)
	require.False(t, readable())
	send(verbs.SendSolicited)
	require.True(t, readable())
	q, err := ch.Get(ranks.Within(t))
	require.NoError(t, err)
	require.Same(t, cq, q)
	send(verbs.SendSolicited)
	require.False(t, readable())
	require.NoError(t, cq.ReqNotify(false))
	send(0)
	require.True(t, readable())
	require.Len(t, pollAll(t, cq), 5)

	// An event of a queue closed in the meantime is skipped.
	other := n.cq(1, ch)
	require.NoError(t, b.Close())
	require.NoError(t, cq.Close())
	c, d := n.qp(verbs.QPInitAttr{SendCQ: other}), n.qp(verbs.QPInitAttr{})
	connect(t, c, d)
	require.NoError(t, other.ReqNotify(false))
	_, err = c.PostSend(series(1, 1, n.write))
	require.NoError(t, err)
	q, err = ch.Get(ranks.Within(t))
	require.NoError(t, err)
	require.Same(t, other, q)
	require.NoError(t, c.Close())
	require.NoError(t, other.Close())
}

// Each waiting call gets a completion as long as there is one, even if others wait, too.
func testWaiters(t *testing.T) {
	n := openNull(t, "ibv", verbs.Config{})
	a, _ := n.pair(verbs.QPInitAttr{})
	const waiters = 3
	for round := range 100 {
		var all sync.WaitGroup
		errs := make(chan error, waiters)
		for range waiters {
			all.Go(func() {
				_, err := a.cq.Wait(ranks.Within(t), make([]verbs.WC, 1))
				errs <- err
			})
		}
		if round%2 == 0 { // else they are about to sleep
			verbstest.Asleep(t, "testWaiters.func1", waiters)
		}
		a.post(series(waiters, 1, n.write)...)
		all.Wait()
		for range waiters {
			require.NoError(t, <-errs)
		}
	}
}

// Receives that several queue pairs take from.
func testSRQ(t *testing.T) {
	n := openNull(t, "ibv", verbs.Config{})
	srq, err := n.pd.CreateSRQ(verbs.SRQAttr{MaxWR: 100, MaxSGE: 1, Limit: 90})
	require.NoError(t, err)
	a, b := n.pair(verbs.QPInitAttr{SRQ: srq})
	c, d := n.pair(verbs.QPInitAttr{SRQ: srq})
	_, err = b.qp.PostRecv(make([]verbs.RecvWR, 1))
	require.ErrorIs(t, err, verbs.ErrInvalid)
	recv := func(id uint64) verbs.RecvWR { return verbs.RecvWR{WRID: id, SGList: n.sge(4096, 8)} }
	post := func(count int, first uint64) int {
		got, err := srq.PostRecv(series(count, first, recv))
		require.NoError(t, err)
		return got
	}
	send := func(id uint64) verbs.SendWR { return verbs.SendWR{WRID: id, Opcode: verbs.OpSend, SGList: n.sge(0, 8)} }
	require.Equal(t, 100, post(120, 1))
	for range 15 {
		a.post(send(1))
		c.post(send(1))
	}
	require.Equal(t, verbs.AsyncEvent{Type: verbs.EventSRQLimitReached, SRQ: srq}, n.event())
	attr, err := srq.Query()
	require.NoError(t, err)
	require.Equal(t, verbs.SRQAttr{MaxWR: 100, MaxSGE: 1}, attr)
	require.NoError(t, srq.ModifyLimit(7))
	attr, err = srq.Query()
	require.NoError(t, err)
	require.Equal(t, 7, attr.Limit)

	seen := map[uint64]bool{}
	for _, e := range []struct{ from, at end }{{a, b}, {c, d}} {
		got := e.at.poll()
		require.Len(t, got, 15)
		for _, wc := range got {
			require.NoError(t, wc.Err())
			require.Equal(t, e.at.qp.QPNum(), wc.QPNum)
			require.Equal(t, e.from.qp.QPNum(), wc.SrcQP)
			require.EqualValues(t, 8, wc.ByteLen)
			seen[wc.WRID] = true
		}
	}
	require.Len(t, seen, 30)
	require.Equal(t, 30, post(120, 1000))

	// Closing a queue pair frees the places of its completed receives.
	for range 10 {
		a.post(send(1))
	}
	require.NoError(t, b.qp.Close())
	require.Equal(t, 10, post(120, 2000))
	require.ErrorIs(t, srq.Close(), verbs.ErrBusy)
	for _, e := range []end{a, c, d} {
		require.NoError(t, e.qp.Close())
	}
	require.NoError(t, srq.Close())
	_, err = srq.PostRecv(series(1, 1, recv))
	require.ErrorIs(t, err, verbs.ErrClosed)
}

// Objects that others depend on are busy; in the right order everything closes.
func testCloseOrder(t *testing.T) {
	n := openNull(t, "ibv", verbs.Config{})
	live := n.ctl.Live.Load()
	ch, err := n.ctx.CreateCompChannel()
	require.NoError(t, err)
	cq := n.cq(8, ch)
	srq, err := n.pd.CreateSRQ(verbs.SRQAttr{MaxWR: 1, MaxSGE: 1})
	require.NoError(t, err)
	qp := n.qp(verbs.QPInitAttr{SendCQ: cq, SRQ: srq})
	for _, c := range []interface{ Close() error }{n.pd, ch, cq, srq} {
		require.ErrorIs(t, c.Close(), verbs.ErrBusy)
	}
	for _, c := range []interface{ Close() error }{qp, srq, cq, ch} {
		require.NoError(t, c.Close())
		require.ErrorIs(t, c.Close(), verbs.ErrClosed)
	}
	require.Equal(t, live, n.ctl.Live.Load())
	require.NoError(t, n.mr.Close())
	require.NoError(t, n.pd.Close())
	require.NoError(t, n.ctx.Close())
	n.ctx = nil
	require.Zero(t, n.ctl.Live.Load())
}

// Closing the context closes all.
func testCloseAll(t *testing.T) {
	n := openNull(t, "ibv", verbs.Config{})
	ch, err := n.ctx.CreateCompChannel()
	require.NoError(t, err)
	srq, err := n.pd.CreateSRQ(verbs.SRQAttr{MaxWR: 8, MaxSGE: 1})
	require.NoError(t, err)
	n.qp(verbs.QPInitAttr{SendCQ: n.cq(8, ch), RecvCQ: n.cq(8, ch), SRQ: srq})
	a, b := n.pair(verbs.QPInitAttr{SRQ: srq})
	_, err = srq.PostRecv(make([]verbs.RecvWR, 8))
	require.NoError(t, err)
	a.post(series(10, 1, n.write)...)
	b.post(verbs.SendWR{Opcode: verbs.OpSend})
	_, err = n.pd.RegMR(make([]byte, 100), verbs.AccessLocalWrite)
	require.NoError(t, err)
	require.NoError(t, n.ctx.Close())
	n.ctx = nil
	require.Zero(t, n.ctl.Live.Load())
}

func testUseAfterClose(t *testing.T) {
	n := openNull(t, "ibv", verbs.Config{})
	ch, err := n.ctx.CreateCompChannel()
	require.NoError(t, err)
	cq := n.cq(8, ch)
	a, _ := n.pair(verbs.QPInitAttr{})
	require.NoError(t, n.ctx.Close())
	ctx := n.ctx
	n.ctx = nil
	for name, f := range map[string]func() error{
		"post":   func() error { _, err := a.qp.PostSend(make([]verbs.SendWR, 1)); return err },
		"recv":   func() error { _, err := a.qp.PostRecv(make([]verbs.RecvWR, 1)); return err },
		"query":  func() error { _, err := a.qp.Query(); return err },
		"modify": func() error { return a.qp.Modify(&verbs.QPAttr{QPState: verbs.QPErr}, verbs.MaskState) },
		"poll":   func() error { _, err := a.cq.Poll(make([]verbs.WC, 1)); return err },
		"wait":   func() error { _, err := a.cq.Wait(t.Context(), make([]verbs.WC, 1)); return err },
		"arm":    func() error { return cq.ReqNotify(false) },
		"get":    func() error { _, err := ch.Get(t.Context()); return err },
		"reg":    func() error { _, err := n.pd.AllocMR(1, 0); return err },
		"event":  func() error { _, err := ctx.AsyncEvent(t.Context()); return err },
		"port":   func() error { _, err := ctx.QueryPort(1); return err },
		"close":  ctx.Close,
	} {
		require.ErrorIs(t, f(), verbs.ErrClosed, name)
	}
	require.Zero(t, n.ctl.Live.Load())
}

// Closing everything while everything is in use, from other goroutines.
func testCloseUnderway(t *testing.T) {
	for round := range 30 {
		n := openNull(t, "ibv", verbs.Config{})
		ch, err := n.ctx.CreateCompChannel()
		require.NoError(t, err)
		chCQ := n.cq(64, ch)
		srq, err := n.pd.CreateSRQ(verbs.SRQAttr{MaxWR: 64, MaxSGE: 1})
		require.NoError(t, err)
		a, b := n.pair(verbs.QPInitAttr{})
		c, d := n.pair(verbs.QPInitAttr{SRQ: srq})
		idle := n.cq(8, nil)
		ctx := n.ctx
		var all sync.WaitGroup
		errs := make(chan error, 100)
		try := func(f func() error) {
			all.Go(func() {
				for {
					if err := f(); err != nil {
						if !errors.Is(err, verbs.ErrClosed) && !errors.Is(err, verbs.ErrState) {
							errs <- err
						}
						return
					}
					runtime.Gosched()
				}
			})
		}
		wrs, recvs := series(8, 1, n.write), make([]verbs.RecvWR, 4)
		for _, e := range []end{a, b, c, d} {
			try(func() error { _, err := e.qp.PostSend(wrs); return err })
			try(func() error { _, err := e.cq.Poll(make([]verbs.WC, 16)); return err })
			try(func() error { _, err := e.qp.Query(); return err })
		}
		try(func() error { _, err := a.qp.PostRecv(recvs); return err })
		try(func() error { _, err := srq.PostRecv(recvs); return err })
		try(func() error { _, err := srq.Query(); return err })
		try(func() error { return srq.ModifyLimit(0) })
		try(func() error { _, err := idle.Wait(t.Context(), make([]verbs.WC, 1)); return err })
		try(func() error { return chCQ.ReqNotify(false) })
		try(func() error { _, err := ch.Get(t.Context()); return err })
		try(func() error { _, err := ctx.AsyncEvent(t.Context()); return err })
		try(func() error { _, err := ctx.QueryPort(1); return err })
		try(func() error { _, err := ctx.QueryGID(1, 2); return err })
		time.Sleep(time.Duration(round) * 100 * time.Microsecond)
		if round%2 == 0 {
			require.NoError(t, a.qp.Close())
			require.NoError(t, a.cq.Close())
			require.NoError(t, c.qp.Close())
			require.NoError(t, d.qp.Close())
			require.NoError(t, srq.Close())
		}
		require.NoError(t, ctx.Close())
		n.ctx = nil
		all.Wait()
		close(errs)
		for err := range errs {
			require.NoError(t, err)
		}
		require.Zero(t, n.ctl.Live.Load())
	}
}
