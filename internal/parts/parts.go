// Package parts places messages in memory that a sender writes and a receiver reads. A ring uses all of its
// memory in turn, and each message is written where the lines lie in the far end of the caches of both CPUs. Here
// messages use the same few parts again as long as the receiver keeps up.
package parts

import (
	"sync/atomic"
	"unsafe"

	"github.com/sluice-hpc/sluice/internal/wait"
)

const (
	Len   = 64 << 10 // bytes of the memory
	align = 64       // of a message
	size  = 4 << 10  // bytes of a part
	count = Len / size
)

// roomOf returns what n bytes take up.
func roomOf(n uint32) uint32 { return (n + align - 1) &^ (align - 1) }

// Area is the sender's account of the memory. Messages have numbers from 1 up. The zero Area is empty.
type Area struct {
	at, end uint32        // where the last message ends, or the next one is to lie; the end of that part
	last    [count]uint64 // the last message in each part
}

// Next places message k of 0 < n <= Len bytes behind the one before it, in the same part; false if that has no
// room. The caller then finds out which messages have been taken, and calls Enter.
func (a *Area) Next(k uint64, n uint32) (off uint32, ok bool) {
	if !a.Room(n) {
		return 0, false
	}
	room := roomOf(n)
	off = a.at
	a.at += room
	a.last[off/size] = k
	return off, true
}

// Enter places message k of 0 < n <= Len bytes in the first parts that are free, when all messages up to taken
// have been taken; false if it has no room. Messages that are not longer than a part have room while there are
// fewer than 15 others.
func (a *Area) Enter(k uint64, n uint32, taken uint64) (off uint32, ok bool) {
	room := roomOf(n)
	behind := uint32(0) // the part that follows on the last message
	if a.at%size != 0 {
		behind = a.at/size + 1
	}
	for p := uint32(0); p < count && !ok; p++ {
		if off = p * size; p > 0 && p == behind {
			off = a.at
		}
		ok = off+room <= Len
		for q := p; ok && q*size < off+room; q++ {
			ok = a.last[q] <= taken
		}
	}
	if !ok {
		return 0, false
	}
	a.at = off + room
	a.end = (a.at + size - 1) &^ (size - 1)
	for q := off / size; q*size < a.at; q++ {
		a.last[q] = k
	}
	return off, true
}

// Room says whether n bytes have room behind the last message, in the same part.
func (a *Area) Room(n uint32) bool { return roomOf(n) <= a.end-a.at }

// Touch chooses the place of the next message of n > 0 bytes, if a part has room for it, when all messages up to
// taken have been taken, and writes to its lines in mem, the Len bytes of the memory: the receiver has read them
// last, and this CPU has to fetch them from it, which is done by the time of the message. The caller does so when
// it is going to wait for an answer.
func (a *Area) Touch(mem []byte, n uint32, taken uint64) {
	room := roomOf(n)
	if room > size {
		return
	}
	if !a.Room(n) {
		p := uint32(0)
		for a.last[p] > taken {
			if p++; p == count {
				return
			}
		}
		a.at, a.end = p*size, (p+1)*size
	}
	wait.TakeLines(mem[a.at : a.at+room])
}

// Trail is what the receiver knows of the places of messages. One goroutine at a time calls Follow; others may call
// Fetch meanwhile.
type Trail struct {
	state uint64 // where the last message ends; in the upper half, the part used before that of the last message
}

// Follow says where the last message was.
func (t *Trail) Follow(off, n uint32) {
	v := atomic.LoadUint64(&t.state)
	end, part := off+roomOf(n), v>>32
	if last := (max(uint32(v), 1) - 1) / size; last != (end-1)/size {
		part = uint64(last)
	}
	wait.StoreRelaxed64(&t.state, uint64(end)|part<<32)
}

// Fetch begins to fetch the lines where the next message of n > 0 bytes probably lies, in mem, the Len bytes of the
// memory. The CPU knows this place before the message comes; what the sender tells comes with the message.
// Messages longer than a part, for which Touch prepares nothing, are not fetched.
func (t *Trail) Fetch(mem []byte, n uint32) {
	off, room := t.next(n), roomOf(n)
	if room <= size && off+room <= uint32(len(mem)) {
		wait.Prefetches(unsafe.SliceData(mem[off:]), int(room))
	}
}

// next is where the next message of n bytes probably lies: behind the last one, else in the part before.
func (t *Trail) next(n uint32) uint32 {
	v := atomic.LoadUint64(&t.state)
	off := uint32(v)
	if within := off % size; within == 0 || within+roomOf(n) > size {
		off = uint32(v>>32) * size
	}
	return off
}
