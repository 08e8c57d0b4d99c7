// Package parts places messages in memory that a sender writes and a receiver reads. A ring uses all of its
// memory in turn, and each message is written where the lines lie in the far end of the caches of both CPUs. Here
// messages use the same few parts again as long as the receiver keeps up.
package parts

const (
	Len   = 64 << 10 // bytes of the memory
	align = 64       // of a message
	size  = 4 << 10  // bytes of a part
	count = Len / size
)

// Area is the sender's account of the memory. Messages have numbers from 1 up. The zero Area is empty.
type Area struct {
	at   uint32        // where the last message ends
	last [count]uint64 // the last message in each part
}

// Next places message k of 0 < n <= Len bytes behind the one before it, in the same part; false if that has no
// room. The caller then finds out which messages have been taken, and calls Enter.
func (a *Area) Next(k uint64, n uint32) (off uint32, ok bool) {
	room := (n + align - 1) &^ (align - 1)
	if within := a.at % size; within == 0 || within+room > size {
		return 0, false
	}
	off = a.at
	a.at += room
	a.last[off/size] = k
	return off, true
}

// Enter places message k of 0 < n <= Len bytes in the first parts that are free, when all messages up to taken
// have been taken; false if it has no room. Messages that are not longer than a part have room while there are
// fewer than 15 others.
func (a *Area) Enter(k uint64, n uint32, taken uint64) (off uint32, ok bool) {
	room := (n + align - 1) &^ (align - 1)
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
	for q := off / size; q*size < a.at; q++ {
		a.last[q] = k
	}
	return off, true
}
