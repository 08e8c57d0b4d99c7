package verbs

import (
	"io"
	"math"
)

// QPInitAttr describes a QP at creation (struct ibv_qp_init_attr; the type is RC).
type QPInitAttr struct {
	SendCQ, RecvCQ *CQ
	SRQ            *SRQ // takes the place of the QP's own receive queue; may be nil
	Cap            QPCap
	SQSigAll       bool // every send work request is signalled
}

// QPCap holds the capabilities of a QP (struct ibv_qp_cap).
type QPCap struct {
	MaxSendWR     int // outstanding send work requests
	MaxRecvWR     int // outstanding receive work requests
	MaxSendSGE    int // SGEs of one send
	MaxRecvSGE    int // SGEs of one receive
	MaxInlineData int // bytes of one inline send
}

// QP is a reliable-connected queue pair (struct ibv_qp).
type QP struct {
	object
	prov ProviderQP
	pd   *PD
	init QPInitAttr
}

// QPNum is the QP's number, 24 bits.
func (q *QP) QPNum() uint32 { return q.prov.QPNum() }

// Cap returns the capabilities that were granted, each at least what was asked
// for, as libibverbs returns them in ibv_create_qp's attributes. They are what
// posting is held to: so many work requests are taken, and no more. With an SRQ
// those of receiving are 0.
func (q *QP) Cap() QPCap { return q.init.Cap }

// State returns the state now. A QP goes to ERR by itself when an operation fails.
func (q *QP) State() QPState {
	if q.closed.Load() {
		return QPReset
	}
	return q.prov.State()
}

// Query returns all attributes (ibv_query_qp).
func (q *QP) Query() (QPAttr, error) {
	if q.closed.Load() {
		return QPAttr{}, q.closedErr("query QP")
	}
	return q.prov.Query()
}

// Modify changes the attributes in mask (ibv_modify_qp). A change of state needs
// and admits the attributes of the RC table there; anything else is [ErrState]
// (no such transition) or [ErrInvalid] (an attribute is missing, superfluous or
// out of range), and nothing has changed.
//
// It is local: it returns at once, and the peer need not have got as far.
// Operations started before the peer is in RTR wait for it, up to timeout ×
// retries. Going to RESET forgets all that was posted, without completions;
// going to ERR completes all that was posted with WCWRFlushErr.
//
// After either the peer has no access through this QP any more. One that a
// provider finds under way is waited for, at most [Config].PeerTimeout; after
// that the error wraps [ErrBusy], the state is the new one all the same, and the
// peer may write until [MR.Close], which then keeps the memory. A QP that a
// failed operation has moved to ERR has not waited: Modify to ERR, once more, or
// closing the region does.
func (q *QP) Modify(attr *QPAttr, mask QPAttrMask) error {
	if q.closed.Load() {
		return q.closedErr("modify QP")
	}
	return q.prov.Modify(attr, mask)
}

// PostSend posts send work requests in order (ibv_post_send) and returns how
// many were taken: fewer than len(wrs) without an error means that the queue is
// full. With an error, wrs[n] is the one that is at fault and those before it
// were posted. A QP in ERR takes them and flushes them; RESET, INIT and RTR are
// [ErrState]; in SQD they wait for RTS.
//
// What the local side can check (opcode, number of SGEs, their lengths, inline size)
// is an error here; a wrong lkey or range shows as WCLocProtErr, as on hardware, unless
// [MR.SGE] has found it.
func (q *QP) PostSend(wrs []SendWR) (int, error) {
	const op = "post send"
	if q.closed.Load() {
		return 0, q.closedErr(op)
	}
	for i := range wrs {
		if e := refused(wrs[i].SGList); e != nil {
			n, err := q.prov.PostSend(wrs[:i])
			return n, e.refusal(q.ctx, op, i, n, err)
		}
	}
	return q.prov.PostSend(wrs)
}

