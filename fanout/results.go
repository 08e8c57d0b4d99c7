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

// Results sends a worker's results to a [Collector]. Several goroutines may call its methods.
//
// The communicator must not be one in which the collector's rank has a supplier: use a
// duplicate ([impi.Comm.Dup]).
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

// To says which rank of the communicator collects. The default is rank 0.
func To(rank int) ResultsOption { return func(o *resultsOptions) { o.to = rank } }

// Outstanding bounds the results that a worker has sent and the collector has not received.
// With [Redeliver] or [Collected] it must be at least the supplier's [Unacknowledged];
// otherwise all workers may wait to send results while none takes the chunk whose result the
// collector needs first. The default is 256, like that of Unacknowledged.
func Outstanding(n int) ResultsOption { return func(o *resultsOptions) { o.outstanding = n } }

// NewResults makes the sending side of a worker's results.
//
// Errors: [ErrInvalid] for an invalid option.
func NewResults(comm *impi.Comm, opts ...ResultsOption) (*Results, error) {
	o := resultsOptions{outstanding: defaultUnacknowledged}
	for _, set := range opts {
		if set != nil {
			set(&o)
		}
	}
	if o.to < 0 || o.to >= comm.Size() || o.outstanding < 1 {
		return nil, opError("results", fmt.Errorf("%w: To(%d) of %d ranks, Outstanding(%d): the rank must exist, and at least 1 result be outstanding", ErrInvalid, o.to, comm.Size(), o.outstanding))
	}
	return &Results{comm: comm, o: o}, nil
}

// Send sends the result of the chunk with that sequence number. Every chunk needs a result,
// possibly an empty one. Send copies the parts, which may be changed when it has returned. It
// waits while too many results are [Outstanding].
//
// Errors: [ErrClosed] after End; the error of package impi for a collector that is gone;
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
	// Synchronously: results that the collector has not received must not pile up there.
	req, err := r.comm.Issend(b, r.o.to, resultTag(seq))
	if err != nil {
		return opError("result", err)
	}
	r.moving = append(r.moving, outgoing{req, b})
	return nil
}

// End waits until the collector has received all results, and tells it that no more come.
// Calling it again does nothing.
//
// Errors: those of Send; after the error of ctx, End may be called again.
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

// keepResults is how many buffers are kept for later results, each of at most keepMost bytes.
const keepResults = 16

// reap removes the results that the collector has received.
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

// moved removes the result that was sent first.
func (r *Results) moved() {
	if b := r.moving[0].memory; len(r.free) < keepResults && cap(b) <= keepMost {
		r.free = append(r.free, b)
	}
	n := copy(r.moving, r.moving[1:])
	r.moving[n] = outgoing{}
	r.moving = r.moving[:n]
}
