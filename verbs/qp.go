package verbs

import (
	"io"
	"math"
)

// QPInitAttr describes a QP at creation (struct ibv_qp_init_attr; the type is RC).
type QPInitAttr struct {
	SendCQ, RecvCQ *CQ
	SRQ            *SRQ // replaces the QP's own receive queue; nil: none
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

// QPNum returns the QP's number, 24 bits.
func (q *QP) QPNum() uint32 { return q.prov.QPNum() }

// Cap returns the capabilities granted, each at least what was requested, as
// libibverbs returns them in the attributes of ibv_create_qp. They are the limits
// that posting enforces. With an SRQ, the receive capabilities are 0.
func (q *QP) Cap() QPCap { return q.init.Cap }

// State returns the current state, RESET after Close. A QP goes to ERR by itself when
// an operation fails.
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

// Modify changes the attributes in mask (ibv_modify_qp). The RC table of
// ibv_modify_qp(3) says which attributes a change of state requires and allows. A
// transition that it lacks is [ErrState]; an attribute that is missing, superfluous or
// out of range is [ErrInvalid]. Then nothing has changed.
//
// Modify is local: except for the wait described below it returns at once, whatever the
// peer's state. Operations started before the peer is in RTR wait for it, up to timeout ×
// retries. RESET discards all posted work without completions; ERR completes all of it
// with WCWRFlushErr.
//
// After RESET or ERR the peer can no longer access memory through this QP. Modify waits
// for an access in flight, at most [Config].PeerTimeout; after that the error wraps
// [ErrBusy], the QP is nevertheless in the new state, and the peer may write until
// [MR.Close], which then does not free the memory. When a failed operation moves a QP
// to ERR, it does not wait: call Modify to ERR again, or close the region.
func (q *QP) Modify(attr *QPAttr, mask QPAttrMask) error {
	if q.closed.Load() {
		return q.closedErr("modify QP")
	}
	return q.prov.Modify(attr, mask)
}

// PostSend posts send work requests in order (ibv_post_send) and returns how many, n,
// it accepted. n < len(wrs) without an error means that the queue is full. With an
// error, wrs[n] is at fault and the requests before it were posted. In ERR, requests
// are accepted and flushed; in SQD they wait for RTS; in RESET, INIT and RTR PostSend
// returns [ErrState].
//
// PostSend checks the opcode, the number of SGEs, their lengths and the inline size. As
// on hardware, a wrong lkey or range completes with WCLocProtErr, unless [MR.SGE] has
// found it.
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

// PostRecv posts receive work requests in order (ibv_post_recv) and returns what
// PostSend returns. In RESET it returns [ErrState]. A QP with an SRQ has no receive
// queue of its own: [ErrInvalid].
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

// Map returns length bytes of the peer's memory at addr, in the region of rkey, for
// plain loads and stores (like shmem_ptr(3) and ucp_rkey_ptr). If the provider cannot
// map it ([DeviceAttr].LoadStore is false), the error wraps [ErrNotSupported]. An
// error that wraps [ErrState], while the QP is in RTS, says that the memory has not arrived here yet:
// try again. The slice is valid until this QP or the peer's region is closed, whichever is first; the
// program must coordinate that with the peer. If the peer closes its whole context, or its process
// ends, the slice keeps the bytes that it has. Only atomic operations order accesses through the slice.
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

// Cause returns why the QP has gone to ERR by itself, if the provider knows more than the statuses
// of completions say; else nil. It wraps [ErrPeerDied] if the peer's process no longer runs, or has
// closed its context: it can no longer access memory of this process. A reset clears it.
func (q *QP) Cause() error {
	if e, ok := q.prov.(Explainer); ok {
		return e.Cause()
	}
	return nil
}

// Endpoint returns what the peer needs to connect to this QP. Until INIT has set the
// port, and RTR the GID, they are those that [QP.Connect] uses by default.
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

// ConnectAttr holds the options of [QP.Connect]. Its zero value suits most programs.
type ConnectAttr struct {
	Port         int         // local port; zero: that of [Config]
	SGIDIndex    int         // index of the local GID; zero: that of [Config]
	AccessFlags  AccessFlags // what the peer may do through this QP; zero: AccessAll
	MinRNRTimer  uint8       // RNR timer code: how long the peer waits if no receive is posted here; zero: 12 (0.64 ms)
	Timeout      uint8       // local ACK timeout, 4.096 µs × 2^Timeout; zero: 14 (67 ms)
	RetryCnt     RetryCount  // zero: 7
	RNRRetry     RetryCount  // zero: 7, which means without limit
	PathMTU      MTU         // maximum payload of a packet, the same at the peer; zero, or more than that: the smaller active MTU of both ports
	PKeyIndex    uint16
	ServiceLevel uint8
	TrafficClass uint8
}

// RetryCount is a 3-bit retry counter whose zero value means 7. Retries returns the
// counter for a given value.
type RetryCount struct{ inverted uint8 }

// Retries returns the counter n; n below 0 counts as 0, above 7 as 7.
func Retries(n int) RetryCount { return RetryCount{uint8(7 - min(max(n, 0), 7))} }

func (r RetryCount) value() uint8 { return 7 - r.inverted }

// Connect moves a QP in RESET or INIT to RTS, connected to the peer's endpoint, by the
// usual three calls of [QP.Modify]. Like these it is local and returns at once. The error wraps
// [ErrEndpoint] if the endpoint is of another provider, and the QP's [QP.Cause] if the QP fails
// during the call.
func (q *QP) Connect(remote Endpoint, opt ConnectAttr) error {
	if q.closed.Load() {
		return q.closedErr("connect QP")
	}
	if p := q.ctx.dev.Provider(); remote.Provider != p {
		return q.ctx.errorf("connect QP", ErrEndpoint, "peer's endpoint %v is of provider %q, this QP is of %q", remote, remote.Provider, p)
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
		return q.ctx.errorf("connect QP", ErrInvalid, "GID index %d, limit is %d", opt.SGIDIndex, math.MaxUint8)
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
	err = q.Modify(&rts, MaskState|MaskSQPSN|MaskTimeout|MaskRetryCnt|MaskRNRRetry|MaskMaxQPRdAtomic)
	if why := q.Cause(); err != nil && why != nil {
		return q.ctx.errorf("connect QP", why, "")
	}
	return err
}

// Close destroys the QP (ibv_destroy_qp). It discards posted work without completions,
// and removes the QP's completions from its CQs. It does not wait for an access of the
// peer in flight; [QP.Modify] to ERR and [MR.Close] do.
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
