//go:build unix

package fanout

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/impi"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// Workers that have not asked for numbers are killed at random moments, with any window, several
// goroutines, and chunks in each one: no chunk is lost.
func TestKilledPlain(t *testing.T) {
	need.Full(t)
	rounds, dead, mortal := 1, 0, 0
	if need.WantLong() {
		rounds = 20
	}
	worked := regexp.MustCompile(`(?m)^\[\d+\] worked on (\d+)$`)
	for _, place := range apartPlaces() {
		t.Run(place, func(t *testing.T) {
			needApart(t, place)
			for range rounds {
				seed := rand.Uint64()
				mortal += 3
				status, out := apart(t, "plain", place, 5, seed)
				require.Equal(t, []int{0, 0}, status[:2], "seed %d\n%s", seed, out)
				for _, s := range status[2:] {
					require.Contains(t, []int{0, killed}, s, "seed %d\n%s", seed, out)
					if s == killed {
						dead++
					}
				}
				done := map[int]bool{}
				for _, m := range worked.FindAllStringSubmatch(out, -1) {
					i, err := strconv.Atoi(m[1])
					require.NoError(t, err)
					done[i] = true
				}
				for i := range plainChunks {
					require.True(t, done[i], "seed %d: chunk %d is lost", seed, i)
				}
			}
		})
	}
	require.True(t, dead > 0 || mortal < 10)
}

const plainChunks = 200

func plainAct(ctx context.Context, w *impi.Comm, random *rand.Rand) error {
	if w.Rank() == 0 {
		opts := []Option{Redeliver(), Attempts(-1), Unacknowledged(1 + random.IntN(100)), Batch(random.IntN(2000))}
		if random.IntN(2) == 0 {
			opts = append(opts, Queue(1+random.IntN(20)))
		}
		s := ranks.Must(NewSupplier(w, opts...))
		for i := range plainChunks {
			if err := s.Send(ctx, collectedChunk(i)); err != nil {
				return err
			}
		}
		return s.End(ctx)
	}
	window := Window(1 + random.IntN(8))
	if random.IntN(3) == 0 {
		window = AdaptiveWindow(8)
	}
	opts := []ClientOption{window}
	if random.IntN(2) == 0 {
		opts = append(opts, MaxChunk(200_004))
	}
	c := ranks.Must(NewClient(w, opts...))
	var mu sync.Mutex
	last := random.IntN(plainChunks / 4) // it dies with this one, and those of the other goroutines
	work := func() error {
		return c.Each(ctx, ranks.Limit, func(k Chunk) error {
			mu.Lock()
			defer mu.Unlock()
			if last--; last < 0 && w.Rank() > 1 {
				return syscall.Kill(os.Getpid(), syscall.SIGKILL)
			}
			i := binary.LittleEndian.Uint32(k.Bytes())
			if k.Seq() != uint64(i) || !bytes.Equal(collectedChunk(int(i)), k.Bytes()) {
				return fmt.Errorf("%d bytes with number %d are not chunk %d", len(k.Bytes()), k.Seq(), i)
			}
			_, err := fmt.Fprintf(os.Stdout, "worked on %d\n", i)
			return err
		})
	}
	return errors.Join(errors.Join(together(work, work)...), c.Close())
}

// Results come in order, beyond the bound of unacknowledged chunks, also from workers that have
// not asked for numbers. A supplier without a queue, which receives messages only while it waits,
// also notices acknowledgements by calls.
func TestCollectedByCall(t *testing.T) {
	everywhere(t, func(t *testing.T, place string) {
		w := comms(t, place, 3)
		dialects := [][]ClientOption{{Window(2), MaxChunk(200_000)}, {Numbered(), Window(2)}, nil, {Window(4)}}
		if testing.Short() {
			dialects = dialects[:2]
		}
		for _, opts := range dialects {
			in, out := dup(t, w), dup(t, w)
			ctx := ranks.Within(t)
			const count = 40
			s := newSupplier(t, in[0], Collected(), Unacknowledged(8))
			c := newCollector(t, out[0], AcknowledgeBy(s.Acknowledge))
			sides := []func() error{
				func() error {
					for i := range count {
						if err := s.Send(ctx, pattern(i, chunkLen(i))); err != nil {
							return err
						}
					}
					return s.End(ctx)
				},
				func() error {
					return collectAll(ctx, c, count, func(i int) []byte { return pattern(i, chunkLen(i)) })
				},
			}
			for i := 1; i < 3; i++ {
				sides = append(sides, func() error {
					c := newClient(t, in[i], opts...)
					r := newResults(t, out[i])
					err := c.Each(ctx, 0, func(k Chunk) error { return r.Send(ctx, k.Seq(), k.Bytes()) })
					return errors.Join(err, r.End(ctx))
				})
			}
			noErrors(t, together(sides...))
			require.Zero(t, s.Stats().Unacknowledged)
		}
	})
}

