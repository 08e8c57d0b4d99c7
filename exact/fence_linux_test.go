package exact_test

import (
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/exact"
)

// fenced returns n numbers that begin, or end, where memory may not be touched. They cannot be written.
func fenced[T any](t *testing.T, x []T) []T {
	page := unix.Getpagesize()
	size := len(x) * int(unsafe.Sizeof(x[0]))
	require.Zero(t, size%page)
	m, err := unix.Mmap(-1, 0, 2*page+size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(m)) })
	f := unsafe.Slice((*T)(unsafe.Pointer(&m[page])), len(x))
	copy(f, x)
	require.NoError(t, unix.Mprotect(m[page:page+size], unix.PROT_READ))
	require.NoError(t, unix.Mprotect(m[:page], unix.PROT_NONE))
	require.NoError(t, unix.Mprotect(m[page+size:], unix.PROT_NONE))
	return f
}

// No kernel reads before or after its slices, which may end where memory ends, and none writes to them.
func TestFence(t *testing.T) {
	const most = 1 << 14 // whole pages of 64 KiB, too, and several blocks
	lengths := []int{exact.SumBlock - 1, exact.SumBlock, exact.SumBlock + 1, 2*exact.SumBlock + 37, exact.DotStretch + 3, most}
	for n := range 140 {
		lengths = append(lengths, n)
	}
	for _, name := range []string{"normal", "bits", "edges", "tiny"} {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(43, 44))
			source := sources[name]
			x, y := fenced(t, draw(r, most, source)), fenced(t, draw(r, most, source))
			u, v := fenced(t, narrow(r, most, source)), fenced(t, narrow(r, most, source))
			z, w := fenced(t, paired[complex64](draw(r, most, source))), fenced(t, paired[complex64](draw(r, most, source)))
			wideZ, wideW := fenced(t, paired[complex128](draw(r, most, source))), fenced(t, paired[complex128](draw(r, most, source)))
			for _, k := range exact.Kernels() {
				var a exact.Accumulator
				var c exact.Complex
				for _, n := range lengths {
					for _, from := range []int{0, most - n} {
						to, half := from+n, from/2
						k.AddSlice(&a, x[from:to])
						k.AddProducts(&a, x[from:to], y[from:to])
						exact.AddStridedBy(k, &a, x[from:to], 3)
						exact.AddProductsStridedBy(k, &a, x[from:to], 3, y[from:to], 3)
						exact.AddStridedBy(k, &a, u[from:to], 1)
						exact.AddStridedBy(k, &a, u[from:to], 3)
						exact.AddProductsStridedBy(k, &a, u[from:to], 1, v[from:to], 1)
						exact.AddProductsStridedBy(k, &a, u[from:to], 2, v[from:to], 2)
						exact.AddComplexBy(k, &c, z[half:half+n/2])
						exact.AddInnerBy(k, &c, z[half:half+n/2], w[half:half+n/2])
						exact.AddComplexBy(k, &c, wideZ[half:half+n/2])
						exact.AddInnerBy(k, &c, wideZ[half:half+n/2], wideW[half:half+n/2])
						if k != exact.Kernels()[0] {
							k.AddLevels(&a, x[from:to], y[from:to])
						}
					}
				}
			}
		})
	}
}
