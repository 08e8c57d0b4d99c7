package dirac

import (
	"errors"
	"unsafe"

	"github.com/sluice-hpc/sluice/examples/wilson/gauge"
	"github.com/sluice-hpc/sluice/examples/wilson/lattice"
	"github.com/sluice-hpc/sluice/examples/wilson/su3"
	"github.com/sluice-hpc/sluice/qmp"
)

// halo is the exchange of an application with the neighbours, declared once: for each axis two
// messages to send and two to receive, all started together.
type halo struct {
	memory   *qmp.Memory
	faces    [lattice.Axes]*face // nil: no exchange along the axis
	received []su3.Half
	handles  []*qmp.Handle
	all      *qmp.Handle // a multiple of them; nil: there are none
}

// face has the two ends of a node's sites along an axis.
type face struct {
	first, last       []int32    // sites with the smallest, and with the largest coordinate
	toBefore, toAfter []su3.Half // the half spinors that are sent
	slots             [2]int     // where the data from after, from before begin in received
	area              lattice.Dims
}

// slot is where the data of a site's neighbour arrive, of the one after it (0) or before it (1).
func (f *face) slot(back int, c lattice.Dims) int {
	for a := range c {
		if f.area[a] == 1 {
			c[a] = 0
		}
	}
	return f.slots[back] + f.area.Index(c)
}

// New declares the operator of a gauge field with the given hopping parameter κ. It
// copies the links; the field may change afterwards. The caller closes it.
//
// Collective. Errors: those of the declarations.
func New(comm *qmp.Comm, f *gauge.Field, kappa float64, opts Options) (*Operator, error) {
	o := &Operator{halo: &halo{}}
	if err := o.halo.declare(comm, f.Lattice, opts.SelfMessages); err != nil {
		return nil, errors.Join(err, o.Close())
	}
	o.build(f, kappa, opts)
	return o, nil
}

func (h *halo) declare(comm *qmp.Comm, l *lattice.Lattice, self bool) (err error) {
	total := 0
	for axis := range lattice.Axes {
		if l.Grid[axis] > 1 || self {
			h.faces[axis] = newFace(l, axis, &total)
		}
	}
	if total == 0 {
		return nil
	}
	const size = int(unsafe.Sizeof(su3.Half{}))
	if h.memory, err = comm.Machine().AllocateMemory(2 * total * size); err != nil {
		return err
	}
	halves := qmp.View[su3.Half](h.memory)
	send := halves[:total]
	h.received = halves[total : 2*total]
	for axis, f := range h.faces {
		if f == nil {
			continue
		}
		n := len(f.first)
		f.toBefore, f.toAfter, send = send[:n], send[n:2*n], send[2*n:]
		for _, m := range []struct {
			declare func(*qmp.MsgMem, int, int, int) (*qmp.Handle, error)
			memory  []su3.Half
			dir     int
		}{
			{comm.DeclareReceiveRelative, h.received[f.slots[0]:][:n], qmp.Plus},
			{comm.DeclareReceiveRelative, h.received[f.slots[1]:][:n], qmp.Minus},
			{comm.DeclareSendRelative, f.toBefore, qmp.Minus},
			{comm.DeclareSendRelative, f.toAfter, qmp.Plus},
		} {
			memory, err := qmp.DeclareMsgMem(m.memory)
			if err != nil {
				return err
			}
			handle, err := m.declare(memory, axis, m.dir, qmp.DefaultPriority)
			if err != nil {
				return err
			}
			h.handles = append(h.handles, handle)
		}
	}
	h.all, err = qmp.DeclareMultiple(h.handles...)
	return err
}

// newFace lists the sites at both ends of an axis, and takes slots for the data that arrive.
func newFace(l *lattice.Lattice, axis int, slots *int) *face {
	f := &face{area: l.Local}
	f.area[axis] = 1
	for i := range f.area.Product() {
		c := f.area.Coords(i)
		f.first = append(f.first, int32(l.Local.Index(c)))
		c[axis] = l.Local[axis] - 1
		f.last = append(f.last, int32(l.Local.Index(c)))
	}
	for i := range f.slots {
		f.slots[i] = *slots
		*slots += len(f.first)
	}
	return f
}

func (h *halo) start() error {
	if h.all == nil {
		return nil
	}
	return h.all.Start()
}

func (h *halo) wait() error {
	if h.all == nil {
		return nil
	}
	return h.all.Wait()
}

// Close frees the declarations of New. The operator must not be applied afterwards.
func (o *Operator) Close() error { return o.halo.close() }

func (h *halo) close() (err error) {
	if h.all != nil {
		err = h.all.CloseAll()
	} else {
		for _, handle := range h.handles {
			err = errors.Join(err, handle.Close())
		}
	}
	if h.memory != nil {
		err = errors.Join(err, h.memory.Close())
	}
	return err
}
