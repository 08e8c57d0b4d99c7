package pipeline

import (
	"sync/atomic"
	"time"
)

// Stats says what a pipeline has done so far.
type Stats struct {
	ChunksIn, ItemsIn, BytesIn    int64 // from the sources; bytes with timestamps
	ChunksOut, ItemsOut, BytesOut int64 // written to the sink; bytes with timestamps
	Redelivered                   int64 // how often a chunk had to be given to another worker
	Workers                       []WorkerStats
}

// WorkerStats says what a worker and those that replaced it have done.
type WorkerStats struct {
	Chunks, Items, BytesIn, BytesOut int64         // chunks with a result, and their items; bytes with timestamps
	Failures                         int64         // how often it failed
	Idle                             time.Duration // time without work
	Busy                             time.Duration // time that it worked, failures included
	P50, P99, Max                    time.Duration // of the service times of chunks
}

type totals struct {
	chunksIn, itemsIn, bytesIn    atomic.Int64
	chunksOut, itemsOut, bytesOut atomic.Int64
}

func (t *totals) read(items, bytes int) {
	t.chunksIn.Add(1)
	t.itemsIn.Add(int64(items))
	t.bytesIn.Add(int64(bytes))
}

func (t *totals) written(j *job) {
	t.chunksOut.Add(1)
	t.itemsOut.Add(int64(j.itemsOut))
	t.bytesOut.Add(int64(len(j.result)))
}

// Stats returns what the pipeline has done. Any goroutine may call it at any time. While the
// pipeline runs, the numbers are not all from the same moment.
func (p *Pipeline) Stats() Stats {
	t := &p.totals
	s := Stats{
		ChunksOut: t.chunksOut.Load(), ItemsOut: t.itemsOut.Load(), BytesOut: t.bytesOut.Load(),
		ChunksIn: t.chunksIn.Load(), ItemsIn: t.itemsIn.Load(), BytesIn: t.bytesIn.Load(),
	}
	for _, w := range p.workers {
		ws := w.snapshot()
		s.Workers = append(s.Workers, ws)
		s.Redelivered += ws.Failures
	}
	return s
}

func (w *slot) snapshot() WorkerStats {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.stats
	if !w.idle.IsZero() {
		s.Idle += time.Since(w.idle)
	}
	us := func(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
	s.P50, s.P99, s.Max = us(w.times.ValueAtQuantile(50)), us(w.times.ValueAtQuantile(99)), us(w.times.Max())
	return s
}

// waits notes that the worker has nothing to do from now on.
func (w *slot) waits() {
	w.mu.Lock()
	w.idle = time.Now()
	w.mu.Unlock()
}

// works notes that the worker has work again, and returns the time.
func (w *slot) works() time.Time {
	now := time.Now()
	w.mu.Lock()
	w.stats.Idle += now.Sub(w.idle)
	w.idle = time.Time{}
	w.mu.Unlock()
	return now
}

// worked notes the outcome of a chunk.
func (w *slot) worked(j *job, took time.Duration, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stats.Busy += took
	if err != nil {
		w.stats.Failures++
		return
	}
	w.stats.Chunks++
	w.stats.Items += int64(j.itemsIn)
	w.stats.BytesIn += int64(len(j.Data))
	w.stats.BytesOut += int64(len(j.result))
	w.times.RecordValue(min(max(took.Microseconds(), 1), longestService)) // in its range: no error
}
