package shm

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"log/slog"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/limits"
	"github.com/sluice-hpc/sluice/internal/wait"
	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/internal/soft"
)

// Probe tries to create a sealed memfd, which the provider needs. That there is no descriptor left now
// says nothing: Open may have one, or says so.
func (provider) Probe() verbs.Probe {
	s, err := createSegment("probe", unix.Getpagesize(), false)
	if err == nil {
		err = s.close()
	}
	switch {
	case errors.Is(err, limits.ErrFiles):
		return verbs.Probe{Answer: verbs.Unknown, Reason: limits.Files(err).Error()}
	case err != nil:
		return verbs.Probe{Answer: verbs.No, Reason: err.Error()}
	}
	return verbs.Probe{Answer: verbs.Yes}
}

func (provider) Devices() ([]verbs.DeviceInfo, error) {
	return []verbs.DeviceInfo{{Name: deviceName}}, nil
}

// Limits of the device; doc.go lists them.
const (
	maxMR      = 8192
	genBits    = 8 // of a key: peers look regions up by the bits above
	maxMsg     = 1 << 30
	maxSGE     = 32
	maxInline  = 1024
	maxWR      = 1 << 15
	maxCQE     = 1 << 20
	maxQP      = 1 << 16
	maxAnswers = 16
)

var deviceAttr = verbs.DeviceAttr{
	FWVer:            "1.0",
	MaxMRSize:        1 << 40,
	MaxMsgSize:       maxMsg,
	MaxQP:            maxQP,
	MaxQPWR:          maxWR,
	MaxSGE:           maxSGE,
	MaxSGERd:         maxSGE,
	MaxInlineData:    maxInline,
	MaxCQ:            1 << 16,
	MaxCQE:           maxCQE,
	MaxMR:            maxMR,
	MaxPD:            1 << 16,
	MaxSRQ:           1 << 16,
	MaxSRQWR:         maxWR,
	MaxQPRdAtomic:    maxAnswers,
	MaxQPInitRdAtom:  maxAnswers,
	AtomicCap:        verbs.AtomicGlob,
	PhysPortCnt:      1,
	LoadStore:        true,
	PrefersOwnMemory: true,
}

// Context is an open shm0: a listener for peers, a control segment and arenas
// that they map, and the engine.
type Context struct {
	cfg       verbs.Config
	log       *slog.Logger
	forbidden sync.Once             // says that processes cannot read each other
	refused   atomic.Pointer[error] // the last of a connection, if none has succeeded since
	gid       verbs.GID
	attr      verbs.DeviceAttr
	events    *soft.Events
	mrs       *soft.MRTable
	arenas    arenas
	ctrlSeg   *segment
	ctrl      *control
	fenced    bool // no membarrier: publishing needs a full fence
	listener  *net.UnixListener
	wg        sync.WaitGroup
	closing   chan struct{}
	start     time.Time

	qps      soft.QPTable[*QP]
	allQPs   atomic.Pointer[[]*QP] // the QPs that the engine serves
	allCQs   atomic.Pointer[[]*CQ]
	wiring   atomic.Int32 // QPs in RTR or beyond whose peer is not: polling lets other goroutines run
	kicking  atomic.Int32 // running calls of kick
	awaiting atomic.Int32 // running calls of await that have found a peer inside, for tests
	kicked   chan struct{}
	unmapped atomic.Bool  // the control segment is about to be unmapped
	stalled  atomic.Int32 // QPs with a message that waits for a receive
	nextPD   atomic.Uint32
	nextInc  atomic.Uint32

	mu      sync.Mutex
	closed  bool
	units   boardUnits // units of ctrl.boards that CQs use
	links   map[verbs.GID]*link
	all     map[*link]struct{} // includes dead links that are still mapped
	zombies map[*inbox]*QP     // inboxes that a peer may still use, with their former QPs
}

