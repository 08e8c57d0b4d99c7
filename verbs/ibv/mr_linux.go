//go:build cgo

package ibv

/*
#include "shim.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/retire"
	"github.com/sluice-hpc/sluice/verbs"
)

// pd is a protection domain.
type pd struct {
	c *vcontext
	h C.uintptr_t
}

func (p *pd) Close() error {
	return failure(p.c.device, "close PD", C.sl_dealloc_pd(p.h), "")
}

// mr is a registered region: memory of the Go heap, pinned, or mapped for it.
type mr struct {
	c          *vcontext
	h          C.uintptr_t
	buf        []byte
	addr       uint64
	lkey, rkey uint32
	pinner     runtime.Pinner
	mapped     []byte // to be unmapped; its addresses stay reserved
}

func (p *pd) AllocMR(size int, access verbs.AccessFlags) (verbs.ProviderMR, error) {
	mem, err := retire.Private(size) // to pin pages for which there is no room would not fail
	if err != nil {
		return nil, verbs.Errorf(p.c.device, "allocate MR", fmt.Errorf("%w (%w)", verbs.ErrNoMemory, err), "%d bytes", size)
	}
	m := &mr{c: p.c, buf: mem[:size:size], mapped: mem}
	if err := p.register("allocate MR", m, access); err != nil {
		return nil, errors.Join(err, os.NewSyscallError("munmap", unix.Munmap(mem))) // no slice of it is known
	}
	return m, nil
}

func (p *pd) RegMR(buf []byte, access verbs.AccessFlags) (verbs.ProviderMR, error) {
	m := &mr{c: p.c, buf: buf}
	m.pinner.Pin(unsafe.SliceData(buf))
	if err := p.register("register MR", m, access); err != nil {
		m.pinner.Unpin()
		return nil, err
	}
	return m, nil
}

func (p *pd) register(op string, m *mr, access verbs.AccessFlags) error {
	if access&verbs.AccessOnDemand != 0 && !p.c.attr.OnDemandPaging {
		return verbs.Errorf(p.c.device, op, verbs.ErrNotSupported, "the device has no on-demand paging")
	}
	if p.c.attr.AtomicCap == verbs.AtomicNone {
		access &^= verbs.AccessRemoteAtomic // which some devices without refuse
	}
	addr := uintptr(unsafe.Pointer(unsafe.SliceData(m.buf)))
	var lkey, rkey C.uint32_t
	var errno C.int
	m.h = C.sl_reg_mr(p.h, C.uintptr_t(addr), C.size_t(len(m.buf)), C.uint(access), &lkey, &rkey, &errno)
	if m.h == 0 {
		return failure(p.c.device, op, errno, "%d bytes, %v%s", len(m.buf), access, lockLimit(syscall.Errno(errno)))
	}
	m.addr, m.lkey, m.rkey = uint64(addr), uint32(lkey), uint32(rkey)
	return nil
}

// lockLimit returns how much memory may be locked, if that may be why a registration failed:
// registered memory counts as locked, unless the user is privileged.
func lockLimit(errno syscall.Errno) string {
	var l unix.Rlimit
	if errno != syscall.ENOMEM && errno != syscall.EPERM || unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l) != nil {
		return ""
	}
	if l.Cur == unix.RLIM_INFINITY {
		return "; RLIMIT_MEMLOCK (ulimit -l) is unlimited"
	}
	return fmt.Sprintf("; RLIMIT_MEMLOCK (ulimit -l) is %d KiB, for all regions of the process", l.Cur>>10)
}

// kept holds the regions that could not be deregistered: they stay pinned for ever.
var kept struct {
	sync.Mutex
	regions []*mr
}

func (m *mr) Addr() uint64  { return m.addr }
func (m *mr) Bytes() []byte { return m.buf }
func (m *mr) LKey() uint32  { return m.lkey }
func (m *mr) RKey() uint32  { return m.rkey }

func (m *mr) Close() error {
	const op = "close MR"
	if errno := C.sl_dereg_mr(m.h); errno != 0 {
		// The device may still write there: keep the memory.
		kept.Lock()
		kept.regions = append(kept.regions, m)
		kept.Unlock()
		return failure(m.c.device, op, errno, "%d bytes stay pinned", len(m.buf))
	}
	if m.mapped == nil {
		m.pinner.Unpin()
		return nil
	}
	if err := retire.Unmap(m.mapped); err != nil {
		return verbs.Errorf(m.c.device, op, err, "")
	}
	return nil
}
