package ranks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/sluice-hpc/sluice/fanout"
	"github.com/sluice-hpc/sluice/fanout/pipeline"
	"github.com/sluice-hpc/sluice/impi"
)

// WorkForeign is a worker of NSCLDAQ's pipeline, as its other ranks see it: chunks come
// from a client in the seed's dialect, results go to the sorter, which is a rank of comm,
// with the worker's number, from 1. Of a chunk of which nothing is left nothing is sent.
// When the supplier has ended, or ctx ends, so does the worker, and says so.
//
// What the worker fails with is an error, and its chunk is lost: this dialect has no way
// to give it to another one.
func WorkForeign(ctx context.Context, c *fanout.Client, w pipeline.Worker, comm *impi.Comm, sorter int, number uint32) error {
	var seq uint64
	var result, message []byte
	err := c.Each(ctx, 0, func(k fanout.Chunk) (err error) {
		chunk := &pipeline.Chunk{Source: k.Supplier(), Seq: seq, Data: k.Bytes()}
		seq++
		if result, err = w.Work(ctx, chunk, result[:0]); err != nil || len(result) == 0 {
			return err
		}
		message = pipeline.AppendForeign(message[:0], number, result)
		return comm.Send(ctx, message, sorter, fanout.TagData)
	})
	end := comm.Send(context.WithoutCancel(ctx), pipeline.AppendForeignEnd(nil, number), sorter, fanout.TagData)
	return errors.Join(err, end, w.Close())
}

// ForeignOptions are those of [SortForeign].
type ForeignOptions struct {
	// Window is how many chunks of each worker are received ahead; the others wait where
	// they are. 0: 1.
	Window int
	// ItemLimit is how large an item may be, in bytes; 0: ring.DefaultLimit.
	ItemLimit int64
	// Longest is how long a message may be, in bytes; 0: fanout.DefaultLongest.
	Longest int
}

// SortForeign is the sorter of NSCLDAQ's pipeline, for workers that are ranks of comm:
// the first of them has the number 1. It hands to sink the chunk with the earliest first
// timestamp whenever each worker that has not ended has one here, and returns when all
// have ended.
//
// Errors: [pipeline.ErrForeign] for a message that is none of theirs; a
// [*fanout.MessageError] for one that is too long; what package impi says of a worker that
// is gone; that of sink; that of ctx.
func SortForeign(ctx context.Context, comm *impi.Comm, workers []int, o ForeignOptions, sink pipeline.Sink) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var receivers sync.WaitGroup
	defer receivers.Wait()
	defer cancel(nil)
	messages := make([]chan []byte, len(workers))
	for i, rank := range workers {
		messages[i] = make(chan []byte, max(o.Window-1, 0))
		receivers.Go(func() {
			if err := receiveForeign(ctx, comm, rank, uint32(i+1), o.Longest, messages[i]); err != nil {
				cancel(err)
			}
		})
	}
	s := pipeline.NewForeignSorter(len(workers), 1, o.ItemLimit)
	var chunk []byte
	for !s.Done() {
		for i := range workers {
			// Nothing can go on before this one has said something.
			if !s.Room(uint32(i + 1)) {
				continue
			}
			select {
			case m := <-messages[i]:
				if err := s.Put(m); err != nil {
					return err
				}
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		var ok bool
		if chunk, ok = s.Next(chunk[:0]); ok {
			if err := sink(ctx, chunk); err != nil {
				return err
			}
		}
	}
	return nil
}

// receiveForeign receives the messages of one worker until it has ended.
func receiveForeign(ctx context.Context, comm *impi.Comm, rank int, number uint32, longest int, to chan<- []byte) error {
	for {
		m, err := receive(ctx, comm, rank, nil, longest)
		if err != nil {
			return err
		}
		got, chunk, err := pipeline.ParseForeign(m)
		if err == nil && got != number {
			err = fmt.Errorf("%w: rank %d is worker %d, and says that it is %d", pipeline.ErrForeign, rank, number, got)
		}
		if err != nil {
			return err
		}
		select {
		case to <- slices.Clip(m):
		case <-ctx.Done():
			return ctx.Err()
		}
		if len(chunk) == 0 {
			return nil
		}
	}
}

// receive receives the next message of a rank behind what is in b. What the rank announces
// is held to its bound (0: [fanout.DefaultLongest]) before there is memory for it.
func receive(ctx context.Context, comm *impi.Comm, rank int, b []byte, longest int) ([]byte, error) {
	st, err := comm.Probe(ctx, rank, impi.AnyTag)
	if err != nil {
		return b, err
	}
	if most := cmp.Or(longest, fanout.DefaultLongest); st.Len < 0 || st.Len > most {
		return b, fmt.Errorf("pipeline: receive: %w", &fanout.MessageError{Rank: st.Source, Tag: st.Tag, Bytes: st.Len, Why: fmt.Sprintf("its length is not 0 to %d bytes", most)})
	}
	at := len(b)
	b = slices.Grow(b, st.Len)[:at+st.Len]
	if _, err := comm.Recv(ctx, b[at:], st.Source, st.Tag); err != nil {
		return b[:at], err
	}
	return b, nil
}

// SendForeign returns a [pipeline.Sink] that sends the chunks of a foreign sorter on to the
// sink, which is a rank of comm, and what ends that: an empty message.
func SendForeign(comm *impi.Comm, rank int) (sink pipeline.Sink, end func(context.Context) error) {
	sink = func(ctx context.Context, items []byte) error { return comm.Send(ctx, items, rank, fanout.TagData) }
	end = func(ctx context.Context) error { return comm.Send(ctx, nil, rank, fanout.TagEnd) }
	return sink, end
}

// ReceiveForeign is the other side of [SendForeign]: what a sorter, which is a rank of
// comm, sends, as a source. A message may have longest bytes (0: fanout.DefaultLongest); a
// longer one is a [*fanout.MessageError].
func ReceiveForeign(comm *impi.Comm, sorter, longest int) pipeline.Source {
	return func(ctx context.Context, chunk []byte) ([]byte, error) {
		at := len(chunk)
		chunk, err := receive(ctx, comm, sorter, chunk, longest)
		if err == nil && len(chunk) == at {
			err = io.EOF
		}
		return chunk, err
	}
}
