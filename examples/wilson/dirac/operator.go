// Package dirac is Wilson's lattice Dirac operator,
//
//	(Dψ)(x) = ψ(x) - κ Σμ [ (1-γμ) Uμ(x) ψ(x+μ) + (1+γμ) Uμ(x-μ)† ψ(x-μ) ],
//
// on a lattice that is divided among the nodes of a QMP communicator. (K. G. Wilson,
// Phys. Rev. D 10 (1974) 2445)
//
// Neighbours are sent projected spinors, two spins instead of four. While these are in flight, a
// node works on the sites that need none of them.
package dirac

import (
	"time"
	"unsafe"

	"github.com/sluice-hpc/sluice/examples/wilson/gauge"
	"github.com/sluice-hpc/sluice/examples/wilson/internal/pages"
	"github.com/sluice-hpc/sluice/examples/wilson/lattice"
	"github.com/sluice-hpc/sluice/examples/wilson/su3"
)

// Flops is the cost of an application of the operator at each site, in additions and
// multiplications of two real numbers, as counted in the literature.
const Flops = 1368

// Operator is the Dirac operator of a gauge field. It belongs to one goroutine at a time.
//
// The operations on a site are the same, in the same order, whether its neighbours are on this
// node or on others: a result has the same bits on every grid.
type Operator struct {
	kappa float64
	links []su3.Matrix // of site s along axis a: 4s+a

	// For each site its neighbours after it along each axis, then those before. A number n below 0
	// is a site of another node: its data arrive at ^n in halo.received.
	next [][2 * lattice.Axes]int32

	interior, boundary []int32 // sites that need no data of other nodes, and the others
	halo               *halo

	// Time is the time spent in Apply and ApplyAdjoint, Waited the part of it after the interior
	// was done. Applied counts the calls.
	Time, Waited time.Duration
	Applied      int
}

// Options are the options of an operator. The zero value is the operator of the formula on a
// lattice that is periodic along all axes.
type Options struct {
	Antiperiodic bool // a spinor changes its sign when it goes round once along t
	SelfMessages bool // a node also sends to itself along an axis that is not divided
}

// build sets up the parts that do not communicate.
func (o *Operator) build(f *gauge.Field, kappa float64, opts Options) {
	l := f.Lattice
	sites := l.Sites()
	o.kappa = kappa
	o.links = pages.Make[su3.Matrix](lattice.Axes * sites)[:0]
	f.Each(func(c lattice.Dims, axis int, u *su3.Matrix) {
		v := *u
		if opts.Antiperiodic && axis == 3 && l.GlobalCoords(c)[axis] == l.Global[axis]-1 {
			for i := range v {
				for j := range v[i] {
					v[i][j] = -v[i][j]
				}
			}
		}
		o.links = append(o.links, v)
	})
	o.next = pages.Make[[2 * lattice.Axes]int32](sites)
	for s := range sites {
		c := l.Local.Coords(s)
		inside := true
		for axis := range lattice.Axes {
			for back, step := range [2]int{1, -1} {
				n := c
				n[axis] += step
				to := &o.next[s][back*lattice.Axes+axis]
				if face := o.halo.faces[axis]; face != nil && (n[axis] < 0 || n[axis] == l.Local[axis]) {
					*to = ^int32(face.slot(back, c))
					inside = false
					continue
				}
				n[axis] = (n[axis] + l.Local[axis]) % l.Local[axis]
				*to = int32(l.Local.Index(n))
			}
		}
		if inside {
			o.interior = append(o.interior, int32(s))
		} else {
			o.boundary = append(o.boundary, int32(s))
		}
	}
}

// ResetTimes sets Time, Waited and Applied to zero.
func (o *Operator) ResetTimes() { o.Time, o.Waited, o.Applied = 0, 0, 0 }

// Sent returns the number of bytes that an application sends, including those to this node.
func (o *Operator) Sent() int { return len(o.halo.received) * int(unsafe.Sizeof(su3.Half{})) }

