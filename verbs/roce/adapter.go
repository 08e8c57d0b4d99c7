package roce

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-hpc/sluice/internal/wait"
	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/internal/soft"
	"github.com/sluice-hpc/sluice/verbs/roce/internal/packet"
)

// Limits of the device.
const (
	maxMessage = 1 << 30
	maxSGE     = 32
	maxInline  = 1024
	maxWR      = 1 << 15
	maxAnswers = 32 // RDMA READs and atomics of the peer in progress on one QP
	maxMR      = 1 << 14
	genBits    = 18 // of a key: the bits that the index leaves
	maxQP      = 1 << 14
)

var deviceAttr = verbs.DeviceAttr{
	FWVer:           strconv.Itoa(versionMajor) + "." + strconv.Itoa(versionMinor),
	MaxMRSize:       1 << 40,
	MaxMsgSize:      maxMessage,
	MaxQP:           maxQP,
	MaxQPWR:         maxWR,
	MaxSGE:          maxSGE,
	MaxSGERd:        maxSGE,
	MaxInlineData:   maxInline,
	MaxCQ:           1 << 16,
	MaxCQE:          1 << 22,
	MaxMR:           maxMR,
	MaxPD:           1 << 16,
	MaxSRQ:          1 << 16,
	MaxSRQWR:        maxWR,
	MaxQPRdAtomic:   maxAnswers,
	MaxQPInitRdAtom: maxAsked,
	AtomicCap:       verbs.AtomicHCA,
	PhysPortCnt:     1,
}

// Version of this package's extensions of the protocol: [packet.Selective], and the meaning
// of the LID.
const (
	versionMajor = 1
	versionMinor = 0
)

// adapter is an open device: a wire, and the protocol engine over it. The engine has neither a
// goroutine nor a clock of its own: polling, posting and the driver's loop run it. Packets are
// received under rx, which callers only try to lock; timers are served without it. A holder
// without a CPU therefore delays neither.
//
// Locks, from the outside in: rx, a QP's, tx, that of the deadlines; and those of package soft.
type adapter struct {
	device string
	netdev string
	cfg    verbs.Config
	attr   verbs.DeviceAttr
	events *soft.Events
	mrs    *soft.MRTable
	qps    soft.QPTable[*qp]
	peers  peers
	nextPD atomic.Uint32
	wire   wire
	clock  func() int64 // nanoseconds since an arbitrary start; never 0
	pool   pool
	// ackEach: each message requests an acknowledgement, which is a packet of its own, in the
	// same burst as the reply to the message if there have been replies so far.
	ackEach bool

	rx       soft.Lock // of the fields below, and of receiving from the wire
	arrivals [batch]arrival
	header   packet.Header
	strange  flow  // to senders of requests for QPs that do not exist
	owing    []*qp // QPs that owe an acknowledgement
	behind   []*qp // QPs with responses left to send, in turn
	quiet    int   // consecutive polls that found nothing

	attended atomic.Uint64 // polls
	late     atomic.Bool   // behind is not empty

	tx soft.Lock // of sending to the wire

	listMu sync.Mutex
	list   atomic.Pointer[[]*qp]

	deadlines deadlines
	hurry     func(t int64) // tells the driver that work is due at t
	kick      func()        // tells the driver that the user will wait for an event
	end       func()        // ends the driver
	stats     struct{ malformed, strange atomic.Uint64 }
	notices   notices
}

// lookEvery is how long the driver leaves the socket, and pending sends, alone after a poll. It
// interrupts a spinning goroutine that often, so a shorter time costs polling.
const lookEvery = int64(time.Millisecond)

// batch is the number of packets received from the wire at once.
const batch = 256

