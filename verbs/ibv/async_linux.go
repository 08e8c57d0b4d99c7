//go:build cgo

package ibv

/*
#include "shim.h"
*/
import "C"

import (
	"context"
	"sync"
	"syscall"

	"github.com/sluice-hpc/sluice/verbs"
)

// async reads the events of a context as they arrive, acts on those that concern this
// package, and keeps them for the user.
type async struct {
	c    *vcontext
	src  *source
	done chan struct{} // closed when the reader has ended

	mu     sync.Mutex
	events []verbs.ProviderEvent
	more   chan struct{} // capacity 1: events has become longer
}

// maxEvents is the number of events kept if the user does not read them; the oldest are
// dropped.
const maxEvents = 1024

func newAsync(c *vcontext) (*async, error) {
	src, err := newSource(int(C.sl_async_fd(c.h)), "async events of "+c.device)
	if err != nil {
		return nil, verbs.Errorf(c.device, "open", err, "descriptor of async events")
	}
	a := &async{c: c, src: src, done: make(chan struct{}), more: make(chan struct{}, 1)}
	go a.read()
	return a, nil
}

func (a *async) read() {
	defer close(a.done)
	for {
		var event C.struct_sl_async_event
		var object C.uintptr_t
		var port, kind, errno C.int
		err := a.src.wait(context.Background(), func() bool {
			errno = C.sl_get_async_event(a.c.h, &event, &object, &port, &kind)
			return syscall.Errno(errno) != syscall.EAGAIN
		})
		switch {
		case err != nil:
			return
		case syscall.Errno(errno) == syscall.EINTR:
		case errno != 0: // the device is gone
			a.c.cfg.Logger.Warn("ibv: cannot read async events any more", "device", a.c.device, "error", syscall.Errno(errno))
			a.add(verbs.ProviderEvent{Type: verbs.EventDeviceFatal})
			return
		default:
			e := verbs.ProviderEvent{Type: verbs.EventType(kind), Port: int(port)}
			if object != 0 {
				e.Object = a.c.object(object)
			}
			C.sl_ack_async_event(&event) // after this, another object may have that address
			if object == 0 || e.Object != nil {
				a.handle(e)
			} // else the object is being closed
		}
	}
}

// handle acts on an event, and keeps it.
func (a *async) handle(e verbs.ProviderEvent) {
	if e.Port != 0 {
		a.c.change.Add(1)
	}
	switch o := e.Object.(type) {
	case *cq:
		if e.Type == verbs.EventCQErr {
			o.overrun()
		}
	case *qp:
		switch e.Type {
		case verbs.EventQPFatal, verbs.EventQPReqErr, verbs.EventQPAccessErr:
			o.failed()
		}
	}
	a.add(e)
}

func (a *async) add(e verbs.ProviderEvent) {
	a.mu.Lock()
	if len(a.events) == maxEvents {
		a.events = a.events[1:]
	}
	a.events = append(a.events, e)
	a.mu.Unlock()
	select {
	case a.more <- struct{}{}:
	default:
	}
}

// take removes the oldest event.
func (a *async) take() (e verbs.ProviderEvent, ok, others bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.events) == 0 {
		return e, false, false
	}
	e = a.events[0]
	a.events = a.events[1:]
	return e, true, len(a.events) > 0
}

func (a *async) next(ctx context.Context) (verbs.ProviderEvent, error) {
	for {
		e, ok, others := a.take()
		if others { // wake another call that waits
			select {
			case a.more <- struct{}{}:
			default:
			}
		}
		if ok {
			return e, nil
		}
		select {
		case <-a.more:
		case <-ctx.Done():
			return verbs.ProviderEvent{}, ctx.Err()
		case <-a.done:
			if e, ok, _ := a.take(); ok {
				return e, nil
			}
			return verbs.ProviderEvent{}, verbs.Errorf(a.c.device, "get async event", verbs.ErrClosed, "")
		}
	}
}

func (a *async) close() error {
	err := a.src.close()
	<-a.done
	return err
}
