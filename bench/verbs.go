package main

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"unsafe"

	"github.com/sluice-hpc/sluice/internal/wait"
	"github.com/sluice-hpc/sluice/verbs"
)

// operation is an operation of the verbs model as --op names it.
type operation struct {
	name   string
	opcode verbs.Opcode
	recv   bool // each message consumes a receive of the peer, which learns of it that way
	fetch  bool // the answer is part of the operation, in which the peer takes no part
	atomic bool
}

var operations = []operation{
	{name: "send", opcode: verbs.OpSend, recv: true},
	{name: "write", opcode: verbs.OpRDMAWrite},
	{name: "write-imm", opcode: verbs.OpRDMAWriteWithImm, recv: true},
	{name: "read", opcode: verbs.OpRDMARead, fetch: true},
	{name: "fetch-add", opcode: verbs.OpAtomicFetchAndAdd, fetch: true, atomic: true},
	{name: "cmp-swap", opcode: verbs.OpAtomicCmpAndSwp, fetch: true, atomic: true},
}

const atomicBytes = 8 // size of an atomic's operand

func operationNames() (names []string) {
	for _, o := range operations {
		names = append(names, o.name)
	}
	return names
}

// operationOf is the operation of a result: of other layers than verbs, one whose messages
// are received.
func operationOf(name string) operation {
	name, _, _ = strings.Cut(name, " ") // memory
	if i := slices.IndexFunc(operations, func(o operation) bool { return o.name == name }); i >= 0 {
		return operations[i]
	}
	return operation{name: name, recv: true}
}

// pair is one side of two connected ranks, with a buffer to send from and one to receive
// into.
type pair struct {
	op    operation
	bytes int // of a message
	rank  int
	sends bool   // this rank starts messages
	takes bool   // the other rank starts messages
	moved uint64 // messages since prepare, either way
	step  uint64 // by which each atomic increases the word

	ctx            *verbs.Context
	entry          DeviceEntry
	channel        *verbs.CompChannel // nil: waiting is spinning
	armed          bool               // the queues will send an event
	sendCQ, recvCQ *verbs.CQ
	qp             *verbs.QP
	send, recv     *verbs.MR
	remote         remoteBuffers
	yielded        int64 // when breathe last did, by nanos
	looks          int   // polls of a queue in one call, while there is nothing else to do; 0: always one
	inline         int   // bytes that may be posted inline
	wcs            [32]verbs.WC
}

// remoteBuffers is what a peer needs to know to reach our buffers.
type remoteBuffers struct {
	SendAddr uint64 `json:"send_addr"`
	RecvAddr uint64 `json:"recv_addr"`
	SendRKey uint32 `json:"send_rkey"`
	RecvRKey uint32 `json:"recv_rkey"`
}

// openDevice finds this rank's device that leads to the other: the named one, or the first of the
// provider; between hosts the one at the interface that the library uses.
func openDevice(ctx context.Context, b *bed) {
	b.device = cmp.Or(b.o.device, b.o.provider)
	if b.o.device != "" || b.device != "" && !b.apart() {
		return
	}
	over := b.connected(ctx)
	b.device = cmp.Or(b.device, over.Device)
	devs := must1(verbs.Devices())
	i := slices.IndexFunc(devs, func(d *verbs.Device) bool { return d.Name() == over.Device })
	for _, d := range devs {
		if i >= 0 && b.o.provider != "" && d.Provider() == b.device && d.Netdev() == devs[i].Netdev() {
			b.device = d.Name()
			return
		}
	}
}

