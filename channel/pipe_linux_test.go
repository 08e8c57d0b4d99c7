package channel

import (
	"fmt"
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// BenchmarkForeign is why heap memory is packed: 768 KiB in blocks of a size, a
// block's length apart, taken by process_vm_readv, and copied twice by way of
// pieces that stay in the cache.
func BenchmarkForeign(b *testing.B) {
	const total = 768 << 10
	src, dst, pipe := make([]byte, 2*total), make([]byte, total), make([]byte, pieceMax)
	for i := range src {
		src[i] = byte(i)
	}
	for _, block := range []int{192, 1 << 10, 4 << 10, 16 << 10, 48 << 10, total} {
		count := total / block
		b.Run(fmt.Sprintf("%d/process_vm_readv", block), func(b *testing.B) {
			const most = 1024 // segments of a call
			var remote []unix.RemoteIovec
			for i := range count {
				remote = append(remote, unix.RemoteIovec{Base: uintptr(unsafe.Pointer(&src[2*i*block])), Len: block})
			}
			b.SetBytes(total)
			for b.Loop() {
				for i := 0; i < count; i += most {
					n := min(most, count-i)
					local := unix.Iovec{Base: &dst[i*block]}
					local.SetLen(n * block)
					got, err := unix.ProcessVMReadv(os.Getpid(), []unix.Iovec{local}, remote[i:i+n], 0)
					require.NoError(b, err)
					require.Equal(b, n*block, got)
				}
			}
		})
		b.Run(fmt.Sprintf("%d/packed", block), func(b *testing.B) {
			from := Strided(src, 0, block, count, 2*block).shape
			to := Contiguous(dst[:count*block]).shape
			b.SetBytes(total)
			for b.Loop() {
				for at := 0; at < from.Len(); at += pieceMax {
					p := pipe[:min(pieceMax, from.Len()-at)]
					from.Gather(p, at)
					to.Scatter(p, at)
				}
			}
		})
	}
}
