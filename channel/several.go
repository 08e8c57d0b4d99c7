package channel

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sluice-hpc/sluice/internal/wait"
)

// several is what a goroutine waits for that waits for one of several handles.
type several struct {
	handles []*Handle
	done    int   // index of one that is complete; -1: none is active
	outcome error // of its start
}

// WaitAny waits until one of the handles is complete, and returns its index, the lowest if several are,
// and the error of its start (MPI_Waitany). Handles that are idle or closed are passed over; if all are,
// or there are none, it returns -1 and nil. The handles are of one node, and the calling goroutine alone
// uses them until WaitAny returns; a multiple and its members must not both be among them. A handle that
// is always complete again keeps those behind it from being reported: see [WaitSome].
//
// If ctx ends before one is complete, it returns -1 and [ErrTimeout] for a deadline, else the error of
// ctx, and the messages continue. With -1 it also returns [ErrInvalid], for a nil handle or handles of
// several nodes, and [ErrClosed] if the node is closed.
func WaitAny(ctx context.Context, handles ...*Handle) (int, error) {
	n, err := enterAll("wait for any", handles)
	if n == nil || err != nil {
		return -1, err
	}
	defer exitAll(handles)
	lacked := n.lacking.times.Load()
	for range max(1, n.policy.Glances()/len(handles)) {
		if i, over, err := lookAny(handles); over {
			return i, err
		}
		n.attend(nil, false, &lacked)
		wait.Pause(1)
	}
	return n.waitAnyLong(ctx, handles, lacked)
}

func (n *Node) waitAnyLong(ctx context.Context, handles []*Handle, lacked uint32) (int, error) {
	s, _ := n.severals.Get().(*several)
	if s == nil {
		s = &several{}
	}
	s.handles = append(s.handles[:0], handles...)
	done := -1
	err := n.awaitLong(ctx, n.policy, s, lacked)
	if err == nil {
		done, err = s.done, s.outcome
	}
	clear(s.handles)
	s.outcome = nil
	n.severals.Put(s)
	return done, err
}

// TestAny is [WaitAny] without waiting (MPI_Testany): it makes progress, and returns -1 and nil if no
// handle is complete. Call [Handle.Active] to find out whether any can be. It does not allocate.
func TestAny(handles ...*Handle) (int, error) {
	n, err := enterAll("test any", handles)
	if n == nil || err != nil {
		return -1, err
	}
	i, over, err := lookAny(handles)
	exitAll(handles)
	if !over {
		n.policy.Tested()
		return -1, nil
	}
	return i, err
}

// lookAny tests handles until one is complete; over says that one is, or none is active, with -1.
func lookAny(handles []*Handle) (i int, over bool, err error) {
	over = true
	for i, h := range handles {
		if !h.Active() {
			continue
		}
		if over, err = h.test(); over {
			return i, true, err
		}
	}
	return -1, over, nil
}

// Completion is the end of a start of one of several handles.
type Completion struct {
	Index int   // of the handle in the list
	Err   error // of the start
}

// WaitSome waits as [WaitAny] does, then appends all handles that are complete to into, in the order of
// the list, and returns the result (MPI_Waitsome). Without an active handle it appends nothing. Its own
// error is that of WaitAny with -1; those of starts are in the completions.
func WaitSome(ctx context.Context, into []Completion, handles ...*Handle) ([]Completion, error) {
	first, err := WaitAny(ctx, handles...)
	if first < 0 {
		return into, err
	}
	into = append(into, Completion{first, err})
	if n, _ := enterAll("", handles); n == nil { // it is being closed
		return into, nil
	}
	defer exitAll(handles)
	return testFrom(first+1, into, handles), nil
}

// TestSome is [WaitSome] without waiting (MPI_Testsome).
func TestSome(into []Completion, handles ...*Handle) ([]Completion, error) {
	n, err := enterAll("test some", handles)
	if n == nil || err != nil {
		return into, err
	}
	before := len(into)
	into = testFrom(0, into, handles)
	exitAll(handles)
	if len(into) == before {
		n.policy.Tested()
	}
	return into, nil
}

// testFrom appends the handles from an index on that are complete.
func testFrom(from int, into []Completion, handles []*Handle) []Completion {
	for i, h := range handles[from:] {
		if !h.Active() {
			continue
		}
		if done, err := h.test(); done {
			into = append(into, Completion{from + i, err})
		}
	}
	return into
}

// enterAll announces access to the memory of all handles, as [Handle.enter] does, and returns their
// node; nil if there are none.
func enterAll(op string, handles []*Handle) (*Node, error) {
	if len(handles) == 0 {
		return nil, nil
	}
	if i := slices.Index(handles, nil); i >= 0 {
		return nil, nodeError(op, fmt.Errorf("%w: handle %d is nil", ErrInvalid, i))
	}
	n := handles[0].node
	for i, h := range handles {
		if h.node != n {
			exitAll(handles[:i])
			return nil, nodeError(op, fmt.Errorf("%w: handle %d is not of the node of handle 0", ErrInvalid, i))
		}
		if !h.enter() {
			exitAll(handles[:i])
			return nil, h.errorf(op, ErrClosed)
		}
	}
	return n, nil
}

func exitAll(handles []*Handle) {
	for _, h := range handles {
		h.exit()
	}
}

func (s *several) look() (over bool) {
	s.done, over, s.outcome = lookAny(s.handles)
	return over
}

func (s *several) needs() *Handle { return nil }

func (s *several) check(ctx context.Context, _ bool) (time.Duration, error) {
	err := s.handles[0].node.waitOver(ctx)
	if err != nil {
		err = nodeError("wait for any", err)
	}
	return 0, err
}

// Ready reports whether the next test of one may find progress.
func (s *several) Ready() bool {
	return slices.ContainsFunc(s.handles, func(h *Handle) bool { return h.Active() && h.ready() })
}

func (s *several) rung() bool {
	return !slices.ContainsFunc(s.handles, func(h *Handle) bool { return !h.rung() || h.ended() })
}

func (s *several) sleepsIn(t *wait.Sleeper) {
	for _, h := range s.handles {
		h.sleepsIn(t)
	}
}
