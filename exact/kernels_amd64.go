package exact

import "golang.org/x/sys/cpu"

//go:generate sh -c "cd ../internal/reduce/gen && GOWORK=off go run . -kernels exact -width 32 -pkg exact -out ../../../exact/avx2_amd64.s -stubs ../../../exact/avx2_amd64.go"
//go:generate sh -c "cd ../internal/reduce/gen && GOWORK=off go run . -kernels exact -width 64 -pkg exact -out ../../../exact/avx512_amd64.s -stubs ../../../exact/avx512_amd64.go"

// native is the fastest set of kernels for this CPU. VBMI2 is not used: the CPUs without it lower
// their clock for registers of 512 bits, as internal/reduce says.
var native = func() kernels {
	x := &cpu.X86
	switch ymm := x.HasAVX2 && x.HasFMA; {
	case ymm && x.HasAVX512F && x.HasAVX512DQ && x.HasAVX512BW && x.HasAVX512VBMI2:
		return avx512
	case ymm:
		return avx2
	}
	return plain
}()

func (k kernels) sum(x *float64, n int, s *sumState) (done int, whole bool) {
	if k == avx512 {
		return sumAVX512(x, n, &s.chains[0])
	}
	return sumAVX2(x, n, &s.chains[0])
}

func (k kernels) dot(x, y *float64, n int, fresh bool, above, below float64, s *dotState) (done int, whole bool) {
	if k == avx512 {
		return dotAVX512(x, y, n, fresh, above, below, &s[0])
	}
	return dotAVX2(x, y, n, fresh, above, below, &s[0])
}

func (k kernels) wideSum(x *float64, n int, starts *float64, state *wideState) (done int, whole bool) {
	if k == avx512 {
		return wideSumAVX512(x, n, starts, &state[0])
	}
	return wideSumAVX2(x, n, starts, &state[0])
}

func (k kernels) wideDot(x, y *float64, n int, starts *float64, state *wideState) (done int, whole bool) {
	if k == avx512 {
		return wideDotAVX512(x, y, n, starts, &state[0])
	}
	return wideDotAVX2(x, y, n, starts, &state[0])
}

func (k kernels) gridDot(x, y *float64, n int, starts *float64, state *gridState) (levels int, whole bool) {
	if k == avx512 {
		return gridDotAVX512(x, y, n, starts, &state[0])
	}
	return gridDotAVX2(x, y, n, starts, &state[0])
}

func (k kernels) lanes() int {
	if k == avx512 {
		return 8
	}
	return 4
}

func (kernels) extents(x, y *float64, n int) (low, high int) { return extentsAVX2(x, y, n) }

func (kernels) limbs(x *float64, n int, limb *[limbs]int64) (done int) {
	return limbsAVX2(x, n, &limb[0])
}

func (kernels) widen(dst *float64, src *float32, n int) { widenAVX2(dst, src, n) }

func (kernels) gather(dst, src *float64, stride, n int) { gatherAVX2(dst, src, stride, n) }

func (kernels) gather32(dst, src *float32, stride, n int) { gather32AVX2(dst, src, stride, n) }

func (kernels) parts(re, im, src *float64, n int) { partsAVX2(re, im, src, n) }

func (kernels) parts32(re, im *float64, src *float32, n int) { parts32AVX2(re, im, src, n) }

func (kernels) turn(dst, src *float64, n int) { turnAVX2(dst, src, n) }

func (kernels) products(dst *float64, x, y *float32, n int) { productsAVX2(dst, x, y, n) }

func (kernels) inner(re, im *float64, x, y *float32, n int) { innerAVX2(re, im, x, y, n) }
