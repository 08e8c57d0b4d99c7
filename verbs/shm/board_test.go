//go:build linux

package shm

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/wait"
)

// The protocol of a board over ordinary memory between goroutines, where the race detector sees
// it: each peer writes and then sets its bit; the reader checks only set bits, and finds
// everything.
func TestBoardLosesNothing(t *testing.T) {
	const peers, words = 8, 2
	each := rounds(20000)
	type box struct {
		data  uint64
		flag  uint64 // atomic
		taken atomic.Uint64
		_     [64]byte
	}
	boxes := make([]box, peers)
	place := func(p int) uint32 { return uint32(p * 31 % (words * 64)) } // some share a word
	var all boards
	b := board(all[:words])
	var wg sync.WaitGroup
	for p := range peers {
		wg.Go(func() {
			for i := range uint64(each) {
				for boxes[p].taken.Load() != i {
					runtime.Gosched()
				}
				boxes[p].data = i
				wait.StoreRelease64(&boxes[p].flag, i+1)
				all.note(uint64(place(p)) + 1)
			}
		})
	}
	whose := map[uint32]*box{}
	for p := range boxes {
		whose[place(p)] = &boxes[p]
	}
	for left := peers * each; left > 0; runtime.Gosched() {
		for i := b.next(0, words*64); i < words*64; i = b.next(i+1, words*64) {
			b.clear(i)
			box := whose[i]
			require.NotNil(t, box, "place %d", i)
			if n := box.taken.Load(); atomic.LoadUint64(&box.flag) == n+1 {
				require.Equal(t, n, box.data)
				box.taken.Store(n + 1)
				left--
			}
		}
	}
	wg.Wait()
}

// next finds every set bit in any range, in order and once.
func TestBoardNext(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, words := range []uint32{1, 2, 16, 64} {
		b := make(board, words)
		set := map[uint32]bool{}
		for range r.IntN(100) {
			i := r.Uint32N(words * 64)
			b.set(i)
			set[i] = true
		}
		if words%boardUnit == 0 {
			require.Equal(t, len(set) == 0, b.empty())
		}
		n := words * 64
		for _, span := range [][2]uint32{{0, n}, {1, n}, {63, n - 1}, {n / 2, n/2 + 1}, {n / 2, n / 2}, {n, n}, {0, n - 63}} {
			var want, got []uint32
			for i := span[0]; i < span[1]; i++ {
				if set[i] {
					want = append(want, i)
				}
			}
			for i := b.next(span[0], span[1]); i < span[1]; i = b.next(i+1, span[1]) {
				got = append(got, i)
			}
			require.Equal(t, want, got, "%d words, %v", words, span)
		}
		for i := range set {
			b.clear(i)
		}
		require.Equal(t, n, b.next(0, n))
		for i := uint32(0); words%boardUnit == 0 && i < n; i += 7 {
			require.True(t, b.empty())
			b.set(i)
			require.False(t, b.empty())
			b.clear(i)
		}
		require.Equal(t, make(board, words), b)
	}
}

// For any places that a peer names, note sets bits of the boards only.
func FuzzNote(f *testing.F) {
	f.Add(uint64(0))
	f.Add(uint64(notifyWake))
	f.Add(uint64(1))
	f.Add(uint64(boardWords*64) | 1<<32)
	f.Add(^uint64(0))
	f.Fuzz(func(t *testing.T, notify uint64) {
		guarded := new(struct {
			before [64]uint64
			boards boards
			after  [64]uint64
		})
		guarded.boards.note(notify)
		var want boards
		for _, p := range []uint32{uint32(notify), uint32(notify>>32) & (1<<31 - 1)} {
			if p != 0 {
				want[(p-1)/64%boardWords] |= 1 << ((p - 1) % 64)
			}
		}
		require.Equal(t, want, guarded.boards)
		require.Zero(t, guarded.before)
		require.Zero(t, guarded.after)
	})
}

// No unit has two owners, and take finds contiguous units wherever they are.
func TestBoardUnits(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	var u boardUnits
	var model boardUnits
	type span struct{ first, n int }
	var held []span
	for range 5000 {
		if n := 1 << r.IntN(7); r.IntN(2) == 0 {
			fits := false
			for i := 0; i+n <= len(model); i++ {
				free := true
				for _, taken := range model[i : i+n] {
					free = free && !taken
				}
				fits = fits || free
			}
			first, ok := u.take(n)
			require.Equal(t, fits, ok, "%d units", n)
			if ok {
				for i := first; i < first+n; i++ {
					require.False(t, model[i])
					model[i] = true
				}
				held = append(held, span{first, n})
			}
		} else if len(held) > 0 {
			i := r.IntN(len(held))
			s := held[i]
			held[i] = held[len(held)-1]
			held = held[:len(held)-1]
			u.mark(s.first, s.n, false)
			clear(model[s.first : s.first+s.n])
		}
		require.Equal(t, model, u)
	}
}

// All interleavings of a peer that writes once and a CQ that starts to use its board, with the
// peer's store buffer: in the end the message has been received, or its bit is set. Leaving out
// any of the conditions for that makes some interleaving fail.
func TestBoardInAllOrders(t *testing.T) {
	type protocol struct{ noBarrier, noLook, lookFirst, noteFirst bool }
	type state struct {
		peer, cq      int  // the next step of each
		buffered      bool // the message is in the peer's store buffer
		written, told bool
		sawTold, bit  bool
		hit, taken    bool
	}
	lost := func(p protocol) bool {
		seen := map[state]bool{}
		lost := false
		var from func(s state)
		from = func(s state) {
			if seen[s] {
				return
			}
			seen[s] = true
			stuck := true
			step := func(to state) { stuck = false; from(to) }
			if s.buffered { // the peer's CPU makes it visible, some time
				n := s
				n.buffered, n.written = false, true
				step(n)
			}
			write := func(s *state) { s.buffered = true }
			note := func(s *state) {
				if s.sawTold { // an atomic read-modify-write: what is in the buffer goes first
					s.written, s.buffered = s.written || s.buffered, false
					s.bit = true
				}
			}
			steps := []func(*state){write, func(s *state) { s.sawTold = s.told }, note}
			if p.noteFirst {
				steps = append(steps[1:], write)
			}
			if s.peer < len(steps) {
				n := s
				n.peer++
				steps[s.peer](&n)
				step(n)
			}
			clear := func(s *state) { s.hit, s.bit = s.bit, false }
			look := func(s *state) { s.taken = s.taken || s.hit && s.written }
			poll := []func(*state){clear, look}
			if p.lookFirst {
				poll = []func(*state){func(s *state) { s.hit = s.bit }, look, func(s *state) { s.bit = s.bit && !s.hit }}
			}
			steps = []func(*state){func(s *state) { s.told = true }}
			if !p.noBarrier {
				steps = append(steps, func(s *state) { s.written, s.buffered = s.written || s.buffered, false })
			}
			if !p.noLook {
				steps = append(steps, func(s *state) { s.bit = true })
			}
			steps = append(append(steps, poll...), poll...)
			if s.cq < len(steps) {
				n := s
				n.cq++
				steps[s.cq](&n)
				step(n)
			}
			lost = lost || stuck && !s.taken && !s.bit
		}
		from(state{})
		return lost
	}
	require.False(t, lost(protocol{}))
	require.True(t, lost(protocol{noBarrier: true}))
	require.True(t, lost(protocol{noLook: true}))
	require.True(t, lost(protocol{lookFirst: true}))
	require.True(t, lost(protocol{noteFirst: true}))
}
