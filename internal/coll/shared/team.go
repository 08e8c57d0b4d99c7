package shared

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/wait"
)

// Carrier provides access to the other members.
type Carrier interface {
	// Wake wakes all sleeping members, because something has been published.
	Wake()
	// Mute says that this member waits for what no member wakes it for.
	Mute()
	// Export returns the location of b for the others; not ok if they cannot access it.
	Export(b []byte) (key uint32, addr uint64, ok bool)
	// View returns memory that member i has exported; [ErrLater] if it is not accessible yet.
	View(i int, key uint32, addr uint64, n int) ([]byte, error)
	// Gone says whether member i can no longer access our memory: its process has ended.
	Gone(i int) bool
}

// Team is this member's view of the members of its host. It may be used by one goroutine at a time.
type Team struct {
	carrier  Carrier
	me, size int
	segments []*Segment
	mine     *Segment
	flat     int // up to so many members, each reads the lines of all
	looks    int // polls of a line before others are polled
	buffer   int // bytes of a piece

	next    uint64   // number of the next operation
	before  uint16   // hash of the calls so far
	done    uint64   // all up to this one are complete here
	lives   []uint64 // of the segments, which tell their memory from what may be there later
	doneOf  []uint64 // done of other members, as far as known
	minDone uint64   // the least of all
	active  []*Op    // in the order of their numbers
	piece   uint64   // number of the last piece assigned to an operation here
	taken   uint64   // number of the last piece that has been taken
	err     error

	parts [][]byte // of one computation; kept here to avoid allocation
	outs  [][]byte
	views [][]byte
	acc   []byte // room for an element
	saved []byte // likewise
}

// Bounds of the tree.
const (
	// Flat is the largest number of members at which each one reads the lines of all.
	Flat = 16
	// Radix is the number of lines that a member reads otherwise, its own included.
	Radix = 8
)

// NewTeam makes the team of member me from the segments of all members, its own included. The
// segments are in use until [Team.Unused].
func NewTeam(c Carrier, me int, segments []*Segment) *Team {
	n, mine := len(segments), segments[me]
	lives := make([]uint64, n)
	for i, s := range segments {
		lives[i] = atomic.LoadUint64(&s.life)
	}
	return &Team{lives: lives, carrier: c, me: me, size: n, segments: segments, mine: mine, flat: Flat, buffer: int(mine.bufferSize),
		next: 1, doneOf: make([]uint64, n), parts: make([][]byte, n), outs: make([][]byte, n), views: make([][]byte, n), acc: make([]byte, DataSize), saved: make([]byte, DataSize)}
}

// Spin sets how often the team polls a line in a row before it moves on: an imminent change is then
// seen 20 ns earlier. Use zero if members share CPUs.
func (t *Team) Spin(looks int) { t.looks = looks }

// Can says whether size members can perform a call: its elements must fit into what a member
// publishes at a time.
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

// MismatchError reports that a member has called something else.
type MismatchError struct {
	Member       int
	Ours, Theirs uint64 // signatures
	Before       int    // how many calls before the one that detected it; -1: more than are kept
	Len, Other   int    // if the signatures are equal: bytes that we and they have for the data between us
}

// mismatch returns the error for the call of member i, from its line of the operation. A member need
// not read the lines of others in every call: a sending root does not. Its earlier calls are compared
// in the next call in which it does.
func (o *Op) mismatch(i int, theirs uint64) *MismatchError {
	if theirs != o.call.Signature {
		return &MismatchError{Member: i, Ours: o.call.Signature, Theirs: theirs}
	}
	if m := o.team.earlier(i, o.number); m != nil {
		return m
	}
	return &MismatchError{Member: i, Ours: o.call.Signature, Theirs: theirs, Before: -1}
}

// earlier returns the last call before number n that member i has made otherwise than this one; nil
// if there is none among those that are kept. Member i must have completed call n-1.
func (t *Team) earlier(i int, n uint64) *MismatchError {
	for k := uint64(1); k < lastCalls-slots && k <= n; k++ {
		at := (n - k) % lastCalls
		if a, b := t.mine.signatures[at], atomic.LoadUint64(&t.segments[i].signatures[at]); a != b {
			if !t.alive(i) {
				return nil // what has been read may be anything
			}
			return &MismatchError{Member: i, Ours: a, Theirs: b, Before: int(k)}
		}
	}
	return nil
}

// Differ compares the calls that all members have completed with those of this one, when no
// further call will: nil if they are the same as far as they are kept.
func (t *Team) Differ() *MismatchError {
	for i := range t.size {
		if i != t.me && t.knows(i, t.done) {
			if m := t.earlier(i, t.done+1); m != nil {
				return m
			}
		}
	}
	return nil
}

