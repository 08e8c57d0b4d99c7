// Package ranks runs the stages of a pipeline in the ranks of a job, over package fanout:
//
//	source  Supply ──┐          ┌── Results ┐
//	source  Supply ──┴── Work ──┴── Results ┴─ a pipeline with Pass ── sink
//
// A source is a rank with a [fanout.Supplier], and each worker has a client of it. The
// sink is a rank with a [fanout.Collector] for each source: what they receive are the
// sources of a pipeline whose workers only pass chunks on, which merges them. Of each
// source there are two communicators, one for chunks and one for results. A rank may be
// more than one of these.
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

// Supply has a supplier hand out the chunks of a source, and ends it. When ctx ends, no
// more is read; what was, is handed out, for which there is as much time as grace says.
//
// Errors: that with which the source has ended, after all that it gave before was handed
// out and the supplier was ended; those of [fanout.Supplier.Supply].
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

// Stream is what a worker has of a source.
type Stream struct {
	Client  *fanout.Client  // of the source's supplier alone; with [fanout.Numbered]
	Results *fanout.Results // to the collector for the source
}

// Options are those of [Work]. NewWorker is needed.
type Options struct {
	// NewWorker starts the worker of this rank, and further ones with their number when
	// one has failed.
	NewWorker func(ctx context.Context, id int) (pipeline.Worker, error)
	// Attempts is how many workers may fail with a chunk; 0: pipeline.DefaultAttempts.
	Attempts int
	// ItemLimit is how large an item may be, in bytes; 0: ring.DefaultLimit.
	ItemLimit int64
	// Grace is how long what was given to this rank may take when ctx has ended.
	Grace time.Duration
	// Log is told of workers that fail; nil: slog.Default().
	Log *slog.Logger
}

// Work has a worker work on the chunks of all streams, as they come, and sends the
// results. Those of a stream are ended when its supplier has ended. When ctx ends, it
// leaves: what it has been given is still worked on. It returns when all streams have
// ended.
//
// After an error (the worker's, of a client or of results) the process is to end: what it
// was given goes to other ranks when it is gone.
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
	worker  pipeline.Worker // nil: it has failed, and there is no other
	started int
	result  []byte
}

// errGone is for chunks that come after the last worker has failed.
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
		w.worker.Close() // the error is the one that there is already
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

// Results returns what a collector receives, results that are empty included, as a source
// for a pipeline with [pipeline.Pass].
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