// connect opens the device and connects with the other rank, for a measurement that has so
// many work requests outstanding; all receives are posted when it returns. Both ranks call it.
func connect(ctx context.Context, b *bed, m *measurement, sends, receives int) *pair {
	p := &pair{op: operationOf(m.op), bytes: m.bytes, rank: b.Rank()}
	defer undo(p.close)
	type hello struct {
		Endpoint []byte        `json:"endpoint"`
		Buffers  remoteBuffers `json:"buffers"`
	}
	var me hello
	err := try(func() {
		p.open(b, m, sends, receives)
		me.Buffers = remoteBuffers{SendAddr: p.send.Addr(), RecvAddr: p.recv.Addr(), SendRKey: p.send.RKey(), RecvRKey: p.recv.RKey()}
		me.Endpoint = p.endpoint()
	})
	other := share(ctx, b, me, err)[1-p.rank]
	p.remote = other.Buffers
	b.entry, b.provider, m.inline = p.entry, p.entry.Provider, m.bytes <= p.inline && !p.op.fetch
	barrier(ctx, b, try(func() { // neither may send before both have posted their receives
		must(p.qp.Connect(must1(verbs.ParseEndpoint(other.Endpoint)), verbs.ConnectAttr{}))
		p.postRecvs(p.recvWRs(receives))
	}))
	return p
}

func (p *pair) open(b *bed, m *measurement, sends, receives int) {
	dev := must1(verbs.Find(b.device))
	secret := b.Key("bench verbs")
	p.ctx = must1(dev.Open(verbs.Config{Secret: secret, Insecure: secret == nil, Job: "bench", Portable: b.o.portable}))
	attr := must1(p.ctx.QueryDevice())
	p.entry = describeDevice(p.ctx, b.o.portable)
	if p.entry.Provider == providerIBV && !b.o.events { // messages move while no rank polls
		p.looks = spinLooks
	}
	if uint64(p.bytes) > uint64(attr.MaxMsgSize) {
		must(usagef("device %s moves messages of at most %d bytes, not %d", dev.Name(), attr.MaxMsgSize, p.bytes))
	}
	if b.o.events {
		p.channel = must1(p.ctx.CreateCompChannel())
	}
	p.sendCQ, p.recvCQ = must1(p.ctx.CreateCQ(sends, p.channel)), must1(p.ctx.CreateCQ(receives, p.channel))
	pd := must1(p.ctx.AllocPD())
	for _, mr := range []**verbs.MR{&p.send, &p.recv} {
		if size := max(p.bytes, atomicBytes) + guard; m.memory == memoryHeap {
			*mr = must1(pd.RegMR(make([]byte, size), verbs.AccessAll))
		} else {
			*mr = must1(pd.AllocMR(size, verbs.AccessAll))
		}
		// Memory that was never written may be a single page of zeros, mapped many times, which fits
		// into every cache.
		fillGuard((*mr).Bytes())
	}
	p.inline = inlineBytes(b.o.inline, &attr)
	p.qp = must1(pd.CreateQP(verbs.QPInitAttr{SendCQ: p.sendCQ, RecvCQ: p.recvCQ, Cap: verbs.QPCap{
		MaxSendWR: sends, MaxRecvWR: receives, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: p.inline}}))
}

// spinLooks bounds how long one call spins; then it yields the CPU to others that wait for it.
// With soft-RoCE these may be the kernel threads that move messages.
const spinLooks = 512

// breathe yields every few milliseconds. The runtime's monitor preempts a goroutine that has not
// yielded for 10 ms: it takes the processor from the call into C that the goroutine is usually in,
// and polls for that every 20 µs for a while, on the CPU that this rank uses. That costs a tenth of
// the bandwidth if posting takes a millisecond, as over soft-RoCE, which moves messages in the call
// that posts them. A second processor of the runtime would cost more: the runtime would wake a
// thread for it at each yield.
func (p *pair) breathe() {
	const often = 4e6 // ns
	if now := nanos(); now-p.yielded > often {
		p.yielded = now
		runtime.Gosched()
	}
}

// inlineBytes returns how many bytes are posted inline at most if wanted are requested.
func inlineBytes(wanted int, device *verbs.DeviceAttr) int {
	// An adapter saves a trip over its bus for data that fit into a few of the queue's 64-byte
	// units. If the peer's memory is reached by load and store there is no such trip: more than
	// fits into one cache line with the flag would only be copied once more.
	usual := 256
	if device.LoadStore {
		usual = 32
	}
	switch {
	case wanted < 0:
		return min(usual, device.MaxInlineData)
	case wanted > device.MaxInlineData:
		must(usagef("--inline %d: the device accepts at most %d", wanted, device.MaxInlineData))
	}
	return wanted
}

