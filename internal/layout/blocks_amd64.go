//go:build !race

package layout

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

// Blocks smaller than blocksMin or larger than blocksMax are copied one by one.
// BenchmarkBlocks on an EPYC, GB/s in a run and one by one: 26 and 3.6 for
// 16 bytes, 44 and 14 for 64, 57 and 27 for 192, 35 and 35 for 256, 45 and 54 for
// 512: from there on a single copy uses wider registers.
const (
	blocksMin = 16
	blocksMax = 256
)

// copyBlocks copies count > 0 blocks of size >= 16 bytes, which begin dstStep and
// srcStep bytes apart. The caller has checked the bounds.
//
//go:noescape
func copyBlocks(dst, src unsafe.Pointer, size, count, dstStep, srcStep int)

// From stringMin bytes on, below stringMax, copies use the string instruction where it is known to
// pay. The flags of CPUID do not say where; these CPUs both have ERMS and FSRM:
//   - EPYC of family 26: BenchmarkPipe of channel with 1, 2 and 8 messages gives 27, 22 and 26 GB/s
//     instead of 19, 20 and 25 where the other core is near, and 15, 15 and 16 instead of 5, 5 and 6
//     where it is far. The instruction does not fetch the lines that it overwrites from the cache of
//     the core that has read them last.
//   - EPYC of family 25 (Zen 4): half a round trip of 64 KiB and 1 MiB of heap memory in bench takes,
//     with and without it, 2.7 and 47 µs, or 9.5 and 120 µs while the virtual CPUs seem far apart.
//
// On Intel's CPUs the runtime uses the instruction itself where it pays (runtime/cpuflags_amd64.go).
// From stringMax on, the runtime stores without fetching lines too.
const (
	stringMin = 2 << 10
	stringMax = 1 << 20
)

var stringPays = cpu.X86.HasERMS && paysOn(cpuid(0), cpuid(1))

// paysOn says whether the string instruction pays on the CPU with these answers to CPUID (AMD64
// Architecture Programmer's Manual, volume 3, E.3.1 and E.3.2).
func paysOn(vendor, version leaf) bool {
	amd := vendor.ebx == 0x68747541 && vendor.edx == 0x69746e65 && vendor.ecx == 0x444d4163 // AuthenticAMD
	family := version.eax >> 8 & 0xf
	if family == 0xf {
		family += version.eax >> 20 & 0xff
	}
	return amd && family == 26
}

// leaf is an answer to CPUID.
type leaf struct{ eax, ebx, ecx, edx uint32 }

func cpuid(leaf uint32) leaf

// Copy is the builtin copy, made fast for memory that another core reads next or has read last.
func Copy(dst, src []byte) int {
	if len(src) < stringMin || !stringPays {
		return copy(dst, src)
	}
	return copyLong(dst, src)
}

func copyLong(dst, src []byte) int {
	n := min(len(dst), len(src))
	d, s := unsafe.Pointer(unsafe.SliceData(dst)), unsafe.Pointer(unsafe.SliceData(src))
	// Behind its own source, where the instruction would read what it has written, only the runtime
	// copies right.
	if n < stringMin || n >= stringMax || uintptr(d)-uintptr(s) < uintptr(n) {
		return copy(dst, src)
	}
	// The instruction is slow if dst is not aligned to a cache line.
	head := int(-uintptr(d) & 63)
	copy(dst[:head], src)
	copyString(unsafe.Add(d, head), unsafe.Add(s, head), n-head)
	return n
}

//go:noescape
func copyString(dst, src unsafe.Pointer, n int)

// Past says whether CopyPast differs from Copy.
const Past = true

// CopyPast is Copy with stores that go past the caches, to memory (MOVNTDQ): they do not fetch the lines
// that they overwrite from the cache of the CPU that has read them last, which takes long if it is far,
// and its next load finds them in memory. Others see them before any later store of this CPU.
// Unlike with Copy, dst must not begin within src, except where that begins.
func CopyPast(dst, src []byte) int {
	n := min(len(dst), len(src))
	d, s := unsafe.Pointer(unsafe.SliceData(dst)), unsafe.Pointer(unsafe.SliceData(src))
	head := int(-uintptr(d) & 63)
	lines := (n - head) &^ 63
	if lines <= 0 {
		return copy(dst, src)
	}
	copy(dst[:head], src)
	storePast(unsafe.Add(d, head), unsafe.Add(s, head), lines)
	copy(dst[head+lines:n], src[head+lines:n])
	return n
}

//go:noescape
func storePast(dst, src unsafe.Pointer, n int)
