package pipeline

import (
	"context"

	"github.com/sluice-hpc/sluice/fanout/ring"
)

// Source makes chunks. It appends the next one to chunk, in the form of package ring (for each
// item a timestamp and the item), and returns the result; it may use the slice only during the
// call. The error [io.EOF] says that the source has ended; any other error, that it has
// failed. In either case the appended items count, and Source is not called again. The context
// ends when no more chunks are wanted; a Source that waits must then return, with any error.
// Calls do not overlap, but come from any goroutine.
type Source func(ctx context.Context, chunk []byte) ([]byte, error)

// Chunk is what a worker works on.
type Chunk struct {
	Source int    // index among the sources
	Seq    uint64 // sequence number in that source, from 0
	Data   []byte // the items with their timestamps, as in package ring; not empty
}

// Worker makes results from chunks. Its methods are called one at a time.
type Worker interface {
	// Work appends the result of c to out, in the form of a chunk, and returns it; the result
	// may be empty. Work may use both slices and c only during the call, and must not change
	// c, which another worker may get. After an error, or an invalid result, the worker is
	// closed.
	Work(ctx context.Context, c *Chunk, out []byte) ([]byte, error)
	// Close is called once. The pipeline returns its error, except after a Work that has
	// failed.
	Close() error
}

// Func makes a Worker from a function.
type Func func(ctx context.Context, c *Chunk, out []byte) ([]byte, error)

// Work calls f.
func (f Func) Work(ctx context.Context, c *Chunk, out []byte) ([]byte, error) { return f(ctx, c, out) }

// Close does nothing.
func (Func) Close() error { return nil }

// Pass is a NewWorker for [Config]. Its workers return each chunk unchanged.
func Pass(context.Context, int) (Worker, error) {
	return Func(func(_ context.Context, c *Chunk, out []byte) ([]byte, error) { return append(out, c.Data...), nil }), nil
}

// Items makes a Worker from a function for one item, which returns whether the item is kept.
// The function may change the fields of the item and of its body header, but not the bytes that
// the slices refer to. Kept items are written in version v, with their timestamps in the chunk
// unchanged. Items may have limit bytes (0: [ring.DefaultLimit]).
func Items(v ring.Version, limit int64, f func(it *ring.Item) (keep bool, err error)) Worker {
	return Func(func(_ context.Context, c *Chunk, out []byte) ([]byte, error) {
		for e, err := range ring.Entries(c.Data, limit) {
			if err != nil {
				return out, err
			}
			keep, err := f(&e.Item)
			if err != nil {
				return out, err
			}
			if keep {
				out = ring.AppendStamped(out, e.Timestamp, nil)
				out = e.Item.Append(out, v)
			}
		}
		return out, nil
	})
}

// Head is what the sorter compares: the next item of a source.
type Head struct {
	Source    int
	Seq       uint64 // of the result that it is in
	Timestamp uint64
}

// ByTimestamp is the order that merges sources by time: the item with the earlier timestamp
// comes first.
func ByTimestamp(a, b Head) int {
	switch {
	case a.Timestamp < b.Timestamp:
		return -1
	case a.Timestamp > b.Timestamp:
		return 1
	}
	return 0
}

// BySource is the order that writes one source after the other. Later sources wait with full
// windows.
func BySource(a, b Head) int { return a.Source - b.Source }

// Sink takes the output: items with their timestamps, as in package ring, in order. It may use
// the slice only during the call. An error ends the pipeline. Calls do not overlap.
type Sink func(ctx context.Context, items []byte) error
