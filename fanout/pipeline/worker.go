package pipeline

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/sluice-hpc/sluice/fanout/ring"
)

// ErrResult is the error of a worker whose result is not a valid chunk.
var ErrResult = errors.New("pipeline: the result is not a valid chunk")

// slot runs a worker, and those that replace it.
type slot struct {
	p        *Pipeline
	id       int
	worker   Worker
	closeErr error // of a worker that had not failed
	startErr error // of a worker that should have replaced one that had

	mu    sync.Mutex // what Stats reads
	stats WorkerStats
	times *hdrhistogram.Histogram // µs
	idle  time.Time               // since when it waits; zero: it does not wait
}

// Service times are kept from 1 µs to an hour, with 2 digits.
const longestService = 3_600_000_000

func newSlot(p *Pipeline, id int) *slot {
	return &slot{p: p, id: id, times: hdrhistogram.New(1, longestService, 2)}
}

// startWorkers starts all workers, or none.
func (p *Pipeline) startWorkers(ctx context.Context) error {
	errs := make([]error, len(p.workers))
	var wg sync.WaitGroup
	for i, w := range p.workers {
		wg.Go(func() { w.worker, errs[i] = p.NewWorker(ctx, w.id) })
	}
	wg.Wait()
	for _, err := range errs {
		if err == nil {
			continue
		}
		for _, w := range p.workers {
			if errs[w.id] == nil {
				w.worker.Close()
			}
		}
		return &Error{Op: "start", Err: err}
	}
	return nil
}

// run works on chunks until there are no more, or the worker cannot be started again.
func (w *slot) run(ctx context.Context) {
	for {
		w.waits()
		j := w.p.take()
		if j == nil {
			w.closeErr = w.worker.Close()
			return
		}
		start := w.works()
		err := w.work(ctx, j)
		w.worked(j, time.Since(start), err)
		if err == nil {
			w.p.results <- j
			continue
		}
		j.attempts++
		if ctx.Err() == nil {
			w.p.Log.Warn("a worker has failed", "worker", w.id, "source", j.Source, "chunk", j.Seq, "attempt", j.attempts, "error", err)
		}
		if j.attempts < w.p.Attempts {
			w.p.again <- j
		} else {
			j.err = err
			w.p.results <- j
		}
		w.worker.Close() // this may take a while; err is the error to report
		if ctx.Err() != nil {
			return
		}
		if w.worker, err = w.p.NewWorker(ctx, w.id); err != nil {
			w.p.Log.Error("a worker could not be started again", "worker", w.id, "error", err)
			w.startErr = err
			return
		}
	}
}

// take returns the next chunk, preferring one that has failed before, or nil when there are no
// more.
func (p *Pipeline) take() *job {
	select {
	case j := <-p.again:
		return j
	default:
	}
	select {
	case j := <-p.again:
		return j
	case j := <-p.fresh:
		return j
	case <-p.over:
		return nil
	}
}

func (w *slot) work(ctx context.Context, j *job) (err error) {
	if j.result, err = w.worker.Work(ctx, &j.Chunk, j.result[:0]); err != nil {
		return err
	}
	if j.itemsOut, err = ring.Check(j.result, w.p.ItemLimit); err != nil {
		return fmt.Errorf("%w: %w", ErrResult, err)
	}
	return nil
}