func newAdapter(device, netdev string, cfg verbs.Config, w wire, clock func() int64) *adapter {
	a := &adapter{device: device, netdev: netdev, cfg: cfg, attr: deviceAttr, wire: w, clock: clock}
	a.cfg.PeerTimeout = cmp.Or(cfg.PeerTimeout, verbs.DefaultPeerTimeout)
	a.notices.out = slog.New(slog.DiscardHandler)
	if cfg.Logger != nil {
		a.notices.out = cfg.Logger.With("device", device)
	}
	a.events = soft.NewEvents(device)
	a.mrs = soft.NewMRTable(device, maxMR, genBits)
	a.list.Store(new([]*qp))
	a.deadlines.next.Store(never)
	a.hurry, a.kick, a.end = func(int64) {}, func() {}, func() {}
	return a
}

// receive receives the packets that have arrived, and says whether there were any. The caller
// holds rx.
func (a *adapter) receive(s *soft.Sink) bool {
	n := a.wire.recv(a.arrivals[:])
	if n == 0 {
		if r, ok := a.wire.unreachable(); ok {
			a.unreachable(&r, s)
		}
		return false
	}
	now := a.clock()
	var q *qp
	stranger := -1
	for i := range a.arrivals[:n] {
		ar := &a.arrivals[i]
		h := &a.header
		payload, err := h.Parse(ar.pkt)
		if err != nil || h.PKey&^packet.PKeyFull != packet.DefaultPKey&^packet.PKeyFull {
			a.stats.malformed.Add(1)
			continue
		}
		if h.Opcode == packet.Gone {
			a.leave(q, s, now)
			q = nil
			a.told(s, h, ar.src)
			continue
		}
		if q == nil || q.Num != h.DestQP {
			a.leave(q, s, now)
			var ok bool
			if q, ok = a.qps.Get(h.DestQP); !ok {
				q = nil
				a.stats.strange.Add(1)
				if !h.Opcode.Response() && h.Opcode != packet.CNP {
					stranger = i
				}
				continue
			}
			q.Lock.Lock()
		}
		q.take(s, h, payload, ar, now)
	}
	a.leave(q, s, now)
	if stranger >= 0 {
		a.tellGone(&a.arrivals[stranger])
	}
	return true
}

// tellGone replies to a request for a QP that does not exist: once for all such requests that
// arrived together, as they may come from any sender.
func (a *adapter) tellGone(ar *arrival) {
	h := &a.header
	if _, err := h.Parse(ar.pkt); err != nil {
		return
	}
	*h = packet.Header{Opcode: packet.Gone, Migrated: true, PKey: packet.DefaultPKey, PSN: h.PSN, Imm: h.DestQP}
	a.tx.Lock()
	a.strange.set(a.wire.local(), ar.src)
	h.Append(a.wire.frame(&a.strange, h.Opcode.HeaderLen())[:0])
	a.wire.flush()
	a.tx.Unlock()
}

// told handles the message of src that one of its QPs is gone.
func (a *adapter) told(s *soft.Sink, h *packet.Header, src netip.AddrPort) {
	remote := peer{src, h.Imm}
	for _, q := range a.peers.of(remote) {
		q.Lock.Lock()
		if q.peer == remote && q.ours {
			q.peerGone(s, h.PSN)
		}
		q.Unlock()
	}
}

// leave ends receive's work on a QP, which is locked.
func (a *adapter) leave(q *qp, s *soft.Sink, now int64) {
	if q == nil {
		return
	}
	q.transmit(s, now, !q.lazy())
	p := &q.rsp
	if p.answers.n > 0 && !p.behind {
		p.behind = true
		a.behind = append(a.behind, q)
		if !a.late.Load() {
			a.late.Store(true)
			a.hurry(now + lookEvery)
		}
	}
	if p.ackDue && !p.owing {
		p.owing = true
		a.owing = append(a.owing, q)
	}
	q.Unlock()
}

// catchUp sends more responses of the QP whose turn it is. The caller holds rx.
func (a *adapter) catchUp(s *soft.Sink) {
	if len(a.behind) == 0 {
		return
	}
	q := a.behind[0]
	k := copy(a.behind, a.behind[1:])
	a.behind[k] = nil
	a.behind = a.behind[:k]
	q.Lock.Lock()
	q.rsp.behind = false
	a.leave(q, s, a.clock())
	a.late.Store(len(a.behind) > 0)
}

