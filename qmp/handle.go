package qmp

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/sluice-hpc/sluice/channel"
)

// Handle is a message that is declared once and started repeatedly: a send, a receive, or several
// of them together (QMP_msghandle_t; classes SingleOperation and MultiOperation).
//
// A handle belongs to one goroutine at a time, as does a multiple together with its members;
// different handles may be used by different goroutines at the same time. The handle owns the bytes
// of its memory from Start until Wait or IsComplete reports completion.
type Handle struct {
	ch    *channel.Handle
	watch *atomic.Uint32 // of the machine
	m     *Machine
	kind  kind
	name  string // describes what it does, for the trace
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

// Bits of Machine.watch: what Start and Wait must check besides the message.
const (
	watchTime  = 1 << iota // calls are timed
	watchTrace             // calls are printed
	watchArmed             // the number of receives that ClearToSend has started
)

// Start starts the next message (QMP_start). It does not block. The k-th send that is started on a
// stream meets the k-th receive; the package comment defines a stream. A multiple starts all its
// members, receives first.
//
// Errors: [StatusInvalidOp] for a handle that is active or has been freed, in which case nothing is
// started; [StatusNotInited] after Finalize; those of channel.Handle.Start.
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

// Wait returns when the message is complete (QMP_wait): for a send, when the memory may be written
// again; for a receive, when the message is in it. It returns at once for a handle that is not
// active. A member of a multiple may be waited for individually.
//
// It waits for [DefaultWaitTimeout], or the time set by [SetWaitTimeout]; then it returns
// [StatusTimeout], and the message stays active: call Wait again. Other errors are those of
// channel.Handle.Test: [StatusMemSizeErr] if the two ends differ in length, [StatusError] around
// channel.ErrPeerDied, and so on.
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

// WaitTimeout is [Handle.Wait] with a given timeout; zero or less means no timeout.
func (h *Handle) WaitTimeout(d time.Duration) error {
	return h.watched("wait", func() error { return h.waitFor(d) })
}

// WaitContext is [Handle.Wait] with ctx in place of the timeout. When ctx ends, the error is
// [StatusTimeout] if a deadline passed, otherwise [StatusError] around that of ctx.
func (h *Handle) WaitContext(ctx context.Context) error {
	return h.watched("wait", func() error { return h.waitUntil(ctx) })
}

// IsComplete reports whether the message is complete, and makes progress on it if it is not
// (QMP_is_complete). If it returns true, the handle is idle again, and a non-nil error is that of
// this start. A handle that is not active is complete.
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

// WaitAll waits for all handles, with one timeout for all of them, and returns their errors joined
// (QMP_wait_all).
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

// several joins the errors of operations on several handles. Its status is that of the first.
func several(errs []error) error {
	err := errors.Join(errs...)
	var e *Error
	if errors.As(err, &e) {
		last.Store(e)
	}
	return err
}

// await waits for an active message.
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

// fail converts an error of package channel to that of a call.
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

// ErrorNumber returns the status of the handle's last call: StatusSuccess if it succeeded
// (QMP_get_error_number). For a nil handle it is the status of [LastError].
func (h *Handle) ErrorNumber() Status {
	switch {
	case h == nil:
		return StatusOf(LastError())
	case h.last != nil:
		return h.last.Status
	}
	return StatusSuccess
}

// ErrorString returns the error of [Handle.ErrorNumber] in words (QMP_get_error_string).
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

// Close ends an idle handle (QMP_free_msghandle). Closing again does nothing. The members of a
// multiple stay open, and cannot be closed before it.
//
// Errors: [StatusInvalidOp] for a handle that is active or a member of a multiple.
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

// CloseAll ends a multiple and its members, which must not belong to another multiple
// (QMP_free_msghandle as in QMP 2).
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
