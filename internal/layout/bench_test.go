package layout

import (
	"fmt"
	"testing"
)

// BenchmarkBlocks copies 768 KiB from blocks of a size, four of it apart, to one
// piece: as runs of blocks are copied, and block by block.
func BenchmarkBlocks(b *testing.B) {
	const total = 768 << 10
	src, dst := make([]byte, 4*total), make([]byte, total)
	for _, size := range []int{8, 16, 24, 32, 64, 100, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096, 16384} {
		count := total / size
		b.Run(fmt.Sprintf("%d/run", size), func(b *testing.B) {
			b.SetBytes(int64(count * size))
			for b.Loop() {
				copyRun(dst, src, 0, 0, size, count, size, 4*size)
			}
		})
		b.Run(fmt.Sprintf("%d/each", size), func(b *testing.B) {
			b.SetBytes(int64(count * size))
			for b.Loop() {
				for i := range count {
					copy(dst[i*size:(i+1)*size], src[4*i*size:])
				}
			}
		})
	}
}