func (p provider) Open(device string, cfg verbs.Config) (verbs.ProviderContext, error) {
	if device != deviceName {
		return nil, verbs.Errorf(device, "open", verbs.ErrNoDevice, "")
	}
	c := &Context{cfg: cfg, log: cfg.Logger.With("device", deviceName), attr: deviceAttr,
		events: soft.NewEvents(deviceName), mrs: soft.NewMRTable(deviceName, maxMR, genBits),
		closing: make(chan struct{}), kicked: make(chan struct{}, 1), start: time.Now(),
		links: map[verbs.GID]*link{}, all: map[*link]struct{}{}, zombies: map[*inbox]*QP{}}
	c.allQPs.Store(new([]*QP))
	c.allCQs.Store(new([]*CQ))
	c.fenced = wait.RegisterBarrier() != nil
	if _, err := rand.Read(c.gid[:]); err != nil {
		return nil, verbs.Errorf(device, "open", err, "random GID")
	}
	c.gid[0] = 0xfd // a locally assigned identifier (RFC 4193), which cannot be mistaken for a network address
	var err error
	if c.ctrlSeg, c.ctrl, err = newControl(); err != nil {
		return nil, verbs.Errorf(device, "open", err, "")
	}
	c.listener, err = net.ListenUnix("unixpacket", socketAddr(c.gid))
	if err != nil {
		return nil, verbs.Errorf(device, "open", errors.Join(err, c.ctrlSeg.close()), "")
	}
	c.wg.Go(c.accept)
	c.wg.Go(c.engine)
	return c, nil
}

// socketAddr returns the abstract socket that the context with this GID listens on.
func socketAddr(g verbs.GID) *net.UnixAddr {
	return &net.UnixAddr{Name: "@sluice-shm-" + hex.EncodeToString(g[:]), Net: "unixpacket"}
}

// QueryDevice returns the limits.
func (c *Context) QueryDevice() (verbs.DeviceAttr, error) { return c.attr, nil }

// QueryPort returns the attributes of the only port.
func (c *Context) QueryPort(int) (verbs.PortAttr, error) {
	return verbs.PortAttr{State: verbs.PortActive, MaxMTU: verbs.MTU4096, ActiveMTU: verbs.MTU4096, GIDTblLen: 1, PKeyTblLen: 1}, nil
}

// QueryGID returns the context's identity.
func (c *Context) QueryGID(int, int) (verbs.GID, error) { return c.gid, nil }

// AsyncEvent waits for an event.
func (c *Context) AsyncEvent(ctx context.Context) (verbs.ProviderEvent, error) {
	return c.events.Get(ctx)
}

// CreateCompChannel creates a completion channel.
func (c *Context) CreateCompChannel() (verbs.ProviderCompChannel, error) {
	return soft.NewCompChannel(deviceName), nil
}

// AllocPD allocates a protection domain.
func (c *Context) AllocPD() (verbs.ProviderPD, error) {
	return &PD{PD: soft.PD{ID: c.nextPD.Add(1)}, ctx: c}, nil
}

// now returns the time since the context was opened, the time base of deadlines.
func (c *Context) now() int64 { return int64(time.Since(c.start)) }

// Ending implements [verbs.Ender].
func (c *Context) Ending() { c.arenas.end() }

// Close ends the context, whose QPs, regions and CQs are already closed.
func (c *Context) Close() error {
	c.mu.Lock()
	c.closed = true
	links := make([]*link, 0, len(c.all))
	for l := range c.all {
		links = append(links, l)
	}
	c.mu.Unlock()
	close(c.closing)
	c.kick()
	errs := []error{c.listener.Close()}
	for _, l := range links {
		l.end(net.ErrClosed, false)
	}
	c.wg.Wait()
	c.events.Close()
	for _, l := range links {
		l.unmap()
	}
	c.unmapped.Store(true)
	for c.kicking.Load() > 0 {
		runtime.Gosched()
	}
	errs = append(errs, c.arenas.close(), c.ctrlSeg.close())
	if err := errors.Join(errs...); err != nil {
		return verbs.Errorf(deviceName, "close", err, "")
	}
	return nil
}

// PD is a protection domain.
type PD struct {
	soft.PD
	ctx *Context
}

