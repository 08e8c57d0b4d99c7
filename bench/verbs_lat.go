package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/sluice-hpc/sluice/internal/wait"
	"github.com/sluice-hpc/sluice/verbs"
)

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
	op        operation
	bytes     int
	plain     []verbs.SendWR // one unsignalled message
	signalled []verbs.SendWR // the same, signalled
	goodbye   []verbs.SendWR // one of no bytes: the end of a run, for a peer that has no part in it
	recvs     []verbs.RecvWR
	spent     int // receives consumed and not yet replaced
	every     int // every so many sends one is signalled
	since     int // sends since
	posts     int // sends at all, where they are counted
	owed      int // signalled sends whose completion was not taken yet
	seq       byte
	value     uint64 // at the peer, of compare-and-swap
	wc        [1]verbs.WC
}

// Sends between two signalled ones, and depths of the queues.
const (
	latencySignal    = 64
	latencyRecvDepth = 256
	latencyRepost    = 64
)

// latencySendDepth: unsignalled sends take up entries until the completion of a
// later signalled one is taken. That is two rounds, and what the size before left.
func latencySendDepth(every int) int { return 3*every + 2 }

func newLatency(p *pair, op operation, bytes, inline, every int) *latency {
	l := &latency{pair: p, op: op, bytes: bytes, every: every, recvs: p.recvWRs(latencyRepost)}
	wr := p.message(op, bytes, inline)
	l.plain = []verbs.SendWR{wr}
	wr.Flags |= verbs.SendSignaled
	l.signalled = []verbs.SendWR{wr}
	l.goodbye = []verbs.SendWR{{Opcode: verbs.OpSend, Flags: verbs.SendSignaled}}
	return l
}

// message is the work request of one message, unsignalled.
func (p *pair) message(op operation, bytes, inline int) verbs.SendWR {
	wr := verbs.SendWR{Opcode: op.opcode}
	switch {
	case op.atomic: // on the peer's receive buffer; what was there comes to our send buffer
		wr.SGList = []verbs.SGE{p.send.SGE(0, atomicBytes)}
		wr.RemoteAddr, wr.RKey = p.remote.RecvAddr, p.remote.RecvRKey
		wr.CompareAdd = 1
		return wr
	case op.fetch: // the peer's send buffer into our receive buffer
		wr.RemoteAddr, wr.RKey = p.remote.SendAddr, p.remote.SendRKey
		if bytes > 0 {
			wr.SGList = []verbs.SGE{p.recv.SGE(0, bytes)}
		}
		return wr
	case op.remote():
		wr.RemoteAddr, wr.RKey = p.remote.RecvAddr, p.remote.RecvRKey
	}
	if bytes <= inline {
		wr.Flags |= verbs.SendInline
		wr.Inline = p.send.Bytes()[:bytes]
	} else if bytes > 0 {
		wr.SGList = []verbs.SGE{p.send.SGE(0, bytes)}
	}
	return wr
}

// run makes n iterations. With samples, of length n, each is timed, in ns, and
// so is what the clock costs.
func (l *latency) run(n int, samples []int64) error {
	switch {
	case l.op.fetch:
		return l.fetch(n, samples)
	case l.op.recv:
		return l.pingpong(n, samples)
	default:
		return l.pingpongMemory(n, samples)
	}
}

// pingpong is run for operations that the peer learns of by a completion.
func (l *latency) pingpong(n int, samples []int64) error {
	t := startLaps(samples)
	for i := range n {
		if l.rank == 0 {
			if err := l.post(); err != nil {
				return err
			}
		}
		if err := l.await(l.recvCQ); err != nil {
			return err
		}
		l.spent++
		if l.rank != 0 {
			if err := l.post(); err != nil {
				return err
			}
		}
		if l.spent == len(l.recvs) {
			l.spent = 0
			if err := l.postRecvs(l.recvs); err != nil {
				return err
			}
		}
		t.lap(i)
	}
	return nil
}

