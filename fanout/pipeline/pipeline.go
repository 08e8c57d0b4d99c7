package pipeline

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"github.com/sluice-hpc/sluice/fanout/ring"
)

// Pipeline runs once. Several goroutines may call its methods; Run may be called only once.
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
	over      chan struct{} // closed when there are no more chunks
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
	err      error // why there will be no result
}

// ending says how a source has ended.
type ending struct {
	source int
	chunks uint64 // how many it made
	err    error  // nil: it has not failed
}

// New makes a pipeline. It starts nothing before Run. The error is [ErrConfig].
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

// Drain ends the sources: chunks that they have made are still processed and written, then
// Run returns as if the sources had ended there. Drain does not wait. Any goroutine may call
// it at any time.
func (p *Pipeline) Drain() { p.drainOnce.Do(func() { close(p.draining) }) }

// Run runs the pipeline until all sources have ended and all results have been written. It
// returns the joined errors: an [*Error] for each source that has failed and for each worker
// that could not be closed.
//
// Other errors end the whole pipeline: a worker cannot be started at the beginning, or none
// can be started later; a chunk has failed [Config.Attempts] times; the sink fails. When a
// chunk has failed, all earlier chunks of its source have been written. When the context ends,
// Run returns its cause. In every case no goroutine or worker is left running.
func (p *Pipeline) Run(ctx context.Context) error {
	if p.started.Swap(true) {
		return errors.New("pipeline: Run has already been called")
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
	free  chan *job // the window: jobs that are not in flight
	err   error     // with which it has ended; only the sorter uses it
	queue queue     // only the sorter uses it
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
