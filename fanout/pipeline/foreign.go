package pipeline

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/sluice-hpc/sluice/fanout/ring"
)

// The protocol of NSCLDAQ between workers and sorter: a message is the number of the worker,
// from 1 (32 bits, little-endian), and then a chunk. The number alone says that the worker has
// ended. So no result is empty, none has a sequence number, and a chunk that was given to
// another worker looks like a new one. It is only for workers or a sorter of NSCLDAQ; stages
// of this package use sequence numbers.

const foreignHeader = 4

// ErrForeign is the error of a message that a [ForeignSorter] does not accept.
var ErrForeign = errors.New("pipeline: invalid message of a foreign worker")

// AppendForeign appends to b the message of a worker, numbered from 1, with a chunk, and
// returns the result. It panics for an empty chunk: send no message for that.
func AppendForeign(b []byte, worker uint32, chunk []byte) []byte {
	if len(chunk) == 0 {
		panic("pipeline: an empty chunk would be the worker's end")
	}
	return append(AppendForeignEnd(b, worker), chunk...)
}

// AppendForeignEnd appends to b the message of a worker that has ended.
func AppendForeignEnd(b []byte, worker uint32) []byte {
	return binary.LittleEndian.AppendUint32(b, worker)
}

// ParseForeign parses such a message. The chunk is a part of the message, and empty if the
// worker has ended. It does not check the contents of the chunk. The error is [ErrForeign].
func ParseForeign(message []byte) (worker uint32, chunk []byte, err error) {
	if len(message) < foreignHeader {
		return 0, nil, fmt.Errorf("%w: it has %d bytes, fewer than %d", ErrForeign, len(message), foreignHeader)
	}
	worker = binary.LittleEndian.Uint32(message)
	if worker == 0 {
		return 0, nil, fmt.Errorf("%w: worker 0, but workers are numbered from 1", ErrForeign)
	}
	return worker, message[foreignHeader:], nil
}

// ForeignSorter puts the chunks of such workers in order. When each worker that has not ended
// has a chunk, the one with the earliest first timestamp comes next; of two equal ones, that
// of the lower worker. Chunks of one worker keep their order. It belongs to one goroutine.
//
// The caller bounds its memory: it must not receive from a worker that has no
// [ForeignSorter.Room], so that the worker waits.
type ForeignSorter struct {
	window  int
	limit   int64
	workers []foreignQueue
	spare   [][]byte
}

type foreignQueue struct {
	chunks [][]byte
	ended  bool
}

// NewForeignSorter returns a sorter for so many workers. It keeps at most window chunks of
// each, with items of at most limit bytes (0: [ring.DefaultLimit]).
func NewForeignSorter(workers, window int, limit int64) *ForeignSorter {
	return &ForeignSorter{window: max(window, 1), limit: limit, workers: make([]foreignQueue, workers)}
}

// Room reports whether Put accepts a message of a worker, from 1: it has not ended, and fewer
// than window of its chunks wait. If no worker that has not ended has room, Next has a chunk.
func (s *ForeignSorter) Room(worker uint32) bool {
	if worker == 0 || uint64(worker) > uint64(len(s.workers)) {
		return false
	}
	q := &s.workers[worker-1]
	return !q.ended && len(q.chunks) < s.window
}

// Put takes a message, which it copies. The error is [ErrForeign]: the worker does not exist,
// has ended, or has no room, or the chunk is invalid. The message has not been taken then.
func (s *ForeignSorter) Put(message []byte) error {
	worker, chunk, err := ParseForeign(message)
	if err != nil {
		return err
	}
	if uint64(worker) > uint64(len(s.workers)) {
		return fmt.Errorf("%w: worker %d of %d", ErrForeign, worker, len(s.workers))
	}
	q := &s.workers[worker-1]
	if q.ended {
		return fmt.Errorf("%w: worker %d has already ended", ErrForeign, worker)
	}
	if len(chunk) == 0 {
		q.ended = true
		return nil
	}
	if len(q.chunks) >= s.window {
		return fmt.Errorf("%w: worker %d has no room: %d of its chunks are waiting", ErrForeign, worker, len(q.chunks))
	}
	if _, err := ring.Check(chunk, s.limit); err != nil {
		return fmt.Errorf("%w: worker %d: %w", ErrForeign, worker, err)
	}
	var room []byte
	if n := len(s.spare); n > 0 {
		room, s.spare = s.spare[n-1], s.spare[:n-1]
	}
	q.chunks = append(q.chunks, append(room[:0], chunk...))
	return nil
}

// Next appends the next chunk to b and returns the result. It returns false if a worker that
// has not ended has no chunk here, or if no chunks are left.
func (s *ForeignSorter) Next(b []byte) ([]byte, bool) {
	first := -1
	var earliest uint64
	for i := range s.workers {
		q := &s.workers[i]
		if len(q.chunks) == 0 {
			if q.ended {
				continue
			}
			return b, false
		}
		if t := binary.LittleEndian.Uint64(q.chunks[0]); first < 0 || t < earliest {
			first, earliest = i, t
		}
	}
	if first < 0 {
		return b, false
	}
	q := &s.workers[first]
	chunk := q.chunks[0]
	q.chunks = append(q.chunks[:0], q.chunks[1:]...)
	s.spare = append(s.spare, chunk)
	return append(b, chunk...), true
}

// Done reports whether all workers have ended and Next has returned all chunks.
func (s *ForeignSorter) Done() bool {
	for i := range s.workers {
		if q := &s.workers[i]; !q.ended || len(q.chunks) > 0 {
			return false
		}
	}
	return true
}