// MR is a region. Its memory may be a block of one of the context's arenas.
type MR struct {
	*soft.MR
	ctx    *Context
	block  block  // from AllocMR
	lender *arena // of another context, that the memory lies in
	guest  guest  // of it
}

// RegMR registers memory. If it is in an arena, peers access it through that, whichever context of this
// process the arena is of.
func (pd *PD) RegMR(buf []byte, access verbs.AccessFlags) (verbs.ProviderMR, error) {
	c := pd.ctx
	ar := local.Find(buf)
	if ar == nil {
		return pd.register(&MR{ctx: c}, buf, access, noArena, 0)
	}
	off := int(uintptr(unsafe.Pointer(unsafe.SliceData(buf))) - uintptr(unsafe.Pointer(unsafe.SliceData(ar.all))))
	if ar.of == &c.arenas {
		return pd.register(&MR{ctx: c}, buf, access, ar.id, uint64(off))
	}
	m := &MR{ctx: c, lender: ar, guest: guest{c, off, len(buf)}}
	id, ok := c.borrow(ar, m.guest)
	if !ok {
		return pd.register(&MR{ctx: c}, buf, access, noArena, 0)
	}
	mr, err := pd.register(m, buf, access, id, uint64(off))
	if err != nil {
		err = errors.Join(err, ar.returned(m.guest))
	}
	return mr, err
}

// AllocMR allocates a block of an arena and registers it.
func (pd *PD) AllocMR(size int, access verbs.AccessFlags) (verbs.ProviderMR, error) {
	b, err := pd.ctx.arenas.alloc(size, pd.ctx.announce)
	if err != nil {
		return nil, verbs.Errorf(deviceName, "allocate MR", err, "%d bytes", size)
	}
	mr, err := pd.register(&MR{ctx: pd.ctx, block: b}, b.mem, access, b.arena.id, uint64(b.off))
	if err != nil {
		pd.ctx.release(b)
	}
	return mr, err
}

