package reduce

import "golang.org/x/sys/cpu"

//go:generate sh -c "cd gen && GOWORK=off go run . -width 32 -pkg reduce -out ../avx2_amd64.s -stubs ../avx2_amd64.go"
//go:generate sh -c "cd gen && GOWORK=off go run . -width 64 -pkg reduce -out ../avx512_amd64.s -stubs ../avx512_amd64.go"

// native holds the fastest kernels for this CPU; nil if only the portable loops run on it.
//
// The gain of AVX-512 over AVX2 on an EPYC with registers of that width (Zen 5):
// BenchmarkFunc 1.35 times as much at 1 KiB, 1.0 times beyond the first-level cache;
// BenchmarkFold 1.4 times at 1 KiB, 1.1 to 1.2 times at 128 KiB and 8 MiB. VBMI2 is
// not used: the CPUs without it, before Ice Lake, lower their clock for registers of
// that width (Intel Optimization Reference Manual, "Skylake Server Power
// Management").
var native = func() *kernels {
	x := &cpu.X86
	switch {
	case x.HasAVX2 && x.HasAVX512F && x.HasAVX512DQ && x.HasAVX512BW && x.HasAVX512VBMI2:
		return &avx512
	case x.HasAVX2:
		return &avx2
	}
	return nil
}()

var avx2 = kernels{
	Sum: {
		Int32:      {addI32AVX2, addI32FoldAVX2},
		Int64:      {addI64AVX2, addI64FoldAVX2},
		Uint32:     {addI32AVX2, addI32FoldAVX2},
		Uint64:     {addI64AVX2, addI64FoldAVX2},
		Float32:    {addF32AVX2, addF32FoldAVX2},
		Float64:    {addF64AVX2, addF64FoldAVX2},
		Complex64:  {addF32AVX2, addF32FoldAVX2},
		Complex128: {addF64AVX2, addF64FoldAVX2},
	},
	Product: {
		Int32:      {mulI32AVX2, mulI32FoldAVX2},
		Int64:      {mulI64AVX2, mulI64FoldAVX2},
		Uint32:     {mulI32AVX2, mulI32FoldAVX2},
		Uint64:     {mulI64AVX2, mulI64FoldAVX2},
		Float32:    {mulF32AVX2, mulF32FoldAVX2},
		Float64:    {mulF64AVX2, mulF64FoldAVX2},
		Complex64:  {mulC64AVX2, mulC64FoldAVX2},
		Complex128: {mulC128AVX2, mulC128FoldAVX2},
	},
	Min: {
		Int32:   {minI32AVX2, minI32FoldAVX2},
		Int64:   {minI64AVX2, minI64FoldAVX2},
		Uint32:  {minU32AVX2, minU32FoldAVX2},
		Uint64:  {minU64AVX2, minU64FoldAVX2},
		Float32: {minF32AVX2, minF32FoldAVX2},
		Float64: {minF64AVX2, minF64FoldAVX2},
	},
	Max: {
		Int32:   {maxI32AVX2, maxI32FoldAVX2},
		Int64:   {maxI64AVX2, maxI64FoldAVX2},
		Uint32:  {maxU32AVX2, maxU32FoldAVX2},
		Uint64:  {maxU64AVX2, maxU64FoldAVX2},
		Float32: {maxF32AVX2, maxF32FoldAVX2},
		Float64: {maxF64AVX2, maxF64FoldAVX2},
	},
	And: {
		Int32:  {andBitsAVX2, andBitsFoldAVX2},
		Int64:  {andBitsAVX2, andBitsFoldAVX2},
		Uint32: {andBitsAVX2, andBitsFoldAVX2},
		Uint64: {andBitsAVX2, andBitsFoldAVX2},
	},
	Or: {
		Int32:  {orBitsAVX2, orBitsFoldAVX2},
		Int64:  {orBitsAVX2, orBitsFoldAVX2},
		Uint32: {orBitsAVX2, orBitsFoldAVX2},
		Uint64: {orBitsAVX2, orBitsFoldAVX2},
	},
	Xor: {
		Int32:  {xorBitsAVX2, xorBitsFoldAVX2},
		Int64:  {xorBitsAVX2, xorBitsFoldAVX2},
		Uint32: {xorBitsAVX2, xorBitsFoldAVX2},
		Uint64: {xorBitsAVX2, xorBitsFoldAVX2},
	},
}

var avx512 = kernels{
	Sum: {
		Int32:      {addI32AVX512, addI32FoldAVX512},
		Int64:      {addI64AVX512, addI64FoldAVX512},
		Uint32:     {addI32AVX512, addI32FoldAVX512},
		Uint64:     {addI64AVX512, addI64FoldAVX512},
		Float32:    {addF32AVX512, addF32FoldAVX512},
		Float64:    {addF64AVX512, addF64FoldAVX512},
		Complex64:  {addF32AVX512, addF32FoldAVX512},
		Complex128: {addF64AVX512, addF64FoldAVX512},
	},
	Product: {
		Int32:      {mulI32AVX512, mulI32FoldAVX512},
		Int64:      {mulI64AVX512, mulI64FoldAVX512},
		Uint32:     {mulI32AVX512, mulI32FoldAVX512},
		Uint64:     {mulI64AVX512, mulI64FoldAVX512},
		Float32:    {mulF32AVX512, mulF32FoldAVX512},
		Float64:    {mulF64AVX512, mulF64FoldAVX512},
		Complex64:  {mulC64AVX512, mulC64FoldAVX512},
		Complex128: {mulC128AVX512, mulC128FoldAVX512},
	},
	Min: {
		Int32:   {minI32AVX512, minI32FoldAVX512},
		Int64:   {minI64AVX512, minI64FoldAVX512},
		Uint32:  {minU32AVX512, minU32FoldAVX512},
		Uint64:  {minU64AVX512, minU64FoldAVX512},
		Float32: {minF32AVX512, minF32FoldAVX512},
		Float64: {minF64AVX512, minF64FoldAVX512},
	},
	Max: {
		Int32:   {maxI32AVX512, maxI32FoldAVX512},
		Int64:   {maxI64AVX512, maxI64FoldAVX512},
		Uint32:  {maxU32AVX512, maxU32FoldAVX512},
		Uint64:  {maxU64AVX512, maxU64FoldAVX512},
		Float32: {maxF32AVX512, maxF32FoldAVX512},
		Float64: {maxF64AVX512, maxF64FoldAVX512},
	},
	And: {
		Int32:  {andBitsAVX512, andBitsFoldAVX512},
		Int64:  {andBitsAVX512, andBitsFoldAVX512},
		Uint32: {andBitsAVX512, andBitsFoldAVX512},
		Uint64: {andBitsAVX512, andBitsFoldAVX512},
	},
	Or: {
		Int32:  {orBitsAVX512, orBitsFoldAVX512},
		Int64:  {orBitsAVX512, orBitsFoldAVX512},
		Uint32: {orBitsAVX512, orBitsFoldAVX512},
		Uint64: {orBitsAVX512, orBitsFoldAVX512},
	},
	Xor: {
		Int32:  {xorBitsAVX512, xorBitsFoldAVX512},
		Int64:  {xorBitsAVX512, xorBitsFoldAVX512},
		Uint32: {xorBitsAVX512, xorBitsFoldAVX512},
		Uint64: {xorBitsAVX512, xorBitsFoldAVX512},
	},
}
