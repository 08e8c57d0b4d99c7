package impi

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/channel"
)

// BenchmarkCollective is the time of a collective of several hosts in this process.
func BenchmarkCollective(b *testing.B) {
	for _, provider := range []string{"socket", "shm"} {
		p := place{config: Config{Providers: []string{}}, processes: 1}
		if provider != "socket" {
			p.config.Providers = append(p.config.Providers, provider)
		}
		for _, p.hosts = range []int{2, 4} {
			for _, n := range []int{0, 1, 1 << 10, 1 << 17} {
				name := fmt.Sprintf("%s/%d/allreduce of %d", provider, p.hosts, 8*n)
				if n == 0 {
					name = fmt.Sprintf("%s/%d/barrier", provider, p.hosts)
				}
				b.Run(name, func(b *testing.B) {
					w := worlds(b, p)
					b.ReportAllocs()
					b.SetBytes(int64(8 * n))
					b.ResetTimer()
					for _, err := range together(w, func(c *Comm) error {
						o, x := channel.Barrier(), make([]float64, n)
						if n > 0 {
							o = channel.Allreduce(channel.Sum, x, x)
						}
						for range b.N {
							if err := c.Run(b.Context(), o); err != nil {
								return err
							}
						}
						return nil
					}) {
						require.NoError(b, err)
					}
					b.StopTimer()
				})
			}
		}
	}
}
