//go:build !amd64

package dirac

import "github.com/sluice-hpc/sluice/examples/wilson/su3"

// sites computes the sites of a list.
func (o *Operator) sites(out, in []su3.Spinor, list []int32, adjoint bool) {
	o.sitesPortable(out, in, list, adjoint)
}

// packSites computes what the node before along an axis, or after it, needs of a list of sites.
func (o *Operator) packSites(to []su3.Half, in []su3.Spinor, list []int32, axis int, after, adjoint bool) {
	o.packPortable(to, in, list, axis, after, adjoint)
}
