package fanout

import (
	"fmt"
	"math"
	"slices"

	"github.com/sluice-hpc/sluice/impi"
)

// maxWindow bounds the requests that a worker has outstanding.
const maxWindow = 1 << 12

// Option is an option of [NewSupplier]. Of one that is given twice the last counts; those
// that contradict each other are refused, as [ClientOption] and [CollectorOption] are.
type Option func(*supplierOptions)

type supplierOptions struct {
	workers []int
	queue   int
	batch   int
	keep    keeping
	by      []int // ranks of collectors
	unacked int
	timed   bool

	attempts int  // below 0: any number
	limited  bool // by Attempts

	oneAtATime bool
	bounded    bool // by Unacknowledged
}

// keeping says what ends the keeping of a chunk: one of these. Options set them together.
type keeping int

const (
	keepNothing       keeping = 0
	untilAcknowledged keeping = 1
	untilCollected    keeping = 2
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
// is by [Chunk.Release], and gives those of a worker that dies to others. Workers of other
// implementations cannot acknowledge: see [OneAtATime].
//
// A worker that dies between what it does with a chunk and the acknowledgement has it
// done again by another: the sequence number tells. See [Collected] for exactly once.
//
// A chunk that its worker has not released when it closes its client, or has refused for its
// length ([Longest], [MaxChunk]), goes to another. One that workers die of is given up: see
// [Attempts]. One that all workers refuse for its length goes from client to client, as long as
// new ones are made.
func Redeliver() Option { return func(o *supplierOptions) { o.keep |= untilAcknowledged } }

// OneAtATime says that workers of other implementations ask for one chunk at a time, and
// for the next when they have done with it, as those of NSCLDAQ do: with [Redeliver] their
// request then acknowledges the chunk before. Without it such a worker is refused, by an
// end, and the supplier returns a [*MessageError]. A worker that is seen to ask again
// before it is answered has broken the promise: the supplier ends with a [*MessageError].
// It is not always seen, as a request that was sent ahead may come late.
func OneAtATime() Option { return func(o *supplierOptions) { o.oneAtATime = true } }

// Collected is [Redeliver] with acknowledgements that come from a [Collector], not from
// workers: by [Supplier.Acknowledge], or from other ranks of the communicator (see
// [AcknowledgeTo]). When one of these dies, the supplier fails. Workers of other
// implementations are refused, by an end and a [*MessageError]: they learn no numbers.
func Collected(ranks ...int) Option {
	return func(o *supplierOptions) { o.keep, o.by = o.keep|untilCollected, slices.Clone(ranks) }
}

// Unacknowledged bounds what is kept by [Redeliver] and [Collected]: chunk i+n is not
// taken by Send before chunk i has been acknowledged. So it is also how many results a
// collector may have to put in order. The default is 256.
func Unacknowledged(n int) Option {
	return func(o *supplierOptions) { o.unacked, o.bounded = n, true }
}

// DefaultAttempts is how many workers may die with a chunk that is kept, unless [Attempts]
// says otherwise.
const DefaultAttempts = 3

// Attempts bounds how many workers may die, or close their clients, with a chunk that they
// work on, of [Redeliver] and [Collected]. Then no other gets it: with Redeliver the others
// go on, and [Supplier.Drain] and [Supplier.End] return a [*HopelessError] that names it;
// with Collected, where its result would be missing, it is the error of all calls at once.
// Below 0: any number. The default is [DefaultAttempts].
//
// What counts is what a worker has begun with, not what waits at it: of the first death this
// is not known, and counts for all that the worker had; from then on workers say when they
// begin with these chunks, which costs a short message each.
func Attempts(n int) Option {
	return func(o *supplierOptions) { o.attempts, o.limited = n, true }
}

// Timed takes the time of each chunk, for the percentiles of [WorkerStats]; it costs two
// readings of the clock.
func Timed() Option { return func(o *supplierOptions) { o.timed = true } }

func newSupplierOptions(comm *impi.Comm, opts []Option) (supplierOptions, error) {
	o := supplierOptions{unacked: defaultUnacknowledged, attempts: DefaultAttempts}
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
	for i, r := range o.by {
		if r < 0 || r >= comm.Size() || r == comm.Rank() || slices.Contains(o.by[:i], r) {
			return o, fmt.Errorf("%w: collectors %v of %d ranks, supplier %d", ErrInvalid, o.by, comm.Size(), comm.Rank())
		}
	}
	switch {
	case o.keep == untilAcknowledged|untilCollected:
		return o, fmt.Errorf("%w: Redeliver and Collected: a chunk is acknowledged by its worker or by a collector", ErrInvalid)
	case o.oneAtATime && o.keep != untilAcknowledged:
		return o, fmt.Errorf("%w: OneAtATime without Redeliver: no request acknowledges anything", ErrInvalid)
	case o.bounded && o.keep == keepNothing:
		return o, fmt.Errorf("%w: Unacknowledged without Redeliver or Collected: no chunk is acknowledged", ErrInvalid)
	case o.limited && o.keep == keepNothing:
		return o, fmt.Errorf("%w: Attempts without Redeliver or Collected: no chunk goes to a second worker", ErrInvalid)
	case o.attempts == 0:
		return o, fmt.Errorf("%w: 0 Attempts: at least one, or below 0 for any number", ErrInvalid)
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
	longest   int
	job       *impi.Job

	windowed bool // by Window
	bounded  bool // by Longest
}

// From says which ranks of the communicator supply chunks. None: rank 0.
func From(ranks ...int) ClientOption {
	return func(o *clientOptions) { o.suppliers = slices.Clone(ranks) }
}

// Window has the client keep up to k requests outstanding at each supplier, and never less
// than half of them: while it works on one chunk the next ones come. The default is 1, and
// the request for a chunk goes out in Receive.
func Window(k int) ClientOption {
	return func(o *clientOptions) { o.window, o.windowed = k, true }
}

// AdaptiveWindow is Window with a k from 1 to most that follows the work: as many
// requests as chunks are worked on in the time that an answer takes, and one.
func AdaptiveWindow(most int) ClientOption {
	return func(o *clientOptions) { o.window, o.adaptive = most, true }
}

// Numbered asks for chunks with sequence numbers, for several at once with a [Window], and
// acknowledges each when it is released if the supplier wants to know ([Redeliver],
// [Timed]). The supplier must be of this package. Without it the client asks for chunks
// one by one; a supplier with [Redeliver] or [Collected] numbers them all the same.
func Numbered() ClientOption { return func(o *clientOptions) { o.numbered = true } }

// MaxChunk says that no message of a supplier is longer than so many bytes: a chunk, or a
// batch of them, with [Numbered] and the 16 bytes that come with each. Then receives are
// posted before chunks come, and each chunk is moved once. A longer message is an error,
// and lost.
func MaxChunk(bytes int) ClientOption { return func(o *clientOptions) { o.maxChunk = bytes } }

// DefaultLongest is the length in bytes up to which clients and collectors receive
// messages unless [Longest] or [LongestResult] says otherwise.
const DefaultLongest = 1 << 30

// Longest bounds the messages that the client receives, in bytes: a chunk, or a batch of
// them, with the 16 bytes that come with each that is numbered. The length of a long message
// is what its supplier announces, and memory for it is allocated before its bytes come:
// one that is announced as longer is a [*MessageError], and lost. The default is
// [DefaultLongest]. [MaxChunk] is a bound, too: of the two there may be one.
func Longest(bytes int) ClientOption {
	return func(o *clientOptions) { o.longest, o.bounded = bytes, true }
}

// LeasesOf has chunks lie in memory of [impi.Job.Alloc], of the job that the communicator
// is of. A chunk above the packet length that its supplier sends from such memory, too
// ([Supplier.SendOwned], or Send without a queue), then goes straight from there to where
// the worker reads it: nothing is copied in between, nothing registered for it.
//
// Closing the client frees the memory; that of chunks which have not been released then,
// their Release, and at the latest the job, with which their bytes go.
func LeasesOf(job *impi.Job) ClientOption { return func(o *clientOptions) { o.job = job } }

func newClientOptions(comm *impi.Comm, opts []ClientOption) (clientOptions, error) {
	o := clientOptions{window: 1, longest: DefaultLongest}
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
	case o.windowed && o.adaptive:
		return o, fmt.Errorf("%w: Window and AdaptiveWindow: a window is fixed or follows the work", ErrInvalid)
	case o.bounded && o.maxChunk > 0:
		return o, fmt.Errorf("%w: Longest and MaxChunk: messages have one bound", ErrInvalid)
	case o.numbered && o.maxChunk > 0 && o.maxChunk <= recordHeader:
		return o, fmt.Errorf("%w: MaxChunk of %d bytes with Numbered, of which %d come with each chunk", ErrInvalid, o.maxChunk, recordHeader)
	case o.job != nil && o.job != comm.Job():
		return o, fmt.Errorf("%w: LeasesOf a job that the communicator is not of", ErrInvalid)
	case o.window < 1 || o.window > maxWindow:
		return o, fmt.Errorf("%w: window %d, 1 to %d", ErrInvalid, o.window, maxWindow)
	case o.maxChunk < 0 || o.maxChunk > math.MaxInt-recordHeader:
		return o, fmt.Errorf("%w: chunks of at most %d bytes", ErrInvalid, o.maxChunk)
	case o.longest < 1:
		return o, fmt.Errorf("%w: messages of at most %d bytes", ErrInvalid, o.longest)
	}
	return o, nil
}