// pingpongMemory is run for plain writes, which the peer learns of by looking
// at the last byte, as perftest's ib_write_lat does. Looking also polls: a
// provider may need that to move anything, and a dead peer shows there. For that
// alone, once in so many looks will do.
func (l *latency) pingpongMemory(n int, samples []int64) error {
	ours, theirs := &l.send.Bytes()[l.bytes-1], newWatched(&l.recv.Bytes()[l.bytes-1])
	t := startLaps(samples)
	for i := range n {
		l.seq++
		*ours = l.seq
		if l.rank == 0 {
			if err := l.post(); err != nil {
				return err
			}
		}
		for looks := l.looks; theirs.load() != l.seq; {
			if looks--; looks > 0 {
				continue
			}
			looks = l.looks
			got, err := l.recvCQ.Poll(l.wc[:])
			if err != nil {
				return err
			}
			if got > 0 {
				return unexpected(&l.wc[0])
			}
			if l.looks > 0 {
				wait.Yield()
			}
		}
		if l.rank != 0 {
			if err := l.post(); err != nil {
				return err
			}
		}
		t.lap(i)
	}
	return nil
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

// fetch is run for operations that only rank 0 has a part in; see over.
func (l *latency) fetch(n int, samples []int64) error {
	if l.rank != 0 {
		return nil
	}
	swap := l.op.opcode == verbs.OpAtomicCmpAndSwp
	t := startLaps(samples)
	for i := range n {
		if swap { // each succeeds: it expects what the one before has left
			l.signalled[0].CompareAdd = l.value
			l.value++
			l.signalled[0].Swap = l.value
		}
		if err := l.postOne(l.signalled); err != nil {
			return err
		}
		if err := l.await(l.sendCQ); err != nil {
			return err
		}
		t.lap(i)
	}
	return nil
}

// over ends a series of runs. Where rank 1 has no part in them it polls here
// until it is told that they are over: software providers answer from there.
func (l *latency) over() error {
	switch {
	case !l.op.fetch:
		return nil
	case l.rank != 0:
		if err := l.await(l.recvCQ); err != nil {
			return err
		}
		return l.postRecvs(l.recvs[:1])
	}
	if err := l.postOne(l.goodbye); err != nil {
		return err
	}
	return l.await(l.sendCQ)
}

// post posts the message, signalled where its turn has come. Where each is, its
// completion is taken at once, while the message or its answer is under way, as
// perftest does.
func (l *latency) post() error {
	if l.looks > 0 {
		if l.posts++; l.posts%32 == 0 {
			l.breathe()
		}
	}
	l.since++
	if l.since < l.every {
		return l.postOne(l.plain)
	}
	l.since = 0
	if l.every > 1 {
		if err := l.settle(); err != nil {
			return err
		}
		l.owed++
		return l.postOne(l.signalled)
	}
	if err := l.postOne(l.signalled); err != nil {
		return err
	}
	return l.await(l.sendCQ)
}

// finish leaves the queues as newLatency found them.
func (l *latency) finish() error {
	if err := l.settle(); err != nil {
		return err
	}
	err := l.postRecvs(l.recvs[:l.spent])
	l.spent = 0
	return err
}

// settle takes the completions of all signalled sends.
func (l *latency) settle() error {
	for ; l.owed > 0; l.owed-- {
		if err := l.await(l.sendCQ); err != nil {
			return err
		}
	}
	return nil
}

// await takes one completion.
func (l *latency) await(cq *verbs.CQ) error {
	for {
		var n int
		var err error
		if l.looks == 0 {
			n, err = cq.Poll(l.wc[:])
		} else {
			n, err = cq.PollSpin(l.wc[:], l.looks)
		}
		if err != nil {
			return err
		}
		if n > 0 {
			if l.wc[0].Status != verbs.WCSuccess {
				return l.wc[0].Err()
			}
			return nil
		}
		if err := l.pause(); err != nil {
			return err
		}
	}
}

// unexpected is the error of a completion that should not be there: its own, if
// it tells of a failure.
func unexpected(wc *verbs.WC) error {
	if err := wc.Err(); err != nil {
		return err
	}
	return fmt.Errorf("unexpected completion of %v, %d bytes", wc.Opcode, wc.ByteLen)
}

// errSendFull: the send queue had no room although its entries are accounted for.
var errSendFull = errors.New("send queue is full")

// postOne posts one work request.
func (p *pair) postOne(wrs []verbs.SendWR) error {
	n, err := p.qp.PostSend(wrs)
	if n == 0 && err == nil {
		return errSendFull
	}
	return err
}
