package verbs

import (
	"errors"
	"fmt"
	"io"

	"github.com/sluice-hpc/sluice/internal/retire"
)

// PD is a protection domain (struct ibv_pd): a set of regions and queue pairs that may
// be used together.
type PD struct {
	object
	prov ProviderPD
}

// RegMR registers buf (ibv_reg_mr): until [MR.Close] it stays at its address, Go memory
// is pinned, and the device may access it as access says. buf must not be empty. The
// caller keeps owning the memory, and must not let work requests use the region after
// Close. The same memory may be registered twice; each region has its own key.
//
// REMOTE_WRITE and REMOTE_ATOMIC also need LOCAL_WRITE (ibv_reg_mr(3)).
func (pd *PD) RegMR(buf []byte, access AccessFlags) (*MR, error) {
	if len(buf) == 0 {
		return nil, pd.ctx.errorf("register MR", ErrInvalid, "empty slice")
	}
	return pd.addMR("register MR", len(buf), access, func() (ProviderMR, error) { return pd.prov.RegMR(buf, access) })
}

// AllocMR allocates size bytes of zeroed, page-aligned memory of the kind that the
// provider moves fastest, and registers it. [MR.Bytes] returns the memory. [MR.Close]
// frees it: slices of it must not be used after that. All pages are allocated at
// once, so that later use cannot run out of memory. A size for which the machine or a memory cgroup of
// this process has no room is [ErrNoMemory]; the error names the limit.
func (pd *PD) AllocMR(size int, access AccessFlags) (*MR, error) {
	const op = "allocate MR"
	if size < 1 {
		return nil, pd.ctx.errorf(op, ErrInvalid, "%d bytes", size)
	}
	if a, ok := pd.prov.(MemoryAllocator); ok {
		return pd.addMR(op, size, access, func() (ProviderMR, error) { return a.AllocMR(size, access) })
	}
	if err := pd.checkMR(op, size, access); err != nil {
		return nil, err
	}
	buf, free, err := retire.Alloc(size) // which takes a while, so no lock is held
	if err != nil {
		return nil, pd.ctx.errorf(op, fmt.Errorf("%w: %w", ErrNoMemory, err), "%d bytes", size)
	}
	mr, err := pd.addMR(op, size, access, func() (ProviderMR, error) {
		mr, err := pd.prov.RegMR(buf, access)
		if err != nil || free == nil {
			return mr, err
		}
		return &allocated{mr, free}, nil
	})
	if err != nil && free != nil {
		err = errors.Join(err, free())
	}
	return mr, err
}

// allocated is a region whose memory is freed with it.
type allocated struct {
	ProviderMR
	free func() error
}

// Close frees the memory if no access to it is left.
func (m *allocated) Close() error {
	if err := m.ProviderMR.Close(); err != nil {
		return err
	}
	return m.free()
}

// checkMR returns an error for a region that no device can have.
func (pd *PD) checkMR(op string, size int, access AccessFlags) error {
	c := pd.ctx
	if access&^accessMask != 0 {
		return c.errorf(op, ErrInvalid, "access flags %#x", uint32(access))
	}
	if access&(AccessRemoteWrite|AccessRemoteAtomic) != 0 && access&AccessLocalWrite == 0 {
		return c.errorf(op, ErrInvalid, "access %v without LOCAL_WRITE", access)
	}
	if uint64(size) > c.attr.MaxMRSize {
		return c.errorf(op, ErrInvalid, "%d bytes: want at most %d (%s) for one region", size, c.attr.MaxMRSize, inUnits(c.attr.MaxMRSize))
	}
	return nil
}

// inUnits writes a number of bytes with the largest binary unit that it reaches.
func inUnits(n uint64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	i := 0
	for n >= 1024 && i < len(units)-1 {
		n, i = n/1024, i+1
	}
	return fmt.Sprintf("%d %s", n, units[i])
}

