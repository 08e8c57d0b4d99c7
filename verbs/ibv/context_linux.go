//go:build cgo

package ibv

/*
#include "shim.h"
*/
import "C"

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sluice-hpc/sluice/internal/rdmadev"
	"github.com/sluice-hpc/sluice/verbs"
)

// vcontext is an open device.
type vcontext struct {
	device string
	h      C.uintptr_t
	cfg    verbs.Config
	attr   verbs.DeviceAttr
	srqSGE int
	rxe    bool // soft-RoCE

	change  atomic.Uint64 // counts events of ports
	chosen  atomic.Pointer[choice]
	netdevs sync.Map      // of netdev, by port
	turn    atomic.Uint32 // counts CQs, to spread their interrupts

	life   sync.RWMutex // held for reading while the device is queried
	gone   bool         // closed
	async  *async
	mu     sync.Mutex // held to write the fields that follow
	owners atomic.Pointer[[]owner]
	pairs  atomic.Pointer[map[uint32]*qp] // by number
	byH    map[C.uintptr_t]any            // *qp, *cq, *srq by libibverbs' handle
}

// owner is the owner of a work request: a queue pair or a shared receive queue.
type owner struct {
	qp  *qp
	srq *srq
}

func newContext(device string, h C.uintptr_t, cfg verbs.Config) (_ *vcontext, err error) {
	c := &vcontext{device: device, h: h, cfg: cfg, byH: map[C.uintptr_t]any{}}
	c.owners.Store(&[]owner{})
	c.pairs.Store(&map[uint32]*qp{})
	var a C.struct_sl_device_attr_ex
	if err := failure(device, "query device", C.sl_query_device(h, &a), ""); err != nil {
		return nil, err
	}
	c.setAttr(&a)
	if c.attr.MaxInlineData, err = c.probeInline(); err != nil {
		return nil, err
	}
	where, err := c.path()
	if err != nil {
		return nil, err
	}
	p, err := c.queryPort(where.port)
	if err != nil {
		return nil, err
	}
	c.attr.MaxMsgSize = uint32(p.max_msg_sz)
	if c.async, err = newAsync(c); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *vcontext) setAttr(a *C.struct_sl_device_attr_ex) {
	o := &a.orig_attr
	c.attr = verbs.DeviceAttr{
		FWVer:           C.GoString(&o.fw_ver[0]),
		MaxMRSize:       uint64(o.max_mr_size),
		MaxQP:           int(o.max_qp),
		MaxQPWR:         int(o.max_qp_wr),
		MaxSGE:          int(o.max_sge),
		MaxSGERd:        int(o.max_sge_rd),
		MaxCQ:           int(o.max_cq),
		MaxCQE:          int(o.max_cqe),
		MaxMR:           int(o.max_mr),
		MaxPD:           int(o.max_pd),
		MaxSRQ:          int(o.max_srq),
		MaxSRQWR:        int(o.max_srq_wr),
		MaxQPRdAtomic:   int(o.max_qp_rd_atom),
		MaxQPInitRdAtom: int(o.max_qp_init_rd_atom),
		AtomicCap:       verbs.AtomicCap(o.atomic_cap),
		PhysPortCnt:     int(o.phys_port_cnt),
	}
	c.srqSGE = int(o.max_srq_sge)
	c.rxe = o.vendor_id == rxeVendor
	const (
		supported = 1
		moves     = 1 | 2 | 4 | 8 // send, receive, write, read
	)
	c.attr.OnDemandPaging = a.odp_caps.general_caps&supported != 0 && a.odp_caps.rc_odp_caps&moves == moves
}

// rxeVendor is the vendor ID of soft-RoCE (RXE_VENDOR_ID of the kernel's rxe_param.h).
const rxeVendor = 0xffffff

// probeInline finds out how much a queue pair may send inline, by creating one: the ABI has
// no other way.
func (c *vcontext) probeInline() (_ int, err error) {
	const op = "open"
	var errno C.int
	cq := C.sl_create_cq(c.h, 1, 0, 0, &errno)
	if cq == 0 {
		return 0, failure(c.device, op, errno, "a completion queue of one entry")
	}
	defer func() { err = errors.Join(err, failure(c.device, op, C.sl_destroy_cq(cq), "")) }()
	pd := C.sl_alloc_pd(c.h, &errno)
	if pd == 0 {
		return 0, failure(c.device, op, errno, "a protection domain")
	}
	defer func() { err = errors.Join(err, failure(c.device, op, C.sl_dealloc_pd(pd), "")) }()
	for inline := 1024; inline >= 16; inline /= 2 {
		limits := C.struct_sl_qp_cap{max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: C.uint32_t(inline)}
		var num C.uint32_t
		if qp := C.sl_create_qp(pd, cq, cq, 0, &limits, 0, &num, &errno); qp != 0 {
			return int(limits.max_inline_data), failure(c.device, op, C.sl_destroy_qp(qp), "")
		}
	}
	return 0, nil
}

