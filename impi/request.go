package impi

import (
	"context"
	"fmt"
	"time"

	"github.com/sluice-hpc/sluice/internal/layout"
)

// Wildcards of receives and probes.
const (
	AnySource = -1
	AnyTag    = -1
)

// Status describes a message that was received or probed.
type Status struct {
	Source    int // rank of the sender in the communicator
	Tag       int
	Len       int  // length of the message in bytes, even if it was truncated
	Cancelled bool // [Request.Cancel] succeeded: nothing was sent or received
}

// Request is a send or a receive that has been started (MPI_Request). It is a value and allocates
// nothing. It ends with the Test or Wait that finds it complete; after that, and for the zero
// Request, Test and Wait return at once with an empty status. Its methods may be called from
// several goroutines.
type Request struct {
	r   *request
	gen uint32
}

// requestKind is what a request does.
type requestKind uint8

const (
	sending requestKind = iota
	receiving
	probing
)

// requestState is the state of a request.
type requestState uint8

const (
	idle      requestState = iota
	queued                 // a send: its first packet has not gone; a receive: no message has matched it
	moving                 // its first packet has gone, or a message has matched it
	unpacking              // a receive: all has come, and is being put where it belongs; see unpackAll
	done
)

// request is what a Request refers to. The lock of the engine guards it.
type request struct {
	next, prev *request
	list       *requests // that it is in

	e     *engine
	index uint32
	gen   uint32
	state requestState
	kind  requestKind
	sync  bool // complete only when matched
	acked bool // the receiver has said that it is

	cancelling bool  // an answer to CANCEL is awaited
	asked      bool  // CANCEL has been sent
	refused    error // why the receiver has dropped the message
	detached   bool  // it will not be collected
	freed      bool  // by Free: Close reports its failure

	comm  *Comm
	match *matcher
	pair  *pair // with the peer; nil within the host and for AnySource
	peer  int32 // rank in the job; -1: any
	tag   int32
	order uint64

	packing
	vec    [][]byte // user memory, or what it is packed into
	one    [1][]byte
	total  uint64 // bytes of vec
	length uint64 // of the message
	moved  uint64 // bytes that have gone or come
	piece  int    // of vec that comes next
	within int    // and from where in it
	theirs uint64 // the peer's request id
	seq    uint64 // over TCP, of a send: the message's number within the pair, from 1

	transfer *rcTransfer // over RC: of the rest of a long message
	fencing  bool        // over RC: its link is lost, and it ends with the fence
	known    bool        // over RC, of a receive: the sender uses Alloc memory
	began    time.Time   // over RC: when the sender was invited to write
	way      int         // over RC: in which the rest of a long message goes or comes
	fetched  *message    // over RC, of the engine's own receive: the message that it fetches

	status Status
	err    error
	notice chan struct{} // to be closed when it completes; nil: Done has not been called
}

// id names the request to peers. It is never 0 and is not reused soon.
func (r *request) id() uint64 { return uint64(r.gen)<<32 | uint64(r.index) }

// window returns the next bytes of the memory that are contiguous, at most n.
func (r *request) window(n uint64) []byte {
	for r.piece < len(r.vec) {
		b := r.vec[r.piece][r.within:]
		if len(b) > 0 {
			return b[:min(uint64(len(b)), n)]
		}
		r.piece++
		r.within = 0
	}
	return nil
}

// advance moves on by n bytes, all of which lie in the piece that window returned.
func (r *request) advance(n int) {
	r.moved += uint64(n)
	r.within += n
}

// copyOut copies the next len(dst) bytes of a send to dst.
func (r *request) copyOut(dst []byte) {
	if r.moved == 0 && len(r.vec) == 1 {
		r.within = layout.Copy(dst, r.vec[0])
		r.moved = uint64(r.within)
		return
	}
	for len(dst) > 0 {
		n := layout.Copy(dst, r.window(uint64(len(dst))))
		r.advance(n)
		dst = dst[n:]
	}
}

// copyOutPast is copyOut past the caches.
func (r *request) copyOutPast(dst []byte) {
	for len(dst) > 0 {
		n := layout.CopyPast(dst, r.window(uint64(len(dst))))
		r.advance(n)
		dst = dst[n:]
	}
}

// copyIn copies src to where the next bytes of a receive belong and drops what does not fit.
func (r *request) copyIn(src []byte) {
	if r.moved == 0 && len(r.vec) == 1 && len(src) <= len(r.vec[0]) {
		r.within = layout.Copy(r.vec[0], src)
		r.moved = uint64(r.within)
		return
	}
	for len(src) > 0 {
		w := r.window(uint64(len(src)))
		if len(w) == 0 {
			r.moved += uint64(len(src))
			return
		}
		n := layout.Copy(w, src)
		r.advance(n)
		src = src[n:]
	}
}