func (pd *PD) addMR(op string, size int, access AccessFlags, register func() (ProviderMR, error)) (*MR, error) {
	if err := pd.checkMR(op, size, access); err != nil {
		return nil, err
	}
	c := pd.ctx
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.ownsLocked(op, "PD", &pd.object); err != nil {
		return nil, err
	}
	pm, err := register()
	if err != nil {
		return nil, err
	}
	pd.users++
	mr := &MR{object: object{ctx: c}, prov: pm, pd: pd, access: access,
		addr: pm.Addr(), length: uint64(size), lkey: pm.LKey(), rkey: pm.RKey(), buf: pm.Bytes()}
	c.byProv.Store(pm, mr)
	return mr, nil
}

// CreateQP creates an RC queue pair in state RESET (ibv_create_qp). It grants at least
// the capabilities requested; [QP.Cap] returns them.
func (pd *PD) CreateQP(init QPInitAttr) (*QP, error) {
	const op = "create QP"
	c := pd.ctx
	a := &c.attr
	cp := &init.Cap
	if init.SRQ != nil {
		cp.MaxRecvWR, cp.MaxRecvSGE = 0, 0
	}
	for _, l := range []struct {
		what    string
		val, hi int
	}{
		{"send work requests", cp.MaxSendWR, a.MaxQPWR},
		{"receive work requests", cp.MaxRecvWR, a.MaxQPWR},
		{"send SGEs", cp.MaxSendSGE, a.MaxSGE},
		{"receive SGEs", cp.MaxRecvSGE, a.MaxSGE},
		{"inline bytes", cp.MaxInlineData, a.MaxInlineData},
	} {
		if l.val < 0 || l.val > l.hi {
			return nil, c.errorf(op, ErrInvalid, "%d %s, device has at most %d", l.val, l.what, l.hi)
		}
	}
	if init.SendCQ == nil || init.RecvCQ == nil {
		return nil, c.errorf(op, ErrInvalid, "a QP needs a send CQ and a receive CQ")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.ownsLocked(op, "PD", &pd.object); err != nil {
		return nil, err
	}
	if err := c.ownsLocked(op, "send CQ", &init.SendCQ.object); err != nil {
		return nil, err
	}
	if err := c.ownsLocked(op, "receive CQ", &init.RecvCQ.object); err != nil {
		return nil, err
	}
	pi := ProviderQPInit{SendCQ: init.SendCQ.prov, RecvCQ: init.RecvCQ.prov, Cap: *cp, SQSigAll: init.SQSigAll}
	if init.SRQ != nil {
		if err := c.ownsLocked(op, "SRQ", &init.SRQ.object); err != nil {
			return nil, err
		}
		pi.SRQ = init.SRQ.prov
	}
	pq, err := pd.prov.CreateQP(pi)
	if err != nil {
		return nil, err
	}
	pd.users++
	init.SendCQ.users++
	init.RecvCQ.users++
	if init.SRQ != nil {
		init.SRQ.users++
	}
	init.Cap = pq.Cap()
	qp := &QP{object: object{ctx: c}, prov: pq, pd: pd, init: init}
	c.byProv.Store(pq, qp)
	return qp, nil
}

// CreateSRQ creates a shared receive queue (ibv_create_srq).
func (pd *PD) CreateSRQ(attr SRQAttr) (*SRQ, error) {
	const op = "create SRQ"
	c := pd.ctx
	if attr.MaxWR < 1 || attr.MaxWR > c.attr.MaxSRQWR || attr.MaxSGE < 0 || attr.MaxSGE > c.attr.MaxSGE || attr.Limit < 0 || attr.Limit > attr.MaxWR {
		return nil, c.errorf(op, ErrInvalid, "%+v, device has at most %d WRs and %d SGEs", attr, c.attr.MaxSRQWR, c.attr.MaxSGE)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.ownsLocked(op, "PD", &pd.object); err != nil {
		return nil, err
	}
	ps, err := pd.prov.CreateSRQ(attr)
	if err != nil {
		return nil, err
	}
	pd.users++
	s := &SRQ{object: object{ctx: c}, prov: ps, pd: pd}
	c.byProv.Store(ps, s)
	return s, nil
}

// Close frees the domain (ibv_dealloc_pd). It returns [ErrBusy] while the domain has
// regions, queue pairs or shared receive queues.
func (pd *PD) Close() error { return end("close PD", pd) }

func (pd *PD) rank() int           { return rankPD }
func (pd *PD) provider() io.Closer { return pd.prov }
func (pd *PD) letGo()              {}
