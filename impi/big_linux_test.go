package impi

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

// sparse is memory that has not been written yet.
func sparse(t testing.TB, n int) []byte {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(b)) })
	_ = unix.Madvise(b, unix.MADV_HUGEPAGE) // saves time, where there are such
	return b
}

// TestBeyond4GiB: a message of 5 GiB and some bytes.
func TestBeyond4GiB(t *testing.T) {
	need.Long(t)
	const n = 5<<30 + 123
	for _, p := range places {
		if p.name != "tcp" && p.name != "shm" { // a plain copy; as shm, but slowly
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			w := worlds(t, p)
			src, dst := sparse(t, n), sparse(t, n)
			for i, at := range []int{0, 64<<10 - 1, 1 << 30, 1<<31 - 1, 1 << 31, 1<<32 - 1, 1 << 32, 1<<32 + 12345, n - 1} {
				src[at] = byte(1 + i)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*limit)
			defer cancel()
			var st Status
			both(t, func() error { return w[0].Send(ctx, src, 1, 1) },
				func() (err error) { st, err = w[1].Recv(ctx, dst, 0, 1); return err })
			require.Equal(t, Status{Tag: 1, Len: n}, st)
			const step = 64 << 20
			for at := 0; at < n; at += step {
				a, b := src[at:min(n, at+step)], dst[at:min(n, at+step)]
				require.True(t, bytes.Equal(a, b), "bytes from %d on", at)
				require.NoError(t, unix.Madvise(b, unix.MADV_DONTNEED))
			}
		})
	}
}
