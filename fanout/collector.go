package fanout

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/sluice-hpc/sluice/impi"
)

// Collector receives the results of workers, and returns them in the order of their
// chunks, each once. Its methods may be called from several goroutines, whose results
// are in no order among each other.
//
// All messages to its rank in the communicator are the collector's, which must be
// another one than that of a supplier of this rank. The communicator stays the caller's.
//
// Nothing is received outside Receive: results then wait at the workers, which wait for
// the collector, and so does the supplier.
type Collector struct {
	comm *impi.Comm
	o    collectorOptions
	turn turn // of who receives

	mu      sync.Mutex
	workers map[int]bool // that have not ended
	next    uint64       // the result that comes next
	held    map[uint64]*result
	memory  int  // bytes of held
	lifted  bool // a worker has died, and nobody redelivers
	acks    []uint64
	message []byte
	free    []*result
	counts  CollectorStats
}

// CollectorOption is an option of [NewCollector].
type CollectorOption func(*collectorOptions)

type collectorOptions struct {
	workers     []int
	memory      int
	longest     int
	acknowledge func(seq uint64) error
	comm        *impi.Comm
	to          int
}

// ResultsOf says which ranks of the communicator are workers. None: all but the
// collector's own.
func ResultsOf(ranks ...int) CollectorOption {
	return func(o *collectorOptions) { o.workers = slices.Clone(ranks) }
}

// Reorder bounds the bytes of results, with 128 for each, that the collector keeps
// because an earlier one has not come. At the bound only the one that is waited for is
// received. The default is 64 MiB. If a worker dies and nobody redelivers its chunks
// there is no bound from then on: what it had is lost, which shows only at the end.
func Reorder(bytes int) CollectorOption { return func(o *collectorOptions) { o.memory = bytes } }

// LongestResult bounds the messages that the collector receives, in bytes: a result with
// the 8 bytes of its number. One that its worker announces as longer is a [*MessageError],
// and lost. The default is [DefaultLongest]. It holds for each; what the results that are
// kept take together is bounded by [Reorder].
func LongestResult(bytes int) CollectorOption {
	return func(o *collectorOptions) { o.longest = bytes }
}

// AcknowledgeBy has every result acknowledged, when it is released, by a call: of
// [Supplier.Acknowledge], in the same process.
func AcknowledgeBy(call func(seq uint64) error) CollectorOption {
	return func(o *collectorOptions) { o.acknowledge = call }
}

// AcknowledgeTo has every result acknowledged, when it is released, to a supplier with
// [Collected], which is that rank of a communicator.
func AcknowledgeTo(comm *impi.Comm, supplier int) CollectorOption {
	return func(o *collectorOptions) { o.comm, o.to = comm, supplier }
}

// CollectorStats is what a collector has done.
type CollectorStats struct {
	Next       uint64 // sequence number of the result that comes next
	Held       int    // results that came before it
	HeldBytes  int    // of these, with what each costs
	MostBytes  int    // the most that was held
	Duplicates uint64 // results that came twice, and were dropped
	Workers    int    // that have not ended
}

// LostError: no worker is left that might bring these results, of chunks whose worker has
// died. Receive goes on behind them.
type LostError struct {
	First, Last uint64 // sequence numbers
}

// Error names the chunks.
func (e *LostError) Error() string {
	return fmt.Sprintf("fanout: results %d to %d are lost with their workers", e.First, e.Last)
}

// result is one that has come.
type result struct {
	seq    uint64
	worker int
	gen    uint32
	memory []byte
	bytes  []byte
}

// resultCost is what a result costs beside its bytes.
const resultCost = 128

// Result is what a worker has made of a chunk. It is a value; the zero Result is none.
type Result struct {
	c   *Collector
	r   *result
	gen uint32
}

// Seq is the sequence number of the chunk.
func (r Result) Seq() uint64 { return r.r.seq }

// Bytes are those of the result; there may be none. They are the caller's until Release.
func (r Result) Bytes() []byte { return r.r.bytes }

