package soft

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/sluice-hpc/sluice/internal/layout"
	"github.com/sluice-hpc/sluice/verbs"
)

// PD is a protection domain. Only its identity matters.
type PD struct {
	ID uint32
}

// MR is a registered region. All fields are set before it enters the table.
type MR struct {
	PD     *PD
	Buf    []byte
	Access verbs.AccessFlags
	Key    uint32 // both lkey and rkey
	addr   uint64
	place  uint32
	pinner *runtime.Pinner
}

// Addr returns the address of the first byte.
func (m *MR) Addr() uint64 { return m.addr }

// Bytes returns the memory.
func (m *MR) Bytes() []byte { return m.Buf }

// LKey returns the local key.
func (m *MR) LKey() uint32 { return m.Key }

// RKey returns the remote key, which is the same number.
func (m *MR) RKey() uint32 { return m.Key }

// Index returns the region's index in the table.
func (m *MR) Index() int { return int(m.place) }

// Slice returns n bytes at addr, which must be inside the region.
func (m *MR) Slice(addr uint64, n int) []byte {
	off := addr - m.addr
	return m.Buf[off : off+uint64(n) : off+uint64(n)]
}

// MRTable finds regions by key. A key is a table index and, in its lower bits, a generation
// that changes each time the place is reused, so a stale key matches only after all
// generations have been used. Places are reused in the order in which they were freed. The
// first generation of a place and its step are random: some keys reveal nothing about the
// others.
type MRTable struct {
	device  string
	genBits int
	entries []atomic.Pointer[MR]

	mu   sync.Mutex
	gens []generation
	free []uint32 // a queue
	next uint32
}

// generation is the generation of a place's last key. Its step is odd, so it takes every
// value before one repeats.
type generation struct{ at, step uint32 }

// NewMRTable returns a table of n places, with keys whose lower genBits bits are the
// generation.
func NewMRTable(device string, n, genBits int) *MRTable {
	t := &MRTable{device: device, genBits: genBits, entries: make([]atomic.Pointer[MR], n), gens: make([]generation, n)}
	for i := range t.gens {
		t.gens[i] = generation{rand.Uint32(), rand.Uint32() | 1}
	}
	return t
}

// Add registers buf and pins it if it is Go memory. It calls publish once the key is chosen;
// the region is visible when publish has returned nil.
func (t *MRTable) Add(pd *PD, buf []byte, access verbs.AccessFlags, publish func(*MR) error) (*MR, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var i uint32
	switch {
	case int(t.next) < len(t.entries):
		i = t.next
		t.next++
	case len(t.free) > 0:
		i = t.free[0]
		t.free = t.free[1:]
	default:
		return nil, verbs.Errorf(t.device, "register MR", verbs.ErrNoMemory, "all %d regions are in use", len(t.entries))
	}
	g := &t.gens[i]
	g.at += g.step
	m := &MR{PD: pd, Buf: buf, Access: access, Key: i<<t.genBits | g.at&(1<<t.genBits-1), place: i,
		addr: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(buf)))), pinner: new(runtime.Pinner)}
	m.pinner.Pin(unsafe.SliceData(buf))
	if publish != nil {
		if err := publish(m); err != nil {
			m.pinner.Unpin()
			t.free = append(t.free, i)
			return nil, err
		}
	}
	t.entries[i].Store(m)
	return m, nil
}

// Remove invalidates the region's key. The caller then waits for accesses in flight, and calls
// Release.
func (t *MRTable) Remove(m *MR) { t.entries[m.Index()].Store(nil) }

// Release unpins the memory and frees the place in the table.
func (t *MRTable) Release(m *MR) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m.pinner.Unpin()
	t.free = append(t.free, uint32(m.Index()))
}

// Fault is the reason why an access is refused; Status and RemoteStatus say how to report it.
type Fault uint8

// Faults.
const (
	OK Fault = iota
	BadKey
	BadPD
	BadRange
	BadAccess
)

// Lookup returns the region of key if it belongs to pd, allows need, and
// contains n bytes at addr. With a nil pd the domain is not checked.
func (t *MRTable) Lookup(pd *PD, key uint32, addr uint64, n uint64, need verbs.AccessFlags) (*MR, Fault) {
	i := key >> t.genBits
	if int(i) >= len(t.entries) {
		return nil, BadKey
	}
	m := t.entries[i].Load()
	if m == nil || m.Key != key {
		return nil, BadKey
	}
	if pd != nil && m.PD != pd {
		return nil, BadPD
	}
	if off := addr - m.addr; addr < m.addr || off > uint64(len(m.Buf)) || n > uint64(len(m.Buf))-off {
		return nil, BadRange
	}
	if m.Access&need != need {
		return nil, BadAccess
	}
	return m, OK
}

// CheckSGEs looks every element up and returns the sum of their lengths. Elements of length 0
// name no memory and are not looked up.
func (t *MRTable) CheckSGEs(pd *PD, sges []verbs.SGE, need verbs.AccessFlags) (uint64, Fault) {
	var total uint64
	for i := range sges {
		s := &sges[i]
		if s.Length == 0 {
			continue
		}
		if _, f := t.Lookup(pd, s.LKey, s.Addr, uint64(s.Length), need); f != OK {
			return 0, f
		}
		total += uint64(s.Length)
	}
	return total, OK
}

// Scatter copies src to offset off of the memory that sges describe in turn. It looks each
// element up; bytes beyond the elements are BadRange.
func (t *MRTable) Scatter(pd *PD, sges []verbs.SGE, off uint64, src []byte) Fault {
	for f, dst := range t.Pieces(pd, sges, off, uint64(len(src)), verbs.AccessLocalWrite) {
		if f != OK {
			return f
		}
		src = src[layout.Copy(dst, src):]
	}
	return OK
}

// Gather copies len(dst) bytes from offset off of the memory that sges describe.
func (t *MRTable) Gather(pd *PD, sges []verbs.SGE, off uint64, dst []byte) Fault {
	for f, src := range t.Pieces(pd, sges, off, uint64(len(dst)), 0) {
		if f != OK {
			return f
		}
		dst = dst[layout.Copy(dst, src):]
	}
	return OK
}

// Pieces yields the n bytes at offset off of the memory that sges describe, as
// slices of it, in order; on a fault it yields that and ends.
func (t *MRTable) Pieces(pd *PD, sges []verbs.SGE, off, n uint64, need verbs.AccessFlags) func(func(Fault, []byte) bool) {
	return func(yield func(Fault, []byte) bool) {
		for i := range sges {
			if n == 0 {
				return
			}
			s := &sges[i]
			if off >= uint64(s.Length) {
				off -= uint64(s.Length)
				continue
			}
			m, f := t.Lookup(pd, s.LKey, s.Addr, uint64(s.Length), need)
			if f != OK {
				yield(f, nil)
				return
			}
			take := min(n, uint64(s.Length)-off)
			if !yield(OK, m.Slice(s.Addr+off, int(take))) {
				return
			}
			n -= take
			off = 0
		}
		if n > 0 {
			yield(BadRange, nil)
		}
	}
}
