package shared

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync/atomic"

	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/layout"
	"github.com/sluice-hpc/sluice/internal/machine"
	"github.com/sluice-hpc/sluice/internal/wait"
)

// ErrWithdrawn: a member has cancelled the operation; the error with which it failed is on its
// way.
var ErrWithdrawn = errors.New("operation cancelled by another member")

// ErrLater: memory of a member is not accessible here yet.
var ErrLater = errors.New("memory of another member is on its way")

// way is how a long operation moves what members give to where it is needed. All members see the same
// offers, and choose the same.
type way uint8

const (
	wayStaged way = iota // through the slots or buffers of those that give
	wayPull              // each member reads what the others give
	wayPush              // each member writes to where the others get their results
	wayShares            // each member reads its share of what all give, and writes to where it is needed
)

// String returns the name of a way.
func (w way) String() string { return [...]string{"staged", "pull", "push", "shares"}[w] }

// collectLong continues when all members have offered.
func (o *Op) collectLong() (phase, error) {
	t := o.team
	if err := o.checkOffers(); err != nil {
		return o.phase, err
	}
	o.past = o.passes()
	if o.way = o.chooseWay(); o.way != wayStaged {
		return o.direct()
	}
	o.offered = false // the others see the same
	if n := o.fits(DataSize); o.size <= n {
		o.stageAll()
		return phaseIdle, o.take(t.parts, 0, n)
	}
	o.piece = t.piece
	t.piece += uint64(o.pieces())
	return phaseRoom, nil
}

// chooseWay avoids staging where the memory of one side is enough for it. Where that of either is, the way
// is the one in which all members have work.
func (o *Op) chooseWay() way {
	t, c := o.team, o.call
	switch {
	case o.size <= o.fits(DataSize): // of uneven blocks, which are in the slots
	case c.Uneven && blockwise(c.Kind):
		switch {
		case o.gives && o.tells():
			return wayPull
		case o.gets:
			return wayPush
		}
	case c.Kind == coll.Gather && o.gets && (!c.Uneven || o.tells()):
		return wayPush
	case c.Kind.Reduces() && c.Kind != coll.ReduceScatter:
		if o.gives && o.gets {
			return wayShares
		}
	case o.gives:
		return wayPull
	case c.Kind == coll.Broadcast && t.size > 2: // one member would write to all
	case c.Kind != coll.Gather && c.Kind != coll.ReduceScatter && o.gets:
		return wayPush
	}
	return wayStaged
}

// worksHere says whether other members work in the memory of this one, in its way.
func (o *Op) worksHere() bool {
	c, root := o.call, o.team.me == o.call.Root
	switch {
	case o.way == wayShares:
		return true
	case c.Kind == coll.Broadcast || c.Kind == coll.Scatter:
		return root == (o.way == wayPull)
	case c.Kind == coll.Gather:
		return root == (o.way == wayPush)
	}
	return true
}

// checkOffers compares the lengths of offers with the expected ones, as far as the signature does
// not cover them.
func (o *Op) checkOffers() error {
	t, c := o.team, o.call
	if !c.Uneven || c.Kind != coll.Gather || t.me != c.Root {
		return nil
	}
	for i := range t.size {
		if err := o.alike(i, c.span(i).Len, uint64(t.line(i, o.number).up.offered().own)); err != nil {
			return err
		}
	}
	return nil
}

// direct does this member's share of the work in the memory of all members, as soon as it is
// accessible.
func (o *Op) direct() (phase, error) {
	t := o.team
	down := &t.line(t.me, o.number).down.word
	before := *down
	if !o.working() {
		return o.phase, ErrWithdrawn
	}
	err := o.work()
	if errors.Is(err, ErrLater) {
		atomic.StoreUint64(down, before)
		return o.phase, nil
	}
	o.worked(err == nil)
	if err != nil {
		return o.phase, err
	}
	o.at = 0
	if !o.worksHere() {
		return phaseIdle, nil
	}
	return phaseEnd, nil
}

