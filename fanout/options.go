package fanout

import (
	"fmt"
	"slices"

	"github.com/sluice-hpc/sluice/impi"
)

// maxWindow bounds the requests that a worker has outstanding.
const maxWindow = 1 << 12

// Option is an option of [NewSupplier].
type Option func(*supplierOptions)

type supplierOptions struct {
	workers []int
	queue   int
	batch   int
	keep    keeping
	by      []int // ranks of collectors
	unacked int
	timed   bool
}

// keeping says what ends the keeping of a chunk.
type keeping int

const (
	keepNothing keeping = iota
	untilAcknowledged
	untilCollected
)

// Workers says which ranks of the communicator are workers: those may ask, and get an
// end. None: all but the supplier's own and those of [Collected].
func Workers(ranks ...int) Option {
	return func(o *supplierOptions) { o.workers = slices.Clone(ranks) }
}

// Queue has Send return as soon as its chunk is in a queue of at most n chunks, from
// which a goroutine hands them out. What is sent is copied, unless it is by
// [Supplier.SendOwned]. 0, the default: no queue, no goroutine; Send returns when a
// worker has the chunk.
func Queue(n int) Option { return func(o *supplierOptions) { o.queue = n } }

// Batch has [Numbered] workers given several chunks in one message, of at most so many
// bytes with the 16 that come with each: in answer to one request all that are in the
// queue, or without a [Queue] those of [Supplier.SendEach] in answer to as many requests.
// The default is one chunk for each request, and each alone.
func Batch(bytes int) Option { return func(o *supplierOptions) { o.batch = bytes } }

// Redeliver has the supplier keep each chunk until its worker has acknowledged it, which
// is by [Chunk.Release], and gives those of a worker that dies to others. A worker in the
// plain dialect acknowledges a chunk by asking for the next.
//
// A worker that dies between what it does with a chunk and the acknowledgement has it
// done again by another: the sequence number tells. See [Collected] for exactly once.
func Redeliver() Option { return func(o *supplierOptions) { o.keep = untilAcknowledged } }

// Collected is [Redeliver] with acknowledgements that come from a [Collector], not from
// workers: by [Supplier.Acknowledge], or from other ranks of the communicator (see
// [AcknowledgeTo]). When one of these dies, the supplier fails.
func Collected(ranks ...int) Option {
	return func(o *supplierOptions) { o.keep, o.by = untilCollected, slices.Clone(ranks) }
}

// Unacknowledged bounds what is kept by [Redeliver] and [Collected]: chunk i+n is not
// taken by Send before chunk i has been acknowledged. So it is also how many results a
// collector may have to put in order. The default is 256.
func Unacknowledged(n int) Option { return func(o *supplierOptions) { o.unacked = n } }

// Timed takes the time of each chunk, for the percentiles of [WorkerStats]; it costs two
// readings of the clock.
func Timed() Option { return func(o *supplierOptions) { o.timed = true } }

func newSupplierOptions(comm *impi.Comm, opts []Option) (supplierOptions, error) {
	o := supplierOptions{unacked: defaultUnacknowledged}
	for _, set := range opts {
		if set != nil {
			set(&o)
		}
	}
	if o.workers == nil {
		for r := range comm.Size() {
			if r != comm.Rank() && !slices.Contains(o.by, r) {
				o.workers = append(o.workers, r)
			}
		}
	}
	for i, r := range o.workers {
		if r < 0 || r >= comm.Size() || r == comm.Rank() || slices.Contains(o.workers[:i], r) {
			return o, fmt.Errorf("%w: workers %v of %d ranks, supplier %d", ErrInvalid, o.workers, comm.Size(), comm.Rank())
		}
	}
	for _, r := range o.by {
		if r < 0 || r >= comm.Size() || r == comm.Rank() {
			return o, fmt.Errorf("%w: collectors %v of %d ranks, supplier %d", ErrInvalid, o.by, comm.Size(), comm.Rank())
		}
	}
	switch {
	case o.queue < 0 || o.queue > maxQueue:
		return o, fmt.Errorf("%w: queue of %d chunks, at most %d", ErrInvalid, o.queue, maxQueue)
	case o.batch < 0:
		return o, fmt.Errorf("%w: batches of %d bytes", ErrInvalid, o.batch)
	case o.unacked < 1 || o.unacked > tagSpan:
		return o, fmt.Errorf("%w: %d chunks unacknowledged, 1 to %d", ErrInvalid, o.unacked, tagSpan)
	}
	return o, nil
}

