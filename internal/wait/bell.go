package wait

import (
	"sync/atomic"
	"time"
)

// Bell lies in memory that processes share. Ringers, in this process or others, ring it to wake
// sleepers. It is rung only while it has listeners: otherwise the ringer merely reads a line that rarely
// changes.
type Bell struct {
	listeners uint32
	word      uint32
}

// Ring wakes the listeners, and reports whether there are any. The caller has already published what
// they are to see; Listen keeps the two in order.
func (b *Bell) Ring() bool {
	if atomic.LoadUint32(&b.listeners) == 0 {
		return false
	}
	b.wake()
	return true
}

func (b *Bell) wake() {
	atomic.AddUint32(&b.word, 1)
	FutexWake(&b.word)
}

// Listen makes ringers ring until Ignore. What a ringer publishes is visible when Listen returns, or
// its ring ends a Sleep on the mark.
func (b *Bell) Listen() (mark uint32) {
	mark = b.mark()
	atomic.AddUint32(&b.listeners, 1)
	Barrier()
	return mark
}

// Ignore ends what Listen began.
func (b *Bell) Ignore() { atomic.AddUint32(&b.listeners, ^uint32(0)) }

// Listeners is how many Listen and have not said Ignore.
func (b *Bell) Listeners() int { return int(atomic.LoadUint32(&b.listeners)) }

// mark changes whenever the bell is rung.
func (b *Bell) mark() uint32 { return atomic.LoadUint32(&b.word) }

// Sleep sleeps until the bell has been rung since the mark, at most for d. It may return early.
func (b *Bell) Sleep(mark uint32, d time.Duration) { FutexWait(&b.word, mark, d) }