// Apply sets out to D·in. out and in have an element for each site of this node, x
// running fastest, and must not overlap. It does not allocate.
//
// Collective. Errors: those of the communication.
func (o *Operator) Apply(out, in []su3.Spinor) error { return o.apply(out, in, false) }

// ApplyAdjoint sets out to D†·in, as Apply does with D.
func (o *Operator) ApplyAdjoint(out, in []su3.Spinor) error { return o.apply(out, in, true) }

// The adjoint of D is D with 1+γ and 1-γ exchanged.
func (o *Operator) apply(out, in []su3.Spinor, adjoint bool) error {
	began := time.Now()
	o.pack(in, adjoint)
	if err := o.halo.start(); err != nil {
		return err
	}
	o.sites(out, in, o.interior, adjoint)
	inner := time.Now()
	if err := o.halo.wait(); err != nil {
		return err
	}
	waited := time.Now()
	o.sites(out, in, o.boundary, adjoint)
	o.Waited += waited.Sub(inner)
	o.Time += time.Since(began)
	o.Applied++
	return nil
}

// pack computes the half spinors for the neighbours: from the first sites along an axis for the
// node before, and from the last ones for the node after.
func (o *Operator) pack(in []su3.Spinor, adjoint bool) {
	for axis, face := range o.halo.faces {
		if face == nil {
			continue
		}
		o.packSites(face.toBefore, in, face.first, axis, false, adjoint)
		o.packSites(face.toAfter, in, face.last, axis, true, adjoint)
	}
}

// packPortable computes what the node before along an axis, or after it, needs of a list of sites: the half
// spinors of the sites there, times the adjoint of the link if it is the node after.
func (o *Operator) packPortable(to []su3.Half, in []su3.Spinor, list []int32, axis int, after, adjoint bool) {
	for i, s := range list {
		if !after {
			project(&to[i], &in[s], axis, !adjoint)
			continue
		}
		var h su3.Half
		project(&h, &in[s], axis, adjoint)
		to[i].AdjointMul(&o.links[lattice.Axes*int(s)+axis], &h)
	}
}

// project sets h to (1-γ)p, or (1+γ)p.
func project(h *su3.Half, p *su3.Spinor, axis int, minus bool) {
	if minus {
		h.ProjectMinus(p, axis)
	} else {
		h.ProjectPlus(p, axis)
	}
}

// add adds to p the spinor (1-γ)q, or (1+γ)q, of which h is left.
func add(p *su3.Spinor, h *su3.Half, axis int, minus bool) {
	if minus {
		p.AddMinus(h, axis)
	} else {
		p.AddPlus(h, axis)
	}
}

// sitesPortable computes the sites of a list.
func (o *Operator) sitesPortable(out, in []su3.Spinor, list []int32, adjoint bool) {
	for _, s := range list {
		o.site(&out[s], in, int(s), adjoint)
	}
}

// site computes one site. Its neighbours may be of other nodes.
func (o *Operator) site(out *su3.Spinor, in []su3.Spinor, s int, adjoint bool) {
	var sum su3.Spinor
	var h, r su3.Half
	for axis := range lattice.Axes {
		if n := o.next[s][axis]; n >= 0 {
			project(&h, &in[n], axis, !adjoint)
			r.Mul(&o.links[lattice.Axes*s+axis], &h)
		} else {
			r.Mul(&o.links[lattice.Axes*s+axis], &o.halo.received[^n])
		}
		add(&sum, &r, axis, !adjoint)
		if n := o.next[s][lattice.Axes+axis]; n >= 0 {
			project(&h, &in[n], axis, adjoint)
			r.AdjointMul(&o.links[lattice.Axes*int(n)+axis], &h)
			add(&sum, &r, axis, adjoint)
		} else {
			add(&sum, &o.halo.received[^n], axis, adjoint)
		}
	}
	p := &in[s]
	for c := range p {
		for k := range p[c] {
			out[c][k] = complex(
				real(p[c][k])-float64(o.kappa*real(sum[c][k])),
				imag(p[c][k])-float64(o.kappa*imag(sum[c][k])))
		}
	}
}
