package verbs

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The numbers of libibverbs 44.0, <infiniband/verbs.h>. A program may cast
// between the two, and a provider does.
func TestNumbers(t *testing.T) {
	type entry struct {
		name string // without prefix; also what String returns, where it is not empty
		got  fmt.Stringer
		num  uint64
		is   uint64
	}
	for _, table := range []struct {
		enum    string
		entries []entry
	}{
		{"ibv_qp_state", []entry{
			{"RESET", QPReset, 0, uint64(QPReset)},
			{"INIT", QPInit, 1, uint64(QPInit)},
			{"RTR", QPRTR, 2, uint64(QPRTR)},
			{"RTS", QPRTS, 3, uint64(QPRTS)},
			{"SQD", QPSQD, 4, uint64(QPSQD)},
			{"SQE", QPSQE, 5, uint64(QPSQE)},
			{"ERR", QPErr, 6, uint64(QPErr)},
			{"QPState(7)", QPState(7), 7, 7},
		}},
		{"ibv_wr_opcode", []entry{
			{"RDMA_WRITE", OpRDMAWrite, 0, uint64(OpRDMAWrite)},
			{"RDMA_WRITE_WITH_IMM", OpRDMAWriteWithImm, 1, uint64(OpRDMAWriteWithImm)},
			{"SEND", OpSend, 2, uint64(OpSend)},
			{"SEND_WITH_IMM", OpSendWithImm, 3, uint64(OpSendWithImm)},
			{"RDMA_READ", OpRDMARead, 4, uint64(OpRDMARead)},
			{"ATOMIC_CMP_AND_SWP", OpAtomicCmpAndSwp, 5, uint64(OpAtomicCmpAndSwp)},
			{"ATOMIC_FETCH_AND_ADD", OpAtomicFetchAndAdd, 6, uint64(OpAtomicFetchAndAdd)},
			{"Opcode(7)", Opcode(7), 7, 7},
		}},
		{"ibv_wc_opcode", []entry{
			{"SEND", WCSend, 0, uint64(WCSend)},
			{"RDMA_WRITE", WCRDMAWrite, 1, uint64(WCRDMAWrite)},
			{"RDMA_READ", WCRDMARead, 2, uint64(WCRDMARead)},
			{"COMP_SWAP", WCCompSwap, 3, uint64(WCCompSwap)},
			{"FETCH_ADD", WCFetchAdd, 4, uint64(WCFetchAdd)},
			{"RECV", WCRecv, 128, uint64(WCRecv)},
			{"RECV_RDMA_WITH_IMM", WCRecvRDMAWithImm, 129, uint64(WCRecvRDMAWithImm)},
			{"WCOpcode(5)", WCOpcode(5), 5, 5},
		}},
		{"ibv_access_flags", []entry{
			{"LOCAL_WRITE", AccessLocalWrite, 1, uint64(AccessLocalWrite)},
			{"REMOTE_WRITE", AccessRemoteWrite, 2, uint64(AccessRemoteWrite)},
			{"REMOTE_READ", AccessRemoteRead, 4, uint64(AccessRemoteRead)},
			{"REMOTE_ATOMIC", AccessRemoteAtomic, 8, uint64(AccessRemoteAtomic)},
			{"ON_DEMAND", AccessOnDemand, 64, uint64(AccessOnDemand)},
			{"RELAXED_ORDERING", AccessRelaxedOrdering, 1 << 20, uint64(AccessRelaxedOrdering)},
			{"LOCAL_READ", AccessFlags(0), 0, 0},
			{"LOCAL_WRITE|REMOTE_WRITE|REMOTE_READ|REMOTE_ATOMIC", AccessAll, 15, uint64(AccessAll)},
		}},
		{"rdma link layer", []entry{
			{"UNSPECIFIED", LinkLayerUnspecified, 0, uint64(LinkLayerUnspecified)},
			{"INFINIBAND", LinkLayerInfiniBand, 1, uint64(LinkLayerInfiniBand)},
			{"ETHERNET", LinkLayerEthernet, 2, uint64(LinkLayerEthernet)},
		}},
		{"ibv_port_state", []entry{
			{"NOP", PortNop, 0, uint64(PortNop)},
			{"DOWN", PortDown, 1, uint64(PortDown)},
			{"INIT", PortInit, 2, uint64(PortInit)},
			{"ARMED", PortArmed, 3, uint64(PortArmed)},
			{"ACTIVE", PortActive, 4, uint64(PortActive)},
			{"ACTIVE_DEFER", PortActiveDefer, 5, uint64(PortActiveDefer)},
		}},
		{"ibv_atomic_cap", []entry{
			{"NONE", AtomicNone, 0, uint64(AtomicNone)},
			{"HCA", AtomicHCA, 1, uint64(AtomicHCA)},
			{"GLOB", AtomicGlob, 2, uint64(AtomicGlob)},
		}},
		{"ibv_event_type", []entry{
			{"CQ_ERR", EventCQErr, 0, uint64(EventCQErr)},
			{"QP_FATAL", EventQPFatal, 1, uint64(EventQPFatal)},
			{"QP_REQ_ERR", EventQPReqErr, 2, uint64(EventQPReqErr)},
			{"QP_ACCESS_ERR", EventQPAccessErr, 3, uint64(EventQPAccessErr)},
			{"COMM_EST", EventCommEst, 4, uint64(EventCommEst)},
			{"SQ_DRAINED", EventSQDrained, 5, uint64(EventSQDrained)},
			{"PATH_MIG", EventPathMig, 6, uint64(EventPathMig)},
			{"PATH_MIG_ERR", EventPathMigErr, 7, uint64(EventPathMigErr)},
			{"DEVICE_FATAL", EventDeviceFatal, 8, uint64(EventDeviceFatal)},
			{"PORT_ACTIVE", EventPortActive, 9, uint64(EventPortActive)},
			{"PORT_ERR", EventPortErr, 10, uint64(EventPortErr)},
			{"LID_CHANGE", EventLIDChange, 11, uint64(EventLIDChange)},
			{"PKEY_CHANGE", EventPKeyChange, 12, uint64(EventPKeyChange)},
			{"SM_CHANGE", EventSMChange, 13, uint64(EventSMChange)},
			{"SRQ_ERR", EventSRQErr, 14, uint64(EventSRQErr)},
			{"SRQ_LIMIT_REACHED", EventSRQLimitReached, 15, uint64(EventSRQLimitReached)},
			{"QP_LAST_WQE_REACHED", EventQPLastWQEReached, 16, uint64(EventQPLastWQEReached)},
			{"CLIENT_REREGISTER", EventClientReregister, 17, uint64(EventClientReregister)},
			{"GID_CHANGE", EventGIDChange, 18, uint64(EventGIDChange)},
			{"EventType(19)", EventType(19), 19, 19},
		}},
	} {
		t.Run(table.enum, func(t *testing.T) {
			for _, e := range table.entries {
				require.Equal(t, e.num, e.is, e.name)
				require.Equal(t, e.name, e.got.String())
			}
		})
	}
}

