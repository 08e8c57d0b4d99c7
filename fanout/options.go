package fanout

import (
	"fmt"
	"math"
	"slices"

	"github.com/sluice-hpc/sluice/impi"
)

// maxWindow bounds the requests that a worker has outstanding.
const maxWindow = 1 << 12

// Option is an option of [NewSupplier]. If an option is given twice, the last one counts;
// options that contradict each other are an error. The same holds for [ClientOption] and
// [CollectorOption].
type Option func(*supplierOptions)

type supplierOptions struct {
	workers []int
	queue   int
	batch   int
	keep    keeping
	by      []int // ranks of collectors that acknowledge
	unacked int
	timed   bool

	attempts int  // below 0: any number
	limited  bool // by Attempts

	oneAtATime bool
	bounded    bool // by Unacknowledged
}

// keeping says until when a chunk is kept. The options Redeliver and Collected each set a bit;
// only one may be set.
type keeping int

const (
	keepNothing       keeping = 0
	untilAcknowledged keeping = 1
	untilCollected    keeping = 2
)

// Workers says which ranks of the communicator are workers: they may ask, and get an end. The
// default is all ranks but the supplier's own and those of [Collected].
func Workers(ranks ...int) Option {
	return func(o *supplierOptions) { o.workers = slices.Clone(ranks) }
}

// Queue makes Send return as soon as its chunk is in a queue of at most n chunks, from which a
// goroutine hands them out. Send copies the chunk; [Supplier.SendOwned] does not. With 0, the
// default, there is no queue and no goroutine: Send returns when a worker has the chunk.
func Queue(n int) Option { return func(o *supplierOptions) { o.queue = n } }

// Batch lets the supplier send a [Numbered] worker several chunks in one message. The message
// has at most so many bytes, counting 16 extra for each chunk. With a [Queue], one request is
// answered with as many queued chunks as fit; without one, as many chunks of a
// [Supplier.SendEach] go together as the worker has asked for. The default is one chunk for
// each request, each in its own message.
func Batch(bytes int) Option { return func(o *supplierOptions) { o.batch = bytes } }

// Redeliver makes the supplier keep each chunk until its worker has acknowledged it with
// [Chunk.Release], and give the chunks of a worker that dies to others. Workers of other
// implementations cannot acknowledge: see [OneAtATime].
//
// If a worker dies after it has processed a chunk but before it has acknowledged it, another
// worker processes the chunk again; the sequence number identifies it. See [Collected] for
// exactly once.
//
// When a worker closes its client, the chunks that it has not released, or that it refused
// for their length ([Longest], [MaxChunk]), go to others. A chunk with which too many workers
// die is given up: see [Attempts]. A chunk that all workers refuse for its length goes from
// client to client for as long as new clients are made.
func Redeliver() Option { return func(o *supplierOptions) { o.keep |= untilAcknowledged } }

// OneAtATime promises that workers of other implementations ask for one chunk at a time, and
// for the next one only after they have processed it, as those of NSCLDAQ do. With [Redeliver]
// a request then acknowledges the chunk before. Without OneAtATime, [Redeliver] refuses such
// a worker: the supplier sends it an end and returns a [*MessageError]. A worker that asks
// again before it is answered breaks the promise: the supplier then ends with a
// [*MessageError]. It cannot always detect this, as an early request may arrive late.
func OneAtATime() Option { return func(o *supplierOptions) { o.oneAtATime = true } }

// Collected is [Redeliver] with acknowledgements from a [Collector] instead of the workers: by
// [Supplier.Acknowledge], or from the given ranks of the communicator (see [AcknowledgeTo]).
// If one of these ranks dies, the supplier fails. Workers of other implementations are refused
// with an end, and the supplier returns a [*MessageError]: they cannot get sequence numbers.
func Collected(ranks ...int) Option {
	return func(o *supplierOptions) { o.keep, o.by = o.keep|untilCollected, slices.Clone(ranks) }
}

// Unacknowledged bounds the chunks that [Redeliver] and [Collected] keep: Send does not take
// chunk i+n before chunk i has been acknowledged. So n also bounds the results that a
// collector has to put in order. The default is 256.
func Unacknowledged(n int) Option {
	return func(o *supplierOptions) { o.unacked, o.bounded = n, true }
}

// DefaultAttempts is the default of [Attempts].
const DefaultAttempts = 3

// Attempts sets how many workers may die, or close their clients, while they work on one chunk;
// then the supplier gives it up ([Redeliver] and [Collected]), and no other worker gets it.
// With Redeliver the other chunks go on, and [Supplier.Drain] and [Supplier.End] return a
// [*HopelessError] that names it. With Collected its result would be missing, so every call
// fails with the [*HopelessError] from then on. Below 0 there is no bound. The default is
// [DefaultAttempts].
//
// Only chunks that a worker has begun count, not those that wait in its window. At the first
// death the supplier does not know which these are, and counts all that the worker had. From
// then on workers report when they begin with one of these chunks, in a short message.
func Attempts(n int) Option {
	return func(o *supplierOptions) { o.attempts, o.limited = n, true }
}

