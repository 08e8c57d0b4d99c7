package pipeline

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/sluice-hpc/sluice/fanout/ring"
)

// The dialect of NSCLDAQ between workers and sorter: a message is the number of the
// worker, from 1, 32 bits, little-endian, and then a chunk. The number alone says that
// the worker has ended. So there is no result that is empty, none has a sequence number,
// and a chunk that was given to another worker cannot be told from a new one: it is for
// workers, or a sorter, that know nothing else. Between this package's own there are
// sequence numbers.

const foreignHeader = 4

// ErrForeign is the error of a message that a [ForeignSorter] cannot take.
var ErrForeign = errors.New("pipeline: invalid message of a foreign worker")

// AppendForeign appends the message of a worker, numbered from 1, with a chunk to b and
// returns it. Nothing is sent of a chunk of which nothing is left: an empty one panics.
func AppendForeign(b []byte, worker uint32, chunk []byte) []byte {
	if len(chunk) == 0 {
		panic("pipeline: an empty chunk would be the worker's end")
	}
	return append(AppendForeignEnd(b, worker), chunk...)
}

// AppendForeignEnd appends the message of a worker that has ended.
func AppendForeignEnd(b []byte, worker uint32) []byte {
	return binary.LittleEndian.AppendUint32(b, worker)
}

// ParseForeign reads such a message; the chunk is a part of it, and empty if the worker
// has ended. What the chunk contains is not looked at. The error is [ErrForeign].
func ParseForeign(message []byte) (worker uint32, chunk []byte, err error) {
	if len(message) < foreignHeader {
		return 0, nil, fmt.Errorf("%w: %d bytes", ErrForeign, len(message))
	}
	worker = binary.LittleEndian.Uint32(message)
	if worker == 0 {
		return 0, nil, fmt.Errorf("%w: worker 0", ErrForeign)
	}
	return worker, message[foreignHeader:], nil
}

// ForeignSorter puts the chunks of such workers in order: when each worker that has not
// ended has one, that with the earliest first timestamp comes next; of two the one of the
// lower worker. Those of one worker keep their order. It belongs to one goroutine.
//
// Its memory is bounded by whoever receives for it: from a worker that is not [Room] it
// does not, so that the worker waits.
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

// NewForeignSorter returns one for so many workers, of each of which it keeps at most
// window chunks, of items of at most limit bytes (0: [ring.DefaultLimit]).
func NewForeignSorter(workers, window int, limit int64) *ForeignSorter {
	return &ForeignSorter{window: max(window, 1), limit: limit, workers: make([]foreignQueue, workers)}
}

// Room says whether a message of a worker, from 1, may be put: it has not ended, and
// fewer than window chunks of it wait. If none that has not ended has room, Next has a
// chunk.
func (s *ForeignSorter) Room(worker uint32) bool {
	if worker == 0 || uint64(worker) > uint64(len(s.workers)) {
		return false
	}
	q := &s.workers[worker-1]
	return !q.ended && len(q.chunks) < s.window
}

// Put takes a message, which it copies. The error is [ErrForeign]: of a worker that there
// is not, that has ended, or that has no room; or whose chunk is none. Nothing was taken
// then.
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
		return fmt.Errorf("%w: worker %d has ended before", ErrForeign, worker)
	}
	if len(chunk) == 0 {
		q.ended = true
		return nil
	}
	if len(q.chunks) >= s.window {
		return fmt.Errorf("%w: worker %d has %d chunks here already", ErrForeign, worker, len(q.chunks))
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

// Next appends the chunk that comes next to b and returns it; false: some worker that has
// not ended has none here.
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

// Done says whether all workers have ended and Next has given all chunks.
func (s *ForeignSorter) Done() bool {
	for i := range s.workers {
		if q := &s.workers[i]; !q.ended || len(q.chunks) > 0 {
			return false
		}
	}
	return true
}