// view is the memory that a member has offered, which must have n bytes.
func (o *Op) view(i int, dst bool, n int) ([]byte, error) {
	t := o.team
	own := o.call.Src
	f := t.line(i, o.number).up.offered()
	m := f.src
	if dst {
		own, m = o.call.Dst, f.dst
	}
	switch {
	case i == t.me:
		return own, nil
	case m.len != n:
		return nil, fmt.Errorf("%w: member %d offers %d bytes, want %d", ErrProtocol, i, m.len, n)
	case n == 0:
		return nil, nil
	}
	return t.carrier.View(i, m.key, m.addr, n)
}

// viewAll sets views of the memory that all members have offered, n bytes each.
func (o *Op) viewAll(views [][]byte, dst bool, n int) (err error) {
	for i := range views {
		if views[i], err = o.view(i, dst, n); err != nil {
			return err
		}
	}
	return nil
}

// work moves and reduces from memory to memory.
func (o *Op) work() error {
	switch o.way {
	case wayPull:
		return o.pull()
	case wayPush:
		return o.push()
	}
	return o.reduceShare()
}

// pull copies what the others give to this member.
func (o *Op) pull() error {
	t, c := o.team, o.call
	if c.Uneven && blockwise(c.Kind) {
		return o.pullUneven()
	}
	switch c.Kind {
	case coll.Broadcast:
		if t.me == c.Root {
			return nil
		}
		b, err := o.view(c.Root, true, len(c.Dst))
		if err == nil {
			layout.Copy(c.Dst, b)
		}
		return err
	case coll.Scatter:
		b, err := o.view(c.Root, false, c.total(t.size))
		if err == nil {
			o.moveBlock(c.Dst, c.span(t.me).in(b))
		}
		return err
	case coll.ReduceScatter:
		err := o.viewAll(t.parts, false, len(c.Src))
		if err == nil {
			o.fold(c.Dst, t.parts, c.span(t.me))
		}
		return err
	case coll.Alltoall:
		err := o.viewAll(t.parts, false, len(c.Src))
		for k := 0; k < t.size && err == nil; k++ {
			i := (t.me + k) % t.size
			o.moveBlock(c.span(i).in(c.Dst), t.parts[i][t.me*c.Block:])
		}
		return err
	}
	return o.pullAll()
}

// tells says whether a slot has room for where the blocks are that a member gives and gets.
func (o *Op) tells() bool { return o.tableAt(o.call.Kind == coll.Alltoall, o.team.size) <= DataSize }

// spanSize is the size of a block's offset and length.
const spanSize = 2 * lengthSize

// tableAt is where in a slot a block's place is: of those that a member gets, if it also gives some, the table
// follows on the other.
func (o *Op) tableAt(second bool, i int) int {
	if second {
		i += o.team.size
	}
	return i * spanSize
}

// tell writes to the slot where the blocks are that this member gives, and those that it gets.
func (o *Op) tell(slot []byte) {
	c := o.call
	for i := range o.team.size {
		if blockwise(c.Kind) && o.gives {
			c.given(i).put(slot[o.tableAt(false, i):])
		}
		if o.gets && c.Kind != coll.Scatter {
			c.span(i).put(slot[o.tableAt(c.Kind == coll.Alltoall, i):])
		}
	}
}

func (s Span) put(b []byte) {
	binary.NativeEndian.PutUint64(b, uint64(s.Off))
	binary.NativeEndian.PutUint64(b[lengthSize:], uint64(s.Len))
}