// Worker is the rank that the result comes from.
func (r Result) Worker() int { return r.r.worker }

// NewCollector makes a collector.
//
// Errors: [ErrInvalid] for an option.
func NewCollector(comm *impi.Comm, opts ...CollectorOption) (*Collector, error) {
	o := collectorOptions{memory: 64 << 20, longest: DefaultLongest}
	for _, set := range opts {
		if set != nil {
			set(&o)
		}
	}
	if o.workers == nil {
		for r := range comm.Size() {
			if r != comm.Rank() {
				o.workers = append(o.workers, r)
			}
		}
	}
	comm.NotifyLeft()
	c := &Collector{comm: comm, o: o, workers: map[int]bool{}, held: map[uint64]*result{}}
	for _, r := range o.workers {
		if r < 0 || r >= comm.Size() || c.workers[r] {
			return nil, opError("collector", fmt.Errorf("%w: workers %v of %d ranks", ErrInvalid, o.workers, comm.Size()))
		}
		c.workers[r] = true
	}
	if err := o.check(); err != nil {
		return nil, opError("collector", err)
	}
	return c, nil
}

// check says what is wrong with options other than the workers.
func (o *collectorOptions) check() error {
	switch {
	case o.memory < 0:
		return fmt.Errorf("%w: Reorder of %d bytes", ErrInvalid, o.memory)
	case o.longest < 1:
		return fmt.Errorf("%w: results of at most %d bytes", ErrInvalid, o.longest)
	case o.comm == nil:
	case o.acknowledge != nil:
		return fmt.Errorf("%w: AcknowledgeBy and AcknowledgeTo: a result is acknowledged once", ErrInvalid)
	case o.to < 0 || o.to >= o.comm.Size() || o.to == o.comm.Rank():
		return fmt.Errorf("%w: AcknowledgeTo rank %d of %d, from rank %d: to itself it is AcknowledgeBy", ErrInvalid, o.to, o.comm.Size(), o.comm.Rank())
	}
	return nil
}

// Receive returns the next result.
//
// Errors: [io.EOF] when all workers have ended or died and nothing is left; a
// [*LostError]; a [*MessageError]; those of package impi, also of a worker whose connection
// was given up for what it had sent, which then counts as dead; that of ctx.
func (c *Collector) Receive(ctx context.Context) (Result, error) {
	if err := c.turn.take(ctx); err != nil {
		return Result{}, opError("collect", err)
	}
	defer c.turn.leave()
	for {
		r, tag, err := c.following()
		if err != nil || r.r != nil {
			return r, err
		}
		if err := c.receive(ctx, tag); err != nil {
			return Result{}, opError("collect", err)
		}
	}
}

// following returns the next result, if it is there, else the tag of what may be
// received.
func (c *Collector) following() (Result, int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.held[c.next]; r != nil {
		delete(c.held, c.next)
		c.memory -= len(r.bytes) + resultCost
		c.next++
		return Result{c, r, r.gen}, 0, nil
	}
	switch {
	case len(c.workers) > 0:
	case len(c.held) == 0:
		if err := c.flush(); err != nil {
			return Result{}, 0, opError("collect", err)
		}
		return Result{}, 0, io.EOF
	default:
		e := &LostError{First: c.next}
		for c.held[c.next] == nil {
			c.next++
		}
		e.Last = c.next - 1
		return Result{}, 0, e
	}
	// Whoever waits for an acknowledgement does not wait for what is received now.
	if err := c.flush(); err != nil {
		return Result{}, 0, opError("collect", err)
	}
	if c.memory >= c.o.memory && len(c.held) > 0 && !c.lifted {
		return Result{}, resultTag(c.next), nil
	}
	return Result{}, impi.AnyTag, nil
}

