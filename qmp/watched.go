package qmp

import (
	"context"
	"errors"
	"time"
)

// watched is a call of a handle that is timed or traced, or a call of a handle that needs special
// treatment.
func (h *Handle) watched(op string, call func() error) error {
	if h == nil || h.ch == nil {
		return invalid(op, StatusInvalidArg, "no handle")
	}
	h.succeed()
	defer h.m.clock()()
	if h.watch.Load()&watchTrace != 0 {
		h.m.traceCall("%s %s", op, h.name)
	}
	return call()
}

func (h *Handle) startWatched() error {
	if h.loose {
		if done, _ := h.testLoose(); !done {
			return h.invalidOp("start", "a member is active")
		}
	}
	if h.armed {
		h.disarm()
		return nil
	}
	armed := false
	for _, m := range h.members {
		armed = armed || m.armed
	}
	if armed {
		return h.startMembers()
	}
	if err := h.ch.Start(); err != nil {
		return h.fail("start", err)
	}
	h.starts++
	return nil
}

// disarm makes an ordinary receive of one that ClearToSend has started.
func (h *Handle) disarm() {
	h.armed = false
	h.watch.Add(^uint32(watchArmed - 1))
}

// startMembers starts the members of a multiple one by one, because ClearToSend has already started
// some.
func (h *Handle) startMembers() error {
	for _, m := range h.members {
		if !m.armed && m.ch.Active() {
			return h.invalidOp("start", "a member is active")
		}
	}
	h.loose = true
	var errs []error
	for _, k := range []kind{kindReceive, kindSend} {
		for _, m := range h.members {
			if m.kind != k {
				continue
			}
			if m.armed {
				m.disarm()
			} else if err := m.ch.Start(); err != nil {
				errs = append(errs, err)
			} else {
				m.starts++
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return h.fail("start", err)
	}
	return nil
}

// testLoose reports whether all members are complete.
func (h *Handle) testLoose() (bool, error) {
	all := true
	var errs []error
	for _, m := range h.members {
		if m.armed {
			continue
		}
		done, err := m.ch.Test()
		if err != nil {
			errs = append(errs, err)
		}
		all = all && done
	}
	h.loose = !all
	return all, errors.Join(errs...)
}

func (h *Handle) waitWatched() error { return h.waitFor(time.Duration(h.m.patience.Load())) }

func (h *Handle) waitFor(d time.Duration) error {
	switch {
	case h.armed: // not started
		return nil
	case h.loose && d > 0:
		h.until.end = time.Now().Add(d)
		return h.waitUntil(&h.until)
	case h.loose:
		return h.waitUntil(context.Background())
	}
	return h.await(d)
}

func (h *Handle) waitUntil(ctx context.Context) error {
	if h.armed {
		return nil
	}
	if !h.loose {
		if err := h.ch.WaitContext(ctx); err != nil {
			return h.fail("wait", err)
		}
		return nil
	}
	var errs []error
	for _, m := range h.members {
		if m.armed {
			continue
		}
		if err := m.ch.WaitContext(ctx); err != nil {
			errs = append(errs, err)
		}
	}
	_, err := h.testLoose()
	if err := errors.Join(append(errs, err)...); err != nil {
		return h.fail("wait", err)
	}
	return nil
}

func (h *Handle) isCompleteWatched() (done bool, err error) {
	err = h.watched("is complete", func() (err error) {
		switch {
		case h.armed:
			done = true
			return nil
		case h.loose:
			done, err = h.testLoose()
		default:
			done, err = h.ch.Test()
		}
		if err != nil {
			return h.fail("is complete", err)
		}
		return nil
	})
	return done || h == nil || h.ch == nil, err
}

// ClearToSend says when the memory of a receive is ready for the next message
// (QMP_clear_to_send_t).
type ClearToSend int

// The values, with the numbers of the C API.
const (
	CTSDisabled ClearToSend = -1 // ready at Start
	CTSNotReady ClearToSend = 0  // not ready until Start or CTSReady
	CTSReady    ClearToSend = 1  // ready now, before Start
)

// ClearToSend declares the memory of an idle receive ready (QMP_clear_to_send). With CTSReady the
// next message may arrive in it from now on, before Start, which then has nothing left to start.
// The receive takes its place in the order of the stream at this call. For a multiple it applies to
// all members that are receives. CTSReady cannot be revoked.
//
// Errors: [StatusInvalidOp] for a send, for an active handle, and for CTSNotReady or CTSDisabled
// after CTSReady without a Start in between.
func (h *Handle) ClearToSend(cts ClearToSend) error {
	const op = "clear to send"
	return h.watched(op, func() error {
		switch {
		case cts < CTSDisabled || cts > CTSReady:
			return invalid(op, StatusInvalidArg, "clear to send %d", cts)
		case h.kind == kindMultiple:
			var errs []error
			for _, m := range h.members {
				if m.kind == kindReceive {
					errs = append(errs, m.ClearToSend(cts))
				}
			}
			return several(errs)
		case h.kind == kindSend:
			return h.invalidOp(op, "a send")
		case h.armed && cts != CTSReady:
			return h.invalidOp(op, "the receive is ready")
		case !h.armed && h.ch.Active():
			return h.invalidOp(op, "the receive is active")
		case h.armed || cts != CTSReady:
			return nil
		}
		if err := h.ch.Start(); err != nil {
			return h.fail(op, err)
		}
		h.armed = true
		h.starts++
		h.watch.Add(watchArmed)
		return nil
	})
}
