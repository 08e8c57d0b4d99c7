package shared

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/wait"
)

// Op is one operation of a member, which may be reused when it is complete.
type Op struct {
	team    *Team
	call    *Call
	number  uint64
	before  uint16 // hash of what was called before
	phase   phase
	offered bool // others may work in the memory of the call
	at      int  // lines read
	to      int
	size    int  // the longest vector, or block, as far as known
	long    bool // there are offers
	inline  bool // inputs fit into a line
	all     bool // the lines of all members are read
	gives   bool // the others can read what each member gives
	gets    bool // the others can write to where each member gets its result
	way     way  // of a long operation

	shared bool   // each member computes its share of the result, for all
	step   int    // bytes of the vector, or of each block, that are published at a time
	room   int    // bytes that a piece takes in a buffer
	off    int    // of those in this piece of a long operation that goes through buffers
	piece  uint64 // its number; zero if it does not
	past   bool   // see copyOut
}

type phase uint8

const (
	phaseIdle  phase = iota
	phaseHeld        // has its number, but must not be published yet
	phaseSlot        // waits for its slot
	phaseUp          // waits for the inputs of others
	phaseTree        // waits for its branch
	phaseRoot        // waits for the result from the root of the tree
	phaseShare       // waits for the shares of others
	phaseEnd         // waits until the others have worked in our memory
	phaseRoom        // waits for a buffer
	phasePiece       // waits for a piece
)

// Enqueue gives a call its number: all members do so in the same order. It is not published before
// [Op.Release]; see [Team.Advance]. The call must not change until the operation is complete.
func (t *Team) Enqueue(o *Op, c *Call) {
	o.prepare(t, c, phaseHeld)
	t.active = append(t.active, o)
}

