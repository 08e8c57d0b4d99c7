package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
)

// Config configures a pipeline. Sources, NewWorker and Sink are required.
type Config struct {
	Sources []Source
	// Workers is the number of workers that run at a time; 0: one.
	Workers int
	// NewWorker starts worker id, from 0, and starts it again after a failure. Several
	// goroutines call it, for different workers.
	NewWorker func(ctx context.Context, id int) (Worker, error)
	// Order says which of the next items of two sources comes first, as cmp.Compare does.
	// Equal items come in the order of their sources. Items of one source keep their order.
	// nil: ByTimestamp.
	Order func(a, b Head) int
	Sink  Sink
	// Window is how many chunks each source may have between source and sink; 0:
	// DefaultWindow for each worker.
	Window int
	// Attempts is how many workers may fail with a chunk; 0: DefaultAttempts.
	Attempts int
	// ItemLimit is how large an item may be, in bytes; 0: ring.DefaultLimit.
	ItemLimit int64
	// Log reports workers that fail; nil: slog.Default().
	Log *slog.Logger
}

const (
	// DefaultWindow is the number of chunks of a source for each worker: one that it works on,
	// one that it takes next, and two that wait for an older one.
	DefaultWindow = 4
	// DefaultAttempts allows for workers that fail for reasons other than the chunk.
	DefaultAttempts = 8
)

// ErrConfig is the error of an invalid Config.
var ErrConfig = errors.New("pipeline: invalid configuration")

func (c Config) check() (Config, error) {
	switch {
	case len(c.Sources) == 0:
		return c, fmt.Errorf("%w: Sources is empty", ErrConfig)
	case c.NewWorker == nil:
		return c, fmt.Errorf("%w: NewWorker is nil", ErrConfig)
	case c.Sink == nil:
		return c, fmt.Errorf("%w: Sink is nil", ErrConfig)
	case c.Workers < 0 || c.Window < 0 || c.Attempts < 0:
		return c, fmt.Errorf("%w: Workers (%d), Window (%d) and Attempts (%d) must not be negative", ErrConfig, c.Workers, c.Window, c.Attempts)
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

// Error says which stage of a pipeline has failed, and why.
type Error struct {
	Op       string // "start", "source", "worker", "work", "sink" or "close"
	Source   int    // for "source" and "work": index of the source
	Seq      uint64 // for "work": sequence number of the chunk
	Attempts int    // for "work": how many workers have failed
	Err      error  // the reason, of the last attempt
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
