package reduce_test

import (
	"fmt"
	"testing"
	"unsafe"

	"github.com/sluice-hpc/sluice/internal/reduce"
)

var benchSizes = []int{1 << 10, 128 << 10, 8 << 20}

func benchSets() []reduce.Functions { return append(reduce.Sets(), reduce.Portable()) }

func label(size int) string {
	if size >= 1<<20 {
		return fmt.Sprintf("%dMiB", size>>20)
	}
	return fmt.Sprintf("%dKiB", size>>10)
}

// vector returns size bytes that begin a line of the cache, with every element one.
func vector(t reduce.Type, size int) []byte {
	p := make([]byte, size+64)
	p = p[-uintptr(unsafe.Pointer(&p[0]))&63:][:size]
	fill(p, t, func(int) int { return 0 })
	return p
}

// Bytes counts those of the result: GB/s of a vector, of which two are read and one
// is written. The second operand is the result, as in an accumulation.
func BenchmarkFunc(b *testing.B) {
	for o := range reduce.Op(reduce.Ops) {
		for t := range reduce.Type(reduce.Types) {
			if !reduce.Defined(o, t) {
				continue
			}
			for _, size := range benchSizes {
				for _, set := range benchSets() {
					b.Run(fmt.Sprintf("%v/%v/%s/%s", o, t, label(size), set.Name), func(b *testing.B) {
						f, _ := set.Lookup(o, t)
						dst, x, y := vector(t, size), vector(t, size), vector(t, size)
						b.SetBytes(int64(size))
						for b.Loop() {
							f(dst, x, y)
						}
					})
				}
			}
		}
	}
}

// Bytes counts those of the result; "binary" combines two at a time.
func BenchmarkFold(b *testing.B) {
	for _, size := range benchSizes {
		for _, k := range []int{2, 4, 8} {
			srcs := make([][]byte, k)
			for i := range srcs {
				srcs[i] = vector(reduce.Float64, size)
			}
			dst := vector(reduce.Float64, size)
			for _, set := range benchSets() {
				b.Run(fmt.Sprintf("%s/%d/%s", label(size), k, set.Name), func(b *testing.B) {
					f, _ := set.Fold(reduce.Sum, reduce.Float64)
					b.SetBytes(int64(size))
					for b.Loop() {
						f(dst, srcs)
					}
				})
				b.Run(fmt.Sprintf("%s/%d/%s binary", label(size), k, set.Name), func(b *testing.B) {
					f, _ := set.Lookup(reduce.Sum, reduce.Float64)
					b.SetBytes(int64(size))
					for b.Loop() {
						reduce.Fold(f, dst, srcs)
					}
				})
			}
		}
	}
}