const (
	maxQueue              = 1 << 24
	defaultUnacknowledged = 256
)

// ClientOption is an option of [NewClient].
type ClientOption func(*clientOptions)

type clientOptions struct {
	suppliers []int
	window    int
	adaptive  bool
	numbered  bool
	maxChunk  int
	job       *impi.Job
}

// From says which ranks of the communicator supply chunks. None: rank 0.
func From(ranks ...int) ClientOption {
	return func(o *clientOptions) { o.suppliers = slices.Clone(ranks) }
}

// Window has the client keep up to k requests outstanding at each supplier, and never less
// than half of them: while it works on one chunk the next ones come. The default is 1, and
// the request for a chunk goes out in Receive.
func Window(k int) ClientOption {
	return func(o *clientOptions) { o.window, o.adaptive = k, false }
}

// AdaptiveWindow is Window with a k from 1 to most that follows the work: as many
// requests as chunks are worked on in the time that an answer takes, and one.
func AdaptiveWindow(most int) ClientOption {
	return func(o *clientOptions) { o.window, o.adaptive = most, true }
}

// Numbered asks for chunks with sequence numbers, for several at once with a [Window], and
// acknowledges each when it is released if the supplier wants to know ([Redeliver],
// [Timed]). The supplier must be of this package.
func Numbered() ClientOption { return func(o *clientOptions) { o.numbered = true } }

// MaxChunk says that no message of a supplier is longer than so many bytes: a chunk, or a
// batch of them, with [Numbered] and the 16 bytes that come with each. Then receives are
// posted before chunks come, and each chunk is moved once. A longer message is an error,
// and lost.
func MaxChunk(bytes int) ClientOption { return func(o *clientOptions) { o.maxChunk = bytes } }

// LeasesOf has chunks lie in memory of [impi.Job.Alloc], of the job that the communicator
// is of. A chunk above the packet length that its supplier sends from such memory, too
// ([Supplier.SendOwned], or Send without a queue), then goes straight from there to where
// the worker reads it: nothing is copied in between, nothing registered for it.
//
// Closing the client frees the memory; that of chunks which have not been released then,
// their Release, and at the latest the job, with which their bytes go.
func LeasesOf(job *impi.Job) ClientOption { return func(o *clientOptions) { o.job = job } }

func newClientOptions(comm *impi.Comm, opts []ClientOption) (clientOptions, error) {
	o := clientOptions{window: 1}
	for _, set := range opts {
		if set != nil {
			set(&o)
		}
	}
	if o.suppliers == nil {
		o.suppliers = []int{0}
	}
	for i, r := range o.suppliers {
		if r < 0 || r >= comm.Size() || r == comm.Rank() || slices.Contains(o.suppliers[:i], r) {
			return o, fmt.Errorf("%w: suppliers %v of %d ranks, client %d", ErrInvalid, o.suppliers, comm.Size(), comm.Rank())
		}
	}
	switch {
	case o.window < 1 || o.window > maxWindow:
		return o, fmt.Errorf("%w: window %d, 1 to %d", ErrInvalid, o.window, maxWindow)
	case o.maxChunk < 0:
		return o, fmt.Errorf("%w: chunks of at most %d bytes", ErrInvalid, o.maxChunk)
	}
	return o, nil
}
