package verbstest

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs"
)

// testSGE is about scatter/gather lists: every number of elements to every
// number of elements, over several regions, in any order, with holes, with
// elements of nothing.
func testSGE(t *testing.T, s *suite) {
	s.in(t, everywhere, func(w *world) {
		for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpRDMAWrite, verbs.OpRDMARead} {
			w.run(op.String(), func(w *world) { moveAllShapes(w, op) })
		}
		w.run("receive longer than message", receiveLonger)
		w.run("same memory twice", sameMemoryTwice)
		w.run("too many", tooManyElements)
		w.run("impossible", impossibleElements)
	})
}

// regions of one end that pieces are cut out of, in turn, at random places.
type regions struct {
	ms   []*mem
	used []int
}

func (w *world) regions(p *peer, size int) *regions {
	return &regions{
		ms: []*mem{w.alloc(p, size, verbs.AccessAll, own), w.alloc(p, size, verbs.AccessAll, heap), w.alloc(p, size, verbs.AccessAll, own)},
	}
}

func (r *regions) fill(seed uint64) {
	r.used = make([]int, len(r.ms))
	for i, m := range r.ms {
		m.fill(seed + uint64(i))
	}
}

// cut makes count pieces of together n bytes, some of them empty, in no order.
func (r *regions) cut(rng *rand.Rand, n, count int) []piece {
	l := make([]piece, count)
	for i, n := range split(rng, n, count) {
		k := rng.IntN(len(r.ms))
		r.used[k] += 1 + rng.IntN(13)
		l[i] = piece{r.ms[k], r.used[k], n}
		r.used[k] += n
	}
	rng.Shuffle(len(l), func(i, j int) { l[i], l[j] = l[j], l[i] })
	return l
}

// split cuts n at random into count parts.
func split(rng *rand.Rand, n, count int) []int {
	at := make([]int, count+1)
	for i := 1; i < count; i++ {
		at[i] = rng.IntN(n + 1)
	}
	at[count] = n
	slices.Sort(at)
	l := make([]int, count)
	for i := range l {
		l[i] = at[i+1] - at[i]
	}
	return l
}

func moveAllShapes(w *world, op verbs.Opcode) {
	rng := seeded(w.suite.Seed, w.t.Name())
	most := w.suite.attr.MaxSGE
	near, far := w.pair(qpSpec{SendSGE: most, RecvSGE: most}, usual)
	counts := []int{1, 2, 3, 7, most}
	slices.Sort(counts)
	counts = slices.Compact(slices.DeleteFunc(counts, func(n int) bool { return n > most }))
	srcEnd, dstEnd := w.near, w.far
	if op == verbs.OpRDMARead {
		srcEnd, dstEnd = dstEnd, srcEnd
	}
	largest := 70001
	src, dst := w.regions(srcEnd, largest+14*most+1), w.regions(dstEnd, largest+14*most+1)
	lengths := []int{0, 1, 64, 4097, largest}
	each := need.ByForm(1, 2, len(lengths)) // lengths of a pair of numbers, by turns
	src.fill(1000)
	dst.fill(2000)
	// anew makes the data to move differ from the data at the destination, by changing the near
	// end's memory: changing the far end's would take a command.
	id, turn := uint64(0), 0
	anew := func() {
		for _, r := range []*regions{src, dst} {
			if clear(r.used); r.ms[0].p == w.near {
				r.fill(3 * id)
			}
		}
	}
	for _, from := range counts {
		for _, to := range counts {
			if op == verbs.OpRDMAWrite && to > 1 || op == verbs.OpRDMARead && from > 1 {
				continue // the far side of RDMA is one piece
			}
			for range each {
				anew()
				n := lengths[turn%len(lengths)]
				move(near, far, op, id, src.cut(rng, n, from), dst.cut(rng, n, to))
				id++
				turn++
			}
		}
	}
	// No elements at all, on either side.
	anew()
	if op == verbs.OpSend {
		move(near, far, op, id, nil, nil)
		move(near, far, op, id+1, nil, dst.cut(rng, 99, 2))
		return
	}
	wr := onto(signalled(id, op), dst.ms[0], 0)
	near.post(wr)
	near.want(sends, sent(id, op))
	dst.ms[0].verify("%v without elements", op)
}

// receiveLonger: the rest of a receive longer than its message is not written.
func receiveLonger(w *world) {
	near, far := w.pair(qpSpec{RecvSGE: min(3, w.suite.attr.MaxSGE)}, usual)
	src, dst := w.alloc(w.near, 5000, verbs.AccessAll, own).fill(1), w.alloc(w.far, 5000, verbs.AccessAll, own).fill(2)
	for i, n := range []int{0, 1, 99, 100, 101, 299} {
		move(near, far, verbs.OpSend, uint64(i), cut(src, 10*i, n, 1, 0), cut(dst, 100*i, 300, far.Cap.MaxRecvSGE, 7))
	}
}

