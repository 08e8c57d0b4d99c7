//go:build linux

package shm

import (
	"math/bits"
	"sync/atomic"
)

// A board is where peers note which QPs of a CQ they have written to, so that polling
// need not look at each: a bit for a QP. It is of words in the CQ's own control segment,
// which all peers have mapped; the inbox says which bit ([inbox].attend).
//
//	word 0  |0|0|1|0| ... |0|      bit i: there may be something for the QP in place i
//	word 1  |0|0|0|0| ... |1|
//	  ...                          as many words are looked at as there are QPs
//
//	peer    write to the inbox, with release ─▶ set: always
//	Poll    next: i ─▶ clear(i) ─▶ look at QP i; set again if something is left to do
//
// Nothing gets lost. Both change the word by atomic read-modify-writes, which have one
// order. If setting comes first, clearing reads what it wrote, and what was written before
// it is seen by the look; if clearing comes first, the bit stays set for the next Poll.
// Release and acquire are enough for that: on amd64 every locked instruction is both and
// more, on arm64 the atomics of Go are both. Not to set a bit that is set already would need
// a full fence between writing and looking at the bit, which costs as much.
//
// To Poll bits are hints: one that is set for nothing costs a look. Peers are able to clear
// bits of one another, so Poll looks at a QP of which nothing is noted now and then
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

// A context has boardWords words for boards. A CQ gets them in units of a cache line, twice
// as many each time it outgrows them; where there are none it looks at each QP.
const (
	boardWords = 4096
	boardUnit  = 8
	unitPlaces = boardUnit * 64
)

// What [inbox].attend asks for: to wake the engine, which the peer does that clears the bit;
// below that bit, to note at two places on boards, of 32 and 31 bits.
const (
	attendWake   = 1 << 63
	attendPlaces = attendWake - 1
)

// boards are the words of a context.
type boards [boardWords]uint64

// note sets the bits at the places of a word attend: those of a QP's CQs. They are counted
// from 1 through all words of a context; 0 is none. Those that a peer names may be any
// numbers: each is some bit of its own boards.
func (b *boards) note(attend uint64) {
	for places := attend & attendPlaces; places != 0; places >>= 32 {
		if p := uint32(places); p != 0 {
			board(b[:]).set((p - 1) % (boardWords * 64))
		}
	}
}

// boardUnits says which units are taken.
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