// register completes m, a region of buf, which lies at an offset of an arena.
func (pd *PD) register(m *MR, buf []byte, access verbs.AccessFlags, arena uint32, off uint64) (_ verbs.ProviderMR, err error) {
	m.MR, err = pd.ctx.mrs.Add(&pd.PD, buf, access, func(m *soft.MR) error {
		r := &pd.ctx.ctrl.regions[m.Index()]
		r.addr, r.length, r.arena, r.offset, r.pd = m.Addr(), uint64(len(buf)), arena, off, pd.ID
		atomic.StoreUint64(&r.state, uint64(m.Key)|uint64(access)<<32|regionLive)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

// Close invalidates the keys and waits for accesses in flight: for those of this process by
// taking the locks that they hold, for those of peers by watching their hazard words. Memory that is a
// region of another context, too, is not freed.
func (m *MR) Close() error {
	c := m.ctx
	atomic.StoreUint64(&c.ctrl.regions[m.Index()].state, 0)
	c.mrs.Remove(m.MR)
	for _, q := range *c.allQPs.Load() {
		q.Pass()
	}
	if !c.await(func() bool { return c.hazard(uint64(m.Index()) + 1) }) {
		m.keep()
		return verbs.Errorf(deviceName, "close MR", verbs.ErrBusy, "a peer has been accessing the region for %v; its memory is not freed", c.cfg.PeerTimeout)
	}
	if m.block.arena != nil {
		if guests := m.block.guestsIn(); guests > 0 {
			m.keep()
			return verbs.Errorf(deviceName, "close MR", verbs.ErrBusy, "regions of other contexts in the memory: %d; it is not freed: close them first", guests)
		}
	}
	c.mrs.Release(m.MR)
	switch {
	case m.block.arena != nil:
		c.release(m.block)
	case m.lender != nil:
		if err := m.lender.returned(m.guest); err != nil {
			c.log.Warn("shm: give back an arena", "error", err)
		}
	}
	return nil
}

// keep has the region stay pinned and reachable for ever.
func (m *MR) keep() {
	kept.Lock()
	defer kept.Unlock()
	kept.regions = append(kept.regions, m)
}

// kept holds closed regions that a live peer, or another context, may still be accessing.
var kept struct {
	sync.Mutex
	regions []*MR
}

// hazard says whether a peer is accessing the region that h names.
func (c *Context) hazard(h uint64) bool {
	for _, q := range *c.allQPs.Load() {
		if in := q.in.Load(); in != nil && atomic.LoadUint64(&in.hazard) == h {
			return true
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for in := range c.zombies {
		if atomic.LoadUint64(&in.hazard) == h {
			return true
		}
	}
	return false
}

// await waits until no peer is inside, and returns false after the peer timeout. A running
// peer leaves within one burst.
func (c *Context) await(inside func() bool) bool {
	for range 100 {
		if !inside() {
			return true
		}
		wait.Yield()
	}
	c.awaiting.Add(1)
	defer c.awaiting.Add(-1)
	patience, cancel := wait.Patience(context.Background(), c.cfg.PeerTimeout)
	defer cancel()
	return wait.Until(patience, func() bool { return !inside() })
}

// CreateSRQ creates a shared receive queue.
func (pd *PD) CreateSRQ(attr verbs.SRQAttr) (verbs.ProviderSRQ, error) {
	s := &SRQ{ctx: pd.ctx}
	s.q.Init(deviceName, attr.MaxWR, attr.MaxSGE, s, pd.ctx.events)
	return s, s.q.SetLimit(attr.Limit)
}

// Close frees the domain.
func (pd *PD) Close() error { return nil }

// SRQ is a shared receive queue.
type SRQ struct {
	ctx *Context
	q   soft.RecvQueue
}

// PostRecv posts receives. A message may be waiting for one while no CQ is being polled.
func (s *SRQ) PostRecv(wrs []verbs.RecvWR) (int, error) {
	n, err := s.q.Post(wrs)
	s.ctx.fence()
	if s.ctx.stalled.Load() > 0 {
		s.ctx.kick()
	}
	return n, err
}

// Modify sets the limit.
func (s *SRQ) Modify(limit int) error { return s.q.SetLimit(limit) }

// Query returns the queue's attributes.
func (s *SRQ) Query() (verbs.SRQAttr, error) { return s.q.Attr(), nil }

// Close frees the queue.
func (s *SRQ) Close() error { return nil }

// kick wakes the engine, however it sleeps.
func (c *Context) kick() {
	c.kicking.Add(1)
	defer c.kicking.Add(-1)
	if c.unmapped.Load() {
		return
	}
	select {
	case c.kicked <- struct{}{}:
	default:
	}
	atomic.AddUint32(&c.ctrl.doorbell, 1)
	wait.FutexWake(&c.ctrl.doorbell)
}

// fence is a full memory barrier if the other side cannot make one: between posting a
// receive and checking whether a message waits for it.
func (c *Context) fence() {
	if c.fenced {
		c.kicking.Add(0)
	}
}

// list keeps a copy-on-write slice behind an atomic pointer.
func listAdd[T comparable](mu *sync.Mutex, p *atomic.Pointer[[]T], v T) {
	mu.Lock()
	defer mu.Unlock()
	old := *p.Load()
	l := append(append(make([]T, 0, len(old)+1), old...), v)
	p.Store(&l)
}

func listRemove[T comparable](mu *sync.Mutex, p *atomic.Pointer[[]T], v T) {
	mu.Lock()
	defer mu.Unlock()
	var l []T
	for _, x := range *p.Load() {
		if x != v {
			l = append(l, x)
		}
	}
	p.Store(&l)
}

// nativeUint64 returns an integer in the CPU's byte order, as atomics return it.
func nativeUint64(v uint64) (b [8]byte) {
	binary.NativeEndian.PutUint64(b[:], v)
	return b
}

// word returns the memory of an atomic: 8 bytes, aligned.
func word(b []byte) *uint64 { return (*uint64)(unsafe.Pointer(unsafe.SliceData(b[:8]))) }
