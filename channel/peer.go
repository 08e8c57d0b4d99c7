package channel

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/sluice-hpc/sluice/internal/layout"
	"github.com/sluice-hpc/sluice/internal/limits"
	"github.com/sluice-hpc/sluice/verbs"
)

// States of a peer, in this order.
const (
	peerIdle       int32 = iota // nothing has been declared towards it
	peerConnecting              // wire-up
	peerUp
	peerFailed // err says why
)

// peer is this rank's state for another rank, or for itself.
type peer struct {
	node  *Node
	rank  int
	state atomic.Int32
	bell  ringer // the peer's; our own until that is known
	// fenced: this rank or the peer lacks membarrier, so publishing needs a full fence.
	fenced bool

	err atomic.Pointer[error] // with peerFailed

	retries atomic.Uint64 // failed attempts to connect: addresses and providers

	layoutMu sync.Mutex
	layouts  map[uint32]*remoteLayout // what the peer has declared, by handle

	out0 atomic.Pointer[sendStream]    // number 0, once it is used
	in0  atomic.Pointer[receiveStream] // likewise

	mu       sync.Mutex // taken before the locks of streams
	sends    map[uint32]*sendStream
	receives map[uint32]*receiveStream
	handles  map[*Handle]struct{}            // declared
	told     int                             // of them, known to the peer
	closed   map[uint32]*streamMemory        // of streams over mapped memory that the peer may still access
	heard    map[uint32]struct{}             // and those that the peer has finished with before we have
	past     struct{ sent, received Counts } // of streams over mapped memory that are closed
	resting  map[uint32]uint32               // streams of the node's that rest, and since which tick
	had      map[uint32]had                  // of streams that have given their memory back
	stopDial func()                          // ends the dial, nil if there has been none
	hopeless bool                            // dialing has failed: no connection is taken any more
	offers   int                             // connections that the peer has proved, of which it is not decided whether they are used
	proved   bool                            // one of ours likewise
	conn     net.Conn                        // the control connection
	met      chan struct{}                   // closed when there is one
	refusals []Refusal                       // of the wire-up
	link     *link                           // the queue pair; nil for this rank itself
	queue    *queue                          // on a link without load and store
	out      [][]byte                        // control messages to be written
	once     map[topic]struct{}              // those of out that are not to be in it twice
	wake     chan struct{}                   // capacity 1: out has grown, or the peer has failed
	bye      bool                            // ours is in out
	served   chan struct{}                   // closed when the connection has ended
	pings    atomic.Uint64                   // how many pings are to be sent
	pong     atomic.Uint64                   // number of the pong that is to be sent; 0: none

	unwritten, lacking duty // see the node's
}

// remoteLayout is the layout of a peer's handle over the peer's memory as we access it. It is
// mapped when a message needs it: until then the peer may close the handle at any time.
type remoteLayout struct {
	where
	mapped bool
	shape  layout.Shape
	info   layoutInfo // until it is mapped
}

// find returns memory of the peer, nil if it is not known yet. An error says that there is no such
// memory: the peer violates the protocol, or has closed the memory, which is allowed once the message is
// complete.
func (p *peer) find(at where, length uint64) (*remoteLayout, error) {
	if at.addr != 0 {
		return p.mapOnce(at, length)
	}
	p.layoutMu.Lock()
	defer p.layoutMu.Unlock()
	l := p.layouts[at.handle]
	if l == nil || l.version != at.version {
		return nil, nil
	}
	if !l.mapped {
		s, err := p.link.shape(&l.info)
		switch {
		case err == nil:
			l.shape, l.mapped, l.info = s, true, layoutInfo{}
		case errors.Is(err, verbs.ErrState): // an arena has not arrived yet
			p.node.mute.Add(1)
			return nil, nil
		default:
			return nil, fmt.Errorf("%w: handle %d: %w", ErrProtocol, at.handle, err)
		}
	}
	return l, nil
}

// mapOnce returns contiguous memory of the peer.
func (p *peer) mapOnce(at where, length uint64) (*remoteLayout, error) {
	if p.link == nil || length > math.MaxInt {
		return nil, fmt.Errorf("%w: message of %d bytes at %#x", ErrProtocol, length, at.addr)
	}
	b, err := p.link.qp.Map(at.version, at.addr, int(length))
	switch {
	case err == nil:
		return &remoteLayout{where: at, shape: layout.Flat(b)}, nil
	case errors.Is(err, verbs.ErrState): // its arena has not arrived yet
		p.node.mute.Add(1)
		return nil, nil
	}
	return nil, fmt.Errorf("%w: message of %d bytes at %#x: %w", ErrProtocol, length, at.addr, err)
}

