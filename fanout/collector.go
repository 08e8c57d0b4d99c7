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

// Collector receives the results of workers and returns them in the order of their chunks,
// each once. Several goroutines may call its methods; results of different goroutines are in
// no order relative to each other.
//
// The collector receives all messages to its rank in the communicator, so a supplier on the
// same rank needs another communicator. The caller keeps the communicator.
//
// Only Receive receives. While it is not called, results stay at the workers, which wait for
// the collector, and the supplier waits for the workers.
type Collector struct {
	comm *impi.Comm
	o    collectorOptions
	turn turn // to receive

	mu      sync.Mutex
	workers map[int]bool // that have not ended
	next    uint64       // sequence number of the next result to return
	held    map[uint64]*result
	memory  int  // bytes of held
	lifted  bool // the bound is: a worker has died and its chunks are not redelivered
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

// ResultsOf says which ranks of the communicator are workers. The default is all but the
// collector's own.
func ResultsOf(ranks ...int) CollectorOption {
	return func(o *collectorOptions) { o.workers = slices.Clone(ranks) }
}

// Reorder bounds the bytes of the results that the collector keeps because an earlier one
// has not arrived, counting 128 extra bytes for each. At the bound the collector receives
// only the missing one. The default is 64 MiB. If a worker dies and its chunks are not
// redelivered there is no bound from then on: its results are lost, and that is known only at
// the end.
func Reorder(bytes int) CollectorOption { return func(o *collectorOptions) { o.memory = bytes } }

// LongestResult bounds each message that the collector receives, in bytes: a result with the
// 8 bytes of its number. A longer one is a [*MessageError], and lost. The default is
// [DefaultLongest]. [Reorder] bounds all results that are kept together.
func LongestResult(bytes int) CollectorOption {
	return func(o *collectorOptions) { o.longest = bytes }
}

// AcknowledgeBy acknowledges every result, when it is released, by a call, usually of
// [Supplier.Acknowledge] in the same process.
func AcknowledgeBy(call func(seq uint64) error) CollectorOption {
	return func(o *collectorOptions) { o.acknowledge = call }
}

// AcknowledgeTo acknowledges every result, when it is released, to the supplier with
// [Collected] at the given rank of a communicator.
func AcknowledgeTo(comm *impi.Comm, supplier int) CollectorOption {
	return func(o *collectorOptions) { o.comm, o.to = comm, supplier }
}

// CollectorStats is what a collector has done.
type CollectorStats struct {
	Next       uint64 // sequence number of the next result that Receive returns
	Held       int    // results that arrived before that one
	HeldBytes  int    // bytes of these, with 128 extra for each
	MostBytes  int    // the highest HeldBytes so far
	Duplicates uint64 // results that arrived twice, and were dropped
	Workers    int    // workers that have not ended
}

// LostError says that these results are lost: the workers that had their chunks have died,
// and no worker is left. The next Receive continues after them.
type LostError struct {
	First, Last uint64 // sequence numbers
}

// Error names the chunks.
func (e *LostError) Error() string {
	return fmt.Sprintf("fanout: results %d to %d are lost: their workers have died", e.First, e.Last)
}

// result is a result that has arrived.
type result struct {
	seq    uint64
	worker int
	gen    uint32
	memory []byte
	bytes  []byte
}

// resultCost is the memory that a result takes beyond its bytes.
const resultCost = 128

// Result is what a worker has made of a chunk. It is a value type; the zero Result is none.
type Result struct {
	c   *Collector
	r   *result
	gen uint32
}

// Seq returns the sequence number of the chunk.
func (r Result) Seq() uint64 { return r.r.seq }

// Bytes returns the bytes of the result, possibly none. They are the caller's until Release.
func (r Result) Bytes() []byte { return r.r.bytes }

// Worker returns the rank that the result came from.
func (r Result) Worker() int { return r.r.worker }

// NewCollector makes a collector.
//
// Errors: [ErrInvalid] for an invalid option.
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
			return nil, opError("collector", fmt.Errorf("%w: workers %v must be different ranks of a communicator of %d", ErrInvalid, o.workers, comm.Size()))
		}
		c.workers[r] = true
	}
	if err := o.check(); err != nil {
		return nil, opError("collector", err)
	}
	return c, nil
}

// check returns what is wrong with the options other than the workers.
func (o *collectorOptions) check() error {
	switch {
	case o.memory < 0:
		return fmt.Errorf("%w: Reorder(%d) is negative", ErrInvalid, o.memory)
	case o.longest < 1:
		return fmt.Errorf("%w: LongestResult(%d) is less than 1 byte", ErrInvalid, o.longest)
	case o.comm == nil:
	case o.acknowledge != nil:
		return fmt.Errorf("%w: use AcknowledgeBy or AcknowledgeTo, not both: a result is acknowledged once", ErrInvalid)
	case o.to < 0 || o.to >= o.comm.Size() || o.to == o.comm.Rank():
		return fmt.Errorf("%w: AcknowledgeTo rank %d of %d from rank %d: it must be another rank (for the own rank use AcknowledgeBy)", ErrInvalid, o.to, o.comm.Size(), o.comm.Rank())
	}
	return nil
}

// Receive returns the next result.
//
// Errors: [io.EOF] when all workers have ended or died and no result is left; a
// [*LostError]; a [*MessageError]; those of package impi; that of ctx. If a connection was
// closed because its worker violated the protocol, Receive returns that error and counts the
// worker as lost.
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

// following returns the next result if it is there, else the tag of the messages that may be
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
	// Acknowledgements must not wait until the next message arrives.
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
			return discard(c.comm, st, "the sender is not one of the collector's workers")
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

// received handles a message.
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
		return bad(fmt.Sprintf("a result has at least %d bytes", resultHeader))
	}
	r.seq, r.worker, r.bytes = binary.LittleEndian.Uint64(r.memory), st.Source, r.memory[resultHeader:st.Len]
	if st.Tag != resultTag(r.seq) {
		return bad(fmt.Sprintf("the tag of result %d is %d", r.seq, resultTag(r.seq)))
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

// Release gives the memory back and acknowledges the result: call it when the result has been
// used. Calling it again does nothing. Any goroutine may call it. The acknowledgement to
// another rank goes out with the next Receive at the latest.
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

// flush sends acknowledgements. A supplier that has left has all that it needed.
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
