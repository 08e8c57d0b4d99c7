//go:build unix

package channel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

func init() { acts["restless"] = act{do: restless} }

const restlessStreams = 4

// restless declares, uses and closes handles of some streams in both directions between two ranks, at random,
// while all streams rest as often as can be. Some handles are closed without having been started, and those
// messages are waited for in different ways. With a third argument rank 1 dies in between.
func restless(ctx context.Context, n *Node, args []string) error {
	seed, rounds, other := uint64(number(args[0])), number(args[1]), 1-n.Rank()
	var over atomic.Bool
	var resting, using sync.WaitGroup
	defer resting.Wait()
	defer over.Store(true)
	rested := make(chan error, 1)
	resting.Go(func() {
		for !over.Load() {
			n.ticks.Add(restTicks)
			if err := n.endRests(true); err != nil {
				select {
				case rested <- err:
				default:
				}
			}
			runtime.Gosched()
		}
	})
	errs := make([]error, 2*restlessStreams)
	for i := range errs {
		using.Go(func() {
			// The messages of a stream are the same at both ends, the handles are not.
			stream, sends := i/2, i%2 == 0
			from := n.Rank()
			if !sends {
				from = other
			}
			r := rand.New(rand.NewPCG(seed, uint64(2*stream+from)))
			life := rand.New(rand.NewPCG(seed, uint64(100+10*i+n.Rank())))
			errs[i] = restlessEnd(ctx, n, other, stream, sends, rounds, r, life)
		})
	}
	if len(args) > 2 && n.Rank() == 1 {
		time.AfterFunc(time.Duration(number(args[2]))*time.Microsecond, func() { syscall.Kill(os.Getpid(), syscall.SIGKILL) })
	}
	using.Wait()
	if len(args) > 2 {
		for _, err := range errs {
			if !errors.Is(err, ErrPeerDied) {
				return fmt.Errorf("not the death of a peer: %w", errors.Join(errs...))
			}
		}
		return nil
	}
	over.Store(true)
	resting.Wait()
	select {
	case err := <-rested:
		errs = append(errs, err)
	default:
	}
	return errors.Join(errs...)
}

func restlessEnd(ctx context.Context, n *Node, other, stream int, sends bool, rounds int, r, life *rand.Rand) error {
	sizes := []int{8, 100, 4096, 5000, 2 * pipeLeast}
	declare := func(buf []byte) (*Handle, error) {
		if sends {
			return n.DeclareSend(Contiguous(buf), other, OnStream(stream))
		}
		return n.DeclareReceive(Contiguous(buf), other, OnStream(stream))
	}
	var mem *Memory
	if stream%2 == 1 {
		var err error
		if mem, err = n.Alloc(sizes[len(sizes)-1]); err != nil {
			return err
		}
	}
	for k := 1; k <= rounds; {
		for range life.IntN(20) {
			h, err := declare(make([]byte, sizes[life.IntN(len(sizes))]))
			if err == nil {
				err = h.Close()
			}
			if err != nil {
				return err
			}
			if life.IntN(2) == 0 {
				runtime.Gosched()
			}
		}
		size, times := sizes[r.IntN(len(sizes))], 1+r.IntN(3)
		for i := 0; i < times; {
			buf := make([]byte, size)
			if mem != nil {
				buf = mem.Bytes()[:size]
			}
			h, err := declare(buf)
			if err != nil {
				return err
			}
			for left := 1 + life.IntN(3); left > 0 && i < times; left, i, k = left-1, i+1, k+1 {
				if sends {
					binary.BigEndian.PutUint64(buf, uint64(k))
					buf[size-1] = byte(k)
				}
				if err = h.Start(); err != nil {
					return err
				}
				switch life.IntN(3) {
				case 0:
					select {
					case <-h.Done():
					case <-ctx.Done():
						return fmt.Errorf("stream %d, message %d: %w", stream, k, ErrTimeout)
					}
					err = h.Wait()
				case 1:
					_, err = WaitAny(ctx, h)
				default:
					err = h.WaitContext(ctx)
				}
				if err != nil {
					return fmt.Errorf("stream %d, message %d: %w", stream, k, err)
				}
				if binary.BigEndian.Uint64(buf) != uint64(k) || buf[size-1] != byte(k) {
					return fmt.Errorf("stream %d: message %d is %x, %x", stream, k, buf[:8], buf[size-1])
				}
			}
			if err := h.Close(); err != nil {
				return err
			}
		}
	}
	return nil
}

// TestRestless: between processes, and if one of them is killed at any time.
func TestRestless(t *testing.T) {
	jobs, rounds := 1, "50"
	if need.WantLong() {
		jobs, rounds = 20, "1000"
	}
	r := rand.New(rand.NewPCG(seed(t), 1))
	for range jobs {
		result, out := run(t, "shm", 2, "restless", strconv.Itoa(r.IntN(1<<30)), rounds)
		require.Zero(t, result.ExitStatus(), out)
		result, out = run(t, "shm", 2, "restless", strconv.Itoa(r.IntN(1<<30)), "1000000000", strconv.Itoa(r.IntN(100_000)))
		require.Equal(t, []int{0, 128 + int(syscall.SIGKILL)}, result.Status, out)
	}
}
