//go:build unix

package ranks_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/fanout"
	"github.com/sluice-hpc/sluice/fanout/eventgen"
	"github.com/sluice-hpc/sluice/fanout/pipeline"
	"github.com/sluice-hpc/sluice/fanout/pipeline/ranks"
	"github.com/sluice-hpc/sluice/fanout/ring"
	"github.com/sluice-hpc/sluice/impi"
	"github.com/sluice-hpc/sluice/internal/jobtest"
	"github.com/sluice-hpc/sluice/internal/nettest"
	"github.com/sluice-hpc/sluice/internal/test/need"
	procs "github.com/sluice-hpc/sluice/internal/test/ranks"
)

// The ranks of the tests are 0 and 1 the sources, 2 the sink, the others workers: nodes
// of this process, or processes that are the test binary.
const sink, firstWorker = 2, 3

func TestMain(m *testing.M) {
	procs.Play(acts, procs.Call)
	nettest.Main(m)
}

// odd keeps every second event.
func odd(it *ring.Item) (bool, error) {
	return it.Type != ring.PhysicsEvent || it.Body[0]%2 == 1, nil
}

// play runs a rank's role, with the files of dir: run-0.evt, run-1.evt and out.evt.
// worker starts a worker.
func play(ctx context.Context, world *impi.Comm, dir string, worker func(context.Context, int) (pipeline.Worker, error)) (err error) {
	var in, back [sink]*impi.Comm // chunks and results of either source
	for i := range sink {
		if in[i], err = world.Dup(ctx); err != nil {
			return err
		}
		if back[i], err = world.Dup(ctx); err != nil {
			return err
		}
	}
	// When a worker is killed all have their communicators: what this says of one that is
	// gone already does not matter.
	world.Run(ctx, channel.Barrier())
	var workers []int
	for i := firstWorker; i < world.Size(); i++ {
		workers = append(workers, i)
	}
	switch rank := world.Rank(); {
	case rank < sink:
		file := procs.Must(os.Open(filepath.Join(dir, fmt.Sprintf("run-%d.evt", rank))))
		defer file.Close()
		// A rank that is neither a worker nor the sink does not ask.
		s := procs.Must(fanout.NewSupplier(in[rank], fanout.Workers(workers...), fanout.Collected(sink), fanout.Queue(8), fanout.Unacknowledged(32)))
		return ranks.Supply(ctx, s, time.Minute, pipeline.File(file, pipeline.FileOptions{Clump: 5, Name: file.Name()}).Next)
	case rank == sink:
		c := pipeline.Config{NewWorker: pipeline.Pass}
		for source := range sink {
			col := procs.Must(fanout.NewCollector(back[source], fanout.ResultsOf(workers...), fanout.AcknowledgeTo(in[source], source)))
			c.Sources = append(c.Sources, ranks.Results(col))
		}
		out := procs.Must(pipeline.Create(filepath.Join(dir, "out.evt")))
		c.Sink = out.Sink
		p, err := pipeline.New(c)
		if err == nil {
			err = p.Run(ctx)
		}
		if err != nil {
			return errors.Join(err, out.Discard())
		}
		return out.Commit()
	}
	var streams []ranks.Stream
	for source := range sink {
		var s ranks.Stream
		if s.Client, err = fanout.NewClient(in[source], fanout.From(source), fanout.Numbered(), fanout.Window(2)); err != nil {
			return err
		}
		if s.Results, err = fanout.NewResults(back[source], fanout.To(sink)); err != nil {
			return err
		}
		streams = append(streams, s)
	}
	return ranks.Work(ctx, ranks.Options{NewWorker: worker, Grace: time.Minute, Log: slog.New(slog.DiscardHandler)}, streams...)
}

var acts = map[string]func(args []string) error{"rank": alone}

