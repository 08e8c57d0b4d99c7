package channel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/sluice-hpc/sluice/internal/layout"
	"github.com/sluice-hpc/sluice/internal/wait"
	"github.com/sluice-hpc/sluice/verbs"
)

// Handle is a message that is declared once and started many times: a send, a receive,
// or several of them together.
//
// A handle may be used by one goroutine at a time; different handles may be used
// concurrently, even on the same stream.
type Handle struct {
	node    *Node
	kind    handleKind
	copying bool // a goroutine copies the message, without the lock
	phase   phase
	inside  uint32                       // a goroutine is in Start, Test or Wait
	sleeper atomic.Pointer[wait.Sleeper] // of the goroutine that waits for it, if that sleeps
	err     error                        // with phaseFailed and phaseReceived
	k       uint64                       // number of the start on the stream
	flat    []byte                       // the message, if it is contiguous
	shape   layout.Shape                 // the message
	out     *sendStream                  // of a send
	in      *receiveStream               // of a receive
	mappedOp
	queueOp

	prev, next *Handle // active receives of the stream

	id          uint32
	version     uint32 // of the layout
	where       where  // the message, as its peer accesses it
	reachable   bool   // the peer can access it
	told        bool   // and remembers the handle
	said        saidLayout
	fresh       bool   // the layout of a message used once, which is not that of the one before
	laid        uint64 // the mark of that layout
	cancellable bool   // no gate before the message has come
	priority    int
	memories    []*Memory
	lent        *Memory   // that a message used once lies in, if it is short
	recent      *Memory   // that one lay in last
	members     []*Handle // of a multiple
	started     []error   // of a multiple: of the members that could not be started

	began   uint32 // tick of the node at the start
	outcome error  // of a wait that is over

	notice *notice // of this start, if the herald is to announce it: see Done
}

// mappedOp is what a message over mapped memory needs of its own.
type mappedOp struct {
	tried   uint32                       // the gate has been tried; atomic
	gated   bool                         // the gate is ours
	awaited bool                         // a receive whose message had not come at a test; of the caller
	packed  bool                         // a send that goes through the pipe
	past    bool                         // it is packed with GatherPast
	timed   bool                         // it is timed
	took    time.Duration                // packing or unpacking it, if it is
	first   uint64                       // its first piece
	moved   int                          // bytes of the message put into the pipe, or taken out of it
	remote  atomic.Pointer[remoteLayout] // the other side's layout that was seen last
}

// queueOp is what a message through a queue needs of its own.
type queueOp struct {
	staging  *verbs.MR             // contiguous memory in place of small blocks
	regs     []*verbs.MR           // without staging: one for each of the layout's slices
	source   layout.Shape          // where the message is taken from
	lkeys    []uint32              // one for each part of source
	own      []*registration       // those of regs that are not of a Memory
	dev      *device               // the device of these registrations
	bindErr  atomic.Pointer[error] // why the memory cannot be used towards this peer
	transfer transfer
	far      *layoutInfo // the other side's memory that was seen last
	farAt    where       // of far
}

type handleKind uint8

const (
	kindSend handleKind = iota
	kindReceive
	kindMultiple
)

func (k handleKind) String() string { return [...]string{"send", "receive", "multiple"}[k] }

// phase is the state of a start, written under the stream's lock.
type phase struct{ v uint32 }

const (
	phaseIdle     uint32 = iota
	phasePending         // send: not in the ring yet
	phaseOffered         // send: the receiver knows where the message is
	phaseSent            // send: complete
	phaseWaiting         // receive
	phaseReceived        // receive: complete, with err
	phaseFailed          // err says why
	phaseGroup           // multiple: some member may be active
	phaseClosed
)

func (p *phase) Load() uint32   { return atomic.LoadUint32(&p.v) }
func (p *phase) store(v uint32) { wait.StoreRelease32(&p.v, v) }

func (h *Handle) setPhase(v uint32) { h.phase.store(v) }

