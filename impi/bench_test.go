package impi

import (
	"context"
	"fmt"
	"testing"

	"github.com/sluice-hpc/sluice/channel"
)

// BenchmarkPingPong: a message and its answer.
func BenchmarkPingPong(b *testing.B) {
	for _, p := range places {
		for _, n := range []int{8, 64 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("%s/%d", p.name, n), func(b *testing.B) {
				w := worlds(b, p)
				ctx := context.Background()
				out, in := make([]byte, n), make([]byte, n)
				echo := func(c *Comm, peer, rounds int, out, in []byte) error {
					for range rounds {
						if _, err := c.Recv(ctx, in, peer, 0); err != nil {
							return err
						}
						if err := c.Send(ctx, out, peer, 0); err != nil {
							return err
						}
					}
					return nil
				}
				b.SetBytes(2 * int64(n))
				b.ReportAllocs()
				b.ResetTimer()
				both(b, func() error { return echo(w[1], 0, b.N, make([]byte, n), make([]byte, n)) }, func() error {
					if err := w[0].Send(ctx, out, 1, 0); err != nil {
						return err
					}
					if err := echo(w[0], 1, b.N-1, out, in); err != nil {
						return err
					}
					_, err := w[0].Recv(ctx, in, 1, 0)
					return err
				})
			})
		}
	}
}

// BenchmarkLanes: a message and its answer where so many other peers of the host are silent.
func BenchmarkLanes(b *testing.B) {
	for _, silent := range []int{0, 7, 15, 63, 255, 1023} {
		b.Run(fmt.Sprint(silent), func(b *testing.B) {
			w := worlds(b, place{"shm", 2, 1, Config{Providers: []string{"shm"}}})
			silence(b, w, silent)
			ctx, out := context.Background(), make([]byte, 8)
			b.ResetTimer()
			both(b, func() error {
				in := make([]byte, 8)
				for range b.N {
					if _, err := w[1].Recv(ctx, in, 0, 0); err != nil {
						return err
					}
					if err := w[1].Send(ctx, in, 0, 0); err != nil {
						return err
					}
				}
				return nil
			}, func() error {
				for range b.N {
					if err := w[0].Send(ctx, out, 1, 0); err != nil {
						return err
					}
					if _, err := w[0].Recv(ctx, out, 1, 0); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
}

// BenchmarkRate: messages of 8 bytes, 64 at a time.
func BenchmarkRate(b *testing.B) {
	const window = 64
	for _, p := range places {
		b.Run(p.name, func(b *testing.B) {
			w := worlds(b, p)
			ctx := context.Background()
			rounds := (b.N + window - 1) / window
			side := func(c *Comm, first bool) func() error {
				list, memory := make([]Request, window), make([]byte, 8*window)
				return func() (err error) {
					for range rounds {
						for i := range list {
							m := memory[8*i : 8*i+8]
							if first {
								list[i], err = c.Isend(m, 1, 0)
							} else {
								list[i], err = c.Irecv(m, 0, 0)
							}
							if err != nil {
								return err
							}
						}
						if err := WaitAll(ctx, nil, list...); err != nil {
							return err
						}
						if first {
							_, err = c.Recv(ctx, nil, 1, 1)
						} else {
							err = c.Send(ctx, nil, 0, 1)
						}
						if err != nil {
							return err
						}
					}
					return nil
				}
			}
			b.ReportAllocs()
			b.ResetTimer()
			both(b, side(w[0], true), side(w[1], false))
			b.ReportMetric(float64(rounds*window)/b.Elapsed().Seconds(), "msgs/s")
		})
	}
}

// BenchmarkLayout: 256 KiB in blocks that alternate with as long gaps at both ends, there and back, packed and in
// pieces: see packMost.
func BenchmarkLayout(b *testing.B) {
	const n = 256 << 10
	for _, p := range places {
		if p.name != "tcp" && p.name != "shm" {
			continue
		}
		for _, block := range []int{8, 256, 1 << 10, 2 << 10, 4 << 10, 16 << 10} {
			for _, packed := range []bool{true, false} {
				b.Run(fmt.Sprintf("%s/%d/packed %v", p.name, block, packed), func(b *testing.B) {
					w := worlds(b, p)
					ctx := context.Background()
					pass := func(c *Comm, peer, rounds int, first bool) error {
						memory := [2][]byte{make([]byte, 2*n), make([]byte, 2*n)}
						var pieces [2][][]byte
						var shapes [2]channel.Layout
						for i := range memory {
							shapes[i] = channel.Strided(memory[i], 0, block, n/block, 2*block)
							for at := 0; at < 2*n; at += 2 * block {
								pieces[i] = append(pieces[i], memory[i][at:at+block])
							}
						}
						for k := range 2 * rounds {
							var q Request
							var err error
							switch out := first == (k%2 == 0); {
							case out && packed:
								q, err = c.IsendLayout(shapes[0], peer, 0)
							case packed:
								q, err = c.IrecvLayout(shapes[1], peer, 0)
							case out:
								q, err = c.IsendVec(pieces[0], peer, 0)
							default:
								q, err = c.IrecvVec(pieces[1], peer, 0)
							}
							if err == nil {
								_, err = q.Wait(ctx)
							}
							if err != nil {
								return err
							}
						}
						return nil
					}
					b.SetBytes(2 * n)
					b.ResetTimer()
					both(b, func() error { return pass(w[0], 1, b.N, true) }, func() error { return pass(w[1], 0, b.N, false) })
				})
			}
		}
	}
}
