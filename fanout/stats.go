package fanout

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Stats is what a supplier has done, and what it is waiting for.
type Stats struct {
	Queued         int    // chunks that have not been handed out
	QueuedBytes    int    // bytes of these
	Capacity       int    // of the queue, in chunks; 0 without one
	Unacknowledged int    // chunks that are kept; with Redeliver and Collected
	GivenUp        int    // chunks that were given up after too many Attempts; with Redeliver
	Next           uint64 // sequence number of the next chunk: the number of chunks so far
	Workers        []WorkerStats
}

// WorkerStats is what a supplier knows of one worker.
type WorkerStats struct {
	Rank        int
	State       WorkerState
	Err         error         // why it is lost
	Requests    uint64        // chunks that it has asked for
	Waiting     int           // requests that have not been answered
	Chunks      uint64        // chunks that it has been given
	Bytes       uint64        // bytes of these
	Messages    uint64        // messages that these were in
	Redelivered uint64        // its chunks that went to others
	Held        int           // chunks that it has not acknowledged
	Idle        time.Duration // time that its requests have waited for chunks; Timed only
	Service     Service       // Timed only
}

// Service is the distribution of the time that a worker takes for a chunk. The supplier
// measures it, so it includes the way there and back: from when the chunk was given, or the
// one before was finished, until the chunk was finished. A worker that acknowledges nothing,
// in the plain dialect, has finished a chunk when it asks again; with a [Window] it asks for
// several at once, and then only the mean is right.
type Service struct {
	Count                     int64
	Mean, P50, P90, P99, P999 time.Duration
	Least, Most               time.Duration
	Total                     time.Duration // of all chunks
}

// Stats returns what the supplier has done. Any goroutine may call it at any time, even after
// End.
func (s *Supplier) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Stats{Queued: s.queue.len() + s.again.len(), QueuedBytes: s.queue.bytes + s.again.bytes, Capacity: s.o.queue, Next: s.next}
	st.Unacknowledged, st.GivenUp = s.keeps, s.givenUp
	for _, r := range s.o.workers {
		w := &s.workers[r]
		c := w.counts
		c.State, c.Waiting, c.Held = w.state, w.waiting, len(w.has)
		if w.service != nil {
			c.Service = w.service.service()
		}
		st.Workers = append(st.Workers, c)
	}
	return st
}

// times are the service times of a worker: when each chunk that it has was given, and
// the distribution.
type times struct {
	begun []time.Duration
	head  int
	last  time.Duration // the last end
	total time.Duration
	hist  *hdrhistogram.Histogram
}

// Service times are recorded from 1 µs to an hour, with two significant digits.
const (
	leastService = time.Microsecond
	mostService  = time.Hour
)

func newTimes() *times {
	return &times{hist: hdrhistogram.New(int64(leastService), int64(mostService), 2)}
}

func (t *times) begin(now time.Duration) {
	if t.head > 0 && len(t.begun) == cap(t.begun) {
		t.begun, t.head = t.begun[:copy(t.begun, t.begun[t.head:])], 0
	}
	t.begun = append(t.begun, now)
}

func (t *times) end(now time.Duration) {
	if t.head == len(t.begun) {
		return
	}
	d := now - max(t.begun[t.head], t.last)
	t.last = now
	t.total += d
	if t.head++; t.head == len(t.begun) {
		t.begun, t.head = t.begun[:0], 0
	}
	// Within the range of the histogram, so that it takes it.
	if err := t.hist.RecordValue(int64(min(max(d, leastService), mostService))); err != nil {
		panic(err)
	}
}

func (t *times) service() Service {
	h := t.hist
	s := Service{Count: h.TotalCount(), Total: t.total}
	if s.Count == 0 {
		return s
	}
	at := func(q float64) time.Duration { return time.Duration(h.ValueAtQuantile(q)) }
	s.Mean, s.P50, s.P90, s.P99, s.P999 = time.Duration(h.Mean()), at(50), at(90), at(99), at(99.9)
	s.Least, s.Most = time.Duration(h.Min()), time.Duration(h.Max())
	return s
}
