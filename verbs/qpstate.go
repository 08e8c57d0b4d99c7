package verbs

import "time"

// QPState is the state of a QP (enum ibv_qp_state, same numbers).
type QPState uint32

// States of a QP.
const (
	QPReset QPState = 0 // just created
	QPInit  QPState = 1 // receives may be posted
	QPRTR   QPState = 2 // ready to receive
	QPRTS   QPState = 3 // ready to send
	QPSQD   QPState = 4 // send queue drained: new sends wait
	QPSQE   QPState = 5 // send queue error; never on RC
	QPErr   QPState = 6 // everything posted is flushed
)

// String returns the libibverbs name without its prefix.
func (s QPState) String() string {
	return enumName([]string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}, int(s), "QPState")
}

// QPAttrMask says which fields of a [QPAttr] are valid (enum ibv_qp_attr_mask, same numbers).
type QPAttrMask uint32

// Attribute masks.
const (
	MaskState            QPAttrMask = 1 << 0
	MaskCurState         QPAttrMask = 1 << 1
	MaskEnSQDAsyncNotify QPAttrMask = 1 << 2
	MaskAccessFlags      QPAttrMask = 1 << 3
	MaskPKeyIndex        QPAttrMask = 1 << 4
	MaskPort             QPAttrMask = 1 << 5
	MaskAV               QPAttrMask = 1 << 7
	MaskPathMTU          QPAttrMask = 1 << 8
	MaskTimeout          QPAttrMask = 1 << 9
	MaskRetryCnt         QPAttrMask = 1 << 10
	MaskRNRRetry         QPAttrMask = 1 << 11
	MaskRQPSN            QPAttrMask = 1 << 12
	MaskMaxQPRdAtomic    QPAttrMask = 1 << 13
	MaskMinRNRTimer      QPAttrMask = 1 << 15
	MaskSQPSN            QPAttrMask = 1 << 16
	MaskMaxDestRdAtomic  QPAttrMask = 1 << 17
	MaskDestQPN          QPAttrMask = 1 << 20
)

// AHAttr is the address vector of an RC QP (struct ibv_ah_attr with its global route).
type AHAttr struct {
	DGID         GID
	FlowLabel    uint32
	SGIDIndex    uint8
	HopLimit     uint8
	TrafficClass uint8
	DLID         uint16 // tcp: the peer's listening port
	SL           uint8  // service level
	SrcPathBits  uint8
	StaticRate   uint8
	IsGlobal     bool
	PortNum      uint8
}

// QPAttr holds the attributes of a QP (struct ibv_qp_attr).
type QPAttr struct {
	QPState          QPState
	CurState         QPState
	EnSQDAsyncNotify bool // with SQD: send EventSQDrained when drained
	SQDraining       bool // set by Query: in SQD, not yet drained
	AccessFlags      AccessFlags
	PKeyIndex        uint16
	PortNum          uint8
	AHAttr           AHAttr
	PathMTU          MTU
	Timeout          uint8 // 5 bits: 4.096 µs × 2^Timeout; 0: no timeout
	RetryCnt         uint8 // 3 bits
	RNRRetry         uint8 // 3 bits; 7: without limit
	RQPSN            uint32
	MaxRdAtomic      uint8 // outstanding RDMA_READs and atomics as requester
	MinRNRTimer      uint8 // 5 bits: code of a delay, see RNRTimer
	SQPSN            uint32
	MaxDestRdAtomic  uint8 // outstanding RDMA_READs and atomics as responder
	DestQPNum        uint32
	Cap              QPCap // set by Query
}

// AckTimeout returns the local ACK timeout of a 5-bit code; 0 means no timeout
// (InfiniBand architecture, 9.7.6.1.3; ibv_modify_qp(3)).
func AckTimeout(code uint8) time.Duration {
	if code == 0 {
		return 0
	}
	return 4096 * time.Nanosecond << (code & 31)
}

// rnrTimers in units of 10 µs (InfiniBand architecture, table 45; ibv_modify_qp(3)).
var rnrTimers = [32]uint32{65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
	1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152}

// RNRTimer returns the delay of a 5-bit RNR NAK timer code.
func RNRTimer(code uint8) time.Duration {
	return time.Duration(rnrTimers[code&31]) * 10 * time.Microsecond
}

type transition struct {
	from, to QPState
	need     QPAttrMask
	may      QPAttrMask
}

