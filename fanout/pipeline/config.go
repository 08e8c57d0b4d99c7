package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
)

// Config says what a pipeline consists of. Sources, NewWorker and Sink are needed.
type Config struct {
	Sources []Source
	// Workers is how many there are at a time; 0: one.
	Workers int
	// NewWorker starts worker id, from 0; anew after a failure. It is called by several
	// goroutines, for different workers.
	NewWorker func(ctx context.Context, id int) (Worker, error)
	// Order says which of the next items of two sources comes first, as cmp.Compare does.
	// Those that it finds equal come in the order of their sources. Items of one source
	// keep theirs. nil: ByTimestamp.
	Order func(a, b Head) int
	Sink  Sink
	// Window is how many chunks of each source there may be between source and sink; 0:
	// DefaultWindow for each worker.
	Window int
	// Attempts is how many workers may fail with a chunk; 0: DefaultAttempts.
	Attempts int
	// ItemLimit is how large an item may be, in bytes; 0: ring.DefaultLimit.
	ItemLimit int64
	// Log is told of workers that fail; nil: slog.Default().
	Log *slog.Logger
}

const (
	// DefaultWindow is how many chunks of a source there are for each worker: one that it
	// works on, one that it takes next, and as many that wait for an older one.
	DefaultWindow = 4
	// DefaultAttempts is for workers that fail because of themselves, not of the chunk.
	DefaultAttempts = 8
)

// ErrConfig is the error of a Config that cannot be.
var ErrConfig = errors.New("pipeline: invalid configuration")

func (c Config) check() (Config, error) {
	switch {
	case len(c.Sources) == 0:
		return c, fmt.Errorf("%w: no source", ErrConfig)
	case c.NewWorker == nil:
		return c, fmt.Errorf("%w: no NewWorker", ErrConfig)
	case c.Sink == nil:
		return c, fmt.Errorf("%w: no sink", ErrConfig)
	case c.Workers < 0 || c.Window < 0 || c.Attempts < 0:
		return c, fmt.Errorf("%w: a number below 0", ErrConfig)
	}
	c.Workers = cmp.Or(c.Workers, 1)
	c.Window = cmp.Or(c.Window, DefaultWindow*c.Workers)
	c.Attempts = cmp.Or(c.Attempts, DefaultAttempts)
	if c.Order == nil {
		c.Order = ByTimestamp
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return c, nil
}

// Error tells of a chunk that no worker could work on, or of workers that are gone.
type Error struct {
	Op       string // "start", "source", "worker", "work", "sink" or "close"
	Source   int    // for "source" and "work": index of the source
	Seq      uint64 // for "work": sequence number of the chunk
	Attempts int    // for "work": how many workers have failed
	Err      error  // why, the last time
}

func (e *Error) Error() string {
	switch e.Op {
	case "source":
		return fmt.Sprintf("pipeline: source %d: %v", e.Source, e.Err)
	case "work":
		return fmt.Sprintf("pipeline: chunk %d of source %d: %d workers have failed: %v", e.Seq, e.Source, e.Attempts, e.Err)
	}
	return fmt.Sprintf("pipeline: %s: %v", e.Op, e.Err)
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }
