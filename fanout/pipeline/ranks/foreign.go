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

// WorkForeign runs a worker that takes part in NSCLDAQ's pipeline. It receives chunks from a
// client in the plain dialect, and sends the results, with the worker's number (from 1), to
// the sorter, which is a rank of comm. It sends nothing for an empty result. When the supplier
// has ended, or ctx ends, it tells the sorter that the worker has ended, and returns.
//
// If the worker fails, WorkForeign returns the error, and the chunk is lost: this dialect has
// no way to give it to another worker.
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

// ForeignOptions are the options of [SortForeign].
type ForeignOptions struct {
	// Window is how many chunks of each worker are received ahead; the others wait at the
	// worker. 0: 1.
	Window int
	// ItemLimit is how large an item may be, in bytes; 0: ring.DefaultLimit.
	ItemLimit int64
	// Longest is how long a message may be, in bytes; 0: fanout.DefaultLongest.
	Longest int
}

// SortForeign runs the sorter of NSCLDAQ's pipeline, for workers that are ranks of comm,
// numbered from 1 in the order given. Whenever each worker that has not ended has a chunk here,
// it hands the one with the earliest first timestamp to sink. It returns when all workers have
// ended.
//
// Errors: [pipeline.ErrForeign] for an invalid message; a [*fanout.MessageError] for a message
// that is too long; the error of package impi for a worker that is gone; that of sink; that of
// ctx.
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
			// Nothing can be sorted before this worker has sent a message.
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
			err = fmt.Errorf("%w: rank %d is worker %d, but its message has the number of worker %d", pipeline.ErrForeign, rank, number, got)
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

// receive appends the next message of a rank to b. It checks the announced length against the
// bound (0: [fanout.DefaultLongest]) before it allocates memory.
func receive(ctx context.Context, comm *impi.Comm, rank int, b []byte, longest int) ([]byte, error) {
	st, err := comm.Probe(ctx, rank, impi.AnyTag)
	if err != nil {
		return b, err
	}
	if most := cmp.Or(longest, fanout.DefaultLongest); st.Len < 0 || st.Len > most {
		return b, fmt.Errorf("pipeline: receive: %w", &fanout.MessageError{Rank: st.Source, Tag: st.Tag, Bytes: st.Len, Why: fmt.Sprintf("its length must be 0 to %d bytes", most)})
	}
	at := len(b)
	b = slices.Grow(b, st.Len)[:at+st.Len]
	if _, err := comm.Recv(ctx, b[at:], st.Source, st.Tag); err != nil {
		return b[:at], err
	}
	return b, nil
}

// SendForeign returns a [pipeline.Sink] that forwards the chunks of a foreign sorter to the
// sink, which is a rank of comm, and a function that tells the sink that no more come.
func SendForeign(comm *impi.Comm, rank int) (sink pipeline.Sink, end func(context.Context) error) {
	sink = func(ctx context.Context, items []byte) error { return comm.Send(ctx, items, rank, fanout.TagData) }
	end = func(ctx context.Context) error { return comm.Send(ctx, nil, rank, fanout.TagEnd) }
	return sink, end
}

// ReceiveForeign is the other side of [SendForeign]: a source of the chunks that the sorter, a
// rank of comm, sends. A message may have longest bytes (0: fanout.DefaultLongest); a longer
// one is a [*fanout.MessageError].
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
