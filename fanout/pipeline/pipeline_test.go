package pipeline_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/fanout/eventgen"
	"github.com/sluice-hpc/sluice/fanout/pipeline"
	"github.com/sluice-hpc/sluice/fanout/ring"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// TestProperty runs pipelines of every shape, with workers that fail: the output equals that of a
// naive merge, without losses or duplicates.
func TestProperty(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	rounds := need.InShort(30, 150)
	for round := range rounds {
		var sources []pipeline.Source
		var want [][]entry
		var in int
		for i := range 1 + r.IntN(4) {
			file := events(t, eventgen.Config{
				Seed: uint64(round), FirstSource: uint32(i), Events: r.IntN(3) * r.IntN(200), ScalerEvery: r.IntN(9),
				NullEvery: r.IntN(9), Rate: 1e7, Size: eventgen.Uniform(8, 40),
			})
			f := pipeline.File(bytes.NewReader(file), pipeline.FileOptions{Clump: 1 + r.IntN(20), ChunkBytes: 1 + r.IntN(3000)})
			sources = append(sources, f.Next)
			want = append(want, reference(t, file))
			in += len(stamped(t, file))
		}
		var started atomic.Uint64
		var got collect
		p, err := pipeline.New(pipeline.Config{
			Sources: sources, Workers: 1 + r.IntN(9), Window: r.IntN(12), Attempts: 1000, Sink: got.sink, Log: quiet,
			NewWorker: func(context.Context, int) (pipeline.Worker, error) {
				return newFlaky(uint64(round)<<32 + started.Add(1)), nil
			},
		})
		require.NoError(t, err)
		require.NoError(t, p.Run(ranks.Within(t)))
		all := merged(want)
		require.Equal(t, all, entries(t, got.b), "round %d", round)
		s := p.Stats()
		require.EqualValues(t, in, s.ItemsIn)
		require.EqualValues(t, len(all), s.ItemsOut)
		require.EqualValues(t, len(got.b), s.BytesOut)
		require.Equal(t, s.ChunksIn, s.ChunksOut)
		var chunks, items int64
		for _, w := range s.Workers {
			chunks += w.Chunks
			items += w.Items
		}
		require.Equal(t, s.ChunksIn, chunks)
		require.Equal(t, s.ItemsIn, items)
	}
}

func TestBySource(t *testing.T) {
	a, b := events(t, eventgen.Config{Events: 40}), events(t, eventgen.Config{Events: 30, FirstSource: 1})
	var got collect
	p, err := pipeline.New(pipeline.Config{
		Sources: []pipeline.Source{
			pipeline.File(bytes.NewReader(a), pipeline.FileOptions{Clump: 3}).Next,
			pipeline.File(bytes.NewReader(b), pipeline.FileOptions{Clump: 3}).Next,
		},
		Workers: 3, NewWorker: pipeline.Pass, Sink: got.sink, Order: pipeline.BySource,
	})
	require.NoError(t, err)
	require.NoError(t, p.Run(ranks.Within(t)))
	require.Equal(t, append(stamped(t, a), stamped(t, b)...), entries(t, got.b))
}

// TestBounded: while the sink, or the worker with the oldest chunk, is blocked, the source makes
// exactly as many chunks as the window has.
func TestBounded(t *testing.T) {
	file := events(t, eventgen.Config{Events: 500})
	for _, where := range []string{"sink", "worker"} {
		synctest.Test(t, func(t *testing.T) {
			open := make(chan struct{})
			var got collect
			p, err := pipeline.New(pipeline.Config{
				Sources: []pipeline.Source{pipeline.File(bytes.NewReader(file), pipeline.FileOptions{Clump: 2}).Next},
				Workers: 3, Window: 7,
				NewWorker: func(context.Context, int) (pipeline.Worker, error) {
					return pipeline.Func(func(_ context.Context, c *pipeline.Chunk, out []byte) ([]byte, error) {
						if where == "worker" && c.Seq == 0 {
							<-open
						}
						return append(out, c.Data...), nil
					}), nil
				},
				Sink: func(ctx context.Context, items []byte) error {
					if where == "sink" {
						<-open
					}
					return got.sink(ctx, items)
				},
			})
			require.NoError(t, err)
			ended := make(chan error)
			go func() { ended <- p.Run(t.Context()) }()
			synctest.Wait()
			require.EqualValues(t, 7, p.Stats().ChunksIn)
			require.Zero(t, p.Stats().ChunksOut)
			close(open)
			require.NoError(t, <-ended)
			require.Equal(t, stamped(t, file), entries(t, got.b))
		})
	}
}