// setMemory gives the request its memory.
func (r *request) setMemory(buf []byte, vec [][]byte) {
	if vec == nil {
		r.one[0] = buf
		vec = r.one[:]
	}
	r.vec, r.total = vec, 0
	for _, b := range vec {
		r.total += uint64(len(b))
	}
}

// newRequest returns a request that is idle. The caller holds the lock.
func (e *engine) newRequest() *request {
	r := e.pool
	if r == nil {
		r = &request{e: e, index: uint32(len(e.table))}
		e.table = append(e.table, r)
	} else {
		e.pool = r.next
		r.next = nil
	}
	r.gen = max(r.gen+1, 1)
	return r
}

// release puts back a request that nothing refers to any more.
func (e *engine) release(r *request) {
	r.gen++
	r.state, r.sync, r.acked, r.cancelling, r.asked, r.detached, r.freed = idle, false, false, false, false, false, false
	r.comm, r.match, r.pair = nil, nil, nil
	r.length, r.moved, r.piece, r.within, r.theirs = 0, 0, 0, 0, 0
	r.transfer, r.known, r.began, r.way = nil, false, time.Time{}, byStage
	r.status, r.err, r.refused = Status{}, nil, nil
	r.next, e.pool = e.pool, r
}

// lookup returns the request that a peer names; nil if there is none.
func (e *engine) lookup(id uint64) *request {
	i := uint32(id)
	if uint64(i) >= uint64(len(e.table)) {
		return nil
	}
	r := e.table[i]
	if r.state == idle || r.gen != uint32(id>>32) {
		return nil
	}
	return r
}

// finish completes a request.
func (e *engine) finish(r *request, err error) {
	if r.fetched != nil {
		e.fetched(r)
		return
	}
	if err != nil {
		e.lost.note(r, err)
	}
	if r.packed != nil && e.polling && r.length >= unpackApart && r.unpacks(err) {
		e.unpackLater(r, err)
		return
	}
	e.conclude(r, err)
}

// conclude is finish, of a request whose error has been noted.
func (e *engine) conclude(r *request, err error) {
	if r.packed != nil {
		e.unpack(r, err)
	}
	r.state, r.err = done, err
	r.vec, r.one[0] = nil, nil
	if r.notice != nil {
		close(r.notice)
		r.notice = nil
		e.notices--
	}
	if r.detached {
		e.release(r)
	}
	e.ring()
}

// collect returns the outcome of a complete request and releases it.
func (r *request) collect() (Status, error) {
	st, err := r.status, r.err
	if r.kind == sending {
		st.Source, st.Tag, st.Len = r.comm.me, int(r.tag), int(r.length)
	}
	if err != nil {
		err = r.fault(err)
	}
	r.e.release(r)
	return st, err
}

var opNames = [...]string{sending: "send", receiving: "receive", probing: "probe"}

// fault adds the operation, the peer and the tag to an error.
func (r *request) fault(err error) error {
	if _, ok := err.(*Error); ok {
		return err
	}
	return &Error{Op: opNames[r.kind], Rank: r.comm.rankOf(r.peer), Tag: int(r.tag), Err: err}
}

func (r *request) over() bool { return r.state == done }

func (r *request) sleeper() sleeper { return Request{r, r.gen}.sleeper() }

// Test reports whether the request is complete and, if so, its outcome (MPI_Test). It makes
// progress on this request and on all others. The error of a send or receive that failed is
// described at [Comm.Isend] and [Comm.Irecv].
func (q Request) Test() (bool, Status, error) {
	if q.r == nil {
		return true, Status{}, nil
	}
	ok, st, err := q.test()
	if !ok && err == nil {
		q.r.e.policy.Tested()
	}
	return ok, st, err
}

func (q Request) test() (bool, Status, error) {
	e := q.r.e
	e.lock.Lock()
	defer e.lock.Unlock()
	if q.r.gen != q.gen {
		return true, Status{}, nil
	}
	if !q.r.over() {
		e.polls++
		if e.progress(); q.r.gen != q.gen {
			return true, Status{}, nil
		}
		if !q.r.over() {
			if e.fences > 0 { // a fence will complete it
				return false, Status{}, nil
			}
			return false, Status{}, e.broken
		}
	}
	st, err := q.r.collect()
	return true, st, err
}

