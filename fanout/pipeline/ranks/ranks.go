// Package ranks runs the stages of a pipeline in the ranks of a job, over package fanout.
//
//	err := ranks.Supply(ctx, supplier, grace, source)    // at a source
//	err = ranks.Work(ctx, ranks.Options{NewWorker: f}, streams...) // at a worker
//	p, err := pipeline.New(pipeline.Config{Sources: []pipeline.Source{ranks.Results(collector)}, NewWorker: pipeline.Pass, Sink: sink})
//
//	source  Supply ──┐          ┌── Results ┐
//	source  Supply ──┴── Work ──┴── Results ┴─ a pipeline with Pass ── sink
//
// A source is a rank with a [fanout.Supplier]; each worker has a client of it. The sink is a
// rank with a [fanout.Collector] for each source. The collectors are the sources of a pipeline
// whose workers only pass chunks on; that pipeline merges them. Each source has two
// communicators, one for chunks and one for results. A rank may play several of these roles.
//
// With [fanout.Collected] at the suppliers and [fanout.Numbered] at the clients the output
// is complete, in order and without duplicates, whichever workers die, as long as one is
// left.
package ranks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/sluice-hpc/sluice/fanout"
	"github.com/sluice-hpc/sluice/fanout/pipeline"
	"github.com/sluice-hpc/sluice/fanout/ring"
)

// Supply hands out the chunks of a source through a supplier, and then ends the supplier. When
// ctx ends, it stops reading, and hands out the chunks that were read; grace bounds the time
// for this.
//
// Errors: that of the source, after its earlier chunks were handed out and the supplier was
// ended; those of [fanout.Supplier.Supply].
func Supply(ctx context.Context, s *fanout.Supplier, grace time.Duration, source pipeline.Source) error {
	var chunk []byte
	var ended error
	return s.Supply(ctx, grace, func(ctx context.Context) ([][]byte, error) {
		for ended == nil {
			if ended = ctx.Err(); ended != nil {
				break
			}
			if chunk, ended = source(ctx, chunk[:0]); len(chunk) > 0 {
				return [][]byte{chunk}, nil
			}
		}
		return nil, ended
	})
}

// Stream connects a worker to a source.
type Stream struct {
	Client  *fanout.Client  // of only this source's supplier; with [fanout.Numbered]
	Results *fanout.Results // to the collector for this source
}

// Options are the options of [Work]. NewWorker is required.
type Options struct {
	// NewWorker starts the worker of this rank, with id 0, and after each failure another one,
	// with the next id.
	NewWorker func(ctx context.Context, id int) (pipeline.Worker, error)
	// Attempts is how many workers may fail with a chunk; 0: pipeline.DefaultAttempts.
	Attempts int
	// ItemLimit is how large an item may be, in bytes; 0: ring.DefaultLimit.
	ItemLimit int64
	// Grace is how long work on the chunks given to this rank may take after ctx has ended.
	Grace time.Duration
	// Log reports workers that fail; nil: slog.Default().
	Log *slog.Logger
}

// Work processes the chunks of all streams with a worker, in the order in which they arrive,
// and sends the results. When a stream's supplier has ended, it ends the stream's results. When
// ctx ends, it leaves the suppliers, but still processes the chunks that it has been given. It
// returns when all streams have ended.
//
// After an error (of the worker, a client or results) the process must end: only then do the
// chunks that it was given go to other ranks.
func Work(ctx context.Context, o Options, streams ...Stream) error {
	o.Attempts = cmp.Or(o.Attempts, pipeline.DefaultAttempts)
	if o.Log == nil {
		o.Log = slog.Default()
	}
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	longer, cancel := lasting(ctx, o.Grace)
	defer cancel()
	first, err := o.NewWorker(longer, 0)
	if err != nil {
		return err
	}
	w := &worker{Options: o, ctx: longer, worker: first}
	errs := make([]error, len(streams))
	var all sync.WaitGroup
	for i, s := range streams {
		all.Go(func() {
			err := s.Client.Each(ctx, o.Grace, func(k fanout.Chunk) error { return w.do(i, s.Results, k) })
			if err == nil {
				err = s.Results.End(longer)
			}
			if errs[i] = err; err != nil {
				leave() // the others, too
			}
		})
	}
	all.Wait()
	if w.worker != nil {
		errs = append(errs, w.worker.Close())
	}
	return errors.Join(errs...)
}

type worker struct {
	Options
	ctx context.Context

	mu      sync.Mutex      // one chunk at a time
	worker  pipeline.Worker // nil: it has failed and was not replaced
	started int
	result  []byte
}

// errGone is the error of chunks that arrive after the last worker has failed.
var errGone = errors.New("ranks: the worker has failed")

func (w *worker) do(source int, results *fanout.Results, k fanout.Chunk) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.worker == nil {
		return errGone
	}
	c := &pipeline.Chunk{Source: source, Seq: k.Seq(), Data: k.Bytes()}
	for attempt := 1; ; attempt++ {
		err := w.try(c)
		if err == nil {
			return results.Send(w.ctx, k.Seq(), w.result)
		}
		w.worker.Close() // err is the error to report
		w.worker = nil
		if attempt == w.Attempts || w.ctx.Err() != nil {
			return &pipeline.Error{Op: "work", Source: c.Source, Seq: c.Seq, Attempts: attempt, Err: err}
		}
		w.Log.Warn("a worker has failed", "source", c.Source, "chunk", c.Seq, "attempt", attempt, "error", err)
		w.started++
		next, err := w.NewWorker(w.ctx, w.started)
		if err != nil {
			return &pipeline.Error{Op: "start", Err: err}
		}
		w.worker = next
	}
}

func (w *worker) try(c *pipeline.Chunk) (err error) {
	if w.result, err = w.worker.Work(w.ctx, c, w.result[:0]); err != nil {
		return err
	}
	if _, err = ring.Check(w.result, w.ItemLimit); err != nil {
		return fmt.Errorf("%w: %w", pipeline.ErrResult, err)
	}
	return nil
}

// Results returns a source of the results that a collector receives, empty ones included, for
// a pipeline with [pipeline.Pass].
func Results(c *fanout.Collector) pipeline.Source {
	return func(ctx context.Context, chunk []byte) ([]byte, error) {
		r, err := c.Receive(ctx)
		if err != nil {
			return chunk, err
		}
		chunk = append(chunk, r.Bytes()...)
		return chunk, r.Release()
	}
}

// lasting returns a context that ends some time after ctx.
func lasting(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(grace, cancel)
		context.AfterFunc(longer, func() { timer.Stop() })
	})
	return longer, func() {
		stop()
		cancel()
	}
}
