package verbs

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// rcTable is the RC part of qp_state_table in the Linux kernel
// (drivers/infiniband/core/verbs.c), written as there, without alternate paths
// and path migration. It is written out a second time on purpose.
var rcTable = map[[2]QPState]struct{ required, optional QPAttrMask }{
	{QPReset, QPInit}: {required: MaskPKeyIndex | MaskPort | MaskAccessFlags},
	{QPInit, QPInit}:  {optional: MaskPKeyIndex | MaskPort | MaskAccessFlags},
	{QPInit, QPRTR}: {
		required: MaskAV | MaskPathMTU | MaskDestQPN | MaskRQPSN | MaskMaxDestRdAtomic | MaskMinRNRTimer,
		optional: MaskAccessFlags | MaskPKeyIndex,
	},
	{QPRTR, QPRTS}: {
		required: MaskTimeout | MaskRetryCnt | MaskRNRRetry | MaskSQPSN | MaskMaxQPRdAtomic,
		optional: MaskCurState | MaskAccessFlags | MaskMinRNRTimer,
	},
	{QPRTS, QPRTS}: {optional: MaskCurState | MaskAccessFlags | MaskMinRNRTimer},
	{QPRTS, QPSQD}: {optional: MaskEnSQDAsyncNotify},
	{QPSQD, QPRTS}: {optional: MaskCurState | MaskAccessFlags | MaskMinRNRTimer},
	{QPSQD, QPSQD}: {
		optional: MaskPort | MaskAV | MaskTimeout | MaskRetryCnt | MaskRNRRetry | MaskMaxQPRdAtomic | MaskMaxDestRdAtomic |
			MaskPKeyIndex | MaskAccessFlags | MaskMinRNRTimer,
	},
}

var allStates = []QPState{QPReset, QPInit, QPRTR, QPRTS, QPSQD, QPSQE, QPErr}

var allMasks = []QPAttrMask{MaskCurState, MaskEnSQDAsyncNotify, MaskAccessFlags, MaskPKeyIndex, MaskPort, MaskAV, MaskPathMTU,
	MaskTimeout, MaskRetryCnt, MaskRNRRetry, MaskRQPSN, MaskMaxQPRdAtomic, MaskMinRNRTimer, MaskSQPSN, MaskMaxDestRdAtomic, MaskDestQPN}

var checkDev = DeviceAttr{PhysPortCnt: 2, MaxQPInitRdAtom: 16, MaxQPRdAtomic: 8}

// validAttr passes every check of a value.
func validAttr(from, to QPState) QPAttr {
	return QPAttr{QPState: to, CurState: from, AccessFlags: AccessAll, PortNum: 2, AHAttr: AHAttr{PortNum: 1}, PathMTU: MTU4096,
		Timeout: 31, RetryCnt: 7, RNRRetry: 7, RQPSN: 1<<24 - 1, SQPSN: 1<<24 - 1, MaxRdAtomic: 16, MaxDestRdAtomic: 8,
		MinRNRTimer: 31, DestQPNum: 1<<24 - 1}
}

func TestCheckModifyTable(t *testing.T) {
	for _, from := range allStates {
		for _, to := range allStates {
			t.Run(fmt.Sprintf("%v→%v", from, to), func(t *testing.T) {
				attr := validAttr(from, to)
				check := func(mask QPAttrMask) error {
					before := attr
					err := CheckModify("dev0", &checkDev, from, &attr, mask|MaskState)
					require.Equal(t, before, attr)
					return err
				}
				row, ok := rcTable[[2]QPState{from, to}]
				if to == QPReset || to == QPErr {
					ok = true // from any state, without attributes
				}
				if !ok {
					for _, m := range allMasks {
						require.ErrorIs(t, check(m), ErrState, "mask %#x", uint32(m))
					}
					require.ErrorIs(t, check(0), ErrState)
					return
				}
				require.NoError(t, check(row.required))
				require.NoError(t, check(row.required|row.optional))
				for _, m := range allMasks {
					switch {
					case row.required&m != 0:
						require.ErrorIs(t, check(row.required&^m), ErrInvalid, "without %#x", uint32(m))
					case row.optional&m != 0:
						require.NoError(t, check(row.required|m), "with %#x", uint32(m))
					default:
						require.ErrorIs(t, check(row.required|m), ErrInvalid, "with %#x", uint32(m))
					}
				}
			})
		}
	}
}