// PostRecv posts receive work requests in order (ibv_post_recv), answering as
// PostSend does. Allowed in every state but RESET. A QP with an SRQ has no
// receive queue of its own: [ErrInvalid].
func (q *QP) PostRecv(wrs []RecvWR) (int, error) {
	const op = "post receive"
	if q.closed.Load() {
		return 0, q.closedErr(op)
	}
	for i := range wrs {
		if e := refused(wrs[i].SGList); e != nil {
			n, err := q.prov.PostRecv(wrs[:i])
			return n, e.refusal(q.ctx, op, i, n, err)
		}
	}
	return q.prov.PostRecv(wrs)
}

// Map returns the peer's memory at addr, of the region that rkey names, for
// plain loads and stores (as shmem_ptr(3) and ucp_rkey_ptr do), where the
// provider has that ability ([DeviceAttr].LoadStore; else [ErrNotSupported]).
// The slice is valid until this QP or the peer's region is closed, whichever is
// first: the peers must agree on that between themselves. Nothing orders these
// accesses but atomic operations.
func (q *QP) Map(rkey uint32, addr uint64, length int) ([]byte, error) {
	if q.closed.Load() {
		return nil, q.closedErr("map remote memory")
	}
	m, ok := q.prov.(RemoteMapper)
	if !ok {
		return nil, q.ctx.errorf("map remote memory", ErrNotSupported, "provider %s", q.ctx.dev.Provider())
	}
	return m.Map(rkey, addr, length)
}

// Endpoint returns what the peer needs to connect to this QP. Before it is in
// INIT, or in RTR, the port and the GID are those that [QP.Connect] takes by
// default.
func (q *QP) Endpoint() (Endpoint, error) {
	a, err := q.Query()
	if err != nil {
		return Endpoint{}, err
	}
	port := max(int(a.PortNum), 1)
	p, err := q.ctx.QueryPort(port)
	if err != nil {
		return Endpoint{}, err
	}
	gid, err := q.ctx.QueryGID(port, int(a.AHAttr.SGIDIndex))
	if err != nil {
		return Endpoint{}, err
	}
	return Endpoint{
		Provider:    q.ctx.dev.Provider(),
		LinkLayer:   p.LinkLayer,
		ActiveMTU:   p.ActiveMTU,
		MaxRdAtomic: uint8(min(q.ctx.attr.MaxQPRdAtomic, 255)),
		LID:         p.LID,
		QPNum:       q.QPNum(),
		PSN:         a.SQPSN,
		GID:         gid,
	}, nil
}

// ConnectAttr holds what [QP.Connect] takes beyond the peer's endpoint. Its zero
// value is what most programs want.
type ConnectAttr struct {
	Port         int         // local port; zero: as [Config] has it
	SGIDIndex    int         // local GID, as an index; zero: as [Config] has it
	AccessFlags  AccessFlags // what the peer may do through this QP; zero: AccessAll
	MinRNRTimer  uint8       // code of the delay that a peer without receive is told; zero: 12 (0.64 ms)
	Timeout      uint8       // local ACK timeout, 4.096 µs × 2^Timeout; zero: 14 (67 ms)
	RetryCnt     RetryCount  // zero: 7
	RNRRetry     RetryCount  // zero: 7, which means for ever
	PathMTU      MTU         // most bytes of a packet, the same at the peer; zero: what both ports have active, which it cannot exceed
	PKeyIndex    uint16
	ServiceLevel uint8
	TrafficClass uint8
}

// RetryCount is a 3-bit retry counter of which the zero value means 7; Retries
// makes one of a given value.
type RetryCount struct{ inverted uint8 }

// Retries returns the counter n, 0 to 7; a larger n is 7.
func Retries(n int) RetryCount { return RetryCount{uint8(7 - min(max(n, 0), 7))} }

func (r RetryCount) value() uint8 { return 7 - r.inverted }