// Timed measures how long each chunk takes, for the percentiles in [WorkerStats]. It costs two
// clock readings for each chunk.
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
			return o, fmt.Errorf("%w: workers %v must be different ranks of a communicator of %d, without the supplier's own, %d", ErrInvalid, o.workers, comm.Size(), comm.Rank())
		}
	}
	for i, r := range o.by {
		if r < 0 || r >= comm.Size() || r == comm.Rank() || slices.Contains(o.by[:i], r) {
			return o, fmt.Errorf("%w: collectors %v must be different ranks of a communicator of %d, without the supplier's own, %d", ErrInvalid, o.by, comm.Size(), comm.Rank())
		}
	}
	switch {
	case o.keep == untilAcknowledged|untilCollected:
		return o, fmt.Errorf("%w: use Redeliver or Collected, not both: a chunk is acknowledged by its worker or by a collector", ErrInvalid)
	case o.oneAtATime && o.keep != untilAcknowledged:
		return o, fmt.Errorf("%w: OneAtATime needs Redeliver: otherwise a request acknowledges nothing", ErrInvalid)
	case o.bounded && o.keep == keepNothing:
		return o, fmt.Errorf("%w: Unacknowledged needs Redeliver or Collected: otherwise no chunk is acknowledged", ErrInvalid)
	case o.limited && o.keep == keepNothing:
		return o, fmt.Errorf("%w: Attempts needs Redeliver or Collected: otherwise no chunk goes to a second worker", ErrInvalid)
	case o.attempts == 0:
		return o, fmt.Errorf("%w: Attempts(0): it must be at least 1, or below 0 for no bound", ErrInvalid)
	case o.queue < 0 || o.queue > maxQueue:
		return o, fmt.Errorf("%w: Queue(%d): it must be 0 to %d chunks", ErrInvalid, o.queue, maxQueue)
	case o.batch < 0:
		return o, fmt.Errorf("%w: Batch(%d) is negative", ErrInvalid, o.batch)
	case o.unacked < 1 || o.unacked > tagSpan:
		return o, fmt.Errorf("%w: Unacknowledged(%d): it must be 1 to %d chunks", ErrInvalid, o.unacked, tagSpan)
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

// From says which ranks of the communicator supply chunks. The default is rank 0.
func From(ranks ...int) ClientOption {
	return func(o *clientOptions) { o.suppliers = slices.Clone(ranks) }
}

// Window makes the client keep between k/2 and k requests outstanding at each supplier, so
// that the next chunks arrive while it works on one. The default is 1: Receive then sends the
// request for its chunk.
func Window(k int) ClientOption {
	return func(o *clientOptions) { o.window, o.windowed = k, true }
}

// AdaptiveWindow is Window with a k, from 1 to most, that follows the work: one more than the
// number of chunks that the worker processes in the time that an answer takes.
func AdaptiveWindow(most int) ClientOption {
	return func(o *clientOptions) { o.window, o.adaptive = most, true }
}

// Numbered makes the client ask for chunks with sequence numbers, with a [Window] for several
// at once, and acknowledge each one when it is released if the supplier needs to know
// ([Redeliver], [Timed]). The supplier must be of this package. Without Numbered the client
// asks for chunks one by one, and gets numbers only from a supplier with [Redeliver] or
// [Collected].
func Numbered() ClientOption { return func(o *clientOptions) { o.numbered = true } }

// MaxChunk promises that no message from a supplier has more bytes than this: a chunk, or with
// [Numbered] a batch of chunks, counting 16 extra bytes for each. The client then posts
// receives before chunks arrive, and each chunk is moved only once. A longer message is a
// [*MessageError], and lost.
func MaxChunk(bytes int) ClientOption { return func(o *clientOptions) { o.maxChunk = bytes } }

// DefaultLongest is the default of [Longest] and [LongestResult], in bytes.
const DefaultLongest = 1 << 30

// Longest bounds the messages that the client receives, in bytes: a chunk, or a batch of
// chunks, counting 16 extra bytes for each chunk with a number. The client allocates memory
// for the length that the supplier announces, before the bytes arrive; a message announced
// as longer than the bound is a [*MessageError], and lost. The default is [DefaultLongest].
// [MaxChunk] is also a bound: use only one of the two.
func Longest(bytes int) ClientOption {
	return func(o *clientOptions) { o.longest, o.bounded = bytes, true }
}

// LeasesOf makes the client receive chunks into memory from [impi.Job.Alloc] of the given job,
// which must be that of the communicator. If the supplier also sends from such memory
// ([Supplier.SendOwned], or Send without a queue), a chunk longer than a packet goes straight
// to where the worker reads it, without a copy in between and without registering memory.
//
// Closing the client frees the memory. Memory of chunks that have not been released by then is
// freed by their Release, or else when the job is closed; their bytes are gone then.
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
			return o, fmt.Errorf("%w: suppliers %v must be different ranks of a communicator of %d, without the client's own, %d", ErrInvalid, o.suppliers, comm.Size(), comm.Rank())
		}
	}
	switch {
	case o.windowed && o.adaptive:
		return o, fmt.Errorf("%w: use Window or AdaptiveWindow, not both: a window is fixed or follows the work", ErrInvalid)
	case o.bounded && o.maxChunk > 0:
		return o, fmt.Errorf("%w: use Longest or MaxChunk, not both: messages have one bound", ErrInvalid)
	case o.numbered && o.maxChunk > 0 && o.maxChunk <= recordHeader:
		return o, fmt.Errorf("%w: MaxChunk(%d) is too small with Numbered, which adds %d bytes to each chunk", ErrInvalid, o.maxChunk, recordHeader)
	case o.job != nil && o.job != comm.Job():
		return o, fmt.Errorf("%w: LeasesOf needs the job of the client's communicator", ErrInvalid)
	case o.window < 1 || o.window > maxWindow:
		return o, fmt.Errorf("%w: a window of %d: it must be 1 to %d requests", ErrInvalid, o.window, maxWindow)
	case o.maxChunk < 0 || o.maxChunk > math.MaxInt-recordHeader:
		return o, fmt.Errorf("%w: MaxChunk(%d) is out of range", ErrInvalid, o.maxChunk)
	case o.longest < 1:
		return o, fmt.Errorf("%w: Longest(%d) is less than 1 byte", ErrInvalid, o.longest)
	}
	return o, nil
}
