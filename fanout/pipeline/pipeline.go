package pipeline

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"github.com/sluice-hpc/sluice/fanout/ring"
)

// Pipeline runs once. Its methods may be called by several goroutines, Run once.
type Pipeline struct {
	Config
	started   atomic.Bool
	draining  chan struct{}
	drainOnce sync.Once
	workers   []*slot
	sources   []*source
	again     chan *job // chunks that a worker has failed with
	fresh     chan *job
	results   chan *job
	ends      chan ending
	over      chan struct{} // closed when no more chunks come
	totals    totals
}

// job is a chunk on its way to the sink. It is with one goroutine at a time: its source,
// a worker, the sorter, and back to its source.
type job struct {
	Chunk
	itemsIn  int
	result   []byte
	itemsOut int
	attempts int
	err      error // no result, and there will be none
}

// ending says how a source has ended.
type ending struct {
	source int
	chunks uint64 // how many it gave
	err    error  // nil: as it should
}

// New makes a pipeline. The error is [ErrConfig].
func New(c Config) (*Pipeline, error) {
	c, err := c.check()
	if err != nil {
		return nil, err
	}
	all := len(c.Sources) * c.Window // no channel of jobs is ever full
	p := &Pipeline{
		Config: c, draining: make(chan struct{}), over: make(chan struct{}),
		again: make(chan *job, all), fresh: make(chan *job, all), results: make(chan *job, all),
		ends: make(chan ending, len(c.Sources)),
	}
	for i, s := range c.Sources {
		p.sources = append(p.sources, newSource(i, s, c.Window))
	}
	for i := range c.Workers {
		p.workers = append(p.workers, newSlot(p, i))
	}
	return p, nil
}

// Drain ends the sources: what they gave is still worked on and written, then Run
// returns as if they had ended there. It does not wait, and may be called at any time.
func (p *Pipeline) Drain() { p.drainOnce.Do(func() { close(p.draining) }) }

// Run runs the pipeline to its end and returns what went wrong, joined: an [*Error] for
// each source that has ended with an error, for each worker that could not be closed; or
// one that has ended everything: a worker that cannot be started at the beginning, or
// all of them later; a chunk that no worker could work on; the sink. Before a chunk that
// no worker could work on all that its source gave before was written. When the context
// ends, so does Run, with its cause; nothing of the pipeline is left behind then either.
func (p *Pipeline) Run(ctx context.Context) error {
	if p.started.Swap(true) {
		return errors.New("pipeline: it has run already")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := p.startWorkers(ctx); err != nil {
		return err
	}
	sourcing, enough := context.WithCancel(ctx)
	defer enough()
	var sources, workers sync.WaitGroup
	sources.Go(func() {
		select {
		case <-p.draining:
			enough()
		case <-sourcing.Done():
		}
	})
	for _, s := range p.sources {
		sources.Go(func() { p.ends <- s.run(sourcing, p) })
	}
	for _, w := range p.workers {
		workers.Go(func() { w.run(ctx) })
	}
	gone := make(chan struct{})
	go func() {
		workers.Wait()
		close(gone)
	}()

	err := p.sort(ctx, gone)
	if err != nil {
		cancel()
	}
	enough()
	close(p.over)
	<-gone
	sources.Wait()
	for _, s := range p.sources {
		if s.err != nil {
			err = errors.Join(err, &Error{Op: "source", Source: s.index, Err: s.err})
		}
	}
	for _, w := range p.workers {
		if w.closeErr != nil {
			err = errors.Join(err, &Error{Op: "close", Err: w.closeErr})
		}
	}
	return err
}

// source is a Source with its window.
type source struct {
	index int
	next  Source
	free  chan *job // the window: those that are not on their way
	err   error     // with which it has ended; the sorter's
	queue queue     // the sorter's
}

func newSource(index int, next Source, window int) *source {
	s := &source{index: index, next: next, free: make(chan *job, window)}
	for range window {
		s.free <- new(job)
	}
	s.queue.slots = make([]*job, window)
	return s
}

// run hands the chunks of the source to the workers.
func (s *source) run(ctx context.Context, p *Pipeline) ending {
	for seq := uint64(0); ; {
		var j *job
		select {
		case j = <-s.free:
		case <-ctx.Done():
			return ending{source: s.index, chunks: seq}
		}
		if ctx.Err() != nil { // select chooses at random
			return ending{source: s.index, chunks: seq}
		}
		data, err := s.next(ctx, j.Data[:0])
		if len(data) > 0 {
			items, checkErr := ring.Check(data, p.ItemLimit)
			if checkErr != nil {
				return ending{s.index, seq, checkErr}
			}
			*j = job{Chunk: Chunk{s.index, seq, data}, itemsIn: items, result: j.result[:0]}
			seq++
			p.totals.read(items, len(data))
			p.fresh <- j
		} else {
			j.Data = data
			s.free <- j
		}
		switch {
		case err == io.EOF, err != nil && ctx.Err() != nil:
			return ending{source: s.index, chunks: seq}
		case err != nil:
			return ending{s.index, seq, err}
		}
	}
}
