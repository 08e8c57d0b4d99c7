//go:build unix

package fanout

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/impi"
	"github.com/sluice-hpc/sluice/internal/jobtest"
	"github.com/sluice-hpc/sluice/internal/nettest"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

func TestMain(m *testing.M) {
	ranks.Play(acts, play)
	nettest.Main(m)
}

// act is what a rank does.
type act func(ctx context.Context, w *impi.Comm, random *rand.Rand) error

var acts = map[string]act{
	"collected": collectedAct,
	"map": func(ctx context.Context, w *impi.Comm, _ *rand.Rand) error {
		return mapAct(ctx, w, func() error { return syscall.Kill(os.Getpid(), syscall.SIGKILL) })
	},
	"orphans":        orphansAct,
	"owned":          ownedAct,
	"plain":          plainAct,
	"poison":         poisonAct(1, 0),
	"poison, window": poisonAct(8, 0),
	"poison, batch":  poisonAct(8, 4000),
}

// play plays an act: its arguments are the place of the ranks, and a seed.
func play(a act, args []string) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), ranks.Limit)
	defer cancel()
	n, err := channel.Join(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	j := ranks.Must(impi.FromNode(ctx, n, configOf(args[0])))
	defer func() { err = errors.Join(err, j.Close(ctx)) }()
	seed, err := strconv.ParseUint(args[1], 10, 64)
	if err != nil {
		return err
	}
	return ranks.Caught(func() error { return a(ctx, j.World(), rand.New(rand.NewPCG(seed, uint64(n.Rank())))) })
}

// apart runs an act as a job, and returns how its ranks ended.
func apart(t *testing.T, act, place string, size int, seed uint64) ([]int, string) {
	t.Helper()
	r, out := nettest.On(t, "")(t, size, nil, act, place, strconv.FormatUint(seed, 10))
	return r.Status, out
}

// apartPlaces are those of ranks that are processes.
func apartPlaces() []string { return append([]string{"packets"}, jobtest.Local()...) }

// needApart states what a test needs whose ranks are processes there. With -short, shm
// speaks for all.
func needApart(t testing.TB, place string) {
	t.Helper()
	needPlace(t, place)
	if place == "packets" {
		need.Full(t)
	}
	if seldom(place) {
		need.Long(t)
	}
}

// killed is the status of a rank that has killed itself.
const killed = 128 + int(syscall.SIGKILL)

// Workers are killed at random moments, of 1 to 16, over each provider; the output of the
// collector is complete, in order, and without duplicates.
func TestKilled(t *testing.T) {
	workers := []int{4} // many take long to start
	if need.WantLong() {
		workers = append(workers, 2, 1, 8, 16, 3, 4, 1, 2, 4, 3, 8, 2, 4, 3)
	}
	dead, mortal := 0, 0
	for _, place := range apartPlaces() {
		t.Run(place, func(t *testing.T) {
			needApart(t, place)
			for _, n := range workers {
				seed := rand.Uint64()
				mortal += n - 1
				status, out := apart(t, "collected", place, 1+n, seed)
				require.Zero(t, status[0], "seed %d\n%s", seed, out)
				require.Zero(t, status[1], "seed %d\n%s", seed, out)
				for _, s := range status[2:] {
					require.Contains(t, []int{0, killed}, s, "seed %d\n%s", seed, out)
					if s == killed {
						dead++
					}
				}
			}
		})
	}
	require.True(t, dead > 0 || mortal < 10)
}

// collectedChunks is the number of chunks of a round, and collectedWork the result of one.
const collectedChunks = 200

func collectedWork(b []byte) []byte {
	r := slices.Clone(b)
	slices.Reverse(r)
	if binary.LittleEndian.Uint32(b)%7 == 0 {
		return nil // it is dropped
	}
	return r
}

func collectedChunk(i int) []byte {
	return append(binary.LittleEndian.AppendUint32(nil, uint32(i)), pattern(i, chunkLen(i))...)
}

// collectedAct: rank 0 supplies and collects, the others work, and all but one of them
// die at some moment. They cannot duplicate a communicator when one may be dead.
func collectedAct(ctx context.Context, w *impi.Comm, random *rand.Rand) error {
	in := ranks.Must(w.Dup(ctx))
	out := ranks.Must(w.Dup(ctx))
	if w.Rank() > 0 {
		return collectedWorker(ctx, in, out, w.Rank() > 1, random)
	}
	s := ranks.Must(NewSupplier(in, Queue(8), Batch(500), Collected(), Unacknowledged(32), Attempts(-1)))
	c := ranks.Must(NewCollector(out, AcknowledgeBy(s.Acknowledge), Reorder(1000)))
	return errors.Join(together(
		func() error {
			for i := range collectedChunks {
				if err := s.Send(ctx, collectedChunk(i)); err != nil {
					return err
				}
			}
			return s.End(ctx)
		},
		func() error {
			return collectAll(ctx, c, collectedChunks, func(i int) []byte { return collectedWork(collectedChunk(i)) })
		})...)
}