// alone is a rank in a process of its own, with the files of a directory. Workers whose
// argument is above 0 kill themselves at that chunk, before the work, in it or when the result
// was sent.
func alone(args []string) (err error) {
	dir, args := args[0], args[1:]
	ctx, cancel := context.WithTimeout(context.Background(), procs.Limit)
	defer cancel()
	n, err := channel.Join(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	j := procs.Must(impi.FromNode(ctx, n, impi.Config{Addr: netip.MustParseAddr("127.0.0.1"), Log: slog.New(slog.DiscardHandler)}))
	defer func() { err = errors.Join(err, j.Close(ctx)) }()
	world := j.Worlds()[0]
	death := procs.Must(strconv.Atoi(args[world.Rank()]))
	chunks := 0
	return play(ctx, world, dir, func(context.Context, int) (pipeline.Worker, error) {
		items := pipeline.Items(ring.V12, 0, odd)
		return pipeline.Func(func(ctx context.Context, c *pipeline.Chunk, out []byte) ([]byte, error) {
			if chunks++; chunks == death {
				syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
			return items.Work(ctx, c, out)
		}), nil
	})
}

// files makes the inputs in a directory of their own, and returns the expected output.
func files(t *testing.T, events int) (dir string, want []byte) {
	t.Helper()
	dir = t.TempDir()
	var sources []pipeline.Source
	for i := range sink {
		var b bytes.Buffer
		_, err := eventgen.Write(t.Context(), &b, eventgen.Config{Events: events, FirstSource: uint32(i)}, false)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("run-%d.evt", i)), b.Bytes(), 0o600))
		sources = append(sources, pipeline.File(&b, pipeline.FileOptions{}).Next)
	}
	var out bytes.Buffer
	p, err := pipeline.New(pipeline.Config{
		Sources:   sources,
		NewWorker: func(context.Context, int) (pipeline.Worker, error) { return pipeline.Items(ring.V12, 0, odd), nil },
		Sink:      pipeline.Strip(&out),
	})
	require.NoError(t, err)
	require.NoError(t, p.Run(t.Context()))
	return dir, out.Bytes()
}

func requireOutput(t *testing.T, dir string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(filepath.Join(dir, "out.evt"))
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got), "%d bytes, want %d", len(got), len(want))
}

// TestRanks: the output equals that of a pipeline within a process, even if workers fail.
func TestRanks(t *testing.T) {
	jobtest.Everywhere(t, func(t *testing.T, provider string) {
		if provider == "tcp" || provider == "roce" {
			need.Long(t) // packages impi and fanout are between
		}
		sizes := []int{3, 1}
		if testing.Short() {
			sizes = sizes[:1]
		}
		for _, workers := range sizes {
			dir, want := files(t, 300)
			size := firstWorker + workers
			nodes := jobtest.Join(t, size)
			procs.Each(t, size, func(i int) error {
				ctx := procs.Within(t)
				j, err := impi.FromNode(ctx, nodes[i], impi.Config{
					Addr: netip.MustParseAddr("127.0.0.1"), Providers: []string{provider}, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
				})
				if err != nil {
					return err
				}
				n := 0
				err = play(ctx, j.Worlds()[0], dir, func(context.Context, int) (pipeline.Worker, error) {
					items := pipeline.Items(ring.V12, 0, odd)
					return pipeline.Func(func(ctx context.Context, c *pipeline.Chunk, out []byte) ([]byte, error) {
						if n++; n%5 == 0 {
							return nil, io.ErrUnexpectedEOF
						}
						return items.Work(ctx, c, out)
					}), nil
				})
				return errors.Join(err, j.Close(ctx))
			})
			requireOutput(t, dir, want)
		}
	})
}

// TestKill: all workers but one are killed, at different chunks.
func TestKill(t *testing.T) {
	need.Full(t)
	rounds, workers := 1, 4
	switch {
	case testing.Short():
		workers = 3
	case need.WantLong():
		rounds, workers = 4, 5
	}
	for round := range rounds {
		dir, want := files(t, 400)
		args := []string{dir, "0", "0", "0"}
		for i := range workers {
			args = append(args, strconv.Itoa((i*(2*i+round+1))%11)) // rank 3 lives
		}
		r, out := nettest.On(t, "")(t, len(args)-1, nil, "rank", args...)
		for rank, status := range r.Status {
			if args[1+rank] == "0" {
				require.Zero(t, status, "rank %d\n%s", rank, out)
			}
		}
		requireOutput(t, dir, want)
	}
}

// TestDamage: a damaged source is an error, and its earlier chunks are written.
func TestDamage(t *testing.T) {
	dir, _ := files(t, 50)
	var b bytes.Buffer
	s, err := eventgen.Write(t.Context(), &b, eventgen.Config{Events: 50, Damage: eventgen.Cut, DamageItem: 23}, false)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "run-0.evt"), b.Bytes(), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "run-1.evt"), nil, 0o600))
	nodes := jobtest.Join(t, 4)
	procs.Each(t, 4, func(i int) error {
		ctx := procs.Within(t)
		j, err := impi.FromNode(ctx, nodes[i], impi.Config{Addr: netip.MustParseAddr("127.0.0.1"), Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			return err
		}
		err = play(ctx, j.Worlds()[0], dir, pipeline.Pass)
		var damage *ring.DamageError
		if i == 0 && errors.As(err, &damage) && damage.Offset == s.Damaged {
			err = nil
		} else if i == 0 {
			err = fmt.Errorf("no damage, but %w", err)
		}
		return errors.Join(err, j.Close(ctx))
	})
	requireOutput(t, dir, b.Bytes()[:s.Damaged])
}
