package qmp

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/sluice-hpc/sluice/channel"
)

// Handle is a message that is declared once and started again and again: a send, a
// receive, or several of them together (QMP_msghandle_t; classes SingleOperation and
// MultiOperation).
//
// A handle belongs to one goroutine at a time, and so does a multiple with its members;
// different handles may be used by different goroutines at the same time. The bytes of
// its memory belong to it from Start until Wait or IsComplete has said that it is over.
type Handle struct {
	ch    *channel.Handle
	watch *atomic.Uint32 // of the machine
	m     *Machine
	kind  kind
	name  string // of what it does: for the trace
	mem   *MsgMem

	comm         *Comm // of a message: with its peer, a rank of the job, on a stream
	peer, stream int
	starts       uint64 // of this handle; of a multiple, those of its members together

	loose   bool // a multiple whose members have been started one by one
	armed   bool // a receive that has been started by ClearToSend
	closed  bool
	members []*Handle // of a multiple, as they were declared
	users   int       // multiples that it is a member of
	until   deadline
	last    *Error // of the last call
}

type kind uint8

const (
	kindSend kind = iota
	kindReceive
	kindMultiple
)

// What Start and Wait have to look at besides the message: bits of Machine.watch.
const (
	watchTime  = 1 << iota // calls are timed
	watchTrace             // calls are printed
	watchArmed             // the number of receives that ClearToSend has started
)

// Start begins the next message (QMP_start), and waits for nobody. The k-th send that
// is started on a stream meets the k-th receive; see the package comment for what a
// stream is. A multiple starts all its members, receives first.
//
// Errors: [StatusInvalidOp] of a handle that is active, or has been freed, and nothing
// was started; [StatusNotInited] after Finalize; those of channel.Handle.Start.
func (h *Handle) Start() error {
	if h == nil || h.ch == nil || h.watch.Load() != 0 {
		return h.watched("start", h.startWatched)
	}
	if err := h.ch.Start(); err != nil {
		return h.fail("start", err)
	}
	h.starts++
	h.succeed()
	return nil
}

// Wait returns when the message is over (QMP_wait): of a send, when the memory may be
// written again, of a receive, when the message is in it. A handle that is not active
// is not waited for. A member of a multiple may be waited for by itself.
//
// It waits for [DefaultWaitTimeout], or what [SetWaitTimeout] says; then it returns
// [StatusTimeout], and the message goes on: wait again. Other errors are those of
// channel.Handle.Test: [StatusMemSizeErr] where the two ends differ in length,
// [StatusError] around channel.ErrPeerDied...
func (h *Handle) Wait() error {
	if h == nil || h.ch == nil || h.watch.Load() != 0 || h.loose {
		return h.watched("wait", h.waitWatched)
	}
	done, err := h.ch.Test()
	if !done {
		return h.await(time.Duration(h.m.patience.Load()))
	}
	if err != nil {
		return h.fail("wait", err)
	}
	h.succeed()
	return nil
}

// WaitTimeout is [Handle.Wait] with another time-out. Zero or less: without end.
func (h *Handle) WaitTimeout(d time.Duration) error {
	return h.watched("wait", func() error { return h.waitFor(d) })
}

// WaitContext is [Handle.Wait] until ctx ends, without another time-out: the error is
// then [StatusTimeout] if a deadline passed, else [StatusError] around that of ctx.
func (h *Handle) WaitContext(ctx context.Context) error {
	return h.watched("wait", func() error { return h.waitUntil(ctx) })
}

// IsComplete says whether the message is over, and moves it on if it is not
// (QMP_is_complete). With true the handle is idle again, and the error, if there is
// one, is that of this start. A handle that is not active is complete.
func (h *Handle) IsComplete() (bool, error) {
	if h == nil || h.ch == nil || h.watch.Load() != 0 || h.loose {
		return h.isCompleteWatched()
	}
	done, err := h.ch.Test()
	if err != nil {
		return done, h.fail("is complete", err)
	}
	h.succeed()
	return done, nil
}