func (c *vcontext) QueryDevice() (verbs.DeviceAttr, error) { return c.attr, nil }

func (c *vcontext) queryPort(port int) (C.struct_sl_port_attr, error) {
	var a C.struct_sl_port_attr
	return a, failure(c.device, "query port", C.sl_query_port(c.h, C.int(port), &a), "port %d", port)
}

func (c *vcontext) QueryPort(port int) (verbs.PortAttr, error) {
	c.life.RLock()
	defer c.life.RUnlock()
	if c.gone {
		return verbs.PortAttr{}, verbs.Errorf(c.device, "query port", verbs.ErrClosed, "")
	}
	a, err := c.queryPort(port)
	if err != nil {
		return verbs.PortAttr{}, err
	}
	p := verbs.PortAttr{
		State:       verbs.PortState(a.state),
		MaxMTU:      verbs.MTU(a.max_mtu),
		ActiveMTU:   verbs.MTU(a.active_mtu),
		LinkLayer:   verbs.LinkLayer(a.link_layer),
		GIDTblLen:   int(a.gid_tbl_len),
		PKeyTblLen:  int(a.pkey_tbl_len),
		LID:         uint16(a.lid),
		Netdev:      c.netdev(port),
		GRHRequired: a.flags&grhRequired != 0,
	}
	if p.LinkLayer == verbs.LinkLayerUnspecified { // reported by devices with only one link layer
		p.LinkLayer = verbs.LinkLayerInfiniBand
	}
	return p, nil
}

// grhRequired is IBV_QPF_GRH_REQUIRED.
const grhRequired = 1

// netdev returns the network interface of a port. It looks it up again after an event of a
// port.
func (c *vcontext) netdev(port int) string {
	change := c.change.Load()
	if n, ok := c.netdevs.Load(port); ok && n.(netdev).change == change {
		return n.(netdev).name
	}
	name := rdmadev.Netdev(c.device, port)
	c.netdevs.Store(port, netdev{name, change})
	return name
}

// netdev is a network interface's name, and the count of port events before it was looked up.
type netdev struct {
	name   string
	change uint64
}

func (c *vcontext) QueryGID(port, index int) (verbs.GID, error) {
	c.life.RLock()
	defer c.life.RUnlock()
	if c.gone {
		return verbs.GID{}, verbs.Errorf(c.device, "query GID", verbs.ErrClosed, "")
	}
	var g C.struct_sl_gid
	err := failure(c.device, "query GID", C.sl_query_gid(c.h, C.int(port), C.int(index), &g), "port %d, index %d", port, index)
	var gid verbs.GID
	for i := range gid {
		gid[i] = byte(g.raw[i])
	}
	return gid, err
}

// path is the default port and GID of a queue pair.
type path struct {
	port, gid int
}

// path returns the path to use. It looks it up again only after an event of a port: a GID
// table may have a thousand entries, each of which takes a query.
func (c *vcontext) path() (path, error) {
	change := c.change.Load()
	if p := c.chosen.Load(); p != nil && p.change == change {
		return p.path, nil
	}
	p, err := c.choose()
	if err == nil {
		c.chosen.Store(&choice{p, change})
	}
	return p, err
}

// choice is a path, and the count of port events before it was chosen.
type choice struct {
	path
	change uint64
}

