package shm

import (
	"bytes"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/leak"
	memspan "github.com/sluice-hpc/sluice/internal/span"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
	"github.com/sluice-hpc/sluice/verbs"
)

// owner is a context without queue pairs, that has memory.
func owner(t *testing.T) (*Context, *PD) {
	o := open(t)
	pd, err := o.AllocPD()
	require.NoError(t, err)
	return o, pd.(*PD)
}

// write has b write bytes of one value to the end of a region of a.
func (b *side) write(t *testing.T, to verbs.ProviderMR, value byte) {
	t.Helper()
	const n = 4096
	copy(b.mr.Buf, bytes.Repeat([]byte{value}, n))
	end := to.Addr() + uint64(len(to.Bytes())-n)
	posted, err := b.q.PostSend([]verbs.SendWR{{WRID: 5, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, RKey: to.RKey(), RemoteAddr: end,
		SGList: []verbs.SGE{{Addr: b.mr.Addr(), Length: n, LKey: b.mr.Key}}}})
	require.NoError(t, err)
	require.Equal(t, 1, posted)
	require.EqualValues(t, 5, b.take(t).WRID)
	require.Equal(t, bytes.Repeat([]byte{value}, n), to.Bytes()[len(to.Bytes())-n:])
}

// mapped says that the peer of a region's context maps it, once it has come.
func (b *side) mapped(t *testing.T, mr verbs.ProviderMR) (mem []byte) {
	t.Helper()
	eventually(t, "it is not mapped", func() bool {
		var err error
		mem, err = b.q.Map(mr.RKey(), mr.Addr(), len(mr.Bytes()))
		if err != nil {
			require.ErrorIs(t, err, verbs.ErrState)
		}
		return err == nil
	})
	require.Zero(t, ranks.Allocs(10, 0, func() { _, _ = b.q.Map(mr.RKey(), mr.Addr(), len(mr.Bytes())) })) // collectives call it
	return mem
}

// TestLoan: peers map memory of another context of the process as that of the one that has registered it.
// What lies in one arena is one loan. It ends when the owner closes.
func TestLoan(t *testing.T) {
	noPool(t) // or the last arena would be given back with its memory
	a, b := two(t)
	o, pd := owner(t)
	for i, size := range []int{4096, 100_000, 3 << 20} {
		own := allocMR(t, pd, size)
		whole := regMR(t, a.pd, own.Bytes())
		part := regMR(t, a.pd, own.Bytes()[size-4096:])
		mem := b.mapped(t, whole)
		mem[7] = byte(i) + 1
		require.Equal(t, byte(i)+1, own.Bytes()[7])
		b.write(t, whole, byte(i)+10)
		b.write(t, part, byte(i)+20)
		require.NoError(t, errors.Join(part.Close(), whole.Close(), own.Close()))
	}
	loans := 0
	for _, ar := range a.c.arenas.snapshot() {
		if of := ar.lender; of != nil {
			loans++
			require.Same(t, &o.arenas, of.of)
			require.Empty(t, of.guests)
		}
	}
	require.Equal(t, 2, loans)
	known := len(*b.q.link.segments.Load())
	require.NoError(t, o.Close())
	for _, ar := range a.c.arenas.snapshot() {
		require.Nil(t, ar.lender)
	}
	eventually(t, "the peer keeps them", func() bool {
		segs := *b.q.link.segments.Load()
		gone := 0
		for _, s := range segs {
			if s == nil {
				gone++
			}
		}
		return len(segs) == known && gone == loans
	})
}

