package fanout

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"sync/atomic"

	"github.com/sluice-hpc/sluice/impi"
)

// mapWindow is the most chunks that [Map] has on their way to a worker; how many there are
// follows the work.
const mapWindow = 16

// Map runs a task farm; all ranks of comm call it. Rank 0 takes chunks from in and passes each
// result of f to out once, in the order of the chunks; the other ranks, the workers, call f for
// each chunk that they receive. In a communicator of one rank, rank 0 calls f.
//
// in and out are used at rank 0, and f at the workers, each by one goroutine at a time; elsewhere
// they may be nil. i counts chunks from 0. A chunk is not changed by Map, and is f's to change
// until f returns; a result is out's until out returns.
//
// A chunk whose worker dies goes to another: see [Redeliver] and [Attempts]. If f fails, the chunk goes
// to another worker, too, and Map returns the error at this one. Map returns at the workers
// when rank 0 has all results.
//
// Errors: those of f; that of out, at rank 0, when the chunks that had been handed out are done;
// [ErrNoWorkers] and a [*HopelessError] at rank 0; those of package impi; that of ctx: end the
// ctx of all ranks together.
func Map(ctx context.Context, comm *impi.Comm, in iter.Seq[[]byte], f func(chunk []byte) ([]byte, error), out func(i uint64, result []byte) error) error {
	if comm.Size() == 1 {
		return mapAlone(ctx, in, f, out)
	}
	chunks, err := comm.Dup(ctx)
	if err != nil {
		return fmt.Errorf("fanout: map: %w", err)
	}
	results, err := comm.Dup(ctx)
	if err != nil {
		return errors.Join(fmt.Errorf("fanout: map: %w", err), chunks.Free(ctx))
	}
	if comm.Rank() == 0 {
		err = mapSupply(ctx, chunks, results, in, out)
	} else {
		err = mapWork(ctx, chunks, results, f)
	}
	// Freeing begins with a barrier, in which a rank that has died, or has given up, is an error
	// at all; the communicators are freed nevertheless.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err != nil {
		cancel()
	}
	_ = errors.Join(chunks.Free(ctx), results.Free(ctx))
	return err
}

func mapAlone(ctx context.Context, in iter.Seq[[]byte], f func([]byte) ([]byte, error), out func(uint64, []byte) error) error {
	i := uint64(0)
	for chunk := range in {
		if err := ctx.Err(); err != nil {
			return err
		}
		result, err := f(chunk)
		if err != nil {
			return fmt.Errorf("fanout: map: chunk %d: %w", i, err)
		}
		if err := out(i, result); err != nil {
			return err
		}
		i++
	}
	return nil
}

// mapSupply hands the chunks out by one goroutine, and their results by this one.
func mapSupply(ctx context.Context, chunks, results *impi.Comm, in iter.Seq[[]byte], out func(uint64, []byte) error) error {
	s, err := NewSupplier(chunks, Collected())
	if err != nil {
		return err
	}
	c, err := NewCollector(results, AcknowledgeBy(s.Acknowledge))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var enough atomic.Bool // out has failed
	supplied := make(chan error, 1)
	go func() {
		err := supply(ctx, s, func(yield func([]byte) bool) {
			for chunk := range in {
				if enough.Load() || !yield(chunk) {
					return
				}
			}
		})
		if err != nil {
			cancel()
		}
		supplied <- err
	}()
	var failed error
	for {
		var r Result
		if r, err = c.Receive(ctx); err != nil {
			break
		}
		if failed == nil {
			failed = out(r.Seq(), r.Bytes())
			enough.Store(failed != nil)
		}
		if err = r.Release(); err != nil {
			break
		}
	}
	if err == io.EOF {
		err = nil
	} else {
		cancel()
	}
	// Of the two errors one may be but the end of ctx, which the other has caused.
	if e := <-supplied; err == nil || e != nil && !errors.Is(e, context.Canceled) {
		err = e
	}
	return errors.Join(failed, err, s.Close())
}

// supply hands all chunks out, and the ends.
func supply(ctx context.Context, s *Supplier, in iter.Seq[[]byte]) error {
	for chunk := range in {
		if err := s.Send(ctx, chunk); err != nil {
			return err
		}
	}
	return s.End(ctx)
}

func mapWork(ctx context.Context, chunks, results *impi.Comm, f func([]byte) ([]byte, error)) error {
	c, err := NewClient(chunks, Numbered(), AdaptiveWindow(mapWindow))
	if err != nil {
		return err
	}
	r, err := NewResults(results)
	if err != nil {
		return err
	}
	err = c.Each(ctx, 0, func(k Chunk) error {
		result, err := f(k.Bytes())
		if err != nil {
			return fmt.Errorf("fanout: map: chunk %d: %w", k.Seq(), err)
		}
		return r.Send(ctx, k.Seq(), result)
	})
	return errors.Join(err, c.Close(), r.End(ctx))
}
