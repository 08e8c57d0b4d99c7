package channel

import (
	"fmt"
	"sync/atomic"
)

// Cancellable declares a receive that can be cancelled. Until its message is announced, the sender does
// not learn that it waits, so that this node alone can match it. That costs the advantage of a
// receive that is started first: over shared memory a message of 185 bytes to 4 KiB is copied twice, one
// from heap memory goes through the pipe, and the sender does not share in the copy of a long one; over a
// queue pair, one above the eager size is read by the receiver, or takes one more round trip. [Node.Recv]
// ignores it.
func Cancellable() DeclareOption { return DeclareOption{declareCancellable, 1} }

// Cancel takes back the start of a receive that no message has matched yet (MPI_Cancel), and reports
// whether it has. If so, the handle is idle, as if it had not been started: the send that would have
// matched it matches the next receive started on the stream, the memory is the program's, and a channel of
// [Handle.Done] is closed. If not, the message has come, in part at least, or the start has failed: Wait
// as ever. Cancelling an idle handle does nothing. Cancel does not wait.
//
// Of the receives of a stream only the one that was started last can be cancelled, and then the one
// before it. The errors are [ErrInvalid] for another one, or if the handle was not declared [Cancellable];
// and [ErrClosed].
func (h *Handle) Cancel() (cancelled bool, err error) {
	if !h.enter() {
		return false, h.errorf("cancel", ErrClosed)
	}
	defer h.exit()
	switch {
	case h.phase.Load() == phaseClosed:
		return false, h.errorf("cancel", ErrClosed)
	case !h.cancellable:
		return false, h.errorf("cancel", fmt.Errorf("%w: only a receive that was declared with Cancellable can be cancelled", ErrInvalid))
	case !h.incomplete():
		return false, nil
	}
	if cancelled, err = h.in.cancel(h); cancelled && h.notice != nil {
		h.unwatch()
	}
	return cancelled, err
}

// cancel gives back the number of a start that the sender knows nothing of.
func (s *receiveStream) cancel(h *Handle) (bool, error) {
	s.lock.Lock()
	if q := s.q.Load(); q != nil {
		s.lock.Unlock()
		return q.cancel(h)
	}
	defer s.lock.Unlock()
	r := s.r.Load()
	switch {
	case h.phase.Load() != phaseWaiting, r != nil && atomic.LoadUint64(&r.slots[h.k%ringSlots].word)>>16 == h.k:
		return false, nil
	case h.k != s.next:
		return false, h.notLast(s.next)
	}
	s.next--
	s.unlink(h)
	h.setPhase(phaseIdle)
	return true, nil
}

func (q *queue) cancel(h *Handle) (bool, error) {
	q.lock.Lock()
	defer q.lock.Unlock()
	s := q.in[h.in.number]
	switch {
	case h.phase.Load() != phaseWaiting, q.gated[h.id] == h, h.transfer.begun, h.copying:
		return false, nil
	case h.k != s.next:
		return false, h.notLast(s.next)
	}
	s.next--
	q.forget(s, h)
	h.setPhase(phaseIdle)
	return true, nil
}

func (h *Handle) notLast(last uint64) error {
	return h.errorf("cancel", fmt.Errorf("%w: start %d of the stream is the last: cancel that first", ErrInvalid, last))
}
