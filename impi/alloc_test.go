package impi

import (
	"context"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// TestAllocs: short messages cost no memory, at either end.
func TestAllocs(t *testing.T) {
	need.NoRace(t, "it allocates")
	const runs = 20
	eachWay(t, func(t *testing.T, a, b *Comm) {
		ctx := context.Background()
		for _, c := range []*Comm{a, b} { // what they look at before they send
			allocate(t, c.job, 100)
			require.NoError(t, allocate(t, c.job, 100).Close())
		}
		blocking := func(c *Comm, peer int, first bool, out, in []byte) error {
			if first {
				if err := c.Send(ctx, out, peer, 0); err != nil {
					return err
				}
			}
			if _, err := c.Recv(ctx, in, peer, 0); err != nil || first {
				return err
			}
			return c.Send(ctx, out, peer, 0)
		}
		requests := func(c *Comm, peer int, first bool, out, in []byte) error {
			r := irecv(t, c, in, peer, 0)
			if first {
				s, err := c.Isend(out, peer, 0)
				if err == nil {
					_, err = s.Wait(ctx)
				}
				if err != nil {
					return err
				}
			}
			for {
				ok, _, err := r.Test()
				if err != nil {
					return err
				}
				if ok {
					break
				}
				runtime.Gosched() // AllocsPerRun leaves one CPU to both ends
			}
			if first {
				return nil
			}
			s, err := c.Isend(out, peer, 0)
			if err == nil {
				_, err = s.Wait(ctx)
			}
			return err
		}
		for name, step := range map[string]func(*Comm, int, bool, []byte, []byte) error{"blocking": blocking, "requests": requests} {
			for _, n := range []int{8, 5000} {
				out, in, other, mirror := make([]byte, n), make([]byte, n), make([]byte, n), make([]byte, n)
				const warm = 20
				echo := make(chan error, 1)
				go func() {
					var err error
					for err == nil && mirror[0] == 0 {
						err = step(b, 0, false, other, mirror)
					}
					echo <- err
				}()
				var err error
				ping := func() {
					if err == nil {
						err = step(a, 1, true, out, in)
					}
				}
				for range warm {
					ping()
				}
				allocs := ranks.Allocs(runs, 0, ping)
				out[0] = 1 // the last
				ping()
				require.NoError(t, err)
				require.NoError(t, <-echo)
				require.Zero(t, allocs, "%s, %d bytes", name, n)
			}
		}
	})
}

func testTwo(p, q Request) error {
	_, _, err := TestAny(p, q)
	return err
}

// TestTestAnyAllocs: TestAny costs no memory, whatever its caller does with the error.
func TestTestAnyAllocs(t *testing.T) {
	need.NoRace(t, "it allocates")
	eachWay(t, func(t *testing.T, a, b *Comm) {
		list := fiveReceives(t, b)
		require.Zero(t, ranks.Allocs(100, 0, func() {
			if err := testTwo(list[0], list[1]); err != nil {
				t.Error(err)
			}
		}))
		for _, r := range list {
			require.NoError(t, r.Cancel())
			completed(t, r)
		}
	})
}