// TestLentMemoryStays: memory in which another context has a region is not freed, nor unmapped when its
// owner closes, before that region is closed.
func TestLentMemoryStays(t *testing.T) {
	a, b := two(t)
	o, pd := owner(t)
	own := allocMR(t, pd, 8192)
	beside := allocMR(t, pd, 4096)
	mem := own.Bytes()
	guest := regMR(t, a.pd, mem)
	b.mapped(t, guest)
	require.NoError(t, beside.Close(), "no guest is in that")
	err := own.Close()
	require.ErrorIs(t, err, verbs.ErrBusy)
	require.ErrorContains(t, err, "regions of other contexts in the memory: 1")
	for range 300 { // all of the arena, and more
		next := allocMR(t, pd, 4096)
		require.False(t, memspan.Set{memspan.Of(mem)}.Meets(memspan.Of(next.Bytes())))
	}
	b.write(t, guest, 3)
	ar := local.Find(mem)
	require.NoError(t, o.Close())
	b.write(t, guest, 4)
	require.Same(t, ar, local.Find(mem))
	require.NoError(t, guest.Close())
	require.Nil(t, a.c.arenas.loan(ar))
	eventually(t, "it is still mapped", func() bool { // the link may not have let go of its descriptor yet
		ar.passing.Lock()
		defer ar.passing.Unlock()
		return ar.mem == nil && local.Find(mem) == nil
	})
}

// TestLoanOutlived: a context that has borrowed closes, before and after the owner.
func TestLoanOutlived(t *testing.T) {
	leak.Check(t)
	for _, first := range []string{"owner", "borrower"} {
		o, pd := owner(t)
		c, cpd := owner(t)
		own := allocMR(t, pd, 4096)
		guest := regMR(t, cpd, own.Bytes())
		ar := local.Find(own.Bytes())
		require.Len(t, ar.loans, 1)
		require.NoError(t, errors.Join(guest.Close(), own.Close()))
		if first == "owner" {
			require.NoError(t, errors.Join(o.Close(), c.Close()))
		} else {
			require.NoError(t, c.Close())
			require.Empty(t, ar.loans)
			require.Zero(t, ar.passes)
			require.NoError(t, o.Close())
		}
		require.Nil(t, ar.mem)
	}
	require.Zero(t, local.Len())
}

// TestLoanEnding: what a peer has mapped of lent memory keeps its bytes when the borrower closes after the owner.
func TestLoanEnding(t *testing.T) {
	leak.Check(t)
	x, y := open(t), open(t)
	a, b := newSide(t, x), newSide(t, y)
	join(t, a, b)
	o, pd := owner(t)
	own := allocMR(t, pd, 4096)
	guest := regMR(t, a.pd, own.Bytes())
	mem, ar := b.mapped(t, guest), local.Find(own.Bytes())
	mem[7] = 3
	require.NoError(t, o.Close())
	x.Ending()
	require.NoError(t, guest.Close())
	require.NotNil(t, x.arenas.loan(ar), "the peer is told to give it back")
	require.NoError(t, x.Close())
	require.EqualValues(t, 3, mem[7])
	require.Nil(t, ar.mem, "the owner's memory stays")
	require.NoError(t, y.Close())
}

// TestNoLoanLeft: without a number for the arena the memory is registered as any other. There still are numbers for
// the context's own.
func TestNoLoanLeft(t *testing.T) {
	a, b := two(t)
	o, pd := owner(t)
	own := allocMR(t, pd, 4096)
	a.c.arenas.mu.Lock()
	next := a.c.arenas.next
	a.c.arenas.next = loansEnd
	a.c.arenas.mu.Unlock()
	mr := regMR(t, a.pd, own.Bytes())
	_, err := b.q.Map(mr.RKey(), mr.Addr(), 4096)
	require.ErrorIs(t, err, verbs.ErrNotSupported)
	b.write(t, mr, 9)
	require.Empty(t, local.Find(own.Bytes()).guests)
	big := allocMR(t, a.pd, 3<<20)
	require.NoError(t, big.Close())
	require.NoError(t, errors.Join(mr.Close(), own.Close(), o.Close()))
	a.c.arenas.mu.Lock()
	a.c.arenas.next = next
	a.c.arenas.mu.Unlock()
}