// end sets a phase that ends a wait. The caller holds the lock of the stream.
func (h *Handle) end(v uint32) {
	h.setPhase(v)
	h.rouse()
}

// rouse wakes the goroutine that sleeps until the handle is complete, if one does.
func (h *Handle) rouse() {
	switch t := h.sleeper.Load(); t {
	case nil:
	case heralded:
		h.node.herald.wake()
	default:
		h.node.sleepers.Wake(t)
	}
}

// sleepsIn sets the sleeper that is woken by what ends the handle; nil: none but the herald, if that
// waits for it.
func (h *Handle) sleepsIn(t *wait.Sleeper) {
	if h.kind == kindMultiple {
		for _, m := range h.members {
			m.sleepsIn(t)
		}
		return
	}
	if t == nil && h.notice != nil {
		t = heralded
	}
	if h.sleeper.Store(t); t != nil {
		h.pass()
	}
	if t == heralded { // meanwhile it was not
		h.node.herald.wake()
	}
}

// pass returns when each goroutine that is ending the handle has done so, or will see the sleeper.
func (h *Handle) pass() {
	if h.kind == kindMultiple {
		for _, m := range h.members {
			m.pass()
		}
		return
	}
	var q *queue
	var l *wait.Lock
	if h.kind == kindSend {
		q, l = h.out.q.Load(), &h.out.lock
	} else {
		q, l = h.in.q.Load(), &h.in.lock
	}
	if q != nil {
		l = &q.lock
	}
	l.Pass()
}

// rung says whether the other side rings before it is seen to have done something for the handle. Over a
// network the engine of the device does, which a look may forestall.
func (h *Handle) rung() bool {
	if h.kind == kindMultiple {
		return !slices.ContainsFunc(h.members, func(m *Handle) bool { return !m.rung() })
	}
	return h.queued() == nil
}

// ended says whether the handle is complete, but for its own goroutine's look.
func (h *Handle) ended() bool {
	if h.kind == kindMultiple {
		return slices.ContainsFunc(h.members, (*Handle).ended)
	}
	p := h.phase.Load()
	return p == phaseSent || p == phaseReceived || p == phaseFailed
}

// incomplete says whether something has yet to happen until the handle is complete.
func (h *Handle) incomplete() bool {
	if h.kind == kindMultiple {
		return h.phase.Load() == phaseGroup && slices.ContainsFunc(h.members, (*Handle).incomplete)
	}
	p := h.phase.Load()
	return p == phasePending || p == phaseOffered || p == phaseWaiting
}

// further makes the progress that a test would, for any goroutine, and says whether the handle is
// complete: the next test says so, too.
func (h *Handle) further() bool {
	switch {
	case !h.incomplete():
	case h.kind == kindSend:
		h.out.further(h)
	case h.kind == kindReceive:
		h.in.further(h)
	}
	for _, m := range h.members {
		m.further()
	}
	return !h.incomplete()
}

// ready says whether the next test may find progress. Any goroutine may call it.
func (h *Handle) ready() bool {
	switch h.kind {
	case kindSend:
		return h.out.ready(h)
	case kindReceive:
		return h.in.ready(h)
	}
	active := false
	for _, m := range h.members {
		if m.Active() {
			if m.ready() {
				return true
			}
			active = true
		}
	}
	return !active
}

// Start begins the next message (MPI_Start, QMP_start) and never blocks. A send that
// has no matching receive yet, or a receive whose message has not arrived, progresses
// by itself or when a handle of the node is tested. Data that can move at once does:
// over shared memory, the second of two matching Starts copies the message. The k-th
// send started on a stream matches the k-th receive. Until Test or Wait reports
// completion, the bytes of the layout belong to the handle.
//
// Errors: [ErrActive]; [ErrClosed]; [ErrPeerDied], [ErrPeerLeft] or [ErrUnreachable] if
// the peer is gone; [ErrLength] if the receiver found a wrong length in an earlier send
// on this stream that had already completed. After an error nothing was started. A
// multiple starts those members that it can; Wait returns the errors of the others as
// well.
func (h *Handle) Start() error {
	if !h.enter() {
		return h.errorf("start", ErrClosed)
	}
	err := h.start()
	h.exit()
	return err
}