// told is the block that member i gives to this one, of want bytes: in its slot, if all that it gives
// fits into that, else in its memory.
func (o *Op) told(i, want int) ([]byte, error) {
	t, c := o.team, o.call
	if i == t.me {
		b := c.gives(i, i)
		return b, o.alike(i, want, uint64(len(b)))
	}
	slot, f, n := t.data(i, o.number)[:], t.line(i, o.number).up.offered(), o.fits(DataSize)
	if f.own <= n {
		slot = slot[t.me*o.stride(n):]
		if err := o.alike(i, want, binary.NativeEndian.Uint64(slot)); err != nil {
			return nil, err
		}
		if want > n {
			return nil, fmt.Errorf("%w: member %d published %d bytes for %d", ErrProtocol, i, n, want)
		}
		return slot[lengthSize:][:want], nil
	}
	return o.block(i, f.src, slot[o.tableAt(false, t.me):], want)
}

// block is the block of want bytes in memory that member i has offered, which says where.
func (o *Op) block(i int, m offeredMemory, at []byte, want int) ([]byte, error) {
	off := binary.NativeEndian.Uint64(at)
	if err := o.alike(i, want, binary.NativeEndian.Uint64(at[lengthSize:])); err != nil || want == 0 {
		return nil, err
	}
	if m.len < want || off > uint64(m.len-want) {
		return nil, fmt.Errorf("%w: member %d offers %d bytes, want %d of them from %d on", ErrProtocol, i, m.len, want, off)
	}
	b, err := o.team.carrier.View(i, m.key, m.addr, m.len)
	if err != nil {
		return nil, err
	}
	return b[off:][:want], nil
}

// pullUneven copies blocks of which this member knows those that it gets.
func (o *Op) pullUneven() (err error) {
	t, c := o.team, o.call
	from, to := c.needs(t.me, t.size)
	for i := from; i < to && err == nil; i++ { // all at first, as in push
		t.parts[i], err = o.told(i, c.got(i).Len)
	}
	for k := 0; k < to-from && err == nil; k++ {
		i := from + (t.me+k)%(to-from)
		o.moveBlock(c.got(i).in(c.Dst), t.parts[i])
	}
	return err
}

// push copies what this member gives to where the others get it.
func (o *Op) push() (err error) {
	t, c := o.team, o.call
	first, count := 0, t.size // members that get something
	switch {
	case c.Kind == coll.Gather:
		first, count = c.Root, 1
	case c.Kind.Rooted() && t.me != c.Root:
		return nil
	}
	for i := first; i < first+count && err == nil; i++ { // all at first: after ErrLater it would be copied again
		t.outs[i], err = o.place(i)
	}
	for k := 0; k < count && err == nil; k++ {
		i := first + (t.me+k)%count
		o.moveBlock(t.outs[i], o.gift(i))
	}
	return err
}

// gift is what this member gives to member i.
func (o *Op) gift(i int) []byte {
	switch c := o.call; c.Kind {
	case coll.Broadcast:
		return c.Dst
	case coll.Scatter, coll.Alltoall:
		return c.gives(o.team.me, i)
	}
	return o.call.Src
}

// place is where member i gets what this one gives to it.
func (o *Op) place(i int) ([]byte, error) {
	t, c := o.team, o.call
	n, m := len(o.gift(i)), t.line(i, o.number).up.offered().dst
	switch {
	case c.Kind == coll.Broadcast || c.Kind == coll.Scatter:
		if c.Uneven {
			if err := o.alike(i, n, uint64(m.len)); err != nil {
				return nil, err
			}
		}
		return o.view(i, true, n)
	case c.Uneven && i != t.me:
		return o.block(i, m, t.data(i, o.number)[o.tableAt(c.Kind == coll.Alltoall, t.me):], n)
	case c.Uneven:
		if err := o.alike(i, n, uint64(c.span(i).Len)); err != nil {
			return nil, err
		}
	}
	b, err := o.view(i, true, c.total(t.size))
	if err != nil {
		return nil, err
	}
	return c.span(t.me).in(b), nil
}