// settleDebts sends the acknowledgements still owed. The caller holds rx.
func (a *adapter) settleDebts(s *soft.Sink) {
	if len(a.owing) == 0 {
		return
	}
	now := a.clock()
	for i, q := range a.owing {
		q.Lock.Lock()
		q.rsp.owing = false
		if q.rsp.ackDue {
			q.rsp.replies = 0
			q.transmit(s, now, true)
		}
		q.Unlock()
		a.owing[i] = nil
	}
	a.owing = a.owing[:0]
}

// ackPolls is the number of consecutive empty polls for which an acknowledgement waits to be sent
// together with the user's next request.
const ackPolls = 4

// poll does the work of polling a CQ. It never waits for a concurrent poll.
func (a *adapter) poll(s *soft.Sink) {
	polls := a.attended.Add(1)
	busy := false
	if a.rx.TryLock() {
		if busy = a.receive(s); busy {
			for a.wire.rest() {
				a.receive(s)
			}
			a.quiet = 0
		} else if a.quiet++; a.quiet == ackPolls {
			a.settleDebts(s)
		}
		a.catchUp(s)
		a.rx.Unlock()
	}
	if polls%clockPolls == 0 {
		a.serveTimers(busy)
	}
}

// One in clockPolls polls checks the timers, as reading the clock takes as long as an empty poll.
// It serves at most expirePolls queue pairs.
const (
	clockPolls  = 64
	expirePolls = 16
)

// serveTimers serves the timers that are due. If there may be more to receive, which may be what a
// timer waits for, it serves only timers that have been due for a while.
func (a *adapter) serveTimers(busy bool) {
	next := a.deadlines.next.Load()
	if next == never {
		return
	}
	now := a.clock()
	if busy {
		next += lookEvery
	}
	if next <= now {
		a.expire(now, expirePolls)
	}
}

// look receives packets, unless another goroutine does: posting without polling needs the
// acknowledgements that it may be waiting for.
func (a *adapter) look() {
	if a.rx.TryLock() {
		a.receive(nil)
		a.rx.Unlock()
	}
}

// drive does the driver's work while nothing polls. It returns false if another goroutine, which
// receives, did not release the lock.
func (a *adapter) drive() bool {
	for tries := 0; !a.rx.TryLock(); tries++ {
		if tries == driveTries {
			return false
		}
		wait.Pause(10)
	}
	// Other goroutines need the lock, too.
	for i := 0; a.receive(nil) && (i < 64 && len(a.behind) == 0 || a.wire.rest()); i++ {
	}
	a.settleDebts(nil)
	a.catchUp(nil)
	a.rx.Unlock()
	return true
}

// driveTries is how often the driver tries to get the receive lock: for longer than a burst takes,
// but not as long as a holder without a CPU may keep it.
const driveTries = 100

// unreachable: a host reports that nothing receives at an address. The report is believed if it
// returns a request that is in flight to there, which hosts elsewhere can hardly know; it then
// applies to all queue pairs connected to the address.
func (a *adapter) unreachable(r *report, s *soft.Sink) {
	if r.packet.Opcode.Response() || r.packet.Opcode == packet.CNP {
		return
	}
	on := func(q *qp) bool {
		q.Lock.Lock()
		defer q.Unlock()
		return q.flow.remote == r.to && q.onItsWay(r.packet.PSN)
	}
	if !slices.ContainsFunc(a.peers.of(peer{r.to, r.packet.DestQP}), on) {
		return
	}
	for _, q := range *a.list.Load() {
		q.Lock.Lock()
		if q.flow.remote == r.to {
			q.unreachable(s)
		}
		q.Unlock()
	}
}

// at schedules q.expire for t, or earlier.
func (a *adapter) at(q *qp, t int64) {
	if a.deadlines.set(q, t) {
		a.hurry(t)
	}
}

// expire serves the timers that are due, of at most most queue pairs.
func (a *adapter) expire(now int64, most int) {
	for ; most > 0 && a.deadlines.next.Load() <= now; most-- {
		q := a.deadlines.pop(now)
		if q == nil {
			return
		}
		q.Lock.Lock()
		q.expire(now)
		q.Unlock()
	}
}

