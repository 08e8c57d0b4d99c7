package channel

import (
	"slices"
	"sort"
	"sync"
	"unsafe"

	"github.com/sluice-hpc/sluice/verbs"
)

// registration is user memory registered with a device: once for all layouts that lie in it,
// because a device pins memory again for each registration.
type registration struct {
	mr    *verbs.MR
	users int
}

// registry holds the registrations of a device.
type registry struct {
	mu      sync.Mutex
	list    []*registration // in order of their addresses; they may overlap
	longest uint64          // none ever was longer, in bytes
}

// after is the place of the first registration that begins behind an address. The caller holds the lock.
func (g *registry) after(addr uint64) int {
	return sort.Search(len(g.list), func(i int) bool { return g.list[i].mr.Addr() > addr })
}

// find returns a registration that the n bytes from an address on lie in; nil for none. The caller holds the
// lock.
func (g *registry) find(from, n uint64) *registration {
	for i := g.after(from) - 1; i >= 0; i-- {
		r := g.list[i]
		skip := from - r.mr.Addr()
		if skip > g.longest {
			break
		}
		if size := uint64(r.mr.Len()); skip <= size && n <= size-skip {
			return r
		}
	}
	return nil
}

// register registers b, unless it lies in memory that is already registered.
func (d *device) register(b []byte) (*registration, error) {
	g, from := &d.registered, uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
	g.mu.Lock()
	defer g.mu.Unlock()
	if r := g.find(from, uint64(len(b))); r != nil {
		r.users++
		return r, nil
	}
	mr, err := d.sparing(len(b), func() (*verbs.MR, error) { return d.pd.RegMR(b, verbs.AccessAll) })
	if err != nil {
		return nil, err
	}
	r := &registration{mr, 1}
	g.list = slices.Insert(g.list, g.after(from), r)
	g.longest = max(g.longest, uint64(len(b)))
	return r, nil
}

// deregister undoes one register.
func (d *device) deregister(r *registration) error {
	g := &d.registered
	g.mu.Lock()
	defer g.mu.Unlock()
	if r.users--; r.users > 0 {
		return nil
	}
	i := g.after(r.mr.Addr()) - 1
	for g.list[i] != r {
		i--
	}
	g.list = slices.Delete(g.list, i, i+1)
	return r.mr.Close()
}
