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
	maxAnswers = 32 // RDMA READs and atomics of the peer that a QP answers at once
	maxMR      = 1 << 14
	genBits    = 18 // of a key: all that the index leaves
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

// Version of what this package adds to the protocol: the meaning of
// [packet.Selective], and of the LID.
const (
	versionMajor = 1
	versionMinor = 0
)

// adapter is an open device: a wire, and the protocol engine over it. The engine has
// no goroutine and no clock of its own: polling, posting and the loop of the driver move it.
// What has arrived is received under rx, which these only try to lock; timers are served
// without it, so that a holder that has no CPU delays neither.
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
	clock  func() int64 // nanoseconds from some beginning on; never 0
	pool   pool
	// ackEach has an acknowledgement asked for with each message, and sent as a packet of its
	// own; with the reply to the message, in one burst, where replies have come so far.
	ackEach bool

	rx       soft.Lock // of the fields below, and of receiving from the wire
	arrivals [batch]arrival
	header   packet.Header
	strange  flow  // to who asks for a QP that is not there
	owing    []*qp // owe an acknowledgement
	behind   []*qp // have answers left to send, in turn
	quiet    int   // polls in a row that found nothing

	attended atomic.Uint64 // polls
	late     atomic.Bool   // somebody is behind

	tx soft.Lock // of sending to the wire

	listMu sync.Mutex
	list   atomic.Pointer[[]*qp]

	deadlines deadlines
	hurry     func(t int64) // tells the driver that something is due at t
	kick      func()        // tells the driver that somebody is going to sleep
	end       func()        // ends the driver
	stats     struct{ malformed, strange atomic.Uint64 }
	notices   notices
}

// lookEvery is how long the driver leaves the socket, and what is to be sent, alone after a
// poll. The price of a shorter time is the spinner's, who is interrupted as often.
const lookEvery = int64(time.Millisecond)

// batch is how many packets are taken from the wire at once.
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

// receive takes what has come, and says whether anything has. The caller holds rx.
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

// tellGone answers a request for a QP that is not there: once for all that came at
// the same time, as they may be from anybody.
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

// told: src says that one of its QPs is gone.
func (a *adapter) told(s *soft.Sink, h *packet.Header, src netip.AddrPort) {
	who := peer{src, h.Imm}
	for _, q := range a.peers.of(who) {
		q.Lock.Lock()
		if q.peer == who && q.ours {
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

// catchUp sends more of what has been asked for, of the QP whose turn it is. The caller holds rx.
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

// settleDebts sends the acknowledgements that are owed. The caller holds rx.
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

// ackPolls is for how many polls in a row that find nothing an acknowledgement waits
// for the user's next request to go out with.
const ackPolls = 4

// poll is what polling a CQ does. It never waits for who does the same.
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

// Of the polls one in clockPolls looks at the timers, as reading the clock takes as long as a
// poll that finds nothing; and serves expirePolls queue pairs at most.
const (
	clockPolls  = 64
	expirePolls = 16
)

// serveTimers serves what is due; where there may be more to receive, which may be what a timer
// waits for, only what has been due for a while.
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

// look receives what has come, unless somebody does: for who posts and does not poll, and
// may have the acknowledgements that he waits for.
func (a *adapter) look() {
	if a.rx.TryLock() {
		a.receive(nil)
		a.rx.Unlock()
	}
}

// drive is what the driver does where nobody polls. It returns false if another goroutine, which
// receives, did not let go of the lock.
func (a *adapter) drive() bool {
	for tries := 0; !a.rx.TryLock(); tries++ {
		if tries == driveTries {
			return false
		}
		wait.Pause(10)
	}
	// Others want the lock, too.
	for i := 0; a.receive(nil) && (i < 64 && len(a.behind) == 0 || a.wire.rest()); i++ {
	}
	a.settleDebts(nil)
	a.catchUp(nil)
	a.rx.Unlock()
	return true
}

// driveTries is how often the driver tries to have the receive lock: for longer than a burst
// takes, and not for as long as a holder that has no CPU may keep it.
const driveTries = 100

// unreachable: a host says that nothing receives at an address. It is believed if what it returns
// is a request that is on its way there, which hosts elsewhere can hardly know; and then of all queue
// pairs that are connected with the address.
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

// at has q.expire called at t, or earlier.
func (a *adapter) at(q *qp, t int64) {
	if a.deadlines.set(q, t) {
		a.hurry(t)
	}
}

// expire serves the timers of queue pairs that are due, of so many at most.
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

// QueryPort describes the only port. Its LID is the UDP port that the adapter
// receives on, and says that the peer is of this library: adapters have none on
// Ethernet, where it is 0.
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

// CreateCompChannel makes a completion channel.
func (a *adapter) CreateCompChannel() (verbs.ProviderCompChannel, error) {
	return soft.NewCompChannel(a.device), nil
}

// AllocPD makes a protection domain.
func (a *adapter) AllocPD() (verbs.ProviderPD, error) {
	return &pd{PD: soft.PD{ID: a.nextPD.Add(1)}, a: a}, nil
}

// Close ends the device; its QPs and CQs are closed by now. Who still is in Poll, or has just
// posted, finds rx taken for ever.
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

// Close ends the domain; nothing is in it any more.
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

// Close deregisters the region. Whoever copies to or from it holds the lock of a QP
// and looks the region up anew for every packet: when each lock has been free once,
// nobody does any more.
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

// CreateCQ makes a completion queue.
func (a *adapter) CreateCQ(cqe int, ch verbs.ProviderCompChannel) (verbs.ProviderCQ, error) {
	q := &cq{a: a}
	q.Device, q.Self, q.Events, q.Kick = a.device, q, a.events, a.kick
	if ch != nil {
		q.Channel = ch.(*soft.CompChannel)
	}
	q.Init(cqe)
	return q, nil
}

// Poll takes completions. If there are none it moves all QPs of the device.
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

// Close ends the queue; no QP uses it any more.
func (q *cq) Close() error {
	q.CQ.Close()
	q.Events.Forget(q)
	return nil
}
