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
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/fanout"
	"github.com/sluice-hpc/sluice/fanout/eventgen"
	"github.com/sluice-hpc/sluice/fanout/pipeline"
	"github.com/sluice-hpc/sluice/fanout/pipeline/ranks"
	"github.com/sluice-hpc/sluice/fanout/ring"
	"github.com/sluice-hpc/sluice/impi"
	"github.com/sluice-hpc/sluice/internal/jobtest"
	procs "github.com/sluice-hpc/sluice/internal/test/ranks"
)

// stage is the role of a rank in NSCLDAQ's pipeline.
type stage func(ctx context.Context, world *impi.Comm) error

// runForeign makes a job of the ranks of that pipeline and returns their errors: 0 the
// source, 1 the sorter, 2 the sink, and workers.
func runForeign(t *testing.T, stages ...stage) []error {
	t.Helper()
	nodes := jobtest.Join(t, len(stages))
	errs := make([]error, len(stages))
	procs.Each(t, len(stages), func(i int) error {
		ctx := procs.Within(t)
		j, err := impi.FromNode(ctx, nodes[i], impi.Config{Addr: netip.MustParseAddr("127.0.0.1"), Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			return err
		}
		errs[i] = stages[i](ctx, j.Worlds()[0])
		return j.Close(ctx)
	})
	return errs
}

// workerRanks are all but the first three.
func workerRanks(world *impi.Comm) (list []int) {
	for i := 3; i < world.Size(); i++ {
		list = append(list, i)
	}
	return list
}

func foreignSource(file []byte) stage {
	return func(ctx context.Context, world *impi.Comm) error {
		s, err := fanout.NewSupplier(world, fanout.Workers(workerRanks(world)...))
		if err != nil {
			return err
		}
		return ranks.Supply(ctx, s, time.Minute, pipeline.File(bytes.NewReader(file), pipeline.FileOptions{Clump: 7}).Next)
	}
}

func foreignSorter(ctx context.Context, world *impi.Comm) error {
	sink, end := ranks.SendForeign(world, 2)
	err := ranks.SortForeign(ctx, world, workerRanks(world), ranks.ForeignOptions{Window: 2}, sink)
	return errors.Join(err, end(ctx))
}

func foreignWorker(f func(it *ring.Item) (bool, error)) stage {
	return func(ctx context.Context, world *impi.Comm) error {
		c, err := fanout.NewClient(world)
		if err != nil {
			return err
		}
		err = ranks.WorkForeign(ctx, c, pipeline.Items(ring.V12, 0, f), world, 1, uint32(world.Rank()-2))
		return errors.Join(err, c.Close())
	}
}

// rawWorker is a worker written directly against the wire format: requests with tag 2, chunks with
// tag 1, an empty message as the end.
func rawWorker(ctx context.Context, world *impi.Comm) error {
	number := byte(world.Rank() - 2)
	for {
		if err := world.Send(ctx, nil, 0, 2); err != nil {
			return err
		}
		st, err := world.Probe(ctx, 0, impi.AnyTag)
		if err != nil {
			return err
		}
		b := make([]byte, 4+st.Len)
		b[0] = number
		if _, err := world.Recv(ctx, b[4:], 0, st.Tag); err != nil {
			return err
		}
		if err := world.Send(ctx, b, 1, 1); err != nil || st.Len == 0 {
			return err
		}
	}
}

func foreignSink(out io.Writer) stage {
	return func(ctx context.Context, world *impi.Comm) error {
		p, err := pipeline.New(pipeline.Config{
			Sources: []pipeline.Source{ranks.ReceiveForeign(world, 1, 0)}, NewWorker: pipeline.Pass, Sink: pipeline.Strip(out),
		})
		if err != nil {
			return err
		}
		return p.Run(ctx)
	}
}

// TestForeign: as the first timestamps of the chunks rise, the output equals the file, with workers
// of this package and a rawWorker, even if a worker keeps nothing.
func TestForeign(t *testing.T) {
	var file bytes.Buffer
	_, err := eventgen.Write(t.Context(), &file, eventgen.Config{Events: 500}, false)
	require.NoError(t, err)
	all := func(*ring.Item) (bool, error) { return true, nil }
	var out bytes.Buffer
	for _, err := range runForeign(t, foreignSource(file.Bytes()), foreignSorter, foreignSink(&out), foreignWorker(all), rawWorker, foreignWorker(all)) {
		require.NoError(t, err)
	}
	require.True(t, bytes.Equal(file.Bytes(), out.Bytes()))

	out.Reset()
	nothing := func(*ring.Item) (bool, error) { return false, nil }
	for _, err := range runForeign(t, foreignSource(file.Bytes()), foreignSorter, foreignSink(&out), foreignWorker(nothing)) {
		require.NoError(t, err)
	}
	require.Empty(t, out.Bytes())
}

// TestForeignWrong: a worker that uses another's number is an error.
func TestForeignWrong(t *testing.T) {
	liar := func(ctx context.Context, world *impi.Comm) error {
		return world.Send(ctx, pipeline.AppendForeignEnd(nil, 7), 1, 1)
	}
	nothing := func(context.Context, *impi.Comm) error { return nil }
	sorter := func(ctx context.Context, world *impi.Comm) error {
		err := ranks.SortForeign(ctx, world, workerRanks(world), ranks.ForeignOptions{Window: 2}, func(context.Context, []byte) error { return nil })
		if !errors.Is(err, pipeline.ErrForeign) {
			return fmt.Errorf("not found: %w", err)
		}
		return nil
	}
	for _, err := range runForeign(t, nothing, sorter, nothing, liar) {
		require.NoError(t, err)
	}
}

// TestForeignTooLong: sorter and sink check announced lengths against the bound.
func TestForeignTooLong(t *testing.T) {
	const longest = 1000
	tooLong := func(err error, rank int) error {
		var e *fanout.MessageError
		if !errors.As(err, &e) || e.Rank != rank || e.Bytes <= longest {
			return fmt.Errorf("not found: %w", err)
		}
		return nil
	}
	babbler := func(to int) stage {
		return func(ctx context.Context, world *impi.Comm) error {
			return world.Send(ctx, make([]byte, longest+1), to, fanout.TagData)
		}
	}
	sink := func(ctx context.Context, world *impi.Comm) error {
		_, err := ranks.ReceiveForeign(world, 0, longest)(ctx, nil)
		return tooLong(err, 0)
	}
	sorter := func(ctx context.Context, world *impi.Comm) error {
		o := ranks.ForeignOptions{Longest: longest}
		return tooLong(ranks.SortForeign(ctx, world, workerRanks(world), o, func(context.Context, []byte) error { return nil }), 3)
	}
	for _, err := range runForeign(t, babbler(2), sorter, sink, babbler(1)) {
		require.NoError(t, err)
	}
}