// Without MaskState the state stays, which is a row of the table as any other.
func TestCheckModifyKeepsState(t *testing.T) {
	for _, from := range allStates {
		row, ok := rcTable[[2]QPState{from, from}]
		attr := validAttr(from, QPReset) // the field does not count
		for _, m := range allMasks {
			err := CheckModify("dev0", &checkDev, from, &attr, m)
			switch {
			case !ok:
				require.ErrorIs(t, err, ErrState, "%v, mask %#x", from, uint32(m))
			case row.optional&m != 0:
				require.NoError(t, err, "%v, mask %#x", from, uint32(m))
			default:
				require.ErrorIs(t, err, ErrInvalid, "%v, mask %#x", from, uint32(m))
			}
		}
	}
}

func TestCheckModifyCurState(t *testing.T) {
	attr := validAttr(QPRTS, QPRTS)
	attr.CurState = QPSQD
	require.ErrorIs(t, CheckModify("dev0", &checkDev, QPRTS, &attr, MaskState|MaskCurState), ErrState)
}

func TestCheckModifyValues(t *testing.T) {
	for _, c := range []struct {
		from, to QPState
		what     string
		set      func(*QPAttr)
	}{
		{QPReset, QPInit, "unknown access flag", func(a *QPAttr) { a.AccessFlags = 1 << 31 }},
		{QPReset, QPInit, "port 0", func(a *QPAttr) { a.PortNum = 0 }},
		{QPReset, QPInit, "port 3 of 2", func(a *QPAttr) { a.PortNum = 3 }},
		{QPInit, QPRTR, "address vector with port 0", func(a *QPAttr) { a.AHAttr.PortNum = 0 }},
		{QPInit, QPRTR, "address vector with port 3 of 2", func(a *QPAttr) { a.AHAttr.PortNum = 3 }},
		{QPInit, QPRTR, "MTU code 0", func(a *QPAttr) { a.PathMTU = 0 }},
		{QPInit, QPRTR, "MTU code 6", func(a *QPAttr) { a.PathMTU = 6 }},
		{QPInit, QPRTR, "QP number of 25 bits", func(a *QPAttr) { a.DestQPNum = 1 << 24 }},
		{QPInit, QPRTR, "receive PSN of 25 bits", func(a *QPAttr) { a.RQPSN = 1 << 24 }},
		{QPInit, QPRTR, "RNR timer of 6 bits", func(a *QPAttr) { a.MinRNRTimer = 32 }},
		{QPInit, QPRTR, "more reads to answer than the device has", func(a *QPAttr) { a.MaxDestRdAtomic = 9 }},
		{QPRTR, QPRTS, "send PSN of 25 bits", func(a *QPAttr) { a.SQPSN = 1 << 24 }},
		{QPRTR, QPRTS, "timeout of 6 bits", func(a *QPAttr) { a.Timeout = 32 }},
		{QPRTR, QPRTS, "retries of 4 bits", func(a *QPAttr) { a.RetryCnt = 8 }},
		{QPRTR, QPRTS, "RNR retries of 4 bits", func(a *QPAttr) { a.RNRRetry = 8 }},
		{QPRTR, QPRTS, "more reads than the device has", func(a *QPAttr) { a.MaxRdAtomic = 17 }},
	} {
		t.Run(c.what, func(t *testing.T) {
			attr := validAttr(c.from, c.to)
			mask := MaskState | rcTable[[2]QPState{c.from, c.to}].required
			require.NoError(t, CheckModify("dev0", &checkDev, c.from, &attr, mask))
			c.set(&attr)
			err := CheckModify("dev0", &checkDev, c.from, &attr, mask)
			require.ErrorIs(t, err, ErrInvalid)
			require.ErrorContains(t, err, "dev0")
			// What the mask leaves out does not count.
			require.NoError(t, CheckModify("dev0", &checkDev, QPRTS, &attr, 0))
		})
	}
}
