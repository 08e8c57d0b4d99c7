package verbstest

import (
	"errors"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/verbs"
)

// testLoadStore is about a peer's memory in one's own address space.
func testLoadStore(t *testing.T, s *suite) {
	s.in(t, everywhere, func(w *world) { w.run("peer memory", peerMemory) })
}

func peerMemory(w *world) {
	t, s := w.t, w.suite
	near, _ := w.pair(qpSpec{}, usual)
	const n = 10_000
	m := w.alloc(w.far, n, verbs.AccessAll, own).fill(1)
	if !s.attr.LoadStore {
		_, err := near.qp().Map(m.RKey, m.Addr, n)
		require.ErrorIs(t, err, verbs.ErrNotSupported)
		return
	}
	b, err := mapped(w, near, m.RKey, m.Addr, n)
	require.NoError(t, err)
	require.Len(t, b, n)
	require.Empty(t, difference(m.image, b), "loads see what the peer has written")
	for i := range 4 {
		copy(b[1000*i:], patterned(999, uint64(i)))
		m.expect(1000*i, patterned(999, uint64(i)))
		m.verify("the peer sees stores")
		m.poke(5000+i, []byte{byte(i)})
		require.Empty(t, difference(m.image, b), "loads see what the peer has written")
	}
	part, err := mapped(w, near, m.RKey, m.at(17), 5)
	require.NoError(t, err)
	require.Equal(t, m.image[17:22], part)
	require.Equal(t, 5, cap(part), "no access behind the range by appending")

	// An operation and a load see the same memory.
	src := w.alloc(w.near, n, 0, own).fill(2)
	near.post(onto(signalled(1, verbs.OpRDMAWrite, src.sge(0, n)), m, 0))
	near.want(sends, sent(1, verbs.OpRDMAWrite))
	require.Empty(t, difference(src.image, b), "loads see what was written by an operation")
	m.expect(0, src.image)
	m.verify("written")

	for _, c := range []struct {
		name string
		rkey uint32
		addr uint64
		n    int
	}{
		{"bad key", m.RKey + 1, m.Addr, 1},
		{"one byte too long", m.RKey, m.Addr, n + 1},
		{"one byte too early", m.RKey, m.Addr - 1, 1},
		{"behind the end", m.RKey, m.at(n), 1},
		{"round the end of the address space", m.RKey, ^uint64(0), 2},
	} {
		_, err := mapped(w, near, c.rkey, c.addr, c.n)
		require.True(t, refused(err), "%s: %v", c.name, err)
	}
	_, err = mapped(w, near, m.RKey, m.Addr, -1)
	require.ErrorIs(t, err, verbs.ErrInvalid)
	noWrite := w.alloc(w.far, 64, verbs.AccessLocalWrite|verbs.AccessRemoteRead, own)
	_, err = mapped(w, near, noWrite.RKey, noWrite.Addr, 64)
	require.True(t, refused(err), "a region that must not be written: %v", err)

	// Memory that the device did not allocate may be out of reach.
	onHeap := w.alloc(w.far, 64, verbs.AccessAll, heap).fill(3)
	if b, err := mapped(w, near, onHeap.RKey, onHeap.Addr, 64); err == nil {
		require.Equal(t, onHeap.image, b)
	} else {
		require.ErrorIs(t, err, verbs.ErrNotSupported)
	}

	m.close()
	_, err = mapped(w, near, m.RKey, m.Addr, 1)
	require.True(t, refused(err), "a region that was closed: %v", err)
	unconnected := w.open(w.near, qpSpec{})
	_, err = unconnected.qp().Map(m.RKey, m.Addr, 1)
	require.ErrorIs(t, err, verbs.ErrState, "a queue pair without a peer")
}

// refused are the errors for memory that must not be reached.
func refused(err error) bool {
	return errors.Is(err, verbs.ErrKey) || errors.Is(err, verbs.ErrRange) || errors.Is(err, verbs.ErrAccess)
}

// mapped calls Map once the peer is there: before that the answer is ErrState.
func mapped(w *world, e *end, rkey uint32, addr uint64, n int) ([]byte, error) {
	for {
		b, err := e.qp().Map(rkey, addr, n)
		if !errors.Is(err, verbs.ErrState) || w.ctx.Err() != nil {
			return b, err
		}
		runtime.Gosched()
	}
}
