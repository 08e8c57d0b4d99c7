package fanout

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/sluice-hpc/sluice/impi"
)

// resultHeader is the sequence number before a result, little-endian.
const resultHeader = 8

// Results takes a worker's results to a [Collector]. Its methods may be called from
// several goroutines.
//
// The communicator must not be one in which the collector's rank has a supplier: let it
// be a duplicate.
type Results struct {
	comm *impi.Comm
	o    resultsOptions

	mu     sync.Mutex
	moving []outgoing // in the order in which they were sent
	free   [][]byte
	ended  bool
}

// outgoing is a result on its way.
type outgoing struct {
	req    impi.Request
	memory []byte
}

// ResultsOption is an option of [NewResults].
type ResultsOption func(*resultsOptions)

type resultsOptions struct {
	to          int
	outstanding int
}

// To says which rank of the communicator collects. None: rank 0.
func To(rank int) ResultsOption { return func(o *resultsOptions) { o.to = rank } }

// Outstanding bounds the results that a worker has sent and the collector has not
// received. With redelivery it must not be less than [Unacknowledged] of the supplier,
// or workers may wait with results for a chunk that none of them will take. The default
// is that of both.
func Outstanding(n int) ResultsOption { return func(o *resultsOptions) { o.outstanding = n } }

// NewResults makes what a worker sends results by.
//
// Errors: [ErrInvalid] for an option.
func NewResults(comm *impi.Comm, opts ...ResultsOption) (*Results, error) {
	o := resultsOptions{outstanding: defaultUnacknowledged}
	for _, set := range opts {
		if set != nil {
			set(&o)
		}
	}
	if o.to < 0 || o.to >= comm.Size() || o.outstanding < 1 {
		return nil, opError("results", fmt.Errorf("%w: to rank %d of %d, %d outstanding", ErrInvalid, o.to, comm.Size(), o.outstanding))
	}
	return &Results{comm: comm, o: o}, nil
}

// Send sends the result of the chunk with that number. It may be empty: a chunk of which
// nothing is left has a result, too. The parts are copied, and may be changed when Send
// has returned. It waits while too many are [Outstanding].
//
// Errors: [ErrClosed] after End; what package impi says of a collector that is gone;
// that of ctx, and the result has not been sent.
func (r *Results) Send(ctx context.Context, seq uint64, parts ...[]byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return opError("result", ErrClosed)
	}
	if err := r.reap(); err != nil {
		return opError("result", err)
	}
	for len(r.moving) >= r.o.outstanding {
		if err := r.await(ctx); err != nil {
			return opError("result", err)
		}
	}
	n := resultHeader
	for _, p := range parts {
		n += len(p)
	}
	b := binary.LittleEndian.AppendUint64(r.memory(n), seq)
	for _, p := range parts {
		b = append(b, p...)
	}
	// Synchronously: what the collector has not received is not to pile up there.
	req, err := r.comm.Issend(b, r.o.to, resultTag(seq))
	if err != nil {
		return opError("result", err)
	}
	r.moving = append(r.moving, outgoing{req, b})
	return nil
}

// End waits until the collector has all results, and tells it that no others come. Ending
// again does nothing.
//
// Errors: those of Send; after that of ctx End may be called again.
func (r *Results) End(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return nil
	}
	for len(r.moving) > 0 {
		if err := r.await(ctx); err != nil {
			return opError("result", err)
		}
	}
	r.ended = true
	if err := r.comm.Send(ctx, nil, r.o.to, TagEnd); err != nil {
		return opError("result", err)
	}
	return nil
}

// memory returns room for n bytes.
func (r *Results) memory(n int) []byte {
	if k := len(r.free); k > 0 {
		b := r.free[k-1]
		r.free = r.free[:k-1]
		if cap(b) >= n {
			return b[:0]
		}
	}
	return make([]byte, 0, roomFor(n))
}

// keepResults is how many pieces of memory are kept for later results, and keepMost the
// longest.
const keepResults = 16

// reap takes note of what has been received.
func (r *Results) reap() error {
	for len(r.moving) > 0 {
		done, _, err := r.moving[0].req.Test()
		if !done {
			return nil
		}
		r.moved()
		if err != nil {
			return err
		}
	}
	return nil
}

// await waits for the result that was sent first.
func (r *Results) await(ctx context.Context) error {
	if _, err := r.moving[0].req.Wait(ctx); err != nil {
		if ctx.Err() == nil {
			r.moved()
		}
		return err
	}
	r.moved()
	return nil
}

// moved takes away the result that was sent first.
func (r *Results) moved() {
	if b := r.moving[0].memory; len(r.free) < keepResults && cap(b) <= keepMost {
		r.free = append(r.free, b)
	}
	n := copy(r.moving, r.moving[1:])
	r.moving[n] = outgoing{}
	r.moving = r.moving[:n]
}
