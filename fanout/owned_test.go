package fanout

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// Without a queue SendOwned returns when a worker has asked, although no worker has received
// the chunk yet; Send waits until it has.
func TestSendOwnedAhead(t *testing.T) {
	everywhere(t, func(t *testing.T, place string) {
		w := dup(t, comms(t, place, 2))
		ctx := ranks.Within(t)
		s := newSupplier(t, w[0])
		c := newClient(t, w[1], Window(2))
		_, err := c.Receive(over(t)) // it has asked for two
		require.Error(t, err)
		released := make([]int, 2)
		chunks := [][]byte{pattern(0, 1<<20), pattern(1, 1<<20)}
		for i := range 2 {
			require.NoError(t, s.SendOwned(ctx, func() { released[i]++ }, chunks[i]))
		}
		for i := range 2 {
			k := received(t, ctx, c)
			require.True(t, bytes.Equal(pattern(i, 1<<20), k.Bytes()))
			k.Release()
		}
		c.Leave()
		noErrors(t, together(
			func() error { return s.End(ctx) },
			func() error { return c.Each(ctx, 0, func(Chunk) error { return nil }) },
		))
		require.Equal(t, []int{1, 1}, released)
		require.NoError(t, c.Close())
	})
}

// Long and short chunks, sent alternately with Send and SendOwned, all arrive, each once, and are
// not read after their release.
func TestSendOwnedMixed(t *testing.T) {
	const count = 60
	everywhere(t, func(t *testing.T, place string) {
		w := dup(t, comms(t, place, 3))
		ctx := ranks.Within(t)
		released := make([]int, count)
		var mu sync.Mutex
		got := map[int]int{}
		sides := []func() error{func() error {
			s := newSupplier(t, w[0])
			for i := range count {
				b := pattern(i, chunkLen(i))
				b[0] = byte(i)
				var err error
				if i%5 == 4 {
					err = s.Send(ctx, b)
					released[i]++
					clear(b)
				} else {
					err = s.SendOwned(ctx, func() { released[i]++; clear(b) }, b[:len(b)/2], b[len(b)/2:])
				}
				if err != nil {
					return err
				}
			}
			return s.End(ctx)
		}}
		for i, opts := range [][]ClientOption{{Window(3), MaxChunk(200_000)}, {Window(4)}} {
			sides = append(sides, func() error {
				c := newClient(t, w[1+i], opts...)
				err := c.Each(ctx, time.Second, func(k Chunk) error {
					seq := int(k.Bytes()[0])
					want := pattern(seq, chunkLen(seq))
					want[0] = byte(seq)
					if !bytes.Equal(want, k.Bytes()) {
						return fmt.Errorf("chunk %d of %d bytes", seq, len(k.Bytes()))
					}
					mu.Lock()
					defer mu.Unlock()
					got[seq]++
					return nil
				})
				if err != nil {
					return err
				}
				return c.Close()
			})
		}
		noErrors(t, together(sides...))
		require.Len(t, got, count)
		for i := range count {
			require.Equal(t, []int{1, 1}, []int{released[i], got[i]}, "chunk %d", i)
		}
	})
}

// A worker of short chunks whose Receive ends with its context loses none.
func TestShortChunksKept(t *testing.T) {
	const count = 200
	everywhere(t, func(t *testing.T, place string) {
		w := dup(t, comms(t, place, 2))
		ctx := ranks.Within(t)
		noErrors(t, together(func() error {
			s := newSupplier(t, w[0])
			for i := range count {
				if err := s.Send(ctx, pattern(i, 1+i*20)); err != nil {
					return err
				}
			}
			return s.End(ctx)
		}, func() error {
			c := newClient(t, w[1], Window(5), MaxChunk(4096))
			for i, tries := 0, 0; i < count; {
				short, cancel := context.WithTimeout(ctx, time.Duration(tries)*time.Microsecond)
				k, err := c.Receive(short)
				cancel()
				if err != nil {
					if tries++; ctx.Err() != nil {
						return err
					}
					continue
				}
				tries = 0
				if !bytes.Equal(k.Bytes(), pattern(i, 1+i*20)) {
					return fmt.Errorf("chunk %d of %d bytes", i, len(k.Bytes()))
				}
				k.Release()
				i++
			}
			if err := c.Each(ctx, 0, func(Chunk) error { return fmt.Errorf("one too many") }); err != nil {
				return err
			}
			return c.Close()
		}))
	})
}