// reduceShare reduces this member's share of what all give, and writes it to where it is needed.
func (o *Op) reduceShare() (err error) {
	t, c := o.team, o.call
	srcs, dsts := t.parts, t.outs
	if err = o.viewAll(srcs, false, len(c.Src)); err != nil {
		return err
	}
	s := o.shareOf(t.me, len(c.Src))
	if c.Kind == coll.Reduce {
		if dsts[0], err = o.view(c.Root, true, len(c.Src)); err == nil {
			o.fold(s.in(dsts[0]), srcs, s)
		}
		return err
	}
	if err = o.viewAll(dsts, true, len(c.Src)); err != nil {
		return err
	}
	if c.Kind == coll.Allreduce {
		o.foldToAll(dsts, srcs, s)
	} else {
		o.foldPrefixes(dsts, srcs, s, s.Off)
	}
	return nil
}

// copyBlock copies unless both are the same memory.
func copyBlock(dst, src []byte) {
	if len(dst) > 0 && &dst[0] != &src[0] {
		layout.Copy(dst, src)
	}
}

// moveBlock is copyBlock between memory of two members. A long copy stores past the caches; as long as what all
// members get fits into these, it had better stay there: two CPUs with 32 MiB take 54 us for an allgather of
// 1 MiB instead of 155.
func (o *Op) moveBlock(dst, src []byte) {
	if len(dst) == 0 || &dst[0] == &src[0] {
		return
	}
	for len(dst) > movePiece && o.got() <= lastCache()/4 {
		layout.Copy(dst[:movePiece], src)
		dst, src = dst[movePiece:], src[movePiece:]
	}
	if len(dst) < movesPast {
		o.copyOut(dst, src)
	} else {
		layout.Copy(dst, src)
	}
}

// copyOut copies to where a member gets its result: past the caches if these have no room for what all members
// give and get. Sixteen ranks on two CPUs with 32 MiB, 8 MiB each: a broadcast from the heap takes 0.77 to 0.98
// times as long, an allreduce 0.85 to 0.95, one from Alloc 0.79; a broadcast among four, whose memory is as large
// as the caches, 1.33.
func (o *Op) copyOut(dst, src []byte) {
	if o.past {
		layout.CopyPast(dst, src)
	} else {
		layout.Copy(dst, src)
	}
}

// passes says whether what all members give and get is twice what the caches of the host have.
func (o *Op) passes() bool {
	n := o.memory()
	return layout.Past && lastCache() > 0 && n >= 2*lastCache() && n >= 2*lastCaches()
}

// memory is about how many bytes all members give and get.
func (o *Op) memory() int {
	c, n := o.call, o.team.size
	switch c.Kind {
	case coll.Scatter:
		return 2 * n * len(c.Dst)
	case coll.Gather, coll.Reduce:
		return n*len(c.Src) + len(c.Dst)
	}
	return n * (len(c.Src) + len(c.Dst))
}

// got is about how many bytes all members get; twice as many if one member copies them.
func (o *Op) got() int {
	t, c := o.team, o.call
	switch {
	case c.Kind == coll.Broadcast: // which is as fast past the caches
		return math.MaxInt
	case c.Kind == coll.Scatter && o.way == wayPush:
		return 2 * len(c.Src)
	case c.Kind == coll.Gather && t.me != c.Root:
		return t.line(c.Root, o.number).up.offered().dst.len
	case c.Kind == coll.Gather:
		return len(c.Dst)
	}
	return len(c.Dst) * t.size
}

const (
	movesPast = 1 << 20 // bytes from which on a copy stores past the caches (runtime/memmove_amd64.s)
	movePiece = movesPast / 2
)

var lastCache, lastCaches = machine.LastCache, machine.LastCaches

// pullAll copies the blocks of all members to their places here.
func (o *Op) pullAll() (err error) {
	t, c := o.team, o.call
	if c.Kind == coll.Gather && t.me != c.Root {
		return nil
	}
	for i := 0; i < t.size && err == nil; i++ { // all at first, as in push
		t.parts[i], err = o.view(i, false, c.span(i).Len)
	}
	for k := 0; k < t.size && err == nil; k++ {
		i := (t.me + k) % t.size
		o.moveBlock(c.span(i).in(c.Dst), t.parts[i])
	}
	return err
}