// choose chooses a port and a GID: those of the address in the configuration, else the first
// active port and, on Ethernet, its best GID.
func (c *vcontext) choose() (path, error) {
	var want netip.Addr
	if c.cfg.Address != "" {
		a, err := netip.ParseAddr(c.cfg.Address)
		if err != nil {
			return path{}, verbs.Errorf(c.device, "choose GID", verbs.ErrInvalid, "%q is not an IP address", c.cfg.Address)
		}
		want = a.Unmap()
	}
	first, last := 1, c.attr.PhysPortCnt
	if c.cfg.Port != 0 {
		first, last = c.cfg.Port, c.cfg.Port
	}
	best, rank := path{port: first}, -1
	better := func(p path, r int) {
		if r > rank {
			best, rank = p, r
		}
	}
	var have []string
	for port := first; port <= last; port++ {
		p, err := c.QueryPort(port)
		if err != nil {
			return path{}, err
		}
		base := 0
		if p.State == verbs.PortActive {
			base = 100
		}
		// InfiniBand routes by LID, and its GIDs are not addresses of the host.
		any := !want.IsValid() || p.LinkLayer == verbs.LinkLayerInfiniBand
		if any {
			better(path{port: port}, base)
		}
		for i := range p.GIDTblLen {
			gid, err := c.QueryGID(port, i)
			if err != nil || gid == (verbs.GID{}) {
				continue // an empty entry of the table
			}
			have = append(have, gid.Addr().String())
			if any || gid.Addr().Unmap() == want {
				better(path{port, i}, base+c.rankGID(port, i, &p, gid))
			}
		}
	}
	if rank < 0 {
		return path{}, verbs.Errorf(c.device, "choose GID", verbs.ErrInvalid, "no GID has address %v; addresses of this device: %q", want, slices.Compact(have))
	}
	return best, nil
}

// rankGID says how good a GID is. On InfiniBand the first of the table is the port's own. On
// Ethernet RoCEv2 is best, as it is routed: over an IPv4 address, or else a global one.
func (c *vcontext) rankGID(port, index int, p *verbs.PortAttr, gid verbs.GID) int {
	if p.LinkLayer == verbs.LinkLayerInfiniBand {
		if index == 0 {
			return 10
		}
		return 1
	}
	r := 1
	if rdmadev.GIDType(c.device, port, index) == "RoCE v2" {
		r += 10
	}
	switch a := gid.Addr().Unmap(); {
	case a.Is4():
		r += 3
	case a.IsGlobalUnicast():
		r += 2
	}
	return r
}

func (c *vcontext) AllocPD() (verbs.ProviderPD, error) {
	var errno C.int
	h := C.sl_alloc_pd(c.h, &errno)
	if h == 0 {
		return nil, failure(c.device, "allocate PD", errno, "")
	}
	return &pd{c, h}, nil
}

// own registers an object for events and completions.
func (c *vcontext) own(h C.uintptr_t, o any) {
	c.mu.Lock()
	c.byH[h] = o
	c.mu.Unlock()
}

func (c *vcontext) disown(h C.uintptr_t) {
	c.mu.Lock()
	delete(c.byH, h)
	c.mu.Unlock()
}

// object returns the object with libibverbs' handle h, or nil.
func (c *vcontext) object(h C.uintptr_t) any {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.byH[h]
}

// maxOwners limits the number of queue pairs and shared receive queues: the id of a work
// request has room for no more.
const maxOwners = 1 << 31

// enlist gives an owner of work requests a number, by which completions find it.
func (c *vcontext) enlist(o owner) (uint32, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := *c.owners.Load()
	i := slices.Index(list, owner{})
	if i < 0 {
		if i = len(list); i == maxOwners {
			return 0, verbs.Errorf(c.device, "create", verbs.ErrNoMemory, "limit of %d queues reached", i)
		}
		// Double the capacity: readers go by the length.
		list = append(list, o)
	} else {
		list = slices.Clone(list)
		list[i] = o
	}
	c.owners.Store(&list)
	if o.qp != nil {
		pairs := maps.Clone(*c.pairs.Load())
		pairs[o.qp.num] = o.qp
		c.pairs.Store(&pairs)
	}
	return uint32(i), nil
}

func (c *vcontext) delist(i uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := slices.Clone(*c.owners.Load())
	list[i] = owner{}
	c.owners.Store(&list)
}

// unpair removes a queue pair, before another can get its number.
func (c *vcontext) unpair(q *qp) {
	c.mu.Lock()
	defer c.mu.Unlock()
	pairs := maps.Clone(*c.pairs.Load())
	delete(pairs, q.num)
	c.pairs.Store(&pairs)
}

// pair returns the queue pair of this number, or nil.
func (c *vcontext) pair(num uint32) *qp { return (*c.pairs.Load())[num] }

func (c *vcontext) AsyncEvent(ctx context.Context) (verbs.ProviderEvent, error) {
	return c.async.next(ctx)
}

func (c *vcontext) Close() error {
	err := c.async.close()
	c.life.Lock()
	defer c.life.Unlock()
	c.gone = true
	return errors.Join(err, failure(c.device, "close", C.sl_close_device(c.h), ""))
}