// Flags and codes that have no names of their own at run time.
func TestFlagNumbers(t *testing.T) {
	for _, c := range []struct {
		name string
		got  uint64
		num  uint64
	}{
		{"IBV_SEND_FENCE", uint64(SendFence), 1},
		{"IBV_SEND_SIGNALED", uint64(SendSignaled), 2},
		{"IBV_SEND_SOLICITED", uint64(SendSolicited), 4},
		{"IBV_SEND_INLINE", uint64(SendInline), 8},
		{"IBV_WC_WITH_IMM", uint64(WCWithImm), 2},
		{"IBV_MTU_256", uint64(MTU256), 1},
		{"IBV_MTU_512", uint64(MTU512), 2},
		{"IBV_MTU_1024", uint64(MTU1024), 3},
		{"IBV_MTU_2048", uint64(MTU2048), 4},
		{"IBV_MTU_4096", uint64(MTU4096), 5},
		{"IBV_QP_STATE", uint64(MaskState), 1 << 0},
		{"IBV_QP_CUR_STATE", uint64(MaskCurState), 1 << 1},
		{"IBV_QP_EN_SQD_ASYNC_NOTIFY", uint64(MaskEnSQDAsyncNotify), 1 << 2},
		{"IBV_QP_ACCESS_FLAGS", uint64(MaskAccessFlags), 1 << 3},
		{"IBV_QP_PKEY_INDEX", uint64(MaskPKeyIndex), 1 << 4},
		{"IBV_QP_PORT", uint64(MaskPort), 1 << 5},
		{"IBV_QP_AV", uint64(MaskAV), 1 << 7},
		{"IBV_QP_PATH_MTU", uint64(MaskPathMTU), 1 << 8},
		{"IBV_QP_TIMEOUT", uint64(MaskTimeout), 1 << 9},
		{"IBV_QP_RETRY_CNT", uint64(MaskRetryCnt), 1 << 10},
		{"IBV_QP_RNR_RETRY", uint64(MaskRNRRetry), 1 << 11},
		{"IBV_QP_RQ_PSN", uint64(MaskRQPSN), 1 << 12},
		{"IBV_QP_MAX_QP_RD_ATOMIC", uint64(MaskMaxQPRdAtomic), 1 << 13},
		{"IBV_QP_MIN_RNR_TIMER", uint64(MaskMinRNRTimer), 1 << 15},
		{"IBV_QP_SQ_PSN", uint64(MaskSQPSN), 1 << 16},
		{"IBV_QP_MAX_DEST_RD_ATOMIC", uint64(MaskMaxDestRdAtomic), 1 << 17},
		{"IBV_QP_DEST_QPN", uint64(MaskDestQPN), 1 << 20},
	} {
		require.Equal(t, c.num, c.got, c.name)
	}
}

