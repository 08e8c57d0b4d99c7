package startup

import (
	"net"
	"sync"
)

// outbox queues what is to be written to a client, so that a client that does not read does not
// hold up the others. The data is shared with other outboxes and not changed.
type outbox struct {
	mu     *sync.Mutex
	ready  *sync.Cond
	queued net.Buffers
	closed bool
}

func newOutbox() outbox {
	mu := new(sync.Mutex)
	return outbox{mu: mu, ready: sync.NewCond(mu)}
}

// put queues b, which must not change from now on, unless the outbox is closed.
func (o *outbox) put(b []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return
	}
	o.queued = append(o.queued, b)
	o.ready.Signal()
}

// close ends deliver, unless it is writing: closing the connection ends that.
func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.ready.Signal()
}

// deliver writes what is queued until the outbox is closed or the connection breaks, which its
// reader will notice as well.
func (o *outbox) deliver(conn net.Conn) {
	for {
		o.mu.Lock()
		for len(o.queued) == 0 && !o.closed {
			o.ready.Wait()
		}
		if o.closed {
			o.mu.Unlock()
			return
		}
		queued := o.queued
		o.queued = nil
		o.mu.Unlock()
		if _, err := queued.WriteTo(conn); err != nil {
			return
		}
	}
}
