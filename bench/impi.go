package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/sluice-hpc/sluice/fanout"
	"github.com/sluice-hpc/sluice/impi"
	"github.com/sluice-hpc/sluice/verbs"
)

// carrierTCP is the carrier of impi that is not a verbs provider: its own packets over the
// connections of a job.
const carrierTCP = "tcp"

// impiCarriers are the carriers of impi's messages between processes of this library.
var impiCarriers = []string{providerSHM, providerIBV, carrierTCP}

// Operations of impi's results: the calls that messages are made of.
const (
	callsBlocking    = "send/recv"
	callsNonblocking = "isend/irecv"
)

const longIMPI = `Every message is a request of its own, as in MPI programs without persistent requests.
All messages of a window use one buffer on each side, as in the OSU benchmarks. Alloc
memory is from impi's Job.Alloc; node is from Node.Alloc.`

const longMatching = `A window of messages, each with a tag and memory of its own, goes from rank 0 to rank 1.
Unexpected: rank 0 starts all sends, and then sends a note; rank 1 waits for the note before
it receives the messages, in order. Posted: rank 1 posts all receives, and then sends a note;
rank 0 waits for the note before it sends, the last tag first. Both end with a note from
rank 1. The figure is the total time divided by the number of messages.`

// checkIMPI names the calls: those of latency block.
func checkIMPI(o *options) {
	if o.ops = []string{callsBlocking}; o.window > 0 {
		o.ops = []string{callsNonblocking}
	}
}

// byCarrier returns one piece of work for each carrier. A carrier that was not named, and that
// neither rank has, is reported as missing.
func byCarrier(ctx context.Context, s *session, w work) []work {
	var list []work
	for _, carrier := range w.o.carriers {
		one := w
		one.carrier = carrier
		if carrier != carrierTCP {
			if one.missing = s.lacks(ctx, carrier); one.missing != "" && w.o.carrier != "" {
				_, err := verbs.Find(carrier)
				barrier(ctx, s, err)
			}
		}
		list = append(list, one)
	}
	return list
}

func openIMPI(ctx context.Context, b *bed) {
	barrier(ctx, b, try(func() { b.impi = b.joinIMPI(ctx) }))
	b.over, _ = onlyDevice(b.carrier)
}

// joinTries bounds how often a job is made again because its queue pair has not proved in time
// that it works: a rank may have had no CPU.
const joinTries = 5

// joinIMPI makes the job, all of whose messages go over the carrier.
func (b *bed) joinIMPI(ctx context.Context) *impi.Job {
	c := impi.Config{Providers: []string{}, Log: onlyWarnings()}
	if b.carrier != carrierTCP {
		c.Providers = []string{b.carrier}
	}
	for try := 1; ; try++ {
		if try == joinTries {
			c.Log = nil // the default log says why
		}
		j := must1(impi.FromNode(ctx, b.Node, c))
		// Either end has the same answer.
		got := cmp.Or(j.Provider((b.Rank()+1)%b.Size()), carrierTCP)
		if got == b.carrier {
			return j
		}
		if err := j.Close(ctx); err != nil || try == joinTries {
			must(errors.Join(fmt.Errorf("messages go over %s, not over %s", got, b.carrier), err))
		}
	}
}

// Tags of notes about messages, and of messages: from this one on.
const (
	impiNoteTag = 1
	impiTag     = 2
)

func declareIMPI(_ context.Context, b *bed, m *measurement) series {
	n := roundUp(m.bytes+guard, pageBytes)
	out, in := b.memory(&m.spec, n, n)
	return newIMPI(b.impi.World(), m, out, in)
}

// newIMPI makes the series of a measurement between two ranks. All messages of a window share
// one buffer, as in the programs of MPI.
func newIMPI(c *impi.Comm, m *measurement, out, in []byte) series {
	whole := extent{bytes: m.bytes}
	s := messages{extent: whole, into: whole, op: m.op, rank: c.Rank(), from: 1 - c.Rank()}
	// Of a page or more, both begin where a page does.
	s.outs, in = [][]byte{out[:m.bytes+guard]}, in[:m.bytes+guard]
	if m.windowed == 0 {
		s.ins = [][]byte{in}
		from := s.from
		if m.name == patternAnySource {
			from = impi.AnySource
		}
		return &impiPingPong{s, c, from}
	}
	sends, receives := m.directions(c.Rank())
	if receives > 0 {
		s.ins = [][]byte{in}
	}
	return &impiWindows{s, c, make([]impi.Request, sends), make([]impi.Request, receives), make([]byte, 1)}
}

// impiPingPong is a message to and fro, sent and received by blocking calls.
type impiPingPong struct {
	messages
	comm   *impi.Comm
	source int // the other rank, or any
}

func (s *impiPingPong) run(n int, samples []int64) { pingpong(s, s.rank == 0, n, samples) }

func (s *impiPingPong) send() {
	must(s.comm.Send(context.Background(), s.outs[0][:s.bytes], s.from, impiTag))
}

func (s *impiPingPong) receive() {
	must1(s.comm.Recv(context.Background(), s.ins[0][:s.bytes], s.source, impiTag))
}

