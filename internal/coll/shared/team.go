package shared

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/wait"
)

// Carrier is what reaches the other members.
type Carrier interface {
	// Wake wakes all members that sleep: something has been published.
	Wake()
	// Export says where the others find b; not ok if they cannot reach it.
	Export(b []byte) (key uint32, addr uint64, ok bool)
	// View returns memory that member i has exported.
	View(i int, key uint32, addr uint64, n int) ([]byte, error)
	// Gone says whether member i can no longer touch our memory: its process has ended.
	Gone(i int) bool
}

// Team is this member among those of its host. It belongs to one goroutine at a time.
type Team struct {
	carrier  Carrier
	me, size int
	segments []*Segment
	mine     *Segment
	flat     int // most members that all look at all
	looks    int // at a line, before others are looked at

	next    uint64   // number of the next operation
	before  uint16   // hash of what was called so far
	done    uint64   // all up to this one are over here
	doneOf  []uint64 // what is known of others
	minDone uint64   // of all
	active  []*Op    // in the order of their numbers
	piece   uint64   // number of the last piece that an operation here has been given
	taken   uint64   // of the last that has been taken
	err     error

	parts [][]byte // of one computation, here so that it is not allocated
	outs  [][]byte
	views [][]byte
	acc   []byte // an element fits
	saved []byte // and here
}

// Bounds of the tree.
const (
	// Flat is the most members of whom each looks at all.
	Flat = 16
	// Radix is how many members one looks at otherwise, himself included.
	Radix = 8
)

// NewTeam makes member me of those whose segments these are, its own included. The
// segments are in use until [Team.Quiet] says so at all members.
func NewTeam(c Carrier, me int, segments []*Segment) *Team {
	n := len(segments)
	return &Team{carrier: c, me: me, size: n, segments: segments, mine: segments[me], flat: Flat,
		next: 1, doneOf: make([]uint64, n), parts: make([][]byte, n), outs: make([][]byte, n), views: make([][]byte, n), acc: make([]byte, DataSize), saved: make([]byte, DataSize)}
}

// Spin has the team look at a line again so often before it gives up for the moment:
// what is about to come is seen 20 ns earlier. Zero where members share CPUs.
func (t *Team) Spin(looks int) { t.looks = looks }

// Can says whether a call can be made by size members: its elements must fit into what
// each publishes at a time.
func Can(kind coll.Kind, elem int, uneven bool, size int) bool {
	room := DataSize
	if blockwise(kind) {
		room /= size
		if uneven {
			room -= lengthSize
		}
	}
	return max(elem, 1) <= room
}

// MismatchError: a member has called something else.
type MismatchError struct {
	Member       int
	Ours, Theirs uint64 // signatures
	Before       int    // how many calls before the one that found it; -1: more than anybody remembers
	Len, Other   int    // where the signatures are the same: bytes that we and they have for what passes between us
}

// mismatch is the error of what member i has called, by its line of the operation. A member
// need not look at others in a call: a root that sends does not. What it has called before is
// compared in the next one in which it does.
func (o *Op) mismatch(i int, theirs uint64) *MismatchError {
	t := o.team
	if theirs != o.call.Signature {
		return &MismatchError{Member: i, Ours: o.call.Signature, Theirs: theirs}
	}
	for n := 1; n < lastCalled-slots && uint64(n) <= o.number; n++ {
		at := (o.number - uint64(n)) % lastCalled
		if a, b := t.mine.called[at], atomic.LoadUint64(&t.segments[i].called[at]); a != b {
			return &MismatchError{Member: i, Ours: a, Theirs: b, Before: n}
		}
	}
	return &MismatchError{Member: i, Ours: o.call.Signature, Theirs: theirs, Before: -1}
}

// Error names the member, and what both have called.
func (e *MismatchError) Error() string {
	if e.Before < 0 {
		return fmt.Sprintf("member %d has called something else some time before", e.Member)
	}
	if e.Ours == e.Theirs {
		return fmt.Sprintf("member %d has %d bytes where this one has %d", e.Member, e.Other, e.Len)
	}
	return fmt.Sprintf("member %d has called %#x, this one %#x", e.Member, e.Theirs, e.Ours)
}

// ErrProtocol: a member has written what none of this version writes.
var ErrProtocol = errors.New("protocol violation")

