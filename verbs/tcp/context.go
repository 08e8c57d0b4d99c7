package tcp

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-hpc/sluice/internal/keepalive"
	"github.com/sluice-hpc/sluice/internal/reach"
	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/internal/nic"
	"github.com/sluice-hpc/sluice/verbs/internal/soft"
)

// Limits of the device.
const (
	maxMessage = 1 << 30
	maxSGE     = 32
	maxInline  = 1024
	maxWR      = 1 << 15
	maxAnswers = 128 // RDMA_READs and atomics of the peer in progress on one QP
	maxMR      = 1 << 14
	genBits    = 18 // of a key: the bits that the index leaves
	maxQP      = 1 << 16
)

var deviceAttr = verbs.DeviceAttr{
	FWVer:           strconv.Itoa(wireMajor) + "." + strconv.Itoa(wireMinor),
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
	MaxQPInitRdAtom: maxAnswers,
	AtomicCap:       verbs.AtomicHCA,
	PhysPortCnt:     1,
}

// adapter is an open device: listeners on the addresses of its interface, and
// the engine.
type adapter struct {
	device string
	nic    nic.NIC
	cfg    verbs.Config
	attr   verbs.DeviceAttr
	events *soft.Events
	mrs    *soft.MRTable
	qps    soft.QPTable[*qp]
	nextPD atomic.Uint32
	engine *engine

	gids      []verbs.GID // addresses listened on
	port      uint16      // TCP port of all of them
	listeners []net.Listener
	life      context.Context // of everything that connects; ends with Close
	end       context.CancelFunc
	wg        sync.WaitGroup // goroutines that connect
	streams   sync.WaitGroup // goroutines of the portable driver
	wiring    atomic.Int32   // QPs in RTR or beyond that are not yet connected
	deaf      atomic.Pointer[deafness]
	hall      hall
	log       logger
	noise     logger // for strangers, so that their records do not crowd out those of log
}

func openContext(device string, n nic.NIC, cfg verbs.Config) (*adapter, error) {
	a := &adapter{device: device, nic: n, cfg: cfg, attr: deviceAttr}
	a.hall.strangers.Max = maxStrangers
	a.events = soft.NewEvents(a.device)
	a.mrs = soft.NewMRTable(a.device, maxMR, genBits)
	a.log.out = cfg.Logger.With("device", a.device)
	a.noise.out = a.log.out
	a.life, a.end = context.WithCancel(context.Background())
	drv, err := newDriver(cfg.Portable)
	if err != nil {
		return nil, verbs.Errorf(a.device, "open", err, "")
	}
	if err := a.listen(); err != nil {
		drv.close()
		return nil, verbs.Errorf(a.device, "open", err, "")
	}
	a.engine = newEngine(a, drv)
	for i, l := range a.listeners {
		a.wg.Go(func() { a.accept(l, a.gids[i]) })
	}
	return a, nil
}

// listen binds the interface's addresses, all to one port. It fails if it cannot bind the
// first; others that it cannot bind are left out of the GID table.
func (a *adapter) listen() error {
	lc := net.ListenConfig{KeepAliveConfig: keepalive.Within(a.cfg.PeerTimeout)}
	for i, addr := range a.nic.Addrs {
		l, err := reach.Listen(a.life, lc, netip.AddrPortFrom(addr, a.port).String())
		if err != nil {
			if i == 0 {
				return err
			}
			a.log.out.Debug("tcp: cannot listen on address, leaving it out", "address", addr, "err", err)
			continue
		}
		a.port = l.Addr().(*net.TCPAddr).AddrPort().Port()
		a.listeners = append(a.listeners, l)
		a.gids = append(a.gids, verbs.GIDFromAddr(addr))
	}
	return nil
}

// QueryDevice returns the limits.
func (a *adapter) QueryDevice() (verbs.DeviceAttr, error) { return a.attr, nil }

// QueryPort returns the attributes of the only port.
func (a *adapter) QueryPort(int) (verbs.PortAttr, error) {
	return verbs.PortAttr{
		State: verbs.PortActive, MaxMTU: verbs.MTU4096, ActiveMTU: activeMTU(&a.nic), LinkLayer: verbs.LinkLayerEthernet,
		GIDTblLen: len(a.gids), PKeyTblLen: 1, LID: a.port, Netdev: a.nic.Name,
	}, nil
}

// QueryGID returns an address that the context listens on.
func (a *adapter) QueryGID(_, index int) (verbs.GID, error) { return a.gids[index], nil }

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

// Close ends the device, whose QPs are already closed. Their connections first finish
// sending what was handed to them.
func (a *adapter) Close() error {
	a.end()
	for _, l := range a.listeners {
		l.Close()
	}
	a.hall.close()
	a.wg.Wait()
	a.engine.close()
	a.streams.Wait()
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

// Close deregisters the region. Every copy to or from it runs under the lock of a QP, and
// looks the region up again for each piece: once each lock has been free, no copy is
// running.
func (m *mr) Close() error {
	m.a.mrs.Remove(m.MR)
	for _, q := range m.a.qps.All() {
		q.Lock.Lock()
		q.Unlock()
	}
	m.a.mrs.Release(m.MR)
	return nil
}

// logger limits the records that strangers can cause: at most logBurst a second, then the
// number of records dropped.
type logger struct {
	out *slog.Logger

	mu      sync.Mutex
	second  time.Time
	count   int
	dropped int
}

const logBurst = 10

func (l *logger) warn(msg string, args ...any) {
	l.mu.Lock()
	now := time.Now()
	if now.Sub(l.second) >= time.Second {
		l.second, l.count = now, 0
	}
	l.count++
	if l.count > logBurst {
		l.dropped++
		l.mu.Unlock()
		return
	}
	if l.dropped > 0 {
		args = append(args, "left_out_before", l.dropped)
		l.dropped = 0
	}
	l.mu.Unlock()
	l.out.Warn(msg, args...)
}