// endpoint moves the QP to INIT, in which its port is known.
func (p *pair) endpoint() []byte {
	attr := verbs.QPAttr{QPState: verbs.QPInit, PortNum: 1, AccessFlags: verbs.AccessAll}
	must(p.qp.Modify(&attr, verbs.MaskState|verbs.MaskPKeyIndex|verbs.MaskPort|verbs.MaskAccessFlags))
	return must1(must1(p.qp.Endpoint()).MarshalBinary())
}

// recvWRs makes n receives into the receive buffer. They all name the same
// memory: its contents are checked only when one message is in flight.
func (p *pair) recvWRs(n int) []verbs.RecvWR {
	return slices.Repeat([]verbs.RecvWR{{SGList: []verbs.SGE{p.recv.SGE(0, p.recv.Len())}}}, n)
}

// close closes everything; the peer's operations fail from then on.
func (p *pair) close() {
	if p.ctx != nil {
		must(p.ctx.Close())
	}
}

// The queues had no room although their entries are accounted for.
var (
	errRecvFull = errors.New("receive queue is full")
	errSendFull = errors.New("send queue is full")
)

func (p *pair) postRecvs(wrs []verbs.RecvWR) {
	if n := must1(p.qp.PostRecv(wrs)); n < len(wrs) {
		must(fmt.Errorf("%w: took %d of %d", errRecvFull, n, len(wrs)))
	}
}

func (p *pair) post(wrs []verbs.SendWR) {
	if n := must1(p.qp.PostSend(wrs)); n < len(wrs) {
		must(errSendFull)
	}
}

// pause is called when polling found nothing. If ranks wait by spinning it returns at once, or
// yields if polling has spun. Otherwise its first call arms the queues, so that the caller polls
// once more and misses nothing, and the next one sleeps until an event.
func (p *pair) pause() {
	switch {
	case p.channel == nil && p.looks > 0:
		wait.Yield()
	case p.channel != nil && p.armed:
		p.armed = false
		// Unbounded: a peer that dies causes completions.
		must1(p.channel.Get(context.Background()))
	case p.channel != nil:
		p.armed = true
		must(p.sendCQ.ReqNotify(false))
		must(p.recvCQ.ReqNotify(false))
	}
}

// message is the work request of one message, unsignalled.
func (p *pair) message() verbs.SendWR {
	wr := verbs.SendWR{Opcode: p.op.opcode, RemoteAddr: p.remote.RecvAddr, RKey: p.remote.RecvRKey}
	from, bytes := p.send, p.bytes
	switch {
	case p.op.atomic: // on the peer's receive buffer; the old value goes to this rank's send buffer
		wr.CompareAdd, bytes = 1, atomicBytes
	case p.op.fetch: // the peer's send buffer into this rank's receive buffer
		wr.RemoteAddr, wr.RKey, from = p.remote.SendAddr, p.remote.SendRKey, p.recv
	case p.op.opcode == verbs.OpSend:
		wr.RemoteAddr, wr.RKey = 0, 0
	}
	switch {
	case bytes <= p.inline && !p.op.fetch:
		wr.Flags, wr.Inline = verbs.SendInline, p.send.Bytes()[:bytes]
	case bytes > 0:
		wr.SGList = []verbs.SGE{from.SGE(0, bytes)}
	}
	return wr
}

func (p *pair) await(cq *verbs.CQ) {
	for {
		var n int
		var err error
		if p.looks == 0 {
			n, err = cq.Poll(p.wcs[:1])
		} else {
			n, err = cq.PollSpin(p.wcs[:1], p.looks)
		}
		must(err)
		if n > 0 {
			if p.wcs[0].Status != verbs.WCSuccess {
				must(p.wcs[0].Err())
			}
			return
		}
		p.pause()
	}
}

