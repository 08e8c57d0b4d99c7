package pipeline

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/sluice-hpc/sluice/fanout/filter"
	"github.com/sluice-hpc/sluice/fanout/ring"
)

// FilterOptions are the options of [Filter].
type FilterOptions struct {
	// PerChunk starts a process for each chunk, which reads to the end of file, instead
	// of one for each worker, which reads and writes frames (see package filter).
	PerChunk bool
	// Stamped passes items to and from the filter with their timestamps, as chunks of package
	// ring. Otherwise they are passed as in event files, and returned items get timestamps by
	// the rules of [ring.Clock], starting at the timestamp of the chunk's first item.
	Stamped bool
	// Timeout is how long a filter may take for a chunk; 0: without limit.
	Timeout time.Duration
	// ItemLimit is how large an item may be, in bytes; 0: ring.DefaultLimit. Unless the
	// command has a limit, an answer may be as long as filter.DefaultLimit and two such items.
	ItemLimit int64
}

// Filter returns a NewWorker for [Config], whose workers pass the chunks to another program.
// A filter that ends, takes too long or returns something other than ring items has failed
// with the chunk.
func Filter(c filter.Command, o FilterOptions) func(context.Context, int) (Worker, error) {
	if c.Limit == 0 && o.ItemLimit > 0 {
		c.Limit = int(min(filter.DefaultLimit+2*min(o.ItemLimit, 1<<40), math.MaxUint32, math.MaxInt))
	}
	return func(ctx context.Context, _ int) (Worker, error) {
		w := &filterWorker{o: o, c: c}
		if o.PerChunk {
			return w, c.Find()
		}
		var err error
		if w.process, err = filter.Start(c); err != nil {
			return nil, err
		}
		// An idle filter might end slowly when the pipeline is cancelled.
		w.spare = context.AfterFunc(ctx, w.process.Kill)
		return w, nil
	}
}

type filterWorker struct {
	o             FilterOptions
	c             filter.Command
	process       *filter.Process // nil: one for each chunk
	spare         func() bool     // stops the kill at the end of the pipeline's context
	bare, answers []byte          // without timestamps
}

// Work implements [Worker].
func (w *filterWorker) Work(ctx context.Context, c *Chunk, out []byte) (_ []byte, err error) {
	if w.o.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, w.o.Timeout, fmt.Errorf("the filter took longer than its timeout, %v", w.o.Timeout))
		defer cancel()
	}
	if w.o.Stamped {
		return w.ask(ctx, c.Data, out)
	}
	if w.bare, err = ring.AppendStripped(w.bare[:0], c.Data, w.o.ItemLimit); err != nil {
		return out, err
	}
	if w.answers, err = w.ask(ctx, w.bare, w.answers[:0]); err != nil {
		return out, err
	}
	clock := ring.NewClock(binary.LittleEndian.Uint64(c.Data))
	out, _, err = ring.AppendAll(out, w.answers, &clock, w.o.ItemLimit)
	if err != nil {
		return out, fmt.Errorf("%w: %w", ErrResult, err)
	}
	return out, nil
}

func (w *filterWorker) ask(ctx context.Context, chunk, out []byte) ([]byte, error) {
	if w.process == nil {
		return filter.Once(ctx, w.c, chunk, out)
	}
	return w.process.Do(ctx, chunk, out)
}

// Close implements [Worker]. A filter that was killed after it had answered everything has
// lost nothing: that is no error.
func (w *filterWorker) Close() error {
	if w.process == nil {
		return nil
	}
	err := w.process.Close()
	w.spare()
	var e *filter.Error
	if errors.Is(err, filter.ErrKilled) || errors.As(err, &e) && e.Err == filter.ErrExit && e.ExitCode() < 0 {
		return nil
	}
	return err
}