func (h *Handle) start() error {
	if h.phase.Load() != phaseIdle || h.bindErr.Load() != nil {
		return h.cannotStart()
	}
	switch h.kind {
	case kindSend:
		return h.out.start(h)
	case kindReceive:
		return h.in.start(h)
	}
	return h.startMembers()
}

func (h *Handle) cannotStart() error {
	switch {
	case h.phase.Load() == phaseClosed:
		return h.errorf("start", ErrClosed)
	case h.phase.Load() == phaseIdle:
		return h.errorf("start", *h.bindErr.Load())
	}
	return h.errorf("start", errActive)
}

// Test reports whether the message is complete, and makes progress if it is not
// (MPI_Test, QMP_is_complete). When it returns true the handle is idle again, and the
// error, if any, is that of this start. An idle handle is always complete.
//
// Errors of a start: [ErrLength], [ErrPeerDied], [ErrPeerLeft], [ErrUnreachable],
// [ErrAborted], [ErrProtocol]. After an error the bytes of the layout are undefined;
// nothing outside it was touched.
func (h *Handle) Test() (bool, error) {
	done, err := h.testOnce()
	if !done {
		h.node.policy.Tested()
	}
	return done, err
}

func (h *Handle) testOnce() (bool, error) {
	if !h.enter() {
		return true, h.errorf("test", ErrClosed)
	}
	done, err := h.test()
	h.exit()
	return done, err
}

// Active reports whether the handle has been started and neither Test nor Wait has
// reported its completion. It makes no progress.
func (h *Handle) Active() bool {
	v := h.phase.Load()
	return v != phaseIdle && v != phaseClosed
}

func (h *Handle) test() (bool, error) {
	var done bool
	var err error
	switch h.phase.Load() {
	case phaseIdle:
		return true, nil
	case phaseClosed:
		return true, h.errorf("test", ErrClosed)
	case phaseGroup:
		done, err = h.testMembers()
	case phaseWaiting:
		done, err = h.in.test(h)
	case phaseReceived: // by a goroutine that waited for something else
		done, err = true, h.err
	default:
		done, err = h.out.test(h)
	}
	if done {
		h.err = nil
		h.setPhase(phaseIdle)
		if h.notice != nil {
			h.unwatch()
		}
	}
	return done, err
}

// Wait blocks until the message is complete and returns the error that Test would
// (MPI_Wait, QMP_wait). It returns at once if the handle is idle.
func (h *Handle) Wait() error {
	if !h.enter() {
		return h.errorf("wait", ErrClosed)
	}
	defer h.exit()
	if done, err := h.test(); done {
		return err
	}
	return h.await(context.Background())
}

// WaitContext is Wait, bounded by ctx. If ctx ends first, WaitContext returns
// [ErrTimeout] for a deadline, else the error of ctx; the message continues and the
// handle stays active.
func (h *Handle) WaitContext(ctx context.Context) error {
	if !h.enter() {
		return h.errorf("wait", ErrClosed)
	}
	defer h.exit()
	return h.await(ctx)
}

// Run starts the handle and waits for completion: Start, then WaitContext.
func (h *Handle) Run(ctx context.Context) error {
	if err := h.Start(); err != nil {
		return err
	}
	return h.WaitContext(ctx)
}

// WaitAll waits for all handles, which must be of one node, and returns their errors
// joined (MPI_Waitall, QMP_wait_all).
func WaitAll(handles ...*Handle) error { return WaitAllContext(context.Background(), handles...) }

