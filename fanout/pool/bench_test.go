package pool

import (
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkPool measures the time of a chunk to a worker, and of its result, of the same length,
// back.
func BenchmarkPool(b *testing.B) {
	for _, n := range []int{64, 4 << 10, 1 << 20} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			ctx := b.Context()
			c := config()
			c.Window = 32
			s, err := Listen(ctx, "127.0.0.1:0", c)
			require.NoError(b, err)
			w, err := Join(ctx, c, s.Addr().String())
			require.NoError(b, err)
			over := make(chan error, 2)
			go func() {
				for {
					k, err := w.Receive(ctx)
					if err == nil {
						err = k.Done(k.Bytes())
					}
					if err == io.EOF {
						over <- w.Close()
						return
					}
					if err != nil {
						over <- err
						return
					}
				}
			}()
			go func() {
				for {
					r, err := s.Receive(ctx)
					if err == io.EOF {
						over <- nil
						return
					}
					if err != nil {
						over <- err
						return
					}
					r.Release()
				}
			}()
			chunk := make([]byte, n)
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				if err := s.Send(ctx, chunk); err != nil {
					b.Fatal(err)
				}
			}
			require.NoError(b, s.End(ctx))
			for range 2 {
				require.NoError(b, <-over)
			}
		})
	}
}
