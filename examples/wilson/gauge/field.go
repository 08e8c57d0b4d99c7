// Package gauge is the gauge field of a lattice: a matrix of SU(3) on each link between
// neighbouring sites.
package gauge

import (
	"errors"
	"iter"
	"unsafe"

	"github.com/sluice-hpc/sluice/examples/wilson/lattice"
	"github.com/sluice-hpc/sluice/examples/wilson/su3"
	"github.com/sluice-hpc/sluice/qmp"
)

// Field has the links of one rank, surrounded by those of its neighbours: one more site along
// each axis in both directions, corners included.
//
// A Field belongs to one goroutine at a time.
type Field struct {
	Lattice *lattice.Lattice

	// The links along one axis are contiguous, over all sites including the neighbours', x running
	// fastest. A face then consists of blocks at equal distances.
	links  [lattice.Axes][]su3.Matrix
	extent lattice.Dims // with the neighbours
	stride lattice.Dims // of a step along an axis, in sites

	memory  *qmp.Memory
	handles []*qmp.Handle                           // all but the multiples
	faces   [lattice.Axes][lattice.Axes]*qmp.Handle // links along an axis, to and from both neighbours along another
}

const linkBytes = int(unsafe.Sizeof(su3.Matrix{}))

// New declares the gauge field of a node, with all links 0. The caller closes it.
//
// Collective. Errors: those of the declarations.
func New(comm *qmp.Comm, l *lattice.Lattice) (*Field, error) {
	f := &Field{Lattice: l}
	sites := 1
	for a, n := range l.Local {
		f.extent[a] = n + 2
		f.stride[a] = sites
		sites *= f.extent[a]
	}
	var err error
	if f.memory, err = comm.Machine().AllocateMemory(lattice.Axes * sites * linkBytes); err != nil {
		return nil, err
	}
	all := qmp.View[su3.Matrix](f.memory)
	for mu := range f.links {
		f.links[mu], all = all[:sites:sites], all[sites:]
		for axis := range lattice.Axes {
			if err := f.declare(comm, mu, axis); err != nil {
				return nil, errors.Join(err, f.Close())
			}
		}
	}
	return f, nil
}

// declare declares the exchange along an axis of the links along mu. It sends the whole face,
// including the neighbours' links in it: axis by axis, these reach the corners.
func (f *Field) declare(comm *qmp.Comm, mu, axis int) error {
	last := f.Lattice.Local[axis]
	first := len(f.handles)
	for _, m := range []struct {
		declare func(*qmp.MsgMem, int, int, int) (*qmp.Handle, error)
		at, dir int
	}{
		{comm.DeclareReceiveRelative, 0, qmp.Minus},
		{comm.DeclareReceiveRelative, last + 1, qmp.Plus},
		{comm.DeclareSendRelative, 1, qmp.Minus},
		{comm.DeclareSendRelative, last, qmp.Plus},
	} {
		step := f.stride[axis] * f.extent[axis] // from block to block
		memory, err := qmp.DeclareStridedMsgMem(f.links[mu][m.at*f.stride[axis]:],
			f.stride[axis]*linkBytes, len(f.links[mu])/step, step*linkBytes)
		if err != nil {
			return err
		}
		h, err := m.declare(memory, axis, m.dir, qmp.DefaultPriority)
		if err != nil {
			return err
		}
		f.handles = append(f.handles, h)
	}
	var err error
	f.faces[mu][axis], err = qmp.DeclareMultiple(f.handles[first:]...)
	return err
}

// Close frees the declarations of New. The field must not be used afterwards.
func (f *Field) Close() (err error) {
	for mu := range f.faces {
		for _, h := range f.faces[mu] {
			if h != nil {
				err = errors.Join(err, h.Close())
			}
		}
	}
	for _, h := range f.handles {
		err = errors.Join(err, h.Close())
	}
	return errors.Join(err, f.memory.Close())
}

// Exchange updates the copies of the neighbours' links. Call it after links have been changed.
// Collective. Errors: those of the communication.
func (f *Field) Exchange() error {
	for mu := range f.links {
		if err := f.exchange(mu); err != nil {
			return err
		}
	}
	return nil
}

// exchange updates the copies of the neighbours' links along mu.
func (f *Field) exchange(mu int) error {
	for _, h := range f.faces[mu] {
		if err := h.Start(); err != nil {
			return err
		}
		if err := h.Wait(); err != nil {
			return err
		}
	}
	return nil
}

// index returns where the links of a site are.
func (f *Field) index(c lattice.Dims) int {
	for a := range c {
		c[a]++
	}
	return f.extent.Index(c)
}

// Link returns the link that leads from a site of this rank to the next along an axis.
func (f *Field) Link(c lattice.Dims, axis int) *su3.Matrix { return &f.links[axis][f.index(c)] }

// interior yields where the links of the sites of this rank are, x running fastest.
func (f *Field) interior() iter.Seq[int] {
	return func(yield func(int) bool) {
		l := f.Lattice.Local
		for t := range l[3] {
			for z := range l[2] {
				for y := range l[1] {
					i := f.index(lattice.Dims{0, y, z, t})
					for x := range l[0] {
						if !yield(i + x) {
							return
						}
					}
				}
			}
		}
	}
}

// Each calls do for every link of this rank: with the coordinates of its site, which
// are relative to the first of this rank, and with its axis.
func (f *Field) Each(do func(c lattice.Dims, axis int, u *su3.Matrix)) {
	k := 0
	for i := range f.interior() {
		c := f.Lattice.Local.Coords(k)
		k++
		for axis := range f.links {
			do(c, axis, &f.links[axis][i])
		}
	}
}
