package roce

import (
	"iter"

	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/internal/soft"
)

// readOver: the packet psn of the response to e came late. It may have overwritten data of later
// reads to the same memory, whose data must prevail: those packets now count as missing.
func (q *qp) readOver(e *soft.SendEntry, psn uint32) {
	r := &q.req
	for pos := q.position(psn); pos != q.SQ.Next(); pos++ {
		o := q.SQ.At(pos)
		if !before(o.First, r.sackHigh) {
			return
		}
		if o.Opcode < verbs.OpRDMARead || !overlap(e, o) {
			continue
		}
		p := o.First
		if o == e {
			p = psn + 1
		}
		for ; !before(o.Mark, p) && before(p, r.sackHigh); p++ {
			if r.hasCome(p) && q.meet(e, psn, o, p) {
				r.came[p%windowPackets/64] &^= 1 << (p % 64)
				o.Off = min(o.Off, uint64(p-o.First)*uint64(q.mtu))
				if o.Done {
					o.Done = false
					r.reads++
				}
			}
		}
	}
}

// overlap says whether two requests, or two elements of one, have memory in common.
func overlap(a, b *soft.SendEntry) bool {
	for i, x := range a.SGEs {
		for j, y := range b.SGEs {
			if (a != b || i < j) && x.Addr < y.Addr+uint64(y.Length) && y.Addr < x.Addr+uint64(x.Length) {
				return true
			}
		}
	}
	return false
}

// meet says whether the packet s of the response to a and t of that to b have memory in common.
func (q *qp) meet(a *soft.SendEntry, s uint32, b *soft.SendEntry, t uint32) bool {
	for x, n := range q.places(a, s) {
		for y, m := range q.places(b, t) {
			if x < y+m && y < x+n {
				return true
			}
		}
	}
	return false
}

// places yields the destination of the packet psn of the response to e, as address and length.
func (q *qp) places(e *soft.SendEntry, psn uint32) iter.Seq2[uint64, uint64] {
	return func(yield func(uint64, uint64) bool) {
		off := uint64(psn-e.First) * uint64(q.mtu)
		left := min(e.Length-off, uint64(q.mtu))
		for _, s := range e.SGEs {
			length := uint64(s.Length)
			if off >= length {
				off -= length
				continue
			}
			n := min(length-off, left)
			if n > 0 && !yield(s.Addr+off, n) {
				return
			}
			off, left = 0, left-n
		}
	}
}