// transitions is the RC table of ibv_modify_qp(3), without alternate paths.
var transitions = []transition{
	{QPReset, QPInit, MaskPKeyIndex | MaskPort | MaskAccessFlags, 0},
	{QPInit, QPInit, 0, MaskPKeyIndex | MaskPort | MaskAccessFlags},
	{QPInit, QPRTR, MaskAV | MaskPathMTU | MaskDestQPN | MaskRQPSN | MaskMaxDestRdAtomic | MaskMinRNRTimer, MaskAccessFlags | MaskPKeyIndex},
	{QPRTR, QPRTS, MaskSQPSN | MaskTimeout | MaskRetryCnt | MaskRNRRetry | MaskMaxQPRdAtomic, MaskCurState | MaskAccessFlags | MaskMinRNRTimer},
	{QPRTS, QPRTS, 0, MaskCurState | MaskAccessFlags | MaskMinRNRTimer},
	{QPRTS, QPSQD, 0, MaskEnSQDAsyncNotify},
	{QPSQD, QPRTS, 0, MaskCurState | MaskAccessFlags | MaskMinRNRTimer},
	{QPSQD, QPSQD, 0, MaskPort | MaskAV | MaskTimeout | MaskRetryCnt | MaskRNRRetry | MaskMaxQPRdAtomic |
		MaskMaxDestRdAtomic | MaskPKeyIndex | MaskAccessFlags | MaskMinRNRTimer},
}

// CheckModify checks a modification of a QP in state cur against the RC table of
// ibv_modify_qp(3) and the device's limits, and returns the error that [QP.Modify]
// returns. It is for providers that keep the state themselves.
func CheckModify(device string, dev *DeviceAttr, cur QPState, attr *QPAttr, mask QPAttrMask) error {
	const op = "modify QP"
	to := cur
	if mask&MaskState != 0 {
		to = attr.QPState
	}
	if mask&MaskCurState != 0 && attr.CurState != cur {
		return Errorf(device, op, ErrState, "current state is %v, not %v", cur, attr.CurState)
	}
	rest := mask &^ MaskState
	if to == QPReset || to == QPErr {
		if mask&MaskState != 0 {
			if rest != 0 {
				return Errorf(device, op, ErrInvalid, "%v→%v takes no attributes, mask %#x", cur, to, uint32(rest))
			}
			return nil
		}
		return Errorf(device, op, ErrState, "no attributes can be changed in %v", cur)
	}
	for _, t := range transitions {
		if t.from != cur || t.to != to {
			continue
		}
		if missing := t.need &^ rest; missing != 0 {
			return Errorf(device, op, ErrInvalid, "%v→%v lacks attributes %#x", cur, to, uint32(missing))
		}
		if extra := rest &^ (t.need | t.may); extra != 0 {
			return Errorf(device, op, ErrInvalid, "%v→%v does not take attributes %#x", cur, to, uint32(extra))
		}
		return checkAttr(device, dev, attr, rest)
	}
	return Errorf(device, op, ErrState, "no transition %v→%v", cur, to)
}

func checkAttr(device string, dev *DeviceAttr, a *QPAttr, mask QPAttrMask) error {
	for _, c := range []struct {
		bit  QPAttrMask
		what string
		val  uint64
		hi   uint64
		lo   uint64
	}{
		{MaskAccessFlags, "access flags", uint64(a.AccessFlags), uint64(accessMask), 0},
		{MaskPort, "port", uint64(a.PortNum), uint64(dev.PhysPortCnt), 1},
		{MaskAV, "port of the address vector", uint64(a.AHAttr.PortNum), uint64(dev.PhysPortCnt), 1},
		{MaskPathMTU, "path MTU code", uint64(a.PathMTU), uint64(MTU4096), uint64(MTU256)},
		{MaskTimeout, "timeout code", uint64(a.Timeout), 31, 0},
		{MaskRetryCnt, "retry count", uint64(a.RetryCnt), 7, 0},
		{MaskRNRRetry, "RNR retry count", uint64(a.RNRRetry), 7, 0},
		{MaskMinRNRTimer, "RNR timer code", uint64(a.MinRNRTimer), 31, 0},
		{MaskRQPSN, "receive PSN", uint64(a.RQPSN), 1<<24 - 1, 0},
		{MaskSQPSN, "send PSN", uint64(a.SQPSN), 1<<24 - 1, 0},
		{MaskDestQPN, "destination QP number", uint64(a.DestQPNum), 1<<24 - 1, 0},
		{MaskMaxQPRdAtomic, "outstanding reads and atomics", uint64(a.MaxRdAtomic), uint64(dev.MaxQPInitRdAtom), 0},
		{MaskMaxDestRdAtomic, "reads and atomics to answer", uint64(a.MaxDestRdAtomic), uint64(dev.MaxQPRdAtomic), 0},
	} {
		if mask&c.bit != 0 && (c.val < c.lo || c.val > c.hi) {
			return Errorf(device, "modify QP", ErrInvalid, "%s is %d, must be %d to %d", c.what, c.val, c.lo, c.hi)
		}
	}
	return nil
}