// TestDamage: items before the damage are written, the other sources go on, and the error names
// the file and the byte.
func TestDamage(t *testing.T) {
	good := events(t, eventgen.Config{Events: 90, FirstSource: 1})
	whole := events(t, eventgen.Config{Events: 90})
	for item := range 93 {
		var b bytes.Buffer
		damage := eventgen.Damage(1 + item%4)
		s, err := eventgen.Write(t.Context(), &b, eventgen.Config{Events: 90, Damage: damage, DamageItem: item}, false)
		require.NoError(t, err)
		var got collect
		p, err := pipeline.New(pipeline.Config{
			Sources: []pipeline.Source{
				pipeline.File(bytes.NewReader(good), pipeline.FileOptions{Clump: 7}).Next,
				pipeline.File(&b, pipeline.FileOptions{Clump: 10, Name: "bad.evt"}).Next,
			},
			Workers: 2, NewWorker: pipeline.Pass, Sink: got.sink,
		})
		require.NoError(t, err)
		err = p.Run(ranks.Within(t))
		var broken *ring.DamageError
		require.ErrorAs(t, err, &broken)
		require.Equal(t, s.Damaged, broken.Offset)
		var e *pipeline.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, "source", e.Op)
		require.Equal(t, 1, e.Source)
		require.ErrorContains(t, err, "bad.evt: ring: byte ")
		require.Equal(t, merged([][]entry{stamped(t, good), stamped(t, whole[:s.Damaged])}), entries(t, got.b))
	}
}

// TestHopeless: a chunk that fails with every worker ends the pipeline, after all earlier chunks.
func TestHopeless(t *testing.T) {
	file := events(t, eventgen.Config{Events: 200})
	cause := errors.New("cannot")
	var tries atomic.Int64
	var got collect
	p, err := pipeline.New(pipeline.Config{
		Sources: []pipeline.Source{pipeline.File(bytes.NewReader(file), pipeline.FileOptions{Clump: 5}).Next},
		Workers: 3, Attempts: 4, Sink: got.sink, Log: quiet,
		NewWorker: func(context.Context, int) (pipeline.Worker, error) {
			return pipeline.Func(func(_ context.Context, c *pipeline.Chunk, out []byte) ([]byte, error) {
				if c.Seq == 11 {
					tries.Add(1)
					return nil, cause
				}
				return append(out, c.Data...), nil
			}), nil
		},
	})
	require.NoError(t, err)
	err = p.Run(ranks.Within(t))
	require.Equal(t, &pipeline.Error{Op: "work", Seq: 11, Attempts: 4, Err: cause}, err)
	require.EqualError(t, err, "pipeline: chunk 11 of source 0: 4 workers have failed: cannot")
	require.EqualValues(t, 4, tries.Load())
	require.Equal(t, stamped(t, file)[:55], entries(t, got.b))
	require.ErrorContains(t, p.Run(ranks.Within(t)), "Run has already been called")
}

// closing is a worker that counts the open workers.
type closing struct {
	pipeline.Worker
	open *atomic.Int64
	err  error
}

func (c closing) Close() error {
	c.open.Add(-1)
	return c.err
}

// TestEnds: in every way in which a pipeline ends early, no worker stays open.
func TestEnds(t *testing.T) {
	file := events(t, eventgen.Config{Events: 200})
	cause := errors.New("cause")
	for _, c := range []struct {
		name   string
		op     string // "": none
		fails  func(started int64) error
		work   error
		close  error
		sink   error
		source error
		whole  bool
	}{
		{name: "no worker at the beginning", op: "start", fails: func(n int64) error {
			if n == 2 {
				return cause
			}
			return nil
		}},
		{name: "no worker any more", op: "worker", work: cause, fails: func(n int64) error {
			if n > 3 {
				return cause
			}
			return nil
		}},
		{name: "sink", op: "sink", sink: cause},
		{name: "source", op: "source", source: cause, whole: true},
		{name: "close", op: "close", close: cause, whole: true},
	} {
		var open, started atomic.Int64
		var got collect
		source := pipeline.File(bytes.NewReader(file), pipeline.FileOptions{Clump: 5}).Next
		p, err := pipeline.New(pipeline.Config{
			Sources: []pipeline.Source{func(ctx context.Context, chunk []byte) ([]byte, error) {
				chunk, err := source(ctx, chunk)
				if err == io.EOF && c.source != nil {
					err = c.source
				}
				return chunk, err
			}},
			Workers: 3, Log: quiet,
			NewWorker: func(ctx context.Context, id int) (pipeline.Worker, error) {
				if c.fails != nil {
					if err := c.fails(started.Add(1)); err != nil {
						return nil, err
					}
				}
				open.Add(1)
				w, _ := pipeline.Pass(ctx, id)
				if c.work != nil {
					w = pipeline.Func(func(context.Context, *pipeline.Chunk, []byte) ([]byte, error) { return nil, c.work })
				}
				return closing{w, &open, c.close}, nil
			},
			Sink: func(ctx context.Context, items []byte) error {
				if c.sink != nil {
					return c.sink
				}
				return got.sink(ctx, items)
			},
		})
		require.NoError(t, err)
		err = p.Run(ranks.Within(t))
		require.ErrorIs(t, err, cause, c.name)
		var e *pipeline.Error
		require.ErrorAs(t, err, &e, c.name)
		require.Equal(t, c.op, e.Op, c.name)
		require.Zero(t, open.Load(), c.name)
		if c.whole {
			require.Equal(t, stamped(t, file), entries(t, got.b), c.name)
		}
	}
}

