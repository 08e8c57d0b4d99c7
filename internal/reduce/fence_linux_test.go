package reduce_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/reduce"
)

// fenced returns a page that begins, or ends, where memory may not be touched.
func fenced(t *testing.T) []byte {
	page := unix.Getpagesize()
	m, err := unix.Mmap(-1, 0, 3*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(m)) })
	require.NoError(t, unix.Mprotect(m[:page], unix.PROT_NONE))
	require.NoError(t, unix.Mprotect(m[2*page:], unix.PROT_NONE))
	return m[page : 2*page]
}

// No kernel reads or writes a byte before or after its vectors, which may end where
// memory ends.
func TestFence(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	dst, a, b := fenced(t), fenced(t), fenced(t)
	defined(func(o reduce.Op, typ reduce.Type) {
		random(r, a, typ)
		random(r, b, typ)
		for _, set := range append(reduce.Sets(), reduce.Portable()) {
			f, _ := set.Lookup(o, typ)
			fold, _ := set.Fold(o, typ)
			for n := range 71 {
				size := n * typ.Size()
				end := len(dst) - size
				f(dst[end:], a[end:], b[end:])
				f(dst[:size], a[:size], b[:size])
				fold(dst[end:], [][]byte{a[end:], b[end:], a[end:]})
				fold(dst[:size], [][]byte{a[:size], b[:size], a[:size]})
			}
		}
	})
}
