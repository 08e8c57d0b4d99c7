package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/sluice-hpc/sluice/impi"
	"github.com/sluice-hpc/sluice/verbs"
)

// carrierTCP is the carrier of impi that is no provider of verbs: its own packets over
// the connections of a job.
const carrierTCP = "tcp"

// impiCarriers are what carries messages of impi between processes of this library.
var impiCarriers = []string{providerSHM, providerIBV, carrierTCP}

// Operations of impi's results: the calls that messages are made of.
const (
	callsBlocking    = "send/recv"
	callsNonblocking = "isend/irecv"
)

const longIMPI = `Every message is a request of its own, as it is in MPI programs without persistent
ones. All messages of a window use one buffer on either side, as those of OSU's
programs do. Whether a buffer is of Go's heap makes no difference here.`

const longMatching = `A window of messages, each with a tag and memory of its own, from rank 0 to rank 1. Unexpected:
rank 0 starts all sends, and then sends a note, which rank 1 waits for before it receives
them, in order. Posted: rank 1 posts all receives, and then sends a note, which rank 0 waits
for before it sends, the last tag first. Either ends with a note of rank 1. The figure is
the time of all that, of one message.`

// checkIMPI names the calls: those of latency block.
func checkIMPI(o *options) {
	if o.ops = []string{callsBlocking}; o.window > 0 {
		o.ops = []string{callsNonblocking}
	}
}

// byCarrier is one piece of work for each carrier. One that was not asked for, and is not
// there at either rank, is said to be missing.
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

// openIMPI makes a job of the node's ranks.
func openIMPI(ctx context.Context, b *bed) {
	barrier(ctx, b, try(func() { b.impi = b.joinIMPI(ctx) }))
	b.over, _ = onlyDevice(b.carrier)
}

// joinTries bounds how often a job is made anew because its queue pair has not proved
// itself in the time that it has for that: a rank may have got no CPU.
const joinTries = 5

// joinIMPI makes the job, all of whose messages go over the carrier.
func (b *bed) joinIMPI(ctx context.Context) *impi.Job {
	c := impi.Config{Providers: []string{}, Log: onlyWarnings()}
	if b.carrier != carrierTCP {
		c.Providers = []string{b.carrier}
	}
	for try := 1; ; try++ {
		if try == joinTries {
			c.Log = nil // it tells why
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

// Tags of what is said of messages, and of messages: from this one on.
const (
	impiNoteTag = 1
	impiTag     = 2
)

// impiMessages is what this rank sends and receives: one buffer of each, which all
// messages of a window share, as in the programs of MPI.
type impiMessages struct {
	comm    *impi.Comm
	other   int
	op      string
	bytes   int
	out, in []byte // in with its guard
	arrives bool   // something comes in
}

func declareIMPI(_ context.Context, b *bed, m *measurement) series { return newIMPI(b.impi.World(), m) }

// newIMPI makes the series of a measurement between two ranks.
func newIMPI(c *impi.Comm, m *measurement) series {
	s := impiMessages{comm: c, other: 1 - c.Rank(), op: m.op, bytes: m.bytes, arrives: true}
	// Of a page or more, both begin where a page does.
	s.out = make([]byte, roundUp(m.bytes, pageBytes))[:m.bytes]
	s.in = make([]byte, roundUp(m.bytes+guard, pageBytes))[:m.bytes+guard]
	if m.windowed == 0 {
		from := s.other
		if m.name == patternAnySource {
			from = impi.AnySource
		}
		return &impiPingPong{s, from}
	}
	sends, receives := m.directions(c.Rank())
	s.arrives = receives > 0
	return &impiWindows{s, make([]impi.Request, sends), make([]impi.Request, receives), make([]byte, 1)}
}

func (s *impiMessages) prepare() {
	fillPattern(s.out, seedFor(s.comm.Rank(), s.bytes, s.op))
	fillGuard(s.in)
}

func (s *impiMessages) check() {
	if s.arrives {
		must(checkPattern(s.op, s.in, s.bytes, seedFor(s.other, s.bytes, s.op)))
	}
}

func (s *impiMessages) close() {}

// impiPingPong is a message to and fro, sent and received by blocking calls.
type impiPingPong struct {
	impiMessages
	from int // the other rank, or any
}

func (s *impiPingPong) run(n int, samples []int64) { pingpong(s, s.comm.Rank() == 0, n, samples) }

func (s *impiPingPong) send() { must(s.comm.Send(context.Background(), s.out, s.other, impiTag)) }

func (s *impiPingPong) receive() {
	must1(s.comm.Recv(context.Background(), s.in[:s.bytes], s.from, impiTag))
}

// impiWindows starts a window of requests, one way or both, waits for all of them, and
// has rank 1 say that it has all: the last byte counts.
type impiWindows struct {
	impiMessages
	sends, recvs []impi.Request // none: nothing goes that way
	ack          []byte
}

func (s *impiWindows) run(n int, _ []int64) {
	ctx, in := context.Background(), s.in[:s.bytes]
	for range n {
		for i := range s.recvs {
			s.recvs[i] = must1(s.comm.Irecv(in, s.other, impiTag))
		}
		for i := range s.sends {
			s.sends[i] = must1(s.comm.Isend(s.out, s.other, impiTag))
		}
		must(impi.WaitAll(ctx, nil, s.sends...))
		must(impi.WaitAll(ctx, nil, s.recvs...))
		impiNote(s.comm, s.ack, s.comm.Rank() == 1)
	}
}

// impiNote tells the other rank that this one is so far, or waits to be told.
func impiNote(c *impi.Comm, note []byte, tell bool) {
	if tell {
		must(c.Send(context.Background(), note, 1-c.Rank(), impiNoteTag))
	} else {
		must1(c.Recv(context.Background(), note, 1-c.Rank(), impiNoteTag))
	}
}

// impiMatching has rank 0 send messages with a tag each to rank 1, and be told when all have
// been received.
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
		if receives != s.posted { // who comes second has been told
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
