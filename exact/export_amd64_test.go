package exact

import "golang.org/x/sys/cpu"

func runnable() (all []kernels) {
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA {
		all = append(all, avx2)
	}
	if native == avx512 {
		all = append(all, avx512)
	}
	return all
}