// Wait returns when the request is complete (MPI_Wait). If ctx ends first, it returns [ErrTimeout]
// or the error of ctx, and the request stays active.
func (q Request) Wait(ctx context.Context) (Status, error) {
	if q.r == nil {
		return Status{}, nil
	}
	e := q.r.e
	e.lock.Lock()
	defer e.lock.Unlock()
	if q.r.gen != q.gen {
		return Status{}, nil
	}
	if err := await(ctx, e, q); err != nil {
		if q.r.gen == q.gen {
			err = q.r.fault(err)
		}
		return Status{}, err
	}
	if q.r.gen != q.gen { // another goroutine has collected it
		return Status{}, nil
	}
	return q.r.collect()
}

func (q Request) over() bool { return q.r.gen != q.gen || q.r.over() }

func (q Request) sleeper() sleeper { return sleeper{only: q} }

// Done returns a channel that is closed when the request is complete, for a select beside timers and other
// channels. It takes nothing from the completion: Test returns true afterwards, or Wait returns at once,
// with the outcome. If the request is complete or has ended, the channel is closed already. All calls for a
// request return the same one while it is open. Closing the job closes it, as does whatever else ends the
// request. Progress is that of a program that computes, but begins at once.
func (q Request) Done() <-chan struct{} {
	if q.r == nil {
		return closedChannel
	}
	e := q.r.e
	e.lock.Lock()
	defer e.lock.Unlock()
	if q.over() {
		return closedChannel
	}
	done := q.r.notice
	if done == nil {
		done = make(chan struct{})
		q.r.notice = done
		e.notices++
		e.fetchOwed() // may complete it
		e.kick()
	}
	return done
}

var closedChannel = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// WaitAny returns when one of the requests is complete, with its index (MPI_Waitany): the lowest if
// several are. Requests that have already ended are skipped; if all have, it returns -1 at once.
// Requests of several jobs cannot be waited for together: WaitAny then returns [ErrInvalid] and
// leaves them unchanged.
func WaitAny(ctx context.Context, list ...Request) (int, Status, error) {
	e, err := engineOf("wait", list)
	if e == nil || err != nil {
		return -1, Status{}, err
	}
	e.lock.Lock()
	defer e.lock.Unlock()
	any := take(&e.anys)
	any.list, any.i = list, -1
	err = await(ctx, e, any)
	i := any.i
	any.list = nil
	e.anys = append(e.anys, any)
	if err != nil {
		return -1, Status{}, jobError("wait", err)
	}
	if i < 0 {
		return -1, Status{}, nil
	}
	st, err := list[i].r.collect()
	return i, st, err
}

// Active reports whether the request has neither been collected by a Test or Wait nor freed. It makes no
// progress.
func (q Request) Active() bool {
	if q.r == nil {
		return false
	}
	q.r.e.lock.Lock()
	defer q.r.e.lock.Unlock()
	return q.r.gen == q.gen
}

// TestAny is [WaitAny] without waiting (MPI_Testany): it makes progress once, and returns -1 if none of
// the requests is complete. Call [Request.Active] to find out whether any can be. It does not allocate.
func TestAny(list ...Request) (int, Status, error) {
	e, err := engineOf("test", list)
	if e == nil || err != nil {
		return -1, Status{}, err
	}
	i, st, err := e.testAny(list)
	if i < 0 && err == nil {
		e.policy.Tested()
	}
	return i, st, err
}

func (e *engine) testAny(list []Request) (int, Status, error) {
	e.lock.Lock()
	defer e.lock.Unlock()
	any := anyOf{list: list, i: -1}
	if !any.over() {
		e.polls++
		if e.progress(); !any.over() {
			if e.broken != nil && e.fences == 0 { // else a fence will complete it
				return -1, Status{}, jobError("test", e.broken)
			}
			return -1, Status{}, nil
		}
	}
	if any.i < 0 {
		return -1, Status{}, nil
	}
	st, err := list[any.i].r.collect()
	return any.i, st, err
}

// Completion is the outcome of one of several requests.
type Completion struct {
	Index  int // of the request in the list
	Status Status
	Err    error
}

// WaitSome waits as [WaitAny] does, then appends all requests that are complete to into, in the order of
// the list, and returns the result (MPI_Waitsome). If all requests have ended before, it appends nothing.
// Its own error is that of WaitAny with -1; those of requests are in the completions.
func WaitSome(ctx context.Context, into []Completion, list ...Request) ([]Completion, error) {
	first, st, err := WaitAny(ctx, list...)
	return withOthers(into, list, first, st, err)
}

// TestSome is [WaitSome] without waiting (MPI_Testsome); its own error is that of [TestAny] with -1.
func TestSome(into []Completion, list ...Request) ([]Completion, error) {
	first, st, err := TestAny(list...)
	return withOthers(into, list, first, st, err)
}