// foldToAll reduces a share, and writes it to all.
func (o *Op) foldToAll(dsts, srcs [][]byte, s Span) {
	t := o.team
	e := max(o.call.Elem, 1)
	step := max(1, foldBlock/e) * e
	for off := 0; off < s.Len; off += step {
		b := Span{s.Off + off, min(step, s.Len-off)}
		own := b.in(dsts[t.me])
		o.fold(own, srcs, b)
		for k := 1; k < t.size; k++ {
			o.copyOut(b.in(dsts[(t.me+k)%t.size]), own)
		}
	}
}

// foldPrefixes reduces a share for all members, each of which needs another number of parts. The
// results are at an offset of dsts.
func (o *Op) foldPrefixes(dsts, srcs [][]byte, s Span, at int) {
	c := o.call
	e := max(c.Elem, 1)
	step := max(1, foldBlock/e) * e
	for off := 0; off < s.Len; off += step {
		b := Span{s.Off + off, min(step, s.Len-off)}
		to := Span{at + off, b.Len}
		acc, saved := o.team.acc[:b.Len], o.team.saved[:b.Len]
		for i := range srcs {
			src := b.in(srcs[i])
			copy(saved, src) // the result may overwrite it
			if c.Kind == coll.Exscan && i > 0 {
				layout.Copy(to.in(dsts[i]), acc)
			}
			if i == 0 {
				copy(acc, saved)
			} else {
				c.Combine(acc, acc, saved)
			}
			if c.Kind == coll.Scan {
				layout.Copy(to.in(dsts[i]), acc)
			}
		}
	}
}

// givePiece publishes a piece when its buffer is free, because all have taken the previous piece.
// Operations take turns.
func (o *Op) givePiece() (phase, error) {
	t, c := o.team, o.call
	n := o.piece + 1
	if t.taken != o.piece {
		return phaseRoom, nil
	}
	for i := 0; n > buffers && i < t.size; i++ {
		if i != t.me && atomic.LoadUint64(&t.segments[i].taken) < n-buffers {
			return phaseRoom, nil
		}
	}
	o.piece = n
	o.at = 0
	lines, data := o.stage(t.me)
	o.give(data, o.off, o.step)
	lines.up.publish(c.Signature, stamp(n, 0), 0, 0)
	t.carrier.Wake()
	if c.Kind == coll.Gather && t.me == c.Root && o.off == 0 { // while the others fill theirs
		copyBlock(c.span(t.me).in(c.Dst), c.Src)
	}
	return phasePiece, nil
}

// takePieces takes the pieces of the others when all the needed ones have been published.
func (o *Op) takePieces() (phase, error) {
	t, c := o.team, o.call
	from, to := c.needs(t.me, t.size)
	if o.shared {
		from, to = 0, t.size
	}
	for ; o.at < to-from; o.at++ {
		lines, _ := o.stage(from + o.at)
		if _, ok := lines.up.read(o.piece); !ok {
			return phasePiece, nil
		}
		if lines.up.signature != c.Signature {
			return o.phase, fmt.Errorf("%w: member %d published a piece of another call", ErrProtocol, from+o.at)
		}
	}
	o.stageAll()
	if o.shared {
		return o.share(), nil
	}
	if err := o.take(t.parts, o.off, o.step); err != nil {
		return o.phase, err
	}
	return o.pieceTaken(), nil
}

// pieceLen is the number of bytes of the vector in the piece.
func (o *Op) pieceLen() int { return min(o.step, len(o.call.Src)-o.off) }

// pieceTaken lets the others reuse the buffer.
func (o *Op) pieceTaken() phase {
	t := o.team
	t.taken = o.piece
	wait.StoreRelease64(&t.mine.taken, o.piece)
	t.carrier.Wake()
	if o.off += o.step; o.off >= o.size {
		return phaseIdle
	}
	return phaseRoom
}
