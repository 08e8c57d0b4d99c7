package reduce

import "golang.org/x/sys/cpu"

func runnable() map[string]*kernels {
	sets := map[string]*kernels{}
	if cpu.X86.HasAVX2 {
		sets["avx2"] = &avx2
	}
	if native == &avx512 {
		sets["avx512"] = &avx512
	}
	return sets
}