// lapsing is a context that ends when the test says so, without waking a waiter.
type lapsing struct {
	context.Context
	over atomic.Bool
}

func (*lapsing) Done() <-chan struct{} { return nil }

func (l *lapsing) Err() error {
	if l.over.Load() {
		return context.DeadlineExceeded
	}
	return nil
}

// A supplier that an acknowledgement wakes returns no error for that, even if its context has ended
// since.
func TestWokenLate(t *testing.T) {
	s := newSupplier(t, comms(t, "here", 2)[0], Collected())
	ctx := &lapsing{Context: t.Context()}
	go func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for s.wake == nil {
			s.mu.Unlock()
			time.Sleep(time.Millisecond)
			s.mu.Lock()
		}
		ctx.over.Store(true)
		s.ring()
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	require.NoError(t, s.await(ctx))
}

// work makes a stranger ask for chunks one at a time, until its end, or until done says that it
// dies with its chunk.
func (s *stranger) work(done func(chunk string) (dies bool)) error {
	for {
		if err := s.send(TagRequest, nil); err != nil {
			return err
		}
		tag, body, err := s.receive()
		switch {
		case err != nil:
			return err
		case tag == TagEnd && len(body) == 0:
			return nil
		case tag != TagData:
			return fmt.Errorf("an answer has tag %d", tag)
		case done(string(body)):
			s.die()
			return nil
		}
	}
}

// Workers of other implementations ask for one chunk at a time: the chunks of dead ones go to
// others, and none is lost.
func TestOneAtATime(t *testing.T) {
	need.Full(t)
	rounds := need.InLong(2, 5)
	for _, queue := range []int{0, 8} {
		for range rounds {
			w, list := strangers(t, 4)
			ctx := ranks.Within(t)
			const count = 200
			var mu sync.Mutex
			done := map[string]int{}
			s := newSupplier(t, w, Redeliver(), Attempts(-1), OneAtATime(), Queue(queue))
			sides := []func() error{func() error {
				for i := range count {
					if err := s.Send(ctx, fmt.Append(nil, i)); err != nil {
						return err
					}
				}
				return s.End(ctx)
			}}
			for i, stranger := range list {
				last := rand.IntN(count / 4)
				sides = append(sides, func() error {
					return stranger.work(func(chunk string) bool {
						if last--; last < 0 && i > 0 {
							return true
						}
						mu.Lock()
						defer mu.Unlock()
						done[chunk]++
						return false
					})
				})
			}
			noErrors(t, together(sides...))
			require.Len(t, done, count)
		}
	}
}

// Workers of other implementations whose requests acknowledge nothing, or whose results would have
// no numbers, are refused by rank, and get their end; others are served.
func TestStrangersRefused(t *testing.T) {
	for name, opts := range map[string][]Option{
		"redeliver":         {Redeliver()},
		"redeliver, queue":  {Redeliver(), Queue(4)},
		"collected":         {Collected()},
		"collected, queue":  {Collected(), Queue(4)},
		"collected, by two": {Collected(2), Workers(1)},
	} {
		t.Run(name, func(t *testing.T) {
			w, list := strangers(t, 2)
			ctx := ranks.Within(t)
			s := newSupplier(t, w, opts...)
			for range 3 { // a window
				require.NoError(t, list[0].send(TagRequest, nil))
			}
			var err error
			for err == nil {
				err = s.Send(ctx, []byte("chunk"))
			}
			var e *MessageError
			require.ErrorAs(t, err, &e)
			require.Equal(t, []int{1, TagRequest, 0}, []int{e.Rank, e.Tag, e.Bytes})
			require.Contains(t, e.Why, "plain dialect")
			tag, body, err := list[0].receive()
			require.NoError(t, err)
			require.Equal(t, TagEnd, tag)
			require.Empty(t, body)
			require.Equal(t, Ended, s.Stats().Workers[0].State)
			require.NoError(t, s.Close())
		})
	}
}

// A worker that should ask for one chunk at a time, but asks for more, ends the supplier, which
// names it: chunks may have been lost.
func TestNotOneAtATime(t *testing.T) {
	for _, queue := range []int{0, 4} {
		w, list := strangers(t, 1)
		ctx := ranks.Within(t)
		s := newSupplier(t, w, Redeliver(), Attempts(-1), OneAtATime(), Queue(queue))
		require.NoError(t, list[0].twice())
		var err error
		for err == nil {
			err = s.Send(ctx, []byte("chunk"))
		}
		for range 2 { // it stays
			var e *MessageError
			require.ErrorAs(t, err, &e)
			require.Equal(t, []int{1, TagRequest, 0}, []int{e.Rank, e.Tag, e.Bytes})
			require.Contains(t, e.Why, "asked again before it was answered")
			err = s.Send(ctx, []byte("chunk"))
		}
		require.NoError(t, s.Close())
	}
}
