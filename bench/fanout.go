package main

import (
	"context"
	"errors"
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

const longFanout = `Chunks a second from rank 0 to all other ranks, which ask for them and do nothing with
them. plain is the dialect of a request and a chunk, each a message; in numbered several
chunks are asked for at once, as far as the window allows, each chunk being a message; in
each the supplier has 64 chunks at a time, and gives those that have been asked for in one
message, up to 4 KiB. All chunks have the same memory, of Job.Alloc.`

// openFanout makes a job of the node's ranks, over shared memory.
func openFanout(ctx context.Context, b *bed) {
	b.carrier, b.provider = providerSHM, providerSHM
	openIMPI(ctx, b)
}

// measureFanout hands out chunks for a round.
func measureFanout(ctx context.Context, b *bed, m *measurement) {
	before, comm := counted(), must1(b.impi.World().Dup(ctx))
	f := fanoutSide{m: m, job: b.impi, comm: comm, memory: must1(b.impi.Alloc(roundUp(m.bytes, pageBytes)))}
	err := try(func() {
		if comm.Rank() == 0 {
			f.supply(ctx)
		} else {
			f.work(ctx)
		}
	})
	all := share(ctx, b, counted().since(before), err)
	for _, n := range all {
		m.mallocs += n.Mallocs
	}
	m.windowed, m.verified = m.o.window, m.o.verify
	must(errors.Join(comm.Free(ctx), f.memory.Close()))
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
func (f *fanoutSide) supply(ctx context.Context) {
	m := f.m
	chunk := f.memory.Bytes()[:m.bytes]
	fillPattern(chunk, seedFor(0, m.bytes, m.op))
	s := must1(fanout.NewSupplier(f.comm, f.options()...))
	several := slices.Repeat([][]byte{chunk}, fanoutEach)
	timed := func(n int) float64 {
		t := nanos()
		for m.op == dialectEach && m.bytes < fanoutBatch && n > 0 {
			n -= must1(s.SendEach(ctx, several[:min(n, fanoutEach)]...))
		}
		for range n {
			must(s.SendOwned(ctx, nil, chunk))
		}
		return float64(max(nanos()-t, 1))
	}
	// A send returns when its chunk has been asked for, not when it has arrived, and the
	// first waits for workers to come: what one takes is known when twice as many take about
	// as long each.
	n, each, steady := 1, 0.0, false
	for !steady || each*float64(n) < float64(m.o.warmup/2) {
		if each > 0 {
			n *= 2
		}
		took := timed(n)
		before := each
		each = took / float64(n)
		steady = before > 0 && (each < 2*before && before < 2*each || took > fanoutMost*float64(m.o.warmup))
	}
	if m.batch == 0 {
		m.batch = max(fanoutLaps*(f.comm.Size()-1)*m.o.window, int(fanoutTime/each))
	}
	p := m.plan(each)
	m.batchLen = p.Batch
	begin, sent := nanos(), 0
	for enough := false; !enough; {
		took := timed(p.Batch)
		m.add(float64(p.Batch) / took * 1e9)
		sent += p.Batch
		spent := nanos() - begin
		enough = spent >= int64(m.o.time) && sent >= minBatches*p.Batch || spent >= fanoutMost*int64(m.o.time)
		if m.o.iters > 0 {
			enough = sent >= p.Iterations
		}
	}
	m.count += uint64(sent)
	must(s.End(ctx))
}

// A supplier of dialectEach has so many chunks at a time, and gives as many in one message
// as have been asked for, up to so many bytes.
const (
	fanoutEach  = 64
	fanoutBatch = 4 << 10
)

func (f *fanoutSide) options() []fanout.Option {
	if f.m.op == dialectEach {
		return []fanout.Option{fanout.Batch(fanoutBatch)}
	}
	return nil
}

// numberedHeader is what comes with each chunk in the numbered dialect: see docs/fanout.md.
const numberedHeader = 16

// work receives chunks until their end, and looks at the first ones.
func (f *fanoutSide) work(ctx context.Context) {
	m := f.m
	most := m.bytes
	opts := []fanout.ClientOption{fanout.Window(m.o.window), fanout.LeasesOf(f.job)}
	if m.op != dialectPlain {
		opts = append(opts, fanout.Numbered())
		most = max(most+numberedHeader, fanoutBatch)
	}
	opts = append(opts, fanout.MaxChunk(most))
	c := must1(fanout.NewClient(f.comm, opts...))
	for n := 0; ; n++ {
		k, err := c.Receive(ctx)
		if err == io.EOF {
			must(c.Close())
			return
		}
		must(err)
		if n < m.o.window && m.o.verify {
			must(checkPattern(m.op, k.Bytes(), m.bytes, seedFor(0, m.bytes, m.op)))
		}
		k.Release()
	}
}