// setLayout stores a layout that the peer has declared; false if there are too many. This rank's
// declarations towards itself are not bounded.
func (p *peer) setLayout(l *remoteLayout) bool {
	p.layoutMu.Lock()
	defer p.layoutMu.Unlock()
	if p.layouts[l.handle] == nil && len(p.layouts) >= maxLayouts && p.rank != p.node.rank {
		return false
	}
	p.layouts[l.handle] = l
	p.node.lacking.set(&p.lacking, false)
	return true
}

func (p *peer) dropLayout(handle uint32) {
	p.layoutMu.Lock()
	defer p.layoutMu.Unlock()
	delete(p.layouts, handle)
}

// opError is the error of an operation with a peer that has failed.
func (p *peer) opError(op string, stream uint32, k uint64) error {
	return p.opErrorOf(op, stream, k, *p.err.Load())
}

// withdrawn is the error of an operation that the peer has withdrawn: it leaves, or holds this rank
// for dead, perhaps because this one has ended the connection.
func (p *peer) withdrawn(op string, stream uint32, k uint64) error {
	if p.state.Load() >= peerFailed {
		return p.opError(op, stream, k)
	}
	return p.opErrorOf(op, stream, k, ErrPeerLeft)
}

func (p *peer) opErrorOf(op string, stream uint32, k uint64, err error) error {
	return &Error{Op: op, Rank: p.rank, Stream: int(stream), Start: k, Err: err}
}

// gone says whether the peer can no longer access our memory: its process has ended, or has
// unmapped it. The end of a connection does not imply that, nor that of a queue pair to a peer that
// has mapped it.
func (p *peer) gone() bool {
	switch {
	case p.rank == p.node.rank:
		return false
	case p.link == nil:
		return true
	case p.link.dev.mapped:
		return errors.Is(p.link.qp.Cause(), verbs.ErrPeerDied)
	}
	return p.link.qp.State() == verbs.QPErr
}

// fail ends everything with the peer, and hangs up.
func (p *peer) fail(err error) {
	p.end(err)
	p.mu.Lock()
	conn := p.conn
	p.mu.Unlock()
	if conn != nil {
		conn.(interface{ CloseWrite() error }).CloseWrite() // a copy of this process (fork) may have it open
		conn.Close()
	}
}

// failLater is fail for callers that hold locks which fail takes.
func (p *peer) failLater(err error) { p.node.wg.Go(func() { p.fail(err) }) }

// end ends everything with the peer, once; the control connection stays.
func (p *peer) end(err error) {
	p.mu.Lock()
	if p.state.Load() >= peerFailed {
		p.mu.Unlock()
		return
	}
	q := p.queue
	if q != nil {
		q.end() // what has arrived is received first
	}
	err = limits.Files(err)
	p.err.Store(&err)
	p.state.Store(peerFailed)
	p.node.unwritten.set(&p.unwritten, false)
	p.node.lacking.set(&p.lacking, false)
	p.bury()
	p.nudge()
	p.mu.Unlock()
	p.node.sleepers.WakeAll()
}

// nudge wakes the writer.
func (p *peer) nudge() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// tellLayout queues the layout of a handle, in place of an earlier one that has not
// been written: a peer that is stopped does not read. It leaves that out if this is the
// layout that the peer was told last. The caller holds mu.
func (p *peer) tellLayout(h *Handle) {
	d := h.describe()
	said := &h.said
	if bytes.Equal(d[layoutVersionEnd:], said.rest) && slices.Equal(h.regs, said.regs) {
		h.where.version = said.version
		return
	}
	*said = saidLayout{}
	if rest := d[layoutVersionEnd:]; len(h.own) == 0 && len(rest) <= saidMost {
		*said = saidLayout{h.version, rest, slices.Clone(h.regs)}
	}
	if h.version > 0 {
		p.out = slices.DeleteFunc(p.out, func(b []byte) bool {
			return kind(b[0]) == kindLayout && binary.BigEndian.Uint32(b[headerLen:]) == h.id
		})
	}
	p.tell(kindLayout, d)
}

// saidLayout is the layout of a handle that the peer has been told last, if it is short and over memory of Alloc.
type saidLayout struct {
	version uint32
	rest    []byte      // of the message: what follows on the version
	regs    []*verbs.MR // whose keys may be used again for others
}

// saidMost bounds what is kept of the layout of each handle.
const saidMost = 1 << 10

// tell queues a control message. The caller holds mu.
func (p *peer) tell(k kind, body []byte) {
	p.out = append(p.out, frame(nil, k, body))
	p.awaits(&p.node.unwritten, &p.unwritten)
	p.nudge()
}

// topic is what a control message is about of which the peer gets one at a time: a further one only when this
// one has been written. What a peer makes this rank say is bounded by that: one that is told more often than it
// reads is at fault, or need not be told.
type topic struct {
	kind kind
	what byte   // of a kindRest
	of   uint64 // stream or group
}