// withOthers appends the outcome of the first request that is complete, and of those behind it that are.
func withOthers(into []Completion, list []Request, first int, st Status, err error) ([]Completion, error) {
	if first < 0 {
		return into, err
	}
	into = append(into, Completion{first, st, err})
	for i := first + 1; i < len(list); i++ {
		q := list[i]
		if q.r == nil {
			continue
		}
		q.r.e.lock.Lock()
		if q.r.gen == q.gen && q.r.over() {
			st, err := q.r.collect()
			into = append(into, Completion{i, st, err})
		}
		q.r.e.lock.Unlock()
	}
	return into, nil
}

// take returns a kept value, because the condition of a wait escapes, or a new one.
func take[T any](kept *[]*T) *T {
	if n := len(*kept); n > 0 {
		t := (*kept)[n-1]
		*kept = (*kept)[:n-1]
		return t
	}
	return new(T)
}

// anyOf is over when one of its requests is, or all have ended before.
type anyOf struct {
	list []Request
	i    int
}

func (a *anyOf) sleeper() sleeper { return sleeper{several: a} }

// engineOf returns the engine of all requests; nil if there is none.
func engineOf(op string, list []Request) (e *engine, err error) {
	for _, q := range list {
		switch {
		case q.r == nil || q.r.e == e:
		case e != nil:
			return nil, jobError(op, fmt.Errorf("%w: the requests belong to different jobs", ErrInvalid))
		default:
			e = q.r.e
		}
	}
	return e, nil
}

func (a *anyOf) over() bool {
	a.i = -1 // what was found before, perhaps for a completion, may have been collected since
	active := false
	for i, q := range a.list {
		if q.r == nil || q.r.gen != q.gen {
			continue
		}
		active = true
		if q.r.over() {
			a.i = i
			return true
		}
	}
	return !active
}

// WaitAll waits until all requests are complete or ctx ends, and returns the first error
// (MPI_Waitall). It stores the status of each request at the same index of statuses, which may be
// nil. If ctx ends first, the requests that are complete have been collected and the others stay
// active. Requests of several jobs cannot be waited for together: WaitAll then returns [ErrInvalid]
// and leaves them unchanged.
func WaitAll(ctx context.Context, statuses []Status, list ...Request) error {
	e, err := engineOf("wait", list)
	if e == nil || err != nil {
		return err
	}
	e.lock.Lock()
	defer e.lock.Unlock()
	all := take(&e.alls)
	all.list, all.at = list, 0
	first := await(ctx, e, all)
	all.list = nil
	e.alls = append(e.alls, all)
	for i, q := range list {
		if q.r == nil || q.r.gen != q.gen {
			continue
		}
		if !q.r.over() {
			if _, ok := first.(*Error); !ok {
				first = q.r.fault(first)
			}
			continue
		}
		st, err := q.r.collect()
		if first == nil {
			first = err
		}
		if i < len(statuses) {
			statuses[i] = st
		}
	}
	return first
}

// allOf is over when all of its requests are, or have ended before.
type allOf struct {
	list []Request
	at   int // those before it are
}

func (a *allOf) sleeper() sleeper { return sleeper{several: a} }

func (a *allOf) over() bool {
	for ; a.at < len(a.list); a.at++ {
		if q := a.list[a.at]; q.r != nil && q.r.gen == q.gen && !q.r.over() {
			return false
		}
	}
	for i, q := range a.list { // one may have been cancelled meanwhile, and wait for an answer
		if q.r != nil && q.r.gen == q.gen && !q.r.over() {
			a.at = i
			return false
		}
	}
	return true
}

// Cancel asks to cancel the request (MPI_Cancel) and returns at once. The request must still be
// waited for; [Status].Cancelled says whether the cancellation succeeded. A receive can be
// cancelled until a message has matched it. A send can be cancelled until a receive has matched its
// message, for which the receiver's process is asked; the receiver refuses if it has already
// fetched a message that is longer than a queue pair's packet. LAM/MPI always refuses.
func (q Request) Cancel() error {
	if q.r == nil {
		return nil
	}
	e := q.r.e
	e.lock.Lock()
	defer e.lock.Unlock()
	if q.r.gen == q.gen {
		e.cancel(q.r)
	}
	return nil
}

// Free releases a request that will not be waited for (MPI_Request_free). The operation still takes
// place; its memory must be left alone until the job is closed. [Job.Close] waits for a send, and
// reports it if it fails.
func (q Request) Free() {
	if q.r == nil {
		return
	}
	e := q.r.e
	e.lock.Lock()
	defer e.lock.Unlock()
	switch {
	case q.r.gen != q.gen:
	case q.r.over():
		if q.r.err != nil && q.r.err != ErrClosed { // Close itself has counted that
			q.r.freed = true
			e.lost.note(q.r, q.r.err)
		}
		e.release(q.r)
	default:
		q.r.detached, q.r.freed = true, true
	}
}