// QueryDevice returns the limits.
func (a *adapter) QueryDevice() (verbs.DeviceAttr, error) { return a.attr, nil }

// QueryPort returns the attributes of the only port. Its LID is the UDP port that the adapter
// receives on, and marks a peer of this library: adapters have LID 0 on Ethernet.
func (a *adapter) QueryPort(int) (verbs.PortAttr, error) {
	m := verbs.MTU256
	for m < verbs.MTU4096 && (m+1).Bytes() <= a.wire.maxMTU() {
		m++
	}
	return verbs.PortAttr{
		State: verbs.PortActive, MaxMTU: verbs.MTU4096, ActiveMTU: m, LinkLayer: verbs.LinkLayerEthernet,
		GIDTblLen: 1, PKeyTblLen: 1, LID: a.wire.local().Port(), Netdev: a.netdev, GRHRequired: true,
	}, nil
}

// QueryGID returns the address.
func (a *adapter) QueryGID(int, int) (verbs.GID, error) {
	return verbs.GIDFromAddr(a.wire.local().Addr()), nil
}

// AsyncEvent waits for an event.
func (a *adapter) AsyncEvent(ctx context.Context) (verbs.ProviderEvent, error) {
	return a.events.Get(ctx)
}

// CreateCompChannel creates a completion channel.
func (a *adapter) CreateCompChannel() (verbs.ProviderCompChannel, error) {
	return soft.NewCompChannel(a.device), nil
}

// AllocPD allocates a protection domain.
func (a *adapter) AllocPD() (verbs.ProviderPD, error) {
	return &pd{PD: soft.PD{ID: a.nextPD.Add(1)}, a: a}, nil
}

// Close ends the device, whose QPs and CQs are already closed. It keeps rx locked for ever, so that
// calls still in Poll, or that have just posted, do not use the wire.
func (a *adapter) Close() error {
	a.end()
	a.rx.Lock()
	a.wire.close()
	a.events.Close()
	return nil
}

// pd is a protection domain.
type pd struct {
	soft.PD
	a *adapter
}

// Close frees the domain, which is empty by now.
func (p *pd) Close() error { return nil }

// mr is a registered region.
type mr struct {
	*soft.MR
	a *adapter
}

// RegMR registers a region.
func (p *pd) RegMR(buf []byte, access verbs.AccessFlags) (verbs.ProviderMR, error) {
	m, err := p.a.mrs.Add(&p.PD, buf, access, nil)
	if err != nil {
		return nil, err
	}
	return &mr{m, p.a}, nil
}

// Close deregisters the region. Every copy to or from it runs under the lock of a QP, and looks the
// region up again for each packet: once each lock has been free, no copy is running.
func (m *mr) Close() error {
	m.a.mrs.Remove(m.MR)
	for _, q := range *m.a.list.Load() {
		q.Pass()
	}
	m.a.mrs.Release(m.MR)
	return nil
}

// cq is a completion queue.
type cq struct {
	soft.CQ
	a *adapter
}

// CreateCQ creates a completion queue.
func (a *adapter) CreateCQ(cqe int, ch verbs.ProviderCompChannel) (verbs.ProviderCQ, error) {
	q := &cq{a: a}
	q.Device, q.Self, q.Events, q.Kick = a.device, q, a.events, a.kick
	if ch != nil {
		q.Channel = ch.(*soft.CompChannel)
	}
	q.Init(cqe)
	return q, nil
}

// Poll takes completions. If there are none, it makes progress on all QPs of the device.
func (q *cq) Poll(wcs []verbs.WC) (int, error) {
	s := soft.Sink{CQ: &q.CQ, WCs: wcs}
	if err := q.Begin(&s); err != nil {
		return 0, err
	}
	if s.N == 0 && len(wcs) > 0 {
		q.a.poll(&s)
		q.End(&s)
	}
	return s.N, nil
}

// Close ends the queue, which no QP uses any more.
func (q *cq) Close() error {
	q.CQ.Close()
	q.Events.Forget(q)
	return nil
}