func collectedWorker(ctx context.Context, in, out *impi.Comm, mortal bool, random *rand.Rand) error {
	opts := []ClientOption{Numbered(), Window(1 + random.IntN(4))}
	if random.IntN(2) == 0 {
		opts = append(opts, MaxChunk(201_000))
	}
	c := ranks.Must(NewClient(in, opts...))
	r := ranks.Must(NewResults(out))
	// Some die before they have a chunk, some live to the end.
	last := random.IntN(collectedChunks / 4)
	die := func(moment int) error {
		if mortal && last == 0 && random.IntN(3) == moment || last < 0 {
			return syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		return nil
	}
	n := 0
	err := c.Each(ctx, ranks.Limit, func(k Chunk) error {
		if last = last - 1; !mortal {
			last = collectedChunks
		}
		if err := die(0); err != nil {
			return err
		}
		if err := r.Send(ctx, k.Seq(), collectedWork(k.Bytes())); err != nil {
			return err
		}
		n++
		return die(1)
	})
	if err != nil {
		return fmt.Errorf("after %d chunks: %w", n, err)
	}
	return r.End(ctx)
}

// endsApart runs an act in processes at all places, repeatedly in a long run, and checks how they
// end.
func endsApart(t *testing.T, act string, want []int) {
	need.Full(t)
	rounds := need.InLong(1, 7)
	for _, place := range apartPlaces() {
		t.Run(place, func(t *testing.T) {
			needApart(t, place)
			for range rounds {
				status, out := apart(t, act, place, len(want), rand.Uint64())
				require.Equal(t, want, status, out)
			}
		})
	}
}

// When the supplier is killed, its workers get an error that says so, and do not hang.
func TestOrphans(t *testing.T) {
	endsApart(t, "orphans", []int{killed, 0, 0, 0})
}

func orphansAct(ctx context.Context, w *impi.Comm, random *rand.Rand) error {
	if w.Rank() == 0 {
		s := ranks.Must(NewSupplier(w))
		for i := range random.IntN(50) {
			if err := s.Send(ctx, pattern(i, chunkLen(i))); err != nil {
				return err
			}
		}
		return syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	opts := [][]ClientOption{{}, {Window(3), MaxChunk(200_000)}, {Window(2)}}[w.Rank()-1]
	c := ranks.Must(NewClient(w, opts...))
	err := c.Each(ctx, 0, func(Chunk) error { return nil })
	if rank, gone := lost(err); !gone || rank != 0 || !errors.Is(err, impi.ErrPeerDied) {
		return fmt.Errorf("without a supplier: %w", err)
	}
	if _, err := c.Receive(ctx); err != io.EOF {
		return fmt.Errorf("after that: %w", err)
	}
	return c.Close()
}

// Workers are killed while long chunks are in flight to them: the chunks go to others, and each is
// released once.
func TestOwnedOfKilled(t *testing.T) {
	endsApart(t, "owned", []int{0, 0, killed, killed})
}

// Of Map's workers the first may get all chunks before the others have five.
func TestMapKilled(t *testing.T) {
	const place = "shm"
	needApart(t, place)
	status, out := apart(t, "map", place, 4, 0)
	require.Equal(t, []int{0, 0}, status[:2], out)
	for _, s := range status[2:] {
		require.Contains(t, []int{0, killed}, s, out)
	}
}

const ownedChunks = 60

func ownedAct(ctx context.Context, w *impi.Comm, random *rand.Rand) error {
	if w.Rank() == 0 {
		s := ranks.Must(NewSupplier(w))
		released := make([]int, ownedChunks)
		for i := range released {
			if err := s.SendOwned(ctx, func() { released[i]++ }, pattern(i, 200_000)); err != nil {
				return err
			}
		}
		if err := s.End(ctx); err != nil {
			return err
		}
		for i, n := range released {
			if n != 1 {
				return fmt.Errorf("chunk %d has been released %d times", i, n)
			}
		}
		return nil
	}
	c := ranks.Must(NewClient(w, Window(3), MaxChunk(200_000)))
	die := func() error { return syscall.Kill(os.Getpid(), syscall.SIGKILL) }
	last := random.IntN(ownedChunks / 6)
	err := c.Each(ctx, 0, func(k Chunk) error {
		if len(k.Bytes()) != 200_000 {
			return fmt.Errorf("a chunk has %d bytes", len(k.Bytes()))
		}
		if last--; w.Rank() > 1 && last < 0 {
			return die()
		}
		return nil
	})
	if err != nil {
		return err
	}
	if w.Rank() > 1 { // it has had fewer
		return die()
	}
	return c.Close()
}