// Connect takes a QP in RESET or INIT to RTS with the peer's endpoint: the usual
// three calls of [QP.Modify]. Like these it is local and returns at once. An
// endpoint of another provider is [ErrEndpoint].
func (q *QP) Connect(remote Endpoint, opt ConnectAttr) error {
	if q.closed.Load() {
		return q.closedErr("connect QP")
	}
	if p := q.ctx.dev.Provider(); remote.Provider != p {
		return q.ctx.errorf("connect QP", ErrEndpoint, "endpoint %v is of provider %q, this QP of %q", remote, remote.Provider, p)
	}
	cur, err := q.Query()
	if err != nil {
		return err
	}
	if opt.Port == 0 {
		opt.Port = max(int(cur.PortNum), 1)
	}
	if opt.SGIDIndex == 0 {
		opt.SGIDIndex = int(cur.AHAttr.SGIDIndex)
	}
	if opt.AccessFlags == 0 {
		opt.AccessFlags = AccessAll
	}
	if opt.MinRNRTimer == 0 {
		opt.MinRNRTimer = 12
	}
	if opt.Timeout == 0 {
		opt.Timeout = 14
	}
	port, err := q.ctx.QueryPort(opt.Port)
	if err != nil {
		return err
	}
	mtu := min(port.ActiveMTU, remote.ActiveMTU)
	if opt.PathMTU != 0 {
		mtu = min(mtu, opt.PathMTU)
	}
	if cur.QPState == QPReset {
		a := QPAttr{QPState: QPInit, PKeyIndex: opt.PKeyIndex, PortNum: uint8(opt.Port), AccessFlags: opt.AccessFlags}
		if err := q.Modify(&a, MaskState|MaskPKeyIndex|MaskPort|MaskAccessFlags); err != nil {
			return err
		}
	}
	if opt.SGIDIndex > math.MaxUint8 {
		return q.ctx.errorf("connect QP", ErrInvalid, "GID index %d, at most %d", opt.SGIDIndex, math.MaxUint8)
	}
	own, err := q.ctx.QueryGID(opt.Port, opt.SGIDIndex)
	if err != nil {
		return err
	}
	dev := &q.ctx.attr
	rtr := QPAttr{
		QPState: QPRTR, PathMTU: mtu, DestQPNum: remote.QPNum, RQPSN: remote.PSN,
		MaxDestRdAtomic: uint8(min(dev.MaxQPRdAtomic, 255)), MinRNRTimer: opt.MinRNRTimer,
		AHAttr: AHAttr{
			DLID: remote.LID, SL: opt.ServiceLevel, PortNum: uint8(opt.Port),
			IsGlobal: port.GRHRequired || remote.LinkLayer != LinkLayerInfiniBand || remote.LID == 0 || own.subnet() != remote.GID.subnet(),
			DGID:     remote.GID, SGIDIndex: uint8(opt.SGIDIndex), HopLimit: 64, TrafficClass: opt.TrafficClass,
		},
	}
	if err := q.Modify(&rtr, MaskState|MaskAV|MaskPathMTU|MaskDestQPN|MaskRQPSN|MaskMaxDestRdAtomic|MaskMinRNRTimer); err != nil {
		return err
	}
	rts := QPAttr{
		QPState: QPRTS, SQPSN: cur.SQPSN, Timeout: opt.Timeout, RetryCnt: opt.RetryCnt.value(), RNRRetry: opt.RNRRetry.value(),
		MaxRdAtomic: uint8(min(dev.MaxQPInitRdAtom, int(remote.MaxRdAtomic), 255)),
	}
	return q.Modify(&rts, MaskState|MaskSQPSN|MaskTimeout|MaskRetryCnt|MaskRNRRetry|MaskMaxQPRdAtomic)
}

// Close destroys the QP (ibv_destroy_qp): what was posted ends without
// completions, and completions of it still in a CQ are removed. It does not wait
// for an access of the peer that is under way: [QP.Modify] to ERR, and [MR.Close],
// do.
func (q *QP) Close() error { return end("close QP", q) }

func (q *QP) rank() int           { return rankQP }
func (q *QP) provider() io.Closer { return q.prov }

func (q *QP) letGo() {
	q.pd.users--
	q.init.SendCQ.users--
	q.init.RecvCQ.users--
	if q.init.SRQ != nil {
		q.init.SRQ.users--
	}
}

func (q *QP) closedErr(op string) error { return q.ctx.errorf(op, ErrClosed, "QP") }