// tellOnce queues a control message unless one about the same has not been written, and says whether it did.
// The caller holds mu.
func (p *peer) tellOnce(t topic, body []byte) bool {
	if _, queued := p.once[t]; queued {
		return false
	}
	if p.once == nil {
		p.once = map[topic]struct{}{}
	}
	p.once[t] = struct{}{}
	p.tell(t.kind, body)
	return true
}

// learn handles a layout that the peer has declared.
func (p *peer) learn(l layoutInfo) error {
	if !p.setLayout(&remoteLayout{where: where{handle: l.handle, version: l.version}, info: l}) {
		return fmt.Errorf("%w: more than %d layouts", ErrProtocol, maxLayouts)
	}
	if p.queue != nil { // set before the first message is read
		p.queue.lock.Lock()
		p.queue.retryGates()
		p.queue.lock.Unlock()
	}
	return nil
}

// maxStreams bounds the streams that a peer can make us keep. Those above MaxStream belong to
// groups.
const maxStreams = 1 << 17

// maxLayouts bounds the layouts of handles that each side keeps of the other. It is a variable
// only for tests.
var maxLayouts = 1 << 20

func (p *peer) addStream(s streamInfo) error {
	if p.closedHere(s.number) {
		return nil
	}
	mem, err := p.link.view(p.node.life, s.region, ringSize)
	switch {
	case err != nil && p.closedHere(s.number): // closed in between
		return nil
	case err != nil:
		return err
	}
	r, err := viewRing(mem)
	if err != nil {
		return err
	}
	in, err := p.setRing(s.number, r)
	if in == nil {
		return err
	}
	in.drive()
	p.bell.ring() // a sender that sleeps may be the one that can copy, now that there are gates
	return nil
}

// setRing gives a stream from the peer its ring. It returns nil if the stream has been closed here since the
// peer announced that.
func (p *peer) setRing(number uint32, r *ring) (*receiveStream, error) {
	if number >= maxStreams {
		return nil, fmt.Errorf("%w: stream %d, at most %d", ErrProtocol, number, maxStreams-1)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed[number] != nil {
		return nil, nil
	}
	in := p.receiveLocked(number)
	in.lock.Lock()
	defer in.lock.Unlock()
	if in.r.Load() != nil {
		return nil, fmt.Errorf("%w: stream %d twice", ErrProtocol, number)
	}
	in.emptied = atomic.LoadUint64(&r.emptied) // of one that is announced again
	in.r.Store(r)
	for h := in.first; h != nil; h = h.next { // of a program that now computes, perhaps
		if h.shape.Len() > gateMin {
			in.openGate(h, r)
		}
	}
	if in.users == 0 {
		p.rests(number)
	}
	return in, nil
}

// receiveLocked returns the stream, making it if needed.
func (p *peer) receiveLocked(number uint32) *receiveStream {
	s := p.receives[number]
	if s == nil {
		s = &receiveStream{peer: p, number: number, next: p.had[number].received}
		p.receives[number] = s
		if number == 0 {
			p.in0.Store(s)
		}
		if p.queue != nil {
			p.queue.adoptReceive(s)
		} else {
			appendTo(&p.node.receives, s)
		}
	}
	return s
}

func (p *peer) sendLocked(number uint32) (*sendStream, error) {
	if s := p.sends[number]; s != nil {
		return s, nil
	}
	s := &sendStream{peer: p, number: number, next: p.had[number].sent}
	s.freed = s.next
	if p.rank != p.node.rank && p.queue == nil && p.state.Load() == peerUp {
		r, err := p.openRing(s)
		if err != nil {
			return nil, err
		}
		s.begin(r, p.fenced)
	}
	p.sends[number] = s
	if number == 0 {
		p.out0.Store(s)
	}
	switch {
	case p.rank == p.node.rank:
		r := newRing(alignedMemory(ringSize))
		s.begin(r, true)
		p.receiveLocked(number).r.Store(r)
	case p.queue != nil:
		p.queue.adoptSend(s)
	}
	return s, nil
}

// alignedMemory returns Go heap memory that is aligned to a pair of cache lines.
func alignedMemory(n int) []byte {
	b := make([]byte, n+128)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & 127
	return b[skip : skip+n : skip+n]
}

// remoteInfo returns the memory that a message of the peer names, nil if it is not known yet.
func (p *peer) remoteInfo(at where, length uint64) *layoutInfo {
	if at.addr != 0 {
		n := int(min(length, math.MaxInt))
		return &layoutInfo{handle: at.handle, regions: []region{{at.version, at.addr, length}}, parts: []remotePart{{0, 0, n, 1, 0}}, total: n, blocks: 1}
	}
	p.layoutMu.Lock()
	defer p.layoutMu.Unlock()
	if l := p.layouts[at.handle]; l != nil && l.version == at.version {
		return &l.info
	}
	return nil
}
