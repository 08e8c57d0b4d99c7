package dirac

import (
	"golang.org/x/sys/cpu"

	"github.com/sluice-hpc/sluice/examples/wilson/lattice"
	"github.com/sluice-hpc/sluice/examples/wilson/su3"
)

// masks are which numbers of two spins change their sign: of the last two, to be added to
// the first two in (1 ± γ)ψ, and of these, to be added to the last two. Along each axis
// forwards, then backwards.
type masks [lattice.Axes][2]struct{ project, add [4]uint64 }

const minus = 1 << 63

// signs are those of (1-γ) and of (1+γ).
var signs = [lattice.Axes][2]struct{ project, add [4]uint64 }{
	{{[4]uint64{0, minus, 0, minus}, [4]uint64{minus, 0, minus, 0}}, {[4]uint64{minus, 0, minus, 0}, [4]uint64{0, minus, 0, minus}}},
	{{[4]uint64{0, 0, minus, minus}, [4]uint64{minus, minus, 0, 0}}, {[4]uint64{minus, minus, 0, 0}, [4]uint64{0, 0, minus, minus}}},
	{{[4]uint64{0, minus, minus, 0}, [4]uint64{minus, 0, 0, minus}}, {[4]uint64{minus, 0, 0, minus}, [4]uint64{0, minus, minus, 0}}},
	{{[4]uint64{minus, minus, minus, minus}, [4]uint64{minus, minus, minus, minus}}, {}},
}

// ofD are those of D: 1-γ forwards, 1+γ backwards. In its adjoint they are exchanged.
var ofD, ofAdjoint = func() (d, adjoint masks) {
	for axis, s := range signs {
		d[axis] = s
		adjoint[axis][0], adjoint[axis][1] = s[1], s[0]
	}
	return d, adjoint
}()

var haveAVX2 = cpu.X86.HasAVX2

// sitesAVX2 computes n sites, of which sites are the numbers, as site does. Received is
// what negative numbers in next mean.
//
//go:noescape
func sitesAVX2(out, in *su3.Spinor, links *su3.Matrix, next *[2 * lattice.Axes]int32, received *su3.Half, sites *int32, n int, kappa float64, masks *masks)

// packAVX2 sets to to what neighbours along an axis need of n sites, as packPortable does. links is the
// first site's link along the axis, or nil.
//
//go:noescape
func packAVX2(to *su3.Half, in *su3.Spinor, links *su3.Matrix, sites *int32, n, axis int, mask *[4]uint64)

// piece is how many sites are computed in one call, which cannot be interrupted by the
// scheduler: some 50 µs.
const piece = 512

// sites computes the sites of a list.
func (o *Operator) sites(out, in []su3.Spinor, list []int32, adjoint bool) {
	if !haveAVX2 {
		o.sitesPortable(out, in, list, adjoint)
		return
	}
	m := masksOf(adjoint)
	var received *su3.Half
	if len(o.halo.received) > 0 {
		received = &o.halo.received[0]
	}
	_, _ = out[len(o.next)-1], in[len(o.next)-1]
	for len(list) > 0 {
		n := min(piece, len(list))
		sitesAVX2(&out[0], &in[0], &o.links[0], &o.next[0], received, &list[0], n, o.kappa, m)
		list = list[n:]
	}
}

func masksOf(adjoint bool) *masks {
	if adjoint {
		return &ofAdjoint
	}
	return &ofD
}

// packSites computes what the node before along an axis, or after it, needs of a list of sites.
func (o *Operator) packSites(to []su3.Half, in []su3.Spinor, list []int32, axis int, after, adjoint bool) {
	if !haveAVX2 {
		o.packPortable(to, in, list, axis, after, adjoint)
		return
	}
	mask, links := &masksOf(adjoint)[axis][0].project, (*su3.Matrix)(nil)
	if after {
		mask, links = &masksOf(adjoint)[axis][1].project, &o.links[axis]
	}
	_, to = in[len(o.next)-1], to[:len(list)]
	for len(list) > 0 {
		n := min(piece, len(list))
		packAVX2(&to[0], &in[0], links, &list[0], n, axis, mask)
		to, list = to[n:], list[n:]
	}
}
