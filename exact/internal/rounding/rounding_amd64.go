package rounding

import "golang.org/x/sys/cpu"

//go:generate sh -c "cd ../../../internal/reduce/gen && GOWORK=off go run . -kernels rounding -width 32 -pkg rounding -out ../../../exact/internal/rounding/avx2_amd64.s -stubs ../../../exact/internal/rounding/avx2_amd64.go"
//go:generate sh -c "cd ../../../internal/reduce/gen && GOWORK=off go run . -kernels rounding -width 64 -pkg rounding -out ../../../exact/internal/rounding/avx512_amd64.s -stubs ../../../exact/internal/rounding/avx512_amd64.go"

func init() {
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA {
		loops = append(loops, Loop{"avx2",
			func(x []float64) float64 { return sumAVX2(&x[0], len(x)) },
			func(x, y []float64) float64 { return dotAVX2(&x[0], &y[0], len(x)) }})
	}
	if cpu.X86.HasAVX512F {
		loops = append(loops, Loop{"avx512",
			func(x []float64) float64 { return sumAVX512(&x[0], len(x)) },
			func(x, y []float64) float64 { return dotAVX512(&x[0], &y[0], len(x)) }})
	}
}

// SetEnvironment sets MXCSR of this thread and returns what it was. The caller locks its goroutine
// to the thread, and does nothing in between that the runtime's or the compiler's own
// floating-point arithmetic is part of.
var SetEnvironment = setMXCSR
