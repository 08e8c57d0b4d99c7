package fanout

import (
	"errors"
	"time"

	"github.com/sluice-hpc/sluice/impi"
)

// WorkerState is the state of a worker, as its supplier knows it.
type WorkerState int

// States of a worker.
const (
	Unknown WorkerState = iota // has never asked
	Active                     // has asked
	Left                       // has said that it will not ask again for now, or closed its client
	Ended                      // has been given its end
	Lost                       // its process has died, closed its job, freed the communicator, or was cut off
)

// String returns the state in one word.
func (s WorkerState) String() string {
	switch s {
	case Unknown:
		return "unknown"
	case Active:
		return "active"
	case Left:
		return "left"
	case Ended:
		return "ended"
	case Lost:
		return "lost"
	}
	return "invalid"
}

// worker is what the supplier knows of one rank.
type worker struct {
	is      bool // it is a worker
	foreign bool // of another implementation
	state   WorkerState
	owed    bool     // it has left without having had an end
	waiting int      // requests that have not been answered
	has     []*chunk // kept chunks that it has, in the order in which they were given
	counts  WorkerStats
	service *times // Timed only
}

// request is a worker's request for so many chunks.
type request struct {
	rank     int
	chunks   int
	numbered bool // it came in the numbered dialect
	at       time.Duration
}

// requests is a queue.
type requests struct {
	list []request
	head int
}

func (q *requests) push(r request) {
	if q.head > 0 && len(q.list) == cap(q.list) {
		n := copy(q.list, q.list[q.head:])
		q.list, q.head = q.list[:n], 0
	}
	q.list = append(q.list, r)
}

// take takes at most so many chunks off the first request, or one off that of a plain worker,
// which gets chunks one by one; false if there is none.
func (q *requests) take(most int) (request, bool) {
	if q.head == len(q.list) {
		return request{}, false
	}
	first := &q.list[q.head]
	r := *first
	if !r.numbered {
		most = 1
	}
	r.chunks = min(r.chunks, most)
	if first.chunks -= r.chunks; first.chunks > 0 {
		return r, true
	}
	if q.head++; q.head == len(q.list) {
		q.list, q.head = q.list[:0], 0
	}
	return r, true
}

// drop removes all requests of a worker.
func (q *requests) drop(rank int) {
	kept := q.list[:0]
	for _, r := range q.list[q.head:] {
		if r.rank != rank {
			kept = append(kept, r)
		}
	}
	q.list, q.head = kept, 0
}

// lost returns the rank that an error of a receive or a send reports as gone: died, left, or
// cut off for what it has sent.
func lost(err error) (rank int, ok bool) {
	if err == nil {
		return -1, false
	}
	var e *impi.Error
	if !errors.As(err, &e) || e.Rank < 0 {
		return -1, false
	}
	return e.Rank, cutOff(err) || errors.Is(err, impi.ErrPeerDied) || errors.Is(err, impi.ErrPeerLeft) || errors.Is(err, impi.ErrUnreachable)
}

// cutOff reports whether a connection was closed because the peer violated the protocol.
func cutOff(err error) bool {
	return errors.Is(err, impi.ErrProtocol) || errors.Is(err, impi.ErrOverflow)
}