// Error returns the member and both calls as text.
func (e *MismatchError) Error() string {
	if e.Before < 0 {
		return fmt.Sprintf("member %d called something else in an earlier operation", e.Member)
	}
	if e.Ours == e.Theirs {
		return fmt.Sprintf("member %d has %d bytes where this one has %d", e.Member, e.Other, e.Len)
	}
	return fmt.Sprintf("member %d called %#x, this one %#x", e.Member, e.Theirs, e.Ours)
}

// ErrProtocol: a member violated the protocol of this version.
var ErrProtocol = errors.New("protocol violation")

// Quiet says whether all members have completed everything that this one has begun: then they no
// longer read its segment. Members that are gone do not count.
func (t *Team) Quiet() bool {
	for i := range t.size {
		if i != t.me && !t.knows(i, t.done) && !t.carrier.Gone(i) {
			return false
		}
	}
	return true
}

// alive says whether what has been read from the segment of member i is of that segment: it has not
// been freed, by Unused or with all the memory of its process's node.
func (t *Team) alive(i int) bool { return atomic.LoadUint64(&t.segments[i].life) == t.lives[i] }

// Close says to the others that this member reads their segments no more, except for what Unused
// needs.
func (t *Team) Close() { wait.StoreRelease64(&t.mine.closed, 1) }

// Unused says whether all members have closed the team or are gone: then the memory of this one's
// segment is free, and marked so.
func (t *Team) Unused() bool {
	for i, s := range t.segments {
		// In this order: a member's memory, which may be freed once this one has closed, loses its
		// life before it becomes anything else.
		if atomic.LoadUint64(&s.closed) == 0 && t.alive(i) && !t.carrier.Gone(i) {
			return false
		}
	}
	wait.StoreRelease64(&t.mine.life, 0)
	return true
}

// Needs says whether an operation in progress here is not complete at member i.
func (t *Team) Needs(i int) bool {
	return len(t.active) > 0 && (!t.knows(i, t.active[len(t.active)-1].number) || t.doneOf[i] >= over)
}

// knows says whether member i is known to have completed all operations up to number n.
func (t *Team) knows(i int, n uint64) bool {
	if t.doneOf[i] < n {
		t.doneOf[i] = max(t.doneOf[i], t.segments[i].Done())
	}
	return t.doneOf[i] >= n
}

// free says whether the slot of operation n may be written, because no member still reads its
// previous content.
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
			t.carrier.Mute() // it may have finished already, or do so without a Wake
			return false
		}
		least = min(least, t.doneOf[i])
	}
	t.minDone = least
	return least >= n-slots
}

// finished records that an operation is complete here.
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
	if !o.all { // a member that runs ahead may wait for its slot
		t.carrier.Wake()
	}
}

// line is the pair of a member for an operation.
func (t *Team) line(i int, n uint64) *pair { return &t.segments[i].lines[n%slots] }

// data is the slot's data of a member for an operation.
func (t *Team) data(i int, n uint64) *[DataSize]byte { return &t.segments[i].data[n%slots] }

// lag is the distance of done behind operation n, as stored in a line.
func (t *Team) lag(n uint64) uint8 { return uint8(min(n-t.done, 255)) }

// up says whether the line of member i for an operation has been published, with its flags.
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

// Fail ends all current and future operations with an error, which the caller must tell the others.
// Settled says when no member works in this one's memory any more.
func (t *Team) Fail(err error) {
	if t.err != nil {
		return
	}
	t.err = err
	for _, o := range t.active {
		o.withdraw()
	}
}

// Settled says whether, after Fail, no member accesses the memory of calls any more.
func (t *Team) Settled() bool {
	for _, o := range t.active {
		if !o.abandoned() {
			return false
		}
	}
	t.active = t.active[:0]
	if t.err != nil {
		wait.StoreRelease64(&t.mine.done, over) // this member reads nothing that the others begin from now on
	}
	return true
}

// Accessed returns memory of calls that other members may still access, while the team is not settled.
func (t *Team) Accessed() (list [][]byte) {
	for _, o := range t.active {
		if !o.abandoned() {
			list = append(list, o.call.Src, o.call.Dst)
		}
	}
	return list
}

// over exceeds the number of any operation.
const over = 1 << 48

// Err returns the error passed to Fail.
func (t *Team) Err() error { return t.err }

// withdraw announces that no member may begin to work in the memory of the call.
func (o *Op) withdraw() {
	if !o.offered {
		return
	}
	t := o.team
	w := &t.line(t.me, o.number).up.word
	atomic.StoreUint64(w, atomic.LoadUint64(w)|flagWithdrawn<<8) // before checking for working members
}

// abandoned says whether no other member is working in the memory of a withdrawn call.
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
