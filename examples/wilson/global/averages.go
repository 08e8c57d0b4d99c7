package global

import (
	"github.com/sluice-hpc/sluice/examples/wilson/gauge"
	"github.com/sluice-hpc/sluice/examples/wilson/lattice"
)

// Averages returns the average of Re tr U / 3 over the plaquettes of a field, and over
// its links. Collective. Errors: those of the communication.
func (s *Sums) Averages(f *gauge.Field) (plaquette, trace float64, err error) {
	const colours = 3
	sites := make([]float64, f.Lattice.Sites())
	all := float64(f.Lattice.Global.Product())
	f.Plaquettes(sites)
	if plaquette, err = s.Total(sites); err != nil {
		return 0, 0, err
	}
	f.Traces(sites)
	if trace, err = s.Total(sites); err != nil {
		return 0, 0, err
	}
	return plaquette / (all * gauge.Planes * colours), trace / (all * lattice.Axes * colours), nil
}
