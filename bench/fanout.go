package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/sluice-hpc/sluice/fanout"
	"github.com/sluice-hpc/sluice/impi"
)

// peerZMQ is the peer whose sockets hand chunks to who asks.
const peerZMQ = "libzmq"

// Dialects of fanout: operations of its results.
const (
	dialectPlain    = "plain"    // a request and a chunk, each a message
	dialectNumbered = "numbered" // several chunks are asked for at once, each a message
	dialectEach     = "each"     // several are asked for at once, and given in one message
)

var dialects = []string{dialectPlain, dialectNumbered, dialectEach}

// fanoutRun is one table of results: one dialect and one window.
type fanoutRun struct {
	rounds
	node *node
}

func (r *fanoutRun) unavailable() string { return "" }

func (r *fanoutRun) measure(ctx context.Context, job exchanger, w *writer, timer float64, progress func(string)) error {
	c := impi.Config{Providers: []string{"shm"}, Log: onlyWarnings()}
	j, err := impi.FromNode(ctx, r.node.Node, c)
	if _, err := share(ctx, job, struct{}{}, err); err != nil {
		return err
	}
	if got := j.Provider((j.World().Rank() + 1) % j.World().Size()); got != "shm" {
		return &CarrierError{got, "shm"}
	}
	ms, err := r.measureBy(func(m *measurement) error {
		progress(fmt.Sprint("fanout ", m.op.name, " window ", m.window, " ", formatSize(int64(m.bytes))))
		comm, err := j.World().Dup(ctx)
		if err != nil {
			return err
		}
		before := counted()
		f := fanoutSide{m: m, job: j, comm: comm}
		if f.memory, err = j.Alloc(roundUp(m.bytes, pageBytes)); err != nil {
			return err
		}
		if comm.Rank() == 0 {
			err = f.supply(ctx)
		} else {
			err = f.work(ctx)
		}
		all, err := share(ctx, job, counted().since(before), err)
		if err != nil {
			return fmt.Errorf("%s dialect, window %d, %d bytes: %w", m.op.name, m.window, m.bytes, err)
		}
		for _, n := range all {
			m.mallocs += n.Mallocs
		}
		m.verified = m.verify
		return errors.Join(comm.Free(ctx), f.memory.Close())
	})
	if err != nil {
		return err
	}
	results := make([]Result, len(ms))
	for i, m := range ms {
		results[i] = m.result(layerFanout, "shm", timer)
		results[i].Suite, results[i].Window = suiteFanout, int64(m.window)
	}
	w.results(results)
	return j.Close(ctx)
}

// fanoutSide is a supplier or a worker of a measurement.
type fanoutSide struct {
	m      *measurement
	job    *impi.Job
	comm   *impi.Comm
	memory *impi.Memory
}

// fanoutTime is how long a batch of the measurement is: with more ranks than CPUs it has to
// hold many turns of the scheduler. The peers' programs take the same.
const fanoutTime = 10e6 // ns

// fanoutLaps is how often a batch has all chunks that may be on their way at least: those
// are handed out in a moment. The peers' programs take the same.
const fanoutLaps = 4

// fanoutMost is how often the time asked for a measurement takes at most, and the batch in
// which that is over. The peers' programs take the same.
const fanoutMost = 4

// supply measures: the clock is read around batches of chunks.
func (f *fanoutSide) supply(ctx context.Context) error {
	m := f.m
	chunk := f.memory.Bytes()[:m.bytes]
	fillPattern(chunk, seedFor(0, m.bytes, m.op.name))
	s, err := fanout.NewSupplier(f.comm, f.options()...)
	if err != nil {
		return err
	}
	several := slices.Repeat([][]byte{chunk}, fanoutEach)
	send := func(n int) error {
		for m.op.name == dialectEach && m.bytes < fanoutBatch && n > 0 {
			k, err := s.SendEach(ctx, several[:min(n, fanoutEach)]...)
			if err != nil {
				return err
			}
			n -= k
		}
		for range n {
			if err := s.SendOwned(ctx, nil, chunk); err != nil {
				return err
			}
		}
		return nil
	}
	timed := func(n int) (float64, error) {
		t := nanos()
		err := send(n)
		return float64(max(nanos()-t, 1)), err
	}
	// A send returns when its chunk has been asked for, not when it has arrived, and the
	// first waits for workers to come: what one takes is known when twice as many take about
	// as long each.
	n, each, steady := 1, 0.0, false
	for !steady || each*float64(n) < float64(m.warmup/2) {
		if each > 0 {
			n *= 2
		}
		took, err := timed(n)
		if err != nil {
			return err
		}
		before := each
		each = took / float64(n)
		steady = before > 0 && (each < 2*before && before < 2*each || took > fanoutMost*float64(m.warmup))
	}
	if m.batch == 0 {
		m.batch = max(fanoutLaps*(f.comm.Size()-1)*m.window, int(fanoutTime/each))
	}
	p := m.plan(each)
	m.batchLen = p.Batch
	d := newDistribution()
	begin, sent := nanos(), 0
	for enough := false; !enough; {
		took, err := timed(p.Batch)
		if err != nil {
			return err
		}
		d.add(float64(p.Batch) / took * 1e9)
		sent += p.Batch
		spent := nanos() - begin
		enough = spent >= int64(m.time) && sent >= minBatches*p.Batch || spent >= fanoutMost*int64(m.time)
		if m.iters > 0 {
			enough = sent >= p.Iterations
		}
	}
	m.messages += uint64(sent)
	m.all.merge(d)
	m.medians = append(m.medians, d.quantile(50))
	return s.End(ctx)
}

// A supplier of dialectEach has so many chunks at a time, and gives as many in one message
// as have been asked for, up to so many bytes.
const (
	fanoutEach  = 64
	fanoutBatch = 4 << 10
)

func (f *fanoutSide) options() []fanout.Option {
	if f.m.op.name == dialectEach {
		return []fanout.Option{fanout.Batch(fanoutBatch)}
	}
	return nil
}

// numberedHeader is what comes with each chunk in the numbered dialect: see docs/fanout.md.
const numberedHeader = 16

// work receives chunks until their end, and looks at the first ones.
func (f *fanoutSide) work(ctx context.Context) error {
	m := f.m
	most := m.bytes
	opts := []fanout.ClientOption{fanout.Window(m.window), fanout.LeasesOf(f.job)}
	if m.op.name != dialectPlain {
		opts = append(opts, fanout.Numbered())
		most = max(most+numberedHeader, fanoutBatch)
	}
	opts = append(opts, fanout.MaxChunk(most))
	c, err := fanout.NewClient(f.comm, opts...)
	if err != nil {
		return err
	}
	for n := 0; ; n++ {
		k, err := c.Receive(ctx)
		if err == io.EOF {
			return c.Close()
		}
		if err != nil {
			return err
		}
		if n < m.window && m.verify {
			if err := checkPattern(m.op.name, k.Bytes(), m.bytes, seedFor(0, m.bytes, m.op.name)); err != nil {
				return err
			}
		}
		k.Release()
	}
}