// WaitAll waits for all handles, with one time-out for all of them, and returns their
// errors joined (QMP_wait_all).
func WaitAll(handles ...*Handle) error {
	end := time.Time{}
	var errs []error
	for _, h := range handles {
		if done, err := h.IsComplete(); done {
			if err != nil {
				errs = append(errs, err)
			}
			continue
		}
		d := time.Duration(h.m.patience.Load())
		if d > 0 {
			if end.IsZero() {
				end = time.Now().Add(d)
			}
			d = max(time.Until(end), 1)
		}
		if err := h.WaitTimeout(d); err != nil {
			errs = append(errs, err)
		}
	}
	return several(errs)
}

// several joins the errors of operations on several handles. The first is that of the whole.
func several(errs []error) error {
	err := errors.Join(errs...)
	var e *Error
	if errors.As(err, &e) {
		last.Store(e)
	}
	return err
}

// await waits for a message that is under way.
func (h *Handle) await(d time.Duration) error {
	var err error
	if d <= 0 {
		err = h.ch.Wait()
	} else {
		h.until.end = time.Now().Add(d)
		err = h.ch.WaitContext(&h.until)
	}
	if err != nil {
		return h.fail("wait", err)
	}
	h.succeed()
	return nil
}

// succeed notes that an operation of the handle has begun, or has succeeded.
func (h *Handle) succeed() {
	if h.last != nil {
		h.last = nil
	}
	succeed()
}

// fail is what a call returns for an error of package channel.
func (h *Handle) fail(op string, err error) error {
	s := StatusOf(err)
	if h.closed {
		s = StatusInvalidOp
	}
	if op == "start" && s != StatusInvalidOp {
		for _, m := range h.members { // some of them may have been started
			h.m.blocks.leave(m.comm.block, m.peer, 1)
		}
	}
	h.last = fail(op+" "+h.name, s, err)
	return h.last
}

// ErrorNumber is the status of the last call of the handle: StatusSuccess if that has
// succeeded; of a nil handle that of [LastError] (QMP_get_error_number).
func (h *Handle) ErrorNumber() Status {
	switch {
	case h == nil:
		return StatusOf(LastError())
	case h.last != nil:
		return h.last.Status
	}
	return StatusSuccess
}

// ErrorString is the error of [Handle.ErrorNumber] in words (QMP_get_error_string).
func (h *Handle) ErrorString() string {
	e := last.Load()
	if h != nil {
		e = h.last
	}
	if e == nil {
		return StatusSuccess.Error()
	}
	return e.Error()
}

// Close ends an idle handle (QMP_free_msghandle). Closing again does nothing. Members of
// a multiple stay open, and cannot be closed before it.
//
// Errors: [StatusInvalidOp] of a handle that is active, or a member of a multiple.
func (h *Handle) Close() error {
	const op = "free msghandle"
	switch {
	case h == nil || h.ch == nil:
		return invalid(op, StatusInvalidArg, "no handle")
	case h.closed:
		return nil
	case h.users > 0:
		return h.invalidOp(op, "a multiple has it")
	case h.armed:
		return h.invalidOp(op, "the receive has been cleared to send, and not been started")
	case h.loose:
		if done, _ := h.testLoose(); !done {
			return h.invalidOp(op, "a member is active")
		}
	}
	if err := h.ch.Close(); err != nil {
		return h.fail(op, err)
	}
	h.closed = true
	h.succeed()
	if h.comm != nil {
		h.forget()
	}
	for _, m := range h.members {
		m.users--
		m.starts += h.starts
	}
	return nil
}

// CloseAll ends a multiple and its members, which are in no other (QMP_free_msghandle
// as QMP 2 has it).
func (h *Handle) CloseAll() error {
	if h == nil || h.ch == nil {
		return h.Close()
	}
	members := slices.Clone(h.members)
	if err := h.Close(); err != nil {
		return err
	}
	var errs []error
	for _, m := range members {
		errs = append(errs, m.Close())
	}
	return several(errs)
}

func (h *Handle) invalidOp(op, why string) error {
	h.last = fail(op+" "+h.name, StatusInvalidOp, errors.New(why))
	return h.last
}
