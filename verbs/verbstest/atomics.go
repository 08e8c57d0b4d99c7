package verbstest

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs"
)

// testAtomics is about fetch-and-add and compare-and-swap on 8 bytes.
func testAtomics(t *testing.T, s *suite) {
	need.Capability(t, "atomics", s.attr.AtomicCap != verbs.AtomicNone)
	s.in(t, everywhere, func(w *world) {
		for _, k := range []kind{own, heap} {
			w.run(fmt.Sprintf("results/%v", k), func(w *world) { atomicResults(w, k) })
		}
		w.run("result in two elements", atomicTwoElements)
		w.run("wrong length", atomicWrongLength)
		w.run("exact sum", exactSum)
	})
}

// nativeWord is v as the CPU, and atomics, have it in memory.
func nativeWord(v uint64) []byte { return binary.NativeEndian.AppendUint64(nil, v) }

func atomicResults(w *world, k kind) {
	near, _ := w.pair(qpSpec{}, usual)
	target := w.alloc(w.far, 4096, verbs.AccessAll, k)
	result := w.alloc(w.near, 64, verbs.AccessLocalWrite, k).fill(1)
	const off = 4088 // the last word of the region
	for i, c := range []struct {
		op            verbs.Opcode
		before, after uint64
		arg, swap     uint64
	}{
		{verbs.OpAtomicFetchAndAdd, 0, 1, 1, 0},
		{verbs.OpAtomicFetchAndAdd, 0x0102030405060708, 0x0203040506070809, 0x0101010101010101, 0},
		{verbs.OpAtomicFetchAndAdd, math.MaxUint64, 0, 1, 99}, // wraps; Swap does not count
		{verbs.OpAtomicFetchAndAdd, 5, 4, math.MaxUint64, 0},
		{verbs.OpAtomicFetchAndAdd, 5, 5, 0, 0},
		{verbs.OpAtomicCmpAndSwp, 5, 6, 5, 6},
		{verbs.OpAtomicCmpAndSwp, 5, 5, 4, 6},
		{verbs.OpAtomicCmpAndSwp, 0, math.MaxUint64, 0, math.MaxUint64},
		{verbs.OpAtomicCmpAndSwp, 1 << 63, 1 << 63, 1 << 31, 0},
	} {
		id := uint64(i)
		target.fill(id)
		target.poke(off, nativeWord(c.before))
		wr := onto(signalled(id, c.op, result.sge(8*(i%7)+i%2, 8)), target, off)
		wr.CompareAdd, wr.Swap = c.arg, c.swap
		near.post(wr)
		want := sent(id, c.op)
		want.ByteLen = 8
		near.want(sends, want)
		target.expect(off, nativeWord(c.after))
		target.verify("case %d", i)
		result.expect(8*(i%7)+i%2, nativeWord(c.before))
		result.verify("case %d: what was there before", i)
	}
}

// atomicTwoElements: the result is scattered as any other data.
func atomicTwoElements(w *world) {
	w.needElements(2)
	near, _ := w.pair(qpSpec{SendSGE: 2}, usual)
	target, result := w.alloc(w.far, 8, verbs.AccessAll, own).fill(1), w.alloc(w.near, 64, verbs.AccessAll, own).fill(2)
	before := slices.Clone(target.image)
	wr := onto(signalled(1, verbs.OpAtomicCmpAndSwp, result.sge(30, 3), result.sge(1, 5)), target, 0)
	wr.CompareAdd, wr.Swap = binary.NativeEndian.Uint64(before), 77
	near.post(wr)
	want := sent(1, verbs.OpAtomicCmpAndSwp)
	want.ByteLen = 8
	near.want(sends, want)
	result.expect(30, before[:3])
	result.expect(1, before[3:])
	result.verify("result")
	target.expect(0, nativeWord(77))
	target.verify("target")
}

// atomicWrongLength: the local elements must hold 8 bytes. Devices find out when
// posting or when executing.
func atomicWrongLength(w *world) {
	for _, n := range []int{0, 7, 16} {
		near, _ := w.pair(qpSpec{}, usual)
		target, result := w.alloc(w.far, 16, verbs.AccessAll, own).fill(1), w.alloc(w.near, 64, verbs.AccessAll, own).fill(2)
		wr := onto(signalled(1, verbs.OpAtomicFetchAndAdd, result.sge(0, n)), target, 0)
		wr.CompareAdd = 1
		if _, err := near.tryPost(wr); err != nil {
			require.ErrorIs(w.t, err, verbs.ErrInvalid, "%d bytes", n)
		} else {
			near.want(sends, failed(1, verbs.OpAtomicFetchAndAdd, verbs.WCLocLenErr))
		}
		target.verify("local length %d", n)
		result.verify("local length %d", n)
	}
}

// exactSum: queue pairs of two more nodes, which may be processes, and of this
// one all add to one counter; so does the CPU where the device says that it may.
func exactSum(w *world) {
	rounds := 50 * w.suite.Rounds
	counter := w.alloc(w.near, 64, verbs.AccessAll, own)
	third := w.another("third")
	type adder struct {
		p   *peer
		cmd addCmd
	}
	var adders []adder
	for _, p := range []*peer{w.near, w.far, third, w.near, w.far, third} {
		a, b := w.open(p, qpSpec{}), w.open(w.near, qpSpec{})
		a.connect(b, usual)
		b.connect(a, usual)
		result := w.alloc(p, 8, verbs.AccessLocalWrite, own)
		adders = append(adders, adder{p, addCmd{ID: a.ID, Local: result.sge(0, 8), Remote: counter.at(8), RKey: counter.RKey, Count: rounds}})
	}
	var finish []func() (any, error)
	total := uint64(0)
	for _, a := range adders {
		finish = append(finish, a.p.begin(w.ctx, a.cmd))
		total += uint64(rounds)
	}
	if w.suite.attr.AtomicCap == verbs.AtomicGlob {
		mine := word(w.near.node.objs[counter.ID].mr, 8)
		for range rounds {
			mine.Add(1)
		}
		total += uint64(rounds)
	}
	for _, wait := range finish {
		_, err := wait()
		require.NoError(w.t, err)
	}
	counter.expect(8, nativeWord(total))
	counter.verify("%d additions", total)
}