// seed returns the seed of the data that a rank sends.
func (p *pair) seed(rank int) uint64 { return seedFor(rank, p.bytes, p.op.name) }

func (p *pair) prepare() {
	p.moved = 0
	if p.op.atomic {
		clear(p.send.Bytes())
		clear(p.recv.Bytes())
		return
	}
	fillPattern(p.send.Bytes()[:p.bytes], p.seed(p.rank))
	fillGuard(p.recv.Bytes())
}

// check checks the last message, as all go to the same memory; for atomics the word that they have
// changed, and the value that the last one found there.
func (p *pair) check() {
	switch {
	case p.op.atomic:
		if p.sends {
			p.checkWord(p.send.Bytes(), (p.moved-1)*p.step)
		}
		if p.takes {
			p.checkWord(p.recv.Bytes(), p.moved*p.step)
		}
	case p.op.fetch && p.sends, !p.op.fetch && p.takes:
		must(checkPattern(p.op.name, p.recv.Bytes()[:p.bytes+guard], p.bytes, p.seed(1-p.rank)))
	}
}

func (p *pair) checkWord(b []byte, want uint64) {
	compareBytes(p.op.name, b[:atomicBytes], binary.NativeEndian.AppendUint64(nil, want), atomicBytes)
}

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

// latency runs a ping-pong of one operation. Everything that an iteration touches is made
// beforehand: the loops only post and poll.
//
//	rank 0                      rank 1
//	post ──────── message ────▶ poll
//	repost receives             post
//	poll ◀─────── answer ────── repost receives
//
// Receives are posted in advance and replaced in batches, after a message that is already in
// flight. Only every so many sends is one signalled; its completion is taken at the next such send,
// when it has long been there.
type latency struct {
	*pair
	plain     []verbs.SendWR // one unsignalled message
	signalled []verbs.SendWR // the same, signalled
	recvs     []verbs.RecvWR
	spent     int // receives consumed and not yet replaced
	every     int // every so many sends one is signalled
	since     int // sends since
	posts     int // all sends, if they are counted
	owed      int // signalled sends whose completion was not taken yet
}

// Depth of the receive queue, and the number of receives that are replaced at once.
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

// post posts the message, signalled if it is its turn. If each one is signalled, its completion is
// taken at once, while the message or its answer is in flight, as perftest does.
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

// watching is the latency of plain writes. The peer learns of a write by reading the last byte, as
// perftest's ib_write_lat does: it has the number of the message. Reading also polls now and then:
// a provider may need that to move messages, and it detects a dead peer.
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

// prepare sets the last byte to the number of the previous message.
func (l *watching) prepare() {
	l.pair.prepare()
	l.recv.Bytes()[l.bytes-1] = l.number
}

// check first replaces the number in the message by the original byte.
func (l *watching) check() {
	l.recv.Bytes()[l.bytes-1] ^= l.number ^ patternByte(l.seed(1-l.rank), l.bytes-1)
	l.pair.check()
}

// watched returns a byte that the peer writes, by reading the aligned word around it.
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

// fetching is the latency of operations in which only rank 0 takes part: the figure is the whole
// operation.
type fetching struct {
	*latency
	goodbye []verbs.SendWR // an empty message that tells the peer of the end of a run
}

func (l *fetching) run(n int, samples []int64) {
	value := l.moved
	l.moved += uint64(n)
	if l.rank != 0 {
		return
	}
	swap := l.op.opcode == verbs.OpAtomicCmpAndSwp
	repeat(n, samples, func() {
		if swap { // each succeeds: it expects the value that the previous one has written
			l.signalled[0].CompareAdd, l.signalled[0].Swap = value, value+1
			value++
		}
		l.pair.post(l.signalled)
		l.await(l.sendCQ)
	})
}

// rest makes rank 1 poll until the end of a run is announced: software providers answer from
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
