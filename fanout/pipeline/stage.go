package pipeline

import (
	"context"

	"github.com/sluice-hpc/sluice/fanout/ring"
)

// Source makes chunks. It appends the next one, in the form of package ring (per item a
// timestamp and the item), to chunk and returns it; the slice is its to use during the
// call only. The error [io.EOF] says that there is no more; another one that there should
// be. What was appended counts in either case, and the Source is not called again. The
// context ends when no more is wanted; then a Source that waits has to come back, with
// whatever error. Calls do not overlap, but come from any goroutine.
type Source func(ctx context.Context, chunk []byte) ([]byte, error)

// Chunk is what a worker works on.
type Chunk struct {
	Source int    // index among the sources
	Seq    uint64 // sequence number in that source, from 0
	Data   []byte // the items with their timestamps, as in package ring; not empty
}

// Worker makes results of chunks. Its methods are called one at a time.
type Worker interface {
	// Work appends what it makes of c to out, in the form of a chunk, and returns it: the
	// result, which may be empty. Both slices, and c, are its to use during the call
	// only; it does not change c, which another worker may get. After an error, and after
	// a result that is no chunk, the worker is closed.
	Work(ctx context.Context, c *Chunk, out []byte) ([]byte, error)
	// Close is called once. Its error is one of the pipeline's, except after a Work that
	// has failed.
	Close() error
}

// Func is a function as a Worker.
type Func func(ctx context.Context, c *Chunk, out []byte) ([]byte, error)

// Work calls f.
func (f Func) Work(ctx context.Context, c *Chunk, out []byte) ([]byte, error) { return f(ctx, c, out) }

// Close does nothing.
func (Func) Close() error { return nil }

// Pass is a NewWorker for [Config]: a worker that changes nothing.
func Pass(context.Context, int) (Worker, error) {
	return Func(func(_ context.Context, c *Chunk, out []byte) ([]byte, error) { return append(out, c.Data...), nil }), nil
}

// Items makes a Worker of a function for one item: it may change the item, its body
// header and what its slices refer to, but not what these contain, and says whether it is
// kept. What is kept is written in version v; its timestamp in the chunk stays. Items may
// have limit bytes (0: [ring.DefaultLimit]).
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

// ByTimestamp is the order that merges sources by time: of two items of different
// sources the earlier comes first.
func ByTimestamp(a, b Head) int {
	switch {
	case a.Timestamp < b.Timestamp:
		return -1
	case a.Timestamp > b.Timestamp:
		return 1
	}
	return 0
}

// BySource is the order that puts one source behind the other. Those behind wait: it is
// their windows that are full meanwhile.
func BySource(a, b Head) int { return a.Source - b.Source }

// Sink takes what comes out: items with their timestamps, as in package ring, in order.
// The slice is its to use during the call only. An error ends the pipeline.
type Sink func(ctx context.Context, items []byte) error
