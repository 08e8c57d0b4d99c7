//go:build linux

package shm

import (
	"math/bits"
	"sync/atomic"
)

// A board has one bit for each QP of a CQ. Peers set the bits of the QPs that they have
// written to, so that polling need not check every QP. The board's words are in the
// context's control segment, which all peers map; the inbox says which bit to set
// ([inbox].notify).
//
//	word 0  |0|0|1|0| ... |0|      bit i: there may be work for the QP in place i
//	word 1  |0|0|0|0| ... |1|
//	  ...                          polling reads as many words as the QPs need
//
//	peer    write to the inbox, with release ─▶ set: always
//	Poll    next: i ─▶ clear(i) ─▶ check QP i; set again if work is left
//
// No write is missed. Both sides change the word by atomic read-modify-writes, which have
// one order. If setting comes first, clearing reads its result, and the check sees what was
// written before; if clearing comes first, the bit stays set for the next Poll. Release and
// acquire suffice for that: on amd64 every locked instruction is both and more, on arm64
// Go's atomics are both. Skipping the set of a bit that is already set would need a full
// fence between the write and the test of the bit, which costs as much.
//
// To Poll the bits are hints: a bit set for no reason costs one check. Peers can clear each
// other's bits, so from time to time Poll also checks a QP whose bit is not set
// ([lookAnyway]).
type board []uint64 // atomic

func (b board) set(i uint32)   { atomic.OrUint64(&b[i/64], 1<<(i%64)) }
func (b board) clear(i uint32) { atomic.AndUint64(&b[i/64], ^uint64(1<<(i%64))) }

// next returns the first place from i on that is set, or end if none before that is.
func (b board) next(i, end uint32) uint32 {
	if i >= end {
		return end
	}
	v := atomic.LoadUint64(&b[i/64]) >> (i % 64) << (i % 64)
	for i &^= 63; v == 0; v = atomic.LoadUint64(&b[i/64]) {
		if i += 64; i >= end {
			return end
		}
	}
	return min(i+uint32(bits.TrailingZeros64(v)), end)
}

// empty reports whether no bit is set. The board is of whole units.
func (b board) empty() bool {
	for ; len(b) > 0; b = b[boardUnit:] {
		l := (*[boardUnit]uint64)(b)
		if atomic.LoadUint64(&l[0])|atomic.LoadUint64(&l[1])|atomic.LoadUint64(&l[2])|atomic.LoadUint64(&l[3])|
			atomic.LoadUint64(&l[4])|atomic.LoadUint64(&l[5])|atomic.LoadUint64(&l[6])|atomic.LoadUint64(&l[7]) != 0 {
			return false
		}
	}
	return true
}

// A context has boardWords words for boards. A CQ gets them in units of a cache line, twice
// as many each time it outgrows them; if none are left it checks every QP.
const (
	boardWords = 4096
	boardUnit  = 8
	unitPlaces = boardUnit * 64
)

// Requests in [inbox].notify: to wake the engine (the peer that clears the bit does it);
// below that bit, to set the bits at two places on boards, of 32 and 31 bits.
const (
	notifyWake   = 1 << 63
	notifyPlaces = notifyWake - 1
)

// boards holds the words of a context.
type boards [boardWords]uint64

// note sets the bits at the places in such a word, those of a QP's CQs. Places are counted
// from 1 through all words of a context; 0 means none. A peer may name any numbers: each
// selects some bit of the peer's own boards.
func (b *boards) note(notify uint64) {
	for places := notify & notifyPlaces; places != 0; places >>= 32 {
		if p := uint32(places); p != 0 {
			board(b[:]).set((p - 1) % (boardWords * 64))
		}
	}
}

// boardUnits says which units are in use.
type boardUnits [boardWords / boardUnit]bool

// take finds n units in a row.
func (u *boardUnits) take(n int) (first int, ok bool) {
	for i := range u {
		if u[i] {
			first = i + 1
		} else if i+1-first == n {
			u.mark(first, n, true)
			return first, true
		}
	}
	return 0, false
}

func (u *boardUnits) mark(first, n int, taken bool) {
	for i := first; i < first+n; i++ {
		u[i] = taken
	}
}
