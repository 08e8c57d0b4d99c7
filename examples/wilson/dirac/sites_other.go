//go:build !amd64

package dirac

import "github.com/sluice-hpc/sluice/examples/wilson/su3"

// sites computes the sites of a list.
func (o *Operator) sites(out, in []su3.Spinor, list []int32, adjoint bool) {
	o.sitesPortable(out, in, list, adjoint)
}
