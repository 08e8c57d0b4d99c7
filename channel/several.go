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
// and the error of its start (MPI_Waitany). Idle handles are passed over; if all are idle, it returns -1
// and nil. The handles must be of one node, and the calling goroutine uses all of them until WaitAny
// returns; a multiple and its members must not both be among them.
//
// If ctx ends first, it returns -1 and [ErrTimeout] for a deadline, else the error of ctx, and the
// messages continue. Handles of several nodes are [ErrInvalid].
func WaitAny(ctx context.Context, handles ...*Handle) (int, error) {
	n, err := enterAll("wait for any", handles)
	if n == nil || err != nil {
		return -1, err
	}
	defer exitAll(handles)
	s := several{handles: handles}
	lacked := n.lacking.times.Load()
	for range n.policy.Glances() {
		if s.look() {
			return s.done, s.outcome
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
	s.handles = handles
	err := n.awaitLong(ctx, n.policy, s, lacked)
	done := -1
	if err == nil {
		done, err = s.done, s.outcome
	}
	*s = several{}
	n.severals.Put(s)
	return done, err
}

// TestAny reports the lowest index of a handle that is complete, and the error of its start, which is
// idle from then on (MPI_Testany). It makes progress on all up to there. Idle handles are passed over. It
// returns -1 and nil if none is complete: call [Handle.Active] to find out whether any can be. TestAny
// does not allocate. The handles are those of [WaitAny].
func TestAny(handles ...*Handle) (int, error) {
	n, err := enterAll("test any", handles)
	if n == nil || err != nil {
		return -1, err
	}
	defer exitAll(handles)
	s := several{handles: handles}
	if !s.look() {
		return -1, nil
	}
	return s.done, s.outcome
}

// Completion is the end of a start of one of several handles.
type Completion struct {
	Index int   // of the handle in the list
	Err   error // of the start
}

// WaitSome waits as [WaitAny] does, then appends all handles that are complete to into, in the order of
// the list, and returns the result (MPI_Waitsome). Without an active handle it appends nothing.
func WaitSome(ctx context.Context, into []Completion, handles ...*Handle) ([]Completion, error) {
	first, err := WaitAny(ctx, handles...)
	if first < 0 {
		return into, err
	}
	into = append(into, Completion{first, err})
	for i, h := range handles[first+1:] {
		if !h.Active() {
			continue
		}
		if done, err := h.Test(); done {
			into = append(into, Completion{first + 1 + i, err})
		}
	}
	return into, nil
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

func (s *several) look() bool {
	s.done = -1
	for i, h := range s.handles {
		if h.phase.Load() == phaseIdle {
			continue
		}
		s.done = i
		done, err := h.test()
		if done {
			s.outcome = err
			return true
		}
	}
	return s.done < 0
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