// endless is a source that does not end, but returns when its context ends.
func endless(item []byte) pipeline.Source {
	n := uint64(0)
	return func(_ context.Context, chunk []byte) ([]byte, error) {
		n++
		return ring.AppendStamped(chunk, n, item), nil
	}
}

// TestDrain: chunks that were read are written, then Run returns.
func TestDrain(t *testing.T) {
	item := (&ring.Item{Type: ring.PhysicsEvent}).Append(nil, ring.V12)
	waiting := make(chan struct{})
	var got collect
	var p *pipeline.Pipeline
	p, err := pipeline.New(pipeline.Config{
		Sources: []pipeline.Source{endless(item), func(ctx context.Context, chunk []byte) ([]byte, error) {
			close(waiting)
			<-ctx.Done() // one that waits for what does not come
			return ring.AppendStamped(chunk, 3, item), ctx.Err()
		}},
		Workers: 2, NewWorker: pipeline.Pass, Sink: got.sink,
	})
	require.NoError(t, err)
	go func() {
		<-waiting
		p.Drain()
		p.Drain()
	}()
	require.NoError(t, p.Run(ranks.Within(t)))
	s := p.Stats()
	require.Equal(t, s.ItemsIn, s.ItemsOut)
	list := entries(t, got.b)
	require.EqualValues(t, s.ItemsIn, len(list))
	threes := 0
	for i := range list {
		if i > 0 {
			require.GreaterOrEqual(t, list[i].timestamp, list[i-1].timestamp)
		}
		if list[i].timestamp == 3 {
			threes++
		}
	}
	require.GreaterOrEqual(t, threes, 1)
}

func TestCancel(t *testing.T) {
	item := (&ring.Item{Type: ring.PhysicsEvent}).Append(nil, ring.V12)
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	n := 0
	p, err := pipeline.New(pipeline.Config{
		Sources: []pipeline.Source{endless(item)}, Workers: 2, NewWorker: pipeline.Pass,
		Sink: func(context.Context, []byte) error {
			if n++; n == 50 {
				cancel(cause)
			}
			return nil
		},
	})
	require.NoError(t, err)
	require.ErrorIs(t, p.Run(ctx), cause)
}

// A source with an invalid chunk has failed.
func TestBadSource(t *testing.T) {
	p, err := pipeline.New(pipeline.Config{
		Sources: []pipeline.Source{func(_ context.Context, chunk []byte) ([]byte, error) {
			return append(chunk, "rubbish!rubbish!"...), nil
		}},
		Sink: func(context.Context, []byte) error { panic("nothing comes") }, NewWorker: pipeline.Pass,
	})
	require.NoError(t, err)
	var damage *ring.DamageError
	require.ErrorAs(t, p.Run(ranks.Within(t)), &damage)
}

func TestConfig(t *testing.T) {
	source := []pipeline.Source{endless(nil)}
	sink := (&collect{}).sink
	for _, c := range []pipeline.Config{
		{NewWorker: pipeline.Pass, Sink: sink},
		{Sources: source, Sink: sink},
		{Sources: source, NewWorker: pipeline.Pass},
		{Sources: source, NewWorker: pipeline.Pass, Sink: sink, Workers: -1},
		{Sources: source, NewWorker: pipeline.Pass, Sink: sink, Window: -1},
	} {
		_, err := pipeline.New(c)
		require.ErrorIs(t, err, pipeline.ErrConfig)
	}
}

// BenchmarkPipeline sends events of 256 bytes through workers that do nothing.
func BenchmarkPipeline(b *testing.B) {
	file := events(b, eventgen.Config{Events: 20_000})
	b.SetBytes(int64(len(file)))
	for b.Loop() {
		p, err := pipeline.New(pipeline.Config{
			Sources: []pipeline.Source{pipeline.File(bytes.NewReader(file), pipeline.FileOptions{}).Next},
			Workers: 2, NewWorker: pipeline.Pass, Sink: pipeline.Strip(io.Discard),
		})
		require.NoError(b, err)
		require.NoError(b, p.Run(b.Context()))
	}
}