// impiWindows starts a window of requests, in one direction or both, waits for all of them, and
// waits until rank 1 reports that it has all: the last byte counts.
type impiWindows struct {
	messages
	comm         *impi.Comm
	sends, recvs []impi.Request // nil: no messages in that direction
	ack          []byte
}

func (s *impiWindows) run(n int, _ []int64) {
	for range n {
		for i := range s.recvs {
			s.recvs[i] = must1(s.comm.Irecv(s.ins[0][:s.bytes], s.from, impiTag))
		}
		for i := range s.sends {
			s.sends[i] = must1(s.comm.Isend(s.outs[0][:s.bytes], s.from, impiTag))
		}
		must(impi.WaitAll(context.Background(), nil, s.sends...))
		must(impi.WaitAll(context.Background(), nil, s.recvs...))
		impiNote(s.comm, s.ack, s.rank == 1)
	}
}

// impiNote sends the other rank a note that this one is ready, or waits for that note.
func impiNote(c *impi.Comm, note []byte, tell bool) {
	if tell {
		must(c.Send(context.Background(), note, 1-c.Rank(), impiNoteTag))
	} else {
		must1(c.Recv(context.Background(), note, 1-c.Rank(), impiNoteTag))
	}
}

// impiMatching sends messages with a tag each from rank 0 to rank 1, and waits for a note that all
// have been received.
//
//	unexpected                                     posted
//	rank 0               rank 1                    rank 0               rank 1
//	messages ══════════▶ (no receive is there)              ◀──── note  receive all
//	note     ──────────▶ receive all, in order     messages, the last first ══▶
//	         ◀────── note                                    ◀──── note
type impiMatching struct {
	messages
	comm     *impi.Comm
	posted   bool
	requests []impi.Request
	note     []byte
}

func declareMatching(_ context.Context, b *bed, m *measurement) series {
	sends, receives := m.directions(b.Rank())
	return &impiMatching{messages: newMessages(b, m, 1-b.Rank(), sends, receives), comm: b.impi.World(), posted: m.name == patternPosted, requests: make([]impi.Request, m.windowed), note: make([]byte, 1)}
}

func (s *impiMatching) run(n int, _ []int64) {
	receives := s.comm.Rank() == 1
	for range n {
		if receives != s.posted { // the second rank has had the note
			impiNote(s.comm, s.note, false)
		}
		for i := range s.requests {
			if k := len(s.requests) - 1 - i; receives {
				s.requests[i] = must1(s.comm.Irecv(s.ins[i][:s.bytes], s.from, impiTag+i))
			} else if s.posted {
				s.requests[i] = must1(s.comm.Isend(s.outs[k][:s.bytes], s.from, impiTag+k))
			} else {
				s.requests[i] = must1(s.comm.Isend(s.outs[i][:s.bytes], s.from, impiTag+i))
			}
		}
		if receives == s.posted {
			impiNote(s.comm, s.note, true)
		}
		must(impi.WaitAll(context.Background(), nil, s.requests...))
		impiNote(s.comm, s.note, receives)
	}
}

// peerZMQ is the peer whose sockets hand chunks to workers on request.
const peerZMQ = "libzmq"

// Dialects of fanout: operations of its results.
const (
	dialectPlain    = "plain"    // a request and a chunk, each a message
	dialectNumbered = "numbered" // several chunks are asked for at once, each a message
	dialectEach     = "each"     // several are asked for at once, and given in one message
)

var dialects = []string{dialectPlain, dialectNumbered, dialectEach}

const longFanout = `Measures chunks a second from rank 0 to all other ranks, which ask for chunks and do nothing
with them. In plain, each request and each chunk is a message. In numbered, a request asks for
several chunks, as far as the window allows, and each chunk is a message. In each, the
supplier has 64 chunks at a time, and answers a request with as many as it asks for in one
message of up to 4 KiB. All chunks use the same Job.Alloc memory.`

// openFanout makes a job of the node's ranks, over shared memory.
func openFanout(ctx context.Context, b *bed) {
	b.carrier, b.provider = providerSHM, providerSHM
	openIMPI(ctx, b)
}

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

// fanoutTime is how long a batch of the measurement is: with more ranks than CPUs it must contain
// many time slices of the scheduler. The peers' programs use the same.
const fanoutTime = 10e6 // ns

// fanoutLaps is the least size of a batch, in multiples of the chunks that may be in flight, which
// are handed out immediately. The peers' programs use the same.
const fanoutLaps = 4

// fanoutMost is how many times the requested time a measurement takes at most, plus the batch in
// which that ends. The peers' programs use the same.
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
	// A send returns when its chunk has been asked for, not when it has arrived, and the first one
	// waits for workers to join. The time of a send is known when twice as many take about as long
	// each.
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
		m.addAll(float64(p.Batch) / took * 1e9)
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

// A supplier of dialectEach has so many chunks at a time, and answers a request with as many as it
// asks for in one message, up to so many bytes.
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

// numberedHeader is the header of each chunk in the numbered dialect: see docs/fanout.md.
const numberedHeader = 16

// work receives chunks until their end, and checks the first ones.
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
