package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/sluice-hpc/sluice/internal/wait"
	"github.com/sluice-hpc/sluice/verbs"
)

// declareVerbs connects a pair of queue pairs for one measurement.
func declareVerbs(ctx context.Context, b *bed, m *measurement) series {
	if m.windowed > 0 {
		p := connect(ctx, b, m, m.windowed+streamControl, streamRecvs)
		return newStream(p, m)
	}
	// Unsignalled sends take up entries until the completion of a later signalled one is
	// taken, which is two rounds.
	p := connect(ctx, b, m, 3*m.o.every+2, latencyRecvDepth)
	p.sends, p.takes, p.step = p.rank == 0 || !p.op.fetch, p.rank != 0 || !p.op.fetch, 1
	l := &latency{pair: p, every: m.o.every, recvs: p.recvWRs(latencyRepost)}
	wr := p.message()
	l.plain = []verbs.SendWR{wr}
	wr.Flags |= verbs.SendSignaled
	l.signalled = []verbs.SendWR{wr}
	switch {
	case p.op.fetch:
		return &fetching{latency: l, goodbye: []verbs.SendWR{{Opcode: verbs.OpSend, Flags: verbs.SendSignaled}}}
	case !p.op.recv:
		return &watching{latency: l, ours: &p.send.Bytes()[p.bytes-1], theirs: newWatched(&p.recv.Bytes()[p.bytes-1])}
	}
	return l
}

// latency runs one operation to and fro. Everything that an iteration touches
// is made beforehand: the loops do nothing but post and poll.
//
//	rank 0                      rank 1
//	post ──────── message ────▶ poll
//	repost receives             post
//	poll ◀─────── answer ────── repost receives
//
// Receives are posted in advance and replaced in batches, behind a message that
// is already on its way. A send is signalled only every so often; its completion
// is taken when the next such send comes, when it has long been there.
type latency struct {
	*pair
	plain     []verbs.SendWR // one unsignalled message
	signalled []verbs.SendWR // the same, signalled
	recvs     []verbs.RecvWR
	spent     int // receives consumed and not yet replaced
	every     int // every so many sends one is signalled
	since     int // sends since
	posts     int // sends at all, where they are counted
	owed      int // signalled sends whose completion was not taken yet
}

// Depth of the receive queue, and of what is replaced at once.
const (
	latencyRecvDepth = 256
	latencyRepost    = 64
)

func (l *latency) run(n int, samples []int64) { pingpong(l, l.rank == 0, n, samples) }

func (l *latency) send() {
	l.post()
	if l.spent == len(l.recvs) {
		l.spent = 0
		l.postRecvs(l.recvs)
	}
}

// post posts the message, signalled where its turn has come. Where each is, its
// completion is taken at once, while the message or its answer is under way, as
// perftest does.
func (l *latency) post() {
	if l.looks > 0 {
		if l.posts++; l.posts%32 == 0 {
			l.breathe()
		}
	}
	l.since++
	if l.since < l.every {
		l.pair.post(l.plain)
		return
	}
	l.since = 0
	for ; l.owed > 0; l.owed-- {
		l.await(l.sendCQ)
	}
	l.pair.post(l.signalled)
	if l.owed++; l.every == 1 {
		l.owed--
		l.await(l.sendCQ)
	}
}

func (l *latency) receive() {
	l.spent++
	l.await(l.recvCQ)
}

// watching is the latency of plain writes, which the peer learns of by looking at the last
// byte, as perftest's ib_write_lat does: there stands the number of the message. Looking also
// polls: a provider may need that to move anything, and a dead peer shows there. For that
// alone, once in so many looks will do.
type watching struct {
	*latency
	number byte // of the message
	ours   *byte
	theirs watched
}

func (l *watching) run(n int, samples []int64) { pingpong(l, l.rank == 0, n, samples) }

func (l *watching) send() {
	if l.rank == 0 {
		l.number++
	}
	*l.ours = l.number
	l.post()
}

func (l *watching) receive() {
	if l.rank != 0 {
		l.number++
	}
	for looks := l.looks; l.theirs.load() != l.number; {
		if looks--; looks > 0 {
			continue
		}
		looks = l.looks
		if n := must1(l.recvCQ.Poll(l.wcs[:1])); n > 0 {
			must(l.wcs[0].Err())
			must(fmt.Errorf("unexpected completion of %v, %d bytes", l.wcs[0].Opcode, l.wcs[0].ByteLen))
		}
		if l.looks > 0 {
			wait.Yield()
		}
	}
}

// prepare leaves the number of the message before in the last byte.
func (l *watching) prepare() {
	l.pair.prepare()
	l.recv.Bytes()[l.bytes-1] = l.number
}

// check puts what the message had without its number in place of that.
func (l *watching) check() {
	l.recv.Bytes()[l.bytes-1] ^= l.number ^ patternByte(l.seed(1-l.rank), l.bytes-1)
	l.pair.check()
}

// watched is a byte that the peer writes, read with the aligned word that it is in.
type watched struct {
	word  *uint32
	shift int
}

func newWatched(b *byte) watched {
	w := watched{word: (*uint32)(unsafe.Pointer(uintptr(unsafe.Pointer(b)) &^ 3)), shift: int(uintptr(unsafe.Pointer(b)) & 3 * 8)}
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 { // big-endian
		w.shift = 24 - w.shift
	}
	return w
}

func (w watched) load() byte { return byte(atomic.LoadUint32(w.word) >> w.shift) }

// fetching is the latency of operations that only rank 0 has a part in: half a round trip is
// the whole.
type fetching struct {
	*latency
	goodbye []verbs.SendWR // one of no bytes: the end of a run, for the peer
}

func (l *fetching) run(n int, samples []int64) {
	value := l.moved
	l.moved += uint64(n)
	if l.rank != 0 {
		return
	}
	swap := l.op.opcode == verbs.OpAtomicCmpAndSwp
	repeat(n, samples, func() {
		if swap { // each succeeds: it expects what the one before has left
			l.signalled[0].CompareAdd, l.signalled[0].Swap = value, value+1
			value++
		}
		l.pair.post(l.signalled)
		l.await(l.sendCQ)
	})
}

// rest has rank 1 poll until it is told that a run is over: software providers answer from
// there.
func (l *fetching) rest() {
	if l.rank == 0 {
		l.pair.post(l.goodbye)
		l.await(l.sendCQ)
		return
	}
	l.await(l.recvCQ)
	l.postRecvs(l.recvs[:1])
}
