package launch

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// outbox writes messages in their order, by a goroutine of its own: what must not wait does not.
type outbox struct {
	mu    sync.Mutex
	moved *sync.Cond
	queue [][]byte
	size  int   // bytes of the queue, and of what is being written
	err   error // nothing is written any more
	done  chan struct{}
}

// errClosed: nothing can be written any more.
var errClosed = errors.New("the conversation is over")

// crowded is from how many bytes on those that may wait do.
const crowded = 256 << 10

// newOutbox returns an outbox that writes to w. It must be closed.
func newOutbox(w io.Writer) *outbox {
	o := &outbox{done: make(chan struct{})}
	o.moved = sync.NewCond(&o.mu)
	go o.write(w)
	return o
}

func (o *outbox) write(w io.Writer) {
	defer close(o.done)
	o.mu.Lock()
	defer o.mu.Unlock()
	for {
		for len(o.queue) == 0 && o.err == nil {
			o.moved.Wait()
		}
		if len(o.queue) == 0 {
			return
		}
		b := o.queue[0]
		o.queue = o.queue[1:]
		o.mu.Unlock()
		_, err := w.Write(b)
		o.mu.Lock()
		o.size -= len(b)
		if err != nil {
			o.err, o.queue = fmt.Errorf("%w: %w", errClosed, err), nil
		}
		o.moved.Broadcast()
	}
}

// put queues a message; an error is that of an earlier one.
func (o *outbox) put(b []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.queue = append(o.queue, b)
		o.size += len(b)
		o.moved.Broadcast()
	}
	return o.err
}

// wait is put once there is room.
func (o *outbox) wait(b []byte) error {
	o.mu.Lock()
	for o.size >= crowded && o.err == nil {
		o.moved.Wait()
	}
	o.mu.Unlock()
	return o.put(b)
}

// idle says that nothing waits.
func (o *outbox) idle() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.size == 0
}

// flush returns when what is queued has been written, or the time is over.
func (o *outbox) flush(limit time.Duration) {
	over := false
	timer := time.AfterFunc(limit, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		over = true
		o.moved.Broadcast()
	})
	defer timer.Stop()
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.size > 0 && o.err == nil && !over {
		o.moved.Wait()
	}
}

// close has what is queued written, and nothing after it. It does not wait.
func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.err = errClosed
	}
	o.moved.Broadcast()
}
