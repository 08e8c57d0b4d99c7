package roce_test

import (
	"bytes"
	"context"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/verbs"
)

// Limits of the program: receives, timeout, retries and RNR retries, hexadecimal.
const (
	rxeNoReceive = "0 10 7 7"
	rxeImpatient = "1 a 1 1" // of some milliseconds
)

// rxeRefusals makes each end refuse the other's requests, or be silent. Each case has its own
// connection.
func rxeRefusals(t *testing.T) {
	const n = 3000 // bytes: several packets
	quick := verbs.ConnectAttr{Timeout: 10, RetryCnt: verbs.Retries(1), RNRRetry: verbs.Retries(2)}
	at := func(x *rxeEnd, op verbs.Opcode, size int, offset uint64, key uint32) verbs.SendWR {
		return verbs.SendWR{Opcode: op, SGList: []verbs.SGE{x.near.SGE(0, size)}, RemoteAddr: x.addr + offset, RKey: key, CompareAdd: 1}
	}
	type refusal struct {
		name   string
		limits rxeLimits
		do     func(x *rxeEnd)
	}
	list := []refusal{
		{"rxe has no receive, then one", rxeLimits{theirs: rxeNoReceive}, func(x *rxeEnd) {
			rxePattern(x.near.Bytes()[:n], 7)
			before := rxeCounter(x.t, "send_rnr_err")
			x.post(at(x, verbs.OpSend, n, 0, 0))
			rxeCounts(x.t, "send_rnr_err", before+3)
			x.order("ready")
			wc := x.take()
			require.NoError(x.t, wc.Err())
			x.order("recv %x %x 0", n, 7)
		}},
		{"we have no receive, then one", rxeLimits{}, func(x *rxeEnd) {
			before := rxeCounter(x.t, "rcvd_rnr_err")
			x.tell("send %x %x 0", n, 7)
			rxeCounts(x.t, "rcvd_rnr_err", before+3)
			x.recv()
			x.received(verbs.WCRecv, n, 0)
			x.ok()
			x.seed = 7
			x.check(x.near.Bytes()[:n])
		}},
		{"rxe has no receive for too long", rxeLimits{theirs: rxeNoReceive, attr: quick}, func(x *rxeEnd) {
			before := rxeCounter(x.t, "send_rnr_err")
			x.fails(at(x, verbs.OpSend, n, 0, 0), verbs.WCRNRRetryExcErr)
			rxeCounts(x.t, "send_rnr_err", before+3)
		}},
		{"we have no receive for too long", rxeLimits{theirs: rxeImpatient}, func(x *rxeEnd) {
			x.order("expect %x", int(verbs.WCRNRRetryExcErr))
			x.order("send %x 1 0", n)
			x.inState(verbs.QPRTS)
		}},
		{"rxe's QP is in error", rxeLimits{theirs: rxeImpatient, attr: quick}, func(x *rxeEnd) {
			x.order("error")
			x.order("flushed")
			x.fails(at(x, verbs.OpSend, n, 0, 0), verbs.WCRetryExcErr)
		}},
		{"our QP is in error", rxeLimits{theirs: rxeImpatient}, func(x *rxeEnd) {
			x.recv()
			require.NoError(x.t, x.qp.Modify(&verbs.QPAttr{QPState: verbs.QPErr}, verbs.MaskState))
			require.Equal(x.t, verbs.WCWRFlushErr, x.take().Status)
			x.order("expect %x", int(verbs.WCRetryExcErr))
			x.order("send %x 1 0", n)
		}},
		{"rxe has no such QP", rxeLimits{astray: 1 << 20, attr: quick}, func(x *rxeEnd) {
			x.fails(at(x, verbs.OpRDMAWrite, n, 0, x.rkey), verbs.WCRetryExcErr)
		}},
		{"we have no such QP", rxeLimits{stray: 1 << 20, theirs: rxeImpatient}, func(x *rxeEnd) {
			x.order("expect %x", int(verbs.WCRetryExcErr))
			x.order("write 0 %x 1 0", n)
			x.inState(verbs.QPRTS)
		}},
	}
	for _, bad := range []struct {
		what   string
		offset uint64
		key    uint32 // bits that are wrong
	}{{"key", 0, 0x10}, {"unknown key", 0, 0x5500_0000}, {"range", rxeSize - 1, 0}} {
		for _, op := range []struct {
			opcode verbs.Opcode
			size   int
			order  string
		}{{verbs.OpRDMAWrite, n, "write %x bb8 1 0"}, {verbs.OpRDMARead, n, "read %x bb8 1"},
			{verbs.OpAtomicFetchAndAdd, 8, "add %x 1 0"}, {verbs.OpAtomicCmpAndSwp, 8, "swap %x 0 1 0"}} {
			offset := bad.offset
			if op.size == 8 {
				offset = (offset + 7) &^ 7 // atomics are aligned
			}
			list = append(list, refusal{bad.what + " of rxe, " + op.opcode.String(), rxeLimits{}, func(x *rxeEnd) {
				x.fails(at(x, op.opcode, op.size, offset, x.rkey^bad.key), verbs.WCRemAccessErr)
			}}, refusal{"our " + bad.what + ", " + op.opcode.String(), rxeLimits{}, func(x *rxeEnd) {
				x.order("key %x", x.far.RKey()^bad.key)
				x.order("expect %x", int(verbs.WCRemAccessErr))
				x.order(op.order, offset)
				x.inState(verbs.QPErr)
				ctx, cancel := context.WithTimeout(x.t.Context(), time.Minute)
				defer cancel()
				e, err := x.ctx.AsyncEvent(ctx)
				require.NoError(x.t, err)
				require.Equal(x.t, verbs.EventQPAccessErr, e.Type)
				require.Equal(x.t, len(x.far.Bytes()), bytes.Count(x.far.Bytes(), []byte{0}))
			}})
		}
	}
	for _, c := range list {
		t.Run(c.name, func(t *testing.T) {
			x := rxeOpen(t)
			defer x.close()
			x.start(verbs.MTU1024, c.limits)
			c.do(x)
			x.end()
		})
	}
}

// fails posts a request, which must fail with the given status, and the QP with it.
func (x *rxeEnd) fails(wr verbs.SendWR, status verbs.WCStatus) {
	x.t.Helper()
	x.post(wr)
	require.Equal(x.t, status, x.take().Status)
	x.inState(verbs.QPErr)
	x.post(wr)
	require.Equal(x.t, verbs.WCWRFlushErr, x.take().Status)
}

func (x *rxeEnd) inState(want verbs.QPState) {
	x.t.Helper()
	a, err := x.qp.Query()
	require.NoError(x.t, err)
	require.Equal(x.t, want, a.QPState)
}

// rxeCounter reads a counter of the kernel's device.
func rxeCounter(t *testing.T, name string) int {
	t.Helper()
	b, err := os.ReadFile("/proc/1/root/sys/class/infiniband/rxe4791/ports/1/hw_counters/" + name) // /sys is of the namespace
	require.NoError(t, err)
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	require.NoError(t, err)
	return n
}

// rxeCounts waits until a counter has reached a value.
func rxeCounts(t *testing.T, name string, least int) {
	t.Helper()
	require.Eventually(t, func() bool { return rxeCounter(t, name) >= least }, time.Minute, 5*time.Millisecond)
}