// prepare gives an operation the next number.
func (o *Op) prepare(t *Team, c *Call, p phase) {
	o.team, o.call, o.phase, o.offered = t, c, p, false
	o.number, o.before = t.next, t.before
	t.next++
	wait.StoreRelease64(&t.mine.signatures[o.number%lastCalls], c.Signature)
	t.before = uint16((c.Signature ^ uint64(t.before)*0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9 >> 48)
}

func (o *Op) stamp() uint64 { return stamp(o.number, o.before) }

// Begin is Enqueue and Release; if no other operation is in progress, it also advances this one as
// far as possible.
func (t *Team) Begin(o *Op, c *Call) (over bool, err error) {
	if t.err != nil {
		return false, t.err
	}
	o.prepare(t, c, phaseSlot)
	over, err = o.advance()
	switch {
	case over:
		o.phase = phaseIdle
		t.finished(o)
		return true, nil
	case err != nil:
		t.active = append(t.active, o)
		t.Fail(err)
		return false, err
	}
	t.active = append(t.active, o)
	return false, nil
}

// Release says that the input of the call is ready. The memory of the call belongs to the operation
// from then on until it is complete.
func (o *Op) Release() { o.phase = phaseSlot }

// Over says whether the operation is complete.
func (o *Op) Over() bool { return o.phase == phaseIdle }

// Advance makes progress on all operations, without waiting. After an error the team has failed: see
// [Team.Fail].
func (t *Team) Advance() error {
	if t.err != nil {
		return t.err
	}
	for i := 0; i < len(t.active); {
		o := t.active[i]
		over, err := o.advance()
		if err != nil {
			t.Fail(err)
			return err
		}
		if over {
			o.phase = phaseIdle
			t.finished(o) // active[i] is now another
		} else {
			i++
		}
	}
	return nil
}

// advance goes from phase to phase as far as the progress of the others allows.
func (o *Op) advance() (over bool, err error) {
	for {
		var next phase
		switch o.phase {
		case phaseHeld:
			return false, nil
		case phaseSlot:
			if !o.team.free(o.number) {
				return false, nil
			}
			next = o.begin()
		case phaseUp:
			next, err = o.collect()
		case phaseTree:
			next, err = o.branch()
		case phaseRoot:
			next, err = o.takeTreeResult()
		case phaseShare:
			next = o.takeShares()
		case phaseEnd:
			next, err = o.await()
		case phaseRoom:
			next, err = o.givePiece()
		case phasePiece:
			next, err = o.takePieces()
		}
		if err != nil {
			return false, err
		}
		if next == o.phase {
			return false, nil
		}
		if next == phaseIdle {
			return true, nil
		}
		o.phase = next
	}
}

// most is the longest input vector, or block, of any member, if all members know it.
func (o *Op) most() int {
	c := o.call
	switch c.Kind {
	case coll.Barrier:
		return 0
	case coll.Broadcast:
		return len(c.Dst)
	case coll.Scatter, coll.Gather, coll.Alltoall, coll.Allgather, coll.ReduceScatter:
		n := c.Block
		for _, b := range c.Blocks {
			n = max(n, b.Len)
		}
		return n
	}
	return len(c.Src)
}

// own is the longest input vector, or block, of this member.
func (o *Op) own() int {
	t, c := o.team, o.call
	if !blockwise(c.Kind) {
		return len(c.part(t.me))
	}
	if c.Kind == coll.Scatter && t.me != c.Root {
		return 0
	}
	n := 0
	for i := range t.size {
		n = max(n, len(c.gives(t.me, i)))
	}
	return n
}

// begin publishes the input of the member, or its location.
func (o *Op) begin() phase {
	t, c := o.team, o.call
	o.at = 0
	if !c.form.known {
		c.form = o.form()
	}
	o.size, o.long, o.inline, o.all, o.to = c.form.size, c.form.long, c.form.inline, c.form.all, c.form.to
	o.shared, o.step, o.off, o.piece, o.past = c.form.shared, o.size, 0, 0, false
	l := &t.line(t.me, o.number).up
	flags := uint8(0)
	switch {
	case o.long:
		flags = flagLong | o.offer(l)
		slot := t.data(t.me, o.number)[:]
		switch n := o.fits(DataSize); {
		case c.form.places:
			o.tell(slot)
		case o.size <= n: // it may turn out to be short
			o.give(slot, 0, n)
		case c.Uneven && blockwise(c.Kind) && o.tells():
			o.tell(slot)
		}
	case t.size > t.flat && (c.Kind == coll.Barrier || c.Kind == coll.Allreduce):
		o.startTree()
		return phaseTree
	case o.inline:
		flags = flagInline
		o.give(l.payload[:], 0, o.size)
	default:
		o.give(t.data(t.me, o.number)[:], 0, o.size)
	}
	l.publish(c.Signature, o.stamp(), flags, t.lag(o.number))
	wait.PrefetchWrite(&t.line(t.me, o.number+1).up.word) // for the next operation, while this one waits
	t.carrier.Wake()
	if n := c.form.touch; n > 0 {
		o.touch(n)
	}
	return phaseUp
}

// touch takes the lines of the data of the next operation, which is probably as long, from the members that have
// read them last, while this one waits for the others.
func (o *Op) touch(n int) {
	if t, next := o.team, o.number+1; next == t.next && (next <= slots || t.minDone >= next-slots) {
		wait.TakeLines(t.data(t.me, next)[:n])
	}
}

// touchMin: an allreduce of 512 bytes takes 0.76 to 0.97 times as long with touch, one of 256 bytes 1.08 times.
const touchMin = 512

// form is the method by which a call is performed.
type form struct {
	known  bool
	all    bool // the lines of all members are read
	long   bool // there are offers
	inline bool // inputs fit into a line
	shared bool // see shareMin
	places bool // this member tells the others where it gets its blocks: see tell
	to     int  // lines to read
	touch  int  // bytes of its slot that this member writes again and again, if it waits for others
	size   int  // the longest vector, or block, as far as known
}

// form chooses the method of the call: the same at all members, from what all know.
func (o *Op) form() form {
	t, c := o.team, o.call
	from, to := c.needs(t.me, t.size)
	f, total := form{known: true}, 0
	if c.Uneven {
		f.size, f.long = o.own(), true
		switch n := o.fits(DataSize); c.Kind {
		case coll.Alltoall:
			f.places = o.tells() && f.size > n // else the slot has what it gives
		case coll.Gather:
			f.places = o.tells() && t.me == c.Root && slices.ContainsFunc(c.Blocks, func(s Span) bool { return s.Len > n })
		}
	} else {
		f.size = o.most()
		f.long = f.size > o.fits(DataSize)
		f.shared = c.Kind == coll.Allreduce && !f.long && t.size > 2 && f.size >= shareMin
		total = f.size
		if blockwise(c.Kind) {
			total *= t.size
		}
		f.inline = total <= Inline
	}
	switch f.all = f.long || to-from == t.size; {
	case f.all:
		f.to = t.size - 1
	case from <= t.me && t.me < to:
		f.to = to - from - 1
	default:
		f.to = to - from
	}
	if !f.long && f.to > 0 && total >= touchMin {
		f.touch = total
	}
	return f
}

// member is the i-th member whose line to read: all but this one, beginning with the next, or only
// those that it needs.
func (o *Op) member(i int) int {
	t := o.team
	if o.all {
		if i += t.me + 1; i >= t.size {
			i -= t.size
		}
		return i
	}
	from, to := o.call.needs(t.me, t.size)
	if i += from; i >= t.me && from <= t.me && t.me < to {
		i++
	}
	return i
}

// offer writes into the line where the memory of the call is, and returns the flags of what the others
// can access.
func (o *Op) offer(l *line) (flags uint8) {
	c, carrier := o.call, o.team.carrier
	var key [2]uint32
	var addr [2]uint64
	ok := [2]bool{true, true}
	inSlot := c.Uneven && blockwise(c.Kind) && o.size <= o.fits(DataSize) // what it gives, if anything
	unplaced := c.Uneven && c.Kind != coll.Scatter && !c.form.places
	for i, b := range [...][]byte{c.Src, c.Dst} {
		switch {
		case i == 1 && unplaced:
			ok[i] = false
		case len(b) > 0 && !(i == 0 && inSlot):
			key[i], addr[i], ok[i] = carrier.Export(b)
			o.offered = o.offered || ok[i]
		}
	}
	p := l.payload[:]
	binary.NativeEndian.PutUint64(p, uint64(o.size))
	for i, b := range [...][]byte{c.Src, c.Dst} {
		binary.NativeEndian.PutUint32(p[8+20*i:], key[i])
		binary.NativeEndian.PutUint64(p[12+20*i:], addr[i])
		binary.NativeEndian.PutUint64(p[20+20*i:], uint64(len(b)))
	}
	if o.gives, o.gets = c.exposed(o.team.me, ok[0], ok[1]); o.gives {
		flags |= flagGives
	}
	if o.gets {
		flags |= flagGets
	}
	return flags
}

// offerOf is the offer of a member.
type offerOf struct {
	own int
	src offeredMemory
	dst offeredMemory
}

type offeredMemory struct {
	key  uint32
	addr uint64
	len  int
}

func (l *line) offered() (f offerOf) {
	p := l.payload[:]
	f.own = int(binary.NativeEndian.Uint64(p))
	for i, m := range [...]*offeredMemory{&f.src, &f.dst} {
		m.key = binary.NativeEndian.Uint32(p[8+20*i:])
		m.addr = binary.NativeEndian.Uint64(p[12+20*i:])
		m.len = int(binary.NativeEndian.Uint64(p[20+20*i:]))
	}
	return f
}

// collect checks whether what the member needs has been published, and computes the result from it.
func (o *Op) collect() (phase, error) {
	t, c := o.team, o.call
	for o.at < o.to {
		i := o.member(o.at)
		flags, ok, err := t.up(o, i)
		if err != nil || !ok {
			return phaseUp, err
		}
		if o.long {
			own := t.line(i, o.number).up.offered().own
			if flags&flagLong == 0 || own < 0 || own > mostOffered || !o.call.Uneven && own != o.call.form.size {
				return o.phase, fmt.Errorf("%w: member %d offers %d bytes", ErrProtocol, i, own)
			}
			o.size = max(o.size, own)
			o.gives = o.gives && flags&flagGives != 0
			o.gets = o.gets && flags&flagGets != 0
		}
		o.at++
	}
	if o.long {
		if !t.foremost(o) {
			return phaseUp, nil
		}
		return o.collectLong()
	}
	if o.inline && c.Kind == coll.Allreduce && t.size == 2 { // as below, and shorter
		n := len(c.Src)
		c.Combine(c.Dst, t.line(0, o.number).up.payload[:n:n], t.line(1, o.number).up.payload[:n:n])
		return phaseIdle, nil
	}
	if !o.inline {
		o.stageAll()
	} else {
		for i := range t.size {
			t.parts[i] = t.line(i, o.number).up.payload[:]
		}
	}
	if o.shared {
		return o.share(), nil
	}
	return phaseIdle, o.take(t.parts, 0, o.size)
}

// mostOffered exceeds the size of any memory.
const mostOffered = 1 << 46

// foremost says whether all earlier operations have collected what they need: pieces are numbered in
// the order of the operations.
func (t *Team) foremost(o *Op) bool {
	for _, a := range t.active {
		if a == o {
			return true
		}
		if a.phase <= phaseUp {
			return false
		}
	}
	return true
}

// await waits until the others have finished their work in our memory.
func (o *Op) await() (phase, error) {
	t := o.team
	for o.at < t.size-1 {
		i := t.me + 1 + o.at
		if i >= t.size {
			i -= t.size
		}
		flags, ok := t.line(i, o.number).down.read(o.number)
		if !ok || flags&flagWorking != 0 {
			return phaseEnd, nil
		}
		if flags&flagWithdrawn != 0 { // its share is missing
			return o.phase, ErrWithdrawn
		}
		o.at++
	}
	return phaseIdle, nil
}

// working announces that the member begins to work in the memory of others; false if one of them has
// withdrawn.
func (o *Op) working() bool {
	t := o.team
	d := &t.line(t.me, o.number).down
	d.signature = o.call.Signature
	atomic.StoreUint64(&d.word, o.stamp()<<16|flagWorking<<8) // before checking for withdrawn members
	for i := range t.size {
		if flags, ok := t.line(i, o.number).up.read(o.number); !ok || flags&flagWithdrawn != 0 {
			o.worked(false)
			return false
		}
	}
	return true
}

// worked announces that the member no longer accesses the memory of others, and whether it has done
// its share.
func (o *Op) worked(done bool) {
	t := o.team
	flags := uint8(flagWithdrawn)
	if done {
		flags = 0
	}
	t.line(t.me, o.number).down.publish(o.call.Signature, o.stamp(), flags, 0)
	t.carrier.Wake()
}