// sameMemoryTwice: a gather list may name the same bytes again.
func sameMemoryTwice(w *world) {
	w.needElements(2)
	near, far := w.pair(qpSpec{SendSGE: 2}, usual)
	src, dst := w.alloc(w.near, 100, verbs.AccessAll, own).fill(1), w.alloc(w.far, 300, verbs.AccessAll, own).fill(2)
	move(near, far, verbs.OpRDMAWrite, 1, []piece{{src, 5, 90}, {src, 1, 80}}, []piece{{dst, 20, 170}})
}

// tooManyElements: a request with more elements than the queue allows is refused when posting; those
// before it in the batch are posted.
func tooManyElements(w *world) {
	near, far := w.pair(qpSpec{}, usual)
	m := w.alloc(w.near, 64, verbs.AccessAll, own)
	many := slices.Repeat([]verbs.SGE{m.sge(0, 1)}, max(near.Cap.MaxSendSGE, near.Cap.MaxRecvSGE)+1)
	n, err := near.tryPost(signalled(1, verbs.OpSend), signalled(2, verbs.OpSend, many...), signalled(3, verbs.OpSend))
	require.ErrorIs(w.t, err, verbs.ErrInvalid)
	require.Equal(w.t, 1, n, "posted before the one at fault")
	n, err = near.tryRecv(receive(1), receive(2, many...), receive(3))
	require.ErrorIs(w.t, err, verbs.ErrInvalid)
	require.Equal(w.t, 1, n, "posted before the one at fault")
	far.recv(receive(1))
	far.post(signalled(1, verbs.OpSend))
	for _, e := range []*end{near, far} {
		e.want(sends, sent(1, verbs.OpSend))
		e.want(recvs, received(1, 0))
		e.quiet(sends)
	}
}

// impossibleElements: an element outside its region, or longer than any message, is refused when
// posting, and the error names the offending value. Requests before it in the batch are posted, and
// the queue pair goes on.
func impossibleElements(w *world) {
	m := w.alloc(w.near, regionSize, verbs.AccessAll, own).fill(1)
	to := w.alloc(w.far, regionSize, verbs.AccessAll, own).fill(2)
	mr := w.near.node.objs[m.ID].mr
	sges := min(2, w.suite.attr.MaxSGE)
	near, far := w.pair(qpSpec{SendSGE: sges, RecvSGE: sges}, usual)
	id := uint64(0)
	for _, c := range []struct {
		offset, length int
		err            error
		figure         string
	}{
		{0, 1 << 32, verbs.ErrInvalid, "4294967296"},
		{0, 1<<32 + 8, verbs.ErrInvalid, "4294967304"},
		{0, 1<<31 + 1, verbs.ErrInvalid, "2147483649"},
		{0, math.MaxInt, verbs.ErrInvalid, "9223372036854775807"},
		{0, -1, verbs.ErrInvalid, "-1"},
		{0, -1 << 32, verbs.ErrInvalid, "-4294967296"},
		{0, math.MinInt, verbs.ErrInvalid, "-9223372036854775808"},
		{-1, 8, verbs.ErrRange, "-1"},
		{math.MinInt, 0, verbs.ErrRange, "-9223372036854775808"},
		{math.MaxInt, 8, verbs.ErrRange, "9223372036854775807"},
		{regionSize + 1, 0, verbs.ErrRange, "100033"},
		{regionSize - 7, 8, verbs.ErrRange, "100033"},
		{0, 1 << 31, verbs.ErrRange, "2147483648"},
	} {
		refused := func(n int, err error) {
			w.t.Helper()
			var e *verbs.OpError
			require.ErrorAs(w.t, err, &e, "%d bytes at %d", c.length, c.offset)
			require.ErrorIs(w.t, err, c.err)
			require.Contains(w.t, e.Detail, c.figure)
			require.Equal(w.t, 1, n, "posted before the one at fault")
		}
		list := []verbs.SGE{m.sge(0, 8), mr.SGE(c.offset, c.length)}[2-sges:]
		for _, op := range every {
			for _, flags := range []verbs.SendFlags{0, verbs.SendInline} {
				if flags != 0 && op > verbs.OpSendWithImm {
					continue
				}
				id++
				bad := onto(verbs.SendWR{Opcode: op, Flags: flags, SGList: list}, to, 0)
				refused(near.tryPost(signalled(id, verbs.OpRDMAWrite), bad, signalled(0, verbs.OpRDMAWrite)))
				near.want(sends, sent(id, verbs.OpRDMAWrite))
			}
		}
		id++
		refused(near.tryRecv(receive(id), receive(0, list...), receive(0)))
		far.post(signalled(id, verbs.OpSend))
		far.want(sends, sent(id, verbs.OpSend))
		near.want(recvs, received(id, 0))
		if w.suite.attr.MaxSRQ > 0 {
			srq := call[int](w, w.near, srqCmd{verbs.SRQAttr{MaxWR: 3, MaxSGE: sges}})
			refused(try[int](w, w.near, srqRecvCmd{srq, []verbs.RecvWR{receive(id), receive(0, list...), receive(0)}}))
		}
	}
	near.quiet(sends)
	for _, v := range []*mem{m, to} {
		v.verify("nothing is touched by what is refused")
	}
}