// Quiet says whether all members are through with all that this one has begun: then
// its segment is no longer looked at. Members that are gone do not count.
func (t *Team) Quiet() bool {
	for i := range t.size {
		if i != t.me && !t.knows(i, t.done) && !t.carrier.Gone(i) {
			return false
		}
	}
	return true
}

// Needs says whether something that is under way here is not over at member i.
func (t *Team) Needs(i int) bool {
	return len(t.active) > 0 && (!t.knows(i, t.active[len(t.active)-1].number) || t.doneOf[i] >= over)
}

// knows says whether member i is through with all operations up to number n.
func (t *Team) knows(i int, n uint64) bool {
	if t.doneOf[i] < n {
		t.doneOf[i] = max(t.doneOf[i], t.segments[i].Done())
	}
	return t.doneOf[i] >= n
}

// free says whether the slot of operation n may be written: nobody reads what was
// published there before.
func (t *Team) free(n uint64) bool {
	if n <= slots || t.minDone >= n-slots {
		return true
	}
	least := t.done
	for i := range t.size {
		if i == t.me {
			continue
		}
		if !t.knows(i, n-slots) {
			return false
		}
		least = min(least, t.doneOf[i])
	}
	t.minDone = least
	return least >= n-slots
}

// finished says that an operation is over here.
func (t *Team) finished(o *Op) {
	for i, a := range t.active {
		if a == o {
			t.active = append(t.active[:i], t.active[i+1:]...)
			break
		}
	}
	t.done = t.next - 1
	if len(t.active) > 0 {
		t.done = t.active[0].number - 1
	}
	wait.StoreRelease64(&t.mine.done, t.done)
	if !o.all { // who runs ahead may wait for its slot
		t.carrier.Wake()
	}
}

// line is the pair of a member for an operation.
func (t *Team) line(i int, n uint64) *pair { return &t.segments[i].lines[n%slots] }

// data is what a member publishes for an operation.
func (t *Team) data(i int, n uint64) *[DataSize]byte { return &t.segments[i].data[n%slots] }

// lag is how far done is behind operation n, as a line says it.
func (t *Team) lag(n uint64) uint8 { return uint8(min(n-t.done, 255)) }

// up says whether the line of member i for an operation is there, with its flags.
func (t *Team) up(o *Op, i int) (flags uint8, ok bool, err error) {
	l := &t.line(i, o.number).up
	w := atomic.LoadUint64(&l.word)
	for looks := t.looks; !says(w, o.number); looks-- {
		if looks == 0 {
			return 0, false, nil
		}
		w = atomic.LoadUint64(&l.word)
	}
	if lag := w & 0xff; lag < 255 && lag <= o.number {
		t.doneOf[i] = max(t.doneOf[i], o.number-lag)
	}
	if l.signature != o.call.Signature || uint16(w>>16) != o.before {
		return 0, true, o.mismatch(i, l.signature)
	}
	return uint8(w >> 8), true, nil
}

// Fail ends all operations, and those to come, with an error, of which the caller
// tells the others. Settled says when no member is at work in this one's memory.
func (t *Team) Fail(err error) {
	if t.err != nil {
		return
	}
	t.err = err
	for _, o := range t.active {
		o.withdraw()
	}
}

// Settled says whether, after Fail, no member touches the memory of calls any more.
func (t *Team) Settled() bool {
	for _, o := range t.active {
		if !o.abandoned() {
			return false
		}
	}
	t.active = t.active[:0]
	if t.err != nil {
		wait.StoreRelease64(&t.mine.done, over) // whatever the others begin, this one looks at none of it
	}
	return true
}

// over is more than any number of an operation.
const over = 1 << 48

// Err is what Fail was called with.
func (t *Team) Err() error { return t.err }

// withdraw makes it known that nobody may begin to work in the memory of the call.
func (o *Op) withdraw() {
	if !o.offered {
		return
	}
	t := o.team
	w := &t.line(t.me, o.number).up.word
	atomic.StoreUint64(w, atomic.LoadUint64(w)|flagWithdrawn<<8) // and then look who works
}

// abandoned says whether no other member is at work in the memory of a call that
// was withdrawn.
func (o *Op) abandoned() bool {
	if !o.offered {
		return true
	}
	t := o.team
	for i := range t.size {
		if i == t.me {
			continue
		}
		if flags, ok := t.line(i, o.number).down.read(o.number); ok && flags&flagWorking != 0 && !t.carrier.Gone(i) {
			return false
		}
	}
	return true
}
