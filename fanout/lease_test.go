package fanout

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/impi"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// Chunks in Alloc memory at both ends go straight from one to the other: nothing is copied in
// between, and nothing registered. The worker has several at a time, in each dialect. Their memory
// is freed with the client, or, for chunks that are still lent, when they are released.
func TestLeases(t *testing.T) {
	const size, count = 300_000, 12
	dialects := []struct {
		name     string
		supplier []Option
		client   []ClientOption
		kept     int // of four chunks, till the end
	}{
		{"plain", nil, nil, 1},
		{"posted", nil, []ClientOption{Window(3), MaxChunk(size)}, 2},
		{"numbered", nil, []ClientOption{Numbered(), Window(2)}, 1},
		{"queue", []Option{Queue(4)}, []ClientOption{Numbered(), Window(4), MaxChunk(size + recordHeader)}, 1},
		{"redeliver", []Option{Redeliver(), Unacknowledged(8)}, []ClientOption{Numbered()}, 0},
	}
	everywhere(t, func(t *testing.T, place string) {
		if place == "here" {
			return // one memory for all
		}
		jobs := jobsOf(t, place, 2)
		w := []*impi.Comm{jobs[0].World(), jobs[1].World()}
		memory, err := jobs[0].Alloc(count * size)
		require.NoError(t, err)
		chunk := func(i int) []byte { return memory.Bytes()[i*size : (i+1)*size] }
		for i := range count {
			copy(chunk(i), pattern(i, size))
		}
		for _, d := range dialects {
			t.Run(d.name, func(t *testing.T) {
				w := dup(t, w)
				before := []impi.Stats{jobs[0].Stats(), jobs[1].Stats()}
				ctx := ranks.Within(t)
				released := 0
				var lent []Chunk
				noErrors(t, together(
					func() error {
						s := newSupplier(t, w[0], d.supplier...)
						for i := range count {
							if err := s.SendOwned(ctx, func() { released++ }, chunk(i)); err != nil {
								return err
							}
						}
						return s.End(ctx)
					},
					func() error {
						c := newClient(t, w[1], append(d.client, LeasesOf(jobs[1]))...)
						for n := 0; ; n++ {
							k, err := c.Receive(ctx)
							if err == io.EOF {
								return c.Close()
							}
							if err != nil {
								return err
							}
							lent = append(lent, k)
							if !bytes.Equal(k.Bytes(), pattern(n, size)) {
								return fmt.Errorf("%d bytes are not chunk %d", len(k.Bytes()), n)
							}
							if n%4 != 3 {
								continue
							}
							for _, k := range lent[n-3+d.kept : n+1] {
								k.Release()
							}
						}
					}))
				require.Equal(t, count, released)
				require.Len(t, lent, count)
				for range 2 {
					for _, k := range lent {
						of, lent := k.l.of, k.l.gen == k.gen
						k.Release()
						require.False(t, lent && of.Bytes() != nil)
					}
				}
				for _, k := range lent {
					require.True(t, k.l.of == nil)
				}
				for i, j := range jobs {
					require.Equal(t, before[i], j.Stats(), "rank %d", i)
				}
			})
		}
		require.NoError(t, memory.Close())
	})
}

// A Receive whose context ends loses no chunk, wherever the chunk is: the next Receive returns it.
func TestCancelledReceive(t *testing.T) {
	need.Full(t)
	everywhere(t, func(t *testing.T, place string) {
		w := comms(t, place, 2)
		for _, opts := range [][]ClientOption{nil, {MaxChunk(200_000), Window(2)}, {Numbered(), Window(2)}} {
			w := dup(t, w)
			ctx := ranks.Within(t)
			const count = 40
			got := 0
			noErrors(t, together(
				func() error {
					s := newSupplier(t, w[0])
					for i := range count {
						if err := s.Send(ctx, pattern(i, chunkLen(i))); err != nil {
							return err
						}
					}
					return s.End(ctx)
				},
				func() error {
					c := newClient(t, w[1], opts...)
					for {
						some, cancel := context.WithCancel(ctx)
						over := make(chan struct{})
						go func() {
							for range rand.IntN(2000) {
								if some.Err() != nil {
									break
								}
							}
							cancel()
							close(over)
						}()
						k, err := c.Receive(some)
						cancel()
						<-over
						switch {
						case errors.Is(err, context.Canceled):
							continue
						case err == io.EOF:
							return c.Close()
						case err != nil:
							return err
						}
						if !bytes.Equal(k.Bytes(), pattern(got, chunkLen(got))) {
							return fmt.Errorf("%d bytes are not chunk %d", len(k.Bytes()), got)
						}
						got++
						k.Release()
					}
				}))
			require.Equal(t, count, got)
		}
	})
}