func TestMTUBytes(t *testing.T) {
	for code, want := range []int{0, 256, 512, 1024, 2048, 4096, 0} {
		require.Equal(t, want, MTU(code).Bytes(), "code %d", code)
	}
}

// enum ibv_wc_status in the order of the header, each an error in its own right.
func TestStatus(t *testing.T) {
	inOrder := []WCStatus{
		WCSuccess, WCLocLenErr, WCLocQPOpErr, WCLocEECOpErr, WCLocProtErr, WCWRFlushErr, WCMWBindErr, WCBadRespErr,
		WCLocAccessErr, WCRemInvReqErr, WCRemAccessErr, WCRemOpErr, WCRetryExcErr, WCRNRRetryExcErr, WCLocRDDViolErr,
		WCRemInvRDReqErr, WCRemAbortErr, WCInvEECNErr, WCInvEECStateErr, WCFatalErr, WCRespTimeoutErr, WCGeneralErr,
		WCTMErr, WCTMRndvIncomplete,
	}
	texts := map[string]WCStatus{}
	for num, s := range inOrder {
		require.EqualValues(t, num, s)
		other, taken := texts[s.String()]
		require.False(t, taken, "%d and %d are both %q", s, other, s)
		texts[s.String()] = s
		require.Equal(t, s.String(), s.Error())

		wc := WC{WRID: 0xbeef, Status: s, Opcode: WCRDMARead, QPNum: 0x17, VendorErr: 0x2a}
		if s == WCSuccess {
			require.NoError(t, wc.Err())
			continue
		}
		err := wc.Err()
		require.ErrorIs(t, err, s)
		require.NotErrorIs(t, err, inOrder[(num+1)%len(inOrder)])
		var we *WCError
		require.ErrorAs(t, err, &we)
		require.Equal(t, wc, we.WC)
		for _, part := range []string{"0x000017", "RDMA_READ", "0xbeef", s.String(), "0x2a"} {
			require.ErrorContains(t, err, part)
		}
	}
	require.Equal(t, "WCStatus(24)", WCStatus(24).String())
}

func TestOpcodeOfCompletion(t *testing.T) {
	for op, want := range map[Opcode]WCOpcode{
		OpRDMAWrite: WCRDMAWrite, OpRDMAWriteWithImm: WCRDMAWrite, OpSend: WCSend, OpSendWithImm: WCSend,
		OpRDMARead: WCRDMARead, OpAtomicCmpAndSwp: WCCompSwap, OpAtomicFetchAndAdd: WCFetchAdd,
	} {
		require.Equal(t, want, op.WCOpcode(), op)
	}
}

// InfiniBand architecture, 9.7.6.1.3 and table 45, as ibv_modify_qp(3) quotes them.
func TestTimers(t *testing.T) {
	for code, want := range map[uint8]time.Duration{0: 0, 1: 8192 * time.Nanosecond, 14: 67108864 * time.Nanosecond, 31: 8796093022208 * time.Nanosecond} {
		require.Equal(t, want, AckTimeout(code), "code %d", code)
	}
	for code, ms := range []float64{655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28, 1.92,
		2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88, 163.84, 245.76, 327.68, 491.52} {
		require.InDelta(t, ms, RNRTimer(uint8(code)).Seconds()*1e3, 1e-9, "code %d", code)
	}
}

func TestRetries(t *testing.T) {
	require.EqualValues(t, 7, RetryCount{}.value())
	for n, want := range map[int]uint8{-1: 0, 0: 0, 1: 1, 6: 6, 7: 7, 8: 7} {
		require.Equal(t, want, Retries(n).value(), "%d", n)
	}
}
