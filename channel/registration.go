package channel

import (
	"slices"
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
	mu   sync.Mutex
	list []*registration
}

// register registers b, unless it lies in memory that is already registered.
func (d *device) register(b []byte) (*registration, error) {
	from := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
	d.registered.mu.Lock()
	defer d.registered.mu.Unlock()
	for _, r := range d.registered.list {
		if skip := from - r.mr.Addr(); from >= r.mr.Addr() && skip <= uint64(r.mr.Len()) && uint64(len(b)) <= uint64(r.mr.Len())-skip {
			r.users++
			return r, nil
		}
	}
	mr, err := d.sparing(len(b), func() (*verbs.MR, error) { return d.pd.RegMR(b, verbs.AccessAll) })
	if err != nil {
		return nil, err
	}
	r := &registration{mr, 1}
	d.registered.list = append(d.registered.list, r)
	return r, nil
}

// deregister undoes one register.
func (d *device) deregister(r *registration) error {
	d.registered.mu.Lock()
	defer d.registered.mu.Unlock()
	if r.users--; r.users > 0 {
		return nil
	}
	d.registered.list = slices.DeleteFunc(d.registered.list, func(o *registration) bool { return o == r })
	return r.mr.Close()
}