// WaitAllContext is WaitAll, bounded by ctx as in [Handle.WaitContext].
func WaitAllContext(ctx context.Context, handles ...*Handle) error {
	var errs []error
	for _, h := range handles {
		if err := h.WaitContext(ctx); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Multiple combines several handles into one (QMP_declare_multiple). Starting it starts
// all members, receives first, then in order of priority; it completes when all have.
// The members still belong to the caller: they can be waited for one by one, and
// outlive the multiple.
func (n *Node) Multiple(handles ...*Handle) (*Handle, error) {
	h := &Handle{node: n, kind: kindMultiple, members: slices.Clone(handles)}
	for i, m := range handles {
		switch {
		case m == nil || m.node != n:
			return nil, nodeError("declare multiple", fmt.Errorf("%w: member %d is not a handle of this node", ErrInvalid, i))
		case m.kind == kindMultiple:
			return nil, nodeError("declare multiple", fmt.Errorf("%w: member %d is a multiple", ErrInvalid, i))
		case slices.Contains(handles[:i], m):
			return nil, nodeError("declare multiple", fmt.Errorf("%w: member %d comes twice", ErrInvalid, i))
		}
	}
	slices.SortStableFunc(h.members, func(a, b *Handle) int {
		if a.kind != b.kind {
			return int(b.kind) - int(a.kind)
		}
		return b.priority - a.priority
	})
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, nodeError("declare multiple", ErrClosed)
	}
	n.multiples[h] = struct{}{}
	return h, nil
}

func (h *Handle) startMembers() error {
	for _, m := range h.members {
		if m.phase.Load() != phaseIdle {
			return m.cannotStart()
		}
	}
	h.started = h.started[:0]
	h.setPhase(phaseGroup)
	for _, m := range h.members {
		if err := m.start(); err != nil {
			h.started = append(h.started, err)
		}
	}
	return errors.Join(h.started...)
}

func (h *Handle) testMembers() (bool, error) {
	all := true
	for _, m := range h.members {
		done, err := m.test()
		if err != nil {
			h.started = append(h.started, err)
		}
		all = all && done
	}
	if !all {
		return false, nil
	}
	return true, errors.Join(h.started...)
}

// enter announces access to memory that is freed when the node is closed; false if it is being
// closed. The store is plain: Node.Close reads the flag after a barrier that reaches this CPU
// too.
func (h *Handle) enter() bool {
	wait.StoreRelaxed32(&h.inside, 1)
	return atomic.LoadUint32(&h.node.guarded) == 0 || h.enterGuarded()
}

func (h *Handle) enterGuarded() bool {
	atomic.StoreUint32(&h.inside, 1)
	if h.node.closing.Load() {
		h.exit()
		return false
	}
	return true
}

// exit ends the access announced by enter.
func (h *Handle) exit() { wait.StoreRelease32(&h.inside, 0) }

func (h *Handle) errorf(op string, err error) error {
	e := &Error{Op: op, Rank: -1, Stream: -1, Err: err}
	switch h.kind {
	case kindSend:
		e.Op, e.Rank, e.Stream, e.Start = op+" send", h.out.peer.rank, int(h.out.number), h.k
	case kindReceive:
		e.Op, e.Rank, e.Stream, e.Start = op+" receive", h.in.peer.rank, int(h.in.number), h.k
	}
	return e
}

func (h *Handle) lengthError(other int) error {
	return &Error{Op: "receive", Rank: h.in.peer.rank, Stream: int(h.in.number), Start: h.k, Len: h.shape.Len(), Other: other, Err: ErrLength}
}

func (h *Handle) broken(format string, args ...any) error {
	e := &Error{Op: "send", Rank: h.peer().rank, Start: h.k}
	if h.kind == kindReceive {
		e.Op, e.Stream = "receive", int(h.in.number)
	} else {
		e.Stream = int(h.out.number)
	}
	e.Err = fmt.Errorf("%w: "+format, append([]any{ErrProtocol}, args...)...)
	return e
}
