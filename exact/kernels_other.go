//go:build !amd64

package exact

const native = plain

func (kernels) sum(*float64, int, *sumState) (int, bool) { panic("exact: no kernel") }

func (kernels) limbs(*float64, int, *[limbs]int64) int { panic("exact: no kernel") }

func (kernels) dot(_, _ *float64, _ int, _ bool, _, _ float64, _ *dotState) (int, bool) {
	panic("exact: no kernel")
}

func (kernels) wideSum(*float64, int, *float64, *wideState) (int, bool) { panic("exact: no kernel") }

func (kernels) wideDot(_, _ *float64, _ int, _ *float64, _ *wideState) (int, bool) {
	panic("exact: no kernel")
}

func (kernels) gridDot(_, _ *float64, _ int, _ *float64, _ *gridState) (int, bool) {
	panic("exact: no kernel")
}

func (kernels) extents(_, _ *float64, _ int) (int, int) { panic("exact: no kernel") }

func (kernels) lanes() int { panic("exact: no kernel") }

func (kernels) widen(*float64, *float32, int) { panic("exact: no kernel") }

func (kernels) gather(_, _ *float64, _, _ int) { panic("exact: no kernel") }

func (kernels) gather32(_, _ *float32, _, _ int) { panic("exact: no kernel") }

func (kernels) parts(_, _, _ *float64, _ int) { panic("exact: no kernel") }

func (kernels) parts32(_, _ *float64, _ *float32, _ int) { panic("exact: no kernel") }

func (kernels) turn(_, _ *float64, _ int) { panic("exact: no kernel") }

func (kernels) products(_ *float64, _, _ *float32, _ int) { panic("exact: no kernel") }

func (kernels) inner(_, _ *float64, _, _ *float32, _ int) { panic("exact: no kernel") }