// receive receives a message.
func (c *Collector) receive(ctx context.Context, tag int) error {
	st, err := c.comm.Probe(ctx, impi.AnySource, tag)
	if err == nil {
		if !slices.Contains(c.o.workers, st.Source) {
			return discard(c.comm, st, "it is no worker")
		}
		if why := badLength(st.Len, c.o.longest, "LongestResult"); why != "" {
			return discard(c.comm, st, why)
		}
		r := c.result(st.Len)
		if st, err = c.comm.Recv(ctx, r.memory[:st.Len], st.Source, st.Tag); err == nil {
			return c.received(r, st)
		}
	}
	rank, gone := lost(err)
	if !gone {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.workers[rank] {
		delete(c.workers, rank)
		c.lifted = c.lifted || !c.acknowledges()
	}
	if cutOff(err) {
		return err
	}
	return nil
}

func (c *Collector) acknowledges() bool { return c.o.acknowledge != nil || c.o.comm != nil }

// received takes a message.
func (c *Collector) received(r *result, st impi.Status) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	bad := func(why string) error {
		c.drop(r)
		return &MessageError{st.Source, st.Tag, st.Len, why}
	}
	switch {
	case st.Tag == TagEnd && st.Len == 0:
		delete(c.workers, st.Source)
		c.drop(r)
		return nil
	case st.Len < resultHeader:
		return bad("no result")
	}
	r.seq, r.worker, r.bytes = binary.LittleEndian.Uint64(r.memory), st.Source, r.memory[resultHeader:st.Len]
	if st.Tag != resultTag(r.seq) {
		return bad(fmt.Sprintf("result %d has another tag", r.seq))
	}
	if r.seq < c.next || c.held[r.seq] != nil {
		c.counts.Duplicates++
		c.drop(r)
		return nil
	}
	c.held[r.seq] = r
	c.memory += len(r.bytes) + resultCost
	c.counts.MostBytes = max(c.counts.MostBytes, c.memory)
	return nil
}

// result returns memory for a message of n bytes.
func (c *Collector) result(n int) *result {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k := len(c.free); k > 0 {
		r := c.free[k-1]
		c.free = c.free[:k-1]
		if cap(r.memory) < n {
			r.memory = make([]byte, roomFor(n))
		}
		return r
	}
	return &result{memory: make([]byte, roomFor(n))}
}

// drop takes back the memory of a result.
func (c *Collector) drop(r *result) {
	r.gen++
	r.bytes = nil
	if len(c.free) < keepResults && cap(r.memory) <= keepMost {
		c.free = append(c.free, r)
	}
}

// Release gives the memory back, and acknowledges the result: whoever calls it has done
// with it. Release again does nothing. It may be called from any goroutine; the
// acknowledgement to another rank goes out with the next Receive at the latest.
//
// Errors: that of the acknowledgement.
func (r Result) Release() error {
	if r.c == nil {
		return nil
	}
	c := r.c
	c.mu.Lock()
	if r.r.gen != r.gen {
		c.mu.Unlock()
		return nil
	}
	seq := r.r.seq
	c.drop(r.r)
	var err error
	if c.o.comm != nil {
		if c.acks = append(c.acks, seq); len(c.acks) == askMost || c.turn.taken() {
			err = c.flush()
		}
	}
	c.mu.Unlock()
	if c.o.acknowledge != nil {
		err = c.o.acknowledge(seq)
	}
	if err != nil {
		err = opError("release", err)
	}
	return err
}

// flush sends acknowledgements. A supplier that has got all has no use for more.
func (c *Collector) flush() error {
	if len(c.acks) == 0 {
		return nil
	}
	c.message = appendNumbers(c.message[:0], c.acks)
	c.acks = c.acks[:0]
	err := c.o.comm.Send(context.Background(), c.message, c.o.to, TagCollect)
	if errors.Is(err, impi.ErrPeerLeft) {
		err = nil
	}
	return err
}

// Stats returns what the collector has done. It may be called at any time.
func (c *Collector) Stats() CollectorStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.counts
	s.Next, s.Held, s.HeldBytes, s.Workers = c.next, len(c.held), c.memory, len(c.workers)
	return s
}
