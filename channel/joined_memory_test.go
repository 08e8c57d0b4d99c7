package channel

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/memory"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
	"github.com/sluice-hpc/sluice/verbs"
)

// TestMemoryOfOthers: Alloc memory of another node of the process is as good as a node's own, for messages declared
// and used once. It is not closed while a handle is declared over it.
func TestMemoryOfOthers(t *testing.T) {
	apart(t, func(t *testing.T, provider string) {
		need.Provider(t, "shm")
		lend := join(t, 2, WithProviders("shm"))
		nodes := join(t, 2, WithProviders(provider))
		a, b := nodes[0], nodes[1]
		for round, size := range []int{100, 5000, 300_000, 2 << 20} {
			m := newMemory(t, lend[0], size)
			other := newMemory(t, lend[1], size)
			copy(m.Bytes(), bytes.Repeat([]byte{byte(round + 1)}, size))
			s, r := declareBoth(t, a, b, Contiguous(m.Bytes()), Contiguous(other.Bytes()))
			for _, first := range []*Handle{s, r} {
				clear(other.Bytes())
				pass(t, s, r, first)
				require.Equal(t, m.Bytes(), other.Bytes())
			}
			for _, h := range []*Handle{s, r} {
				require.Len(t, h.memories, 1)
				require.True(t, h.memories[0].others)
				if h.peer().maps() {
					require.True(t, h.reachable)
				}
			}
			for _, x := range []*Memory{m, other} {
				err := x.Close()
				require.ErrorIs(t, err, ErrBusy)
				require.ErrorIs(t, err, memory.ErrUsed)
				require.NotNil(t, x.Bytes())
			}
			pass(t, s, r, s)
			require.NoError(t, errors.Join(s.Close(), r.Close()))
			clear(other.Bytes())
			each(t, 2, func(rank int) error {
				if rank == 0 {
					return a.Send(within(t), m.Bytes(), 1)
				}
				return b.Recv(within(t), other.Bytes(), 0)
			})
			require.Equal(t, m.Bytes(), other.Bytes())
			runtime.GC()
			old := m.Bytes()
			require.NoError(t, errors.Join(m.Close(), other.Close()))
			_, err := a.DeclareSend(Contiguous(old), 1)
			require.ErrorIs(t, err, ErrClosed)
			require.ErrorIs(t, a.Send(within(t), old, 1), ErrClosed)
		}
	})
}

// TestMemoryOfOthersReduced: collectives, too, map it.
func TestMemoryOfOthersReduced(t *testing.T) {
	need.Provider(t, "shm")
	const n = 256 << 10
	lend := join(t, 2, WithProviders("shm"))
	groups := worlds(t, 2, WithProviders("shm"))
	for round := range 3 {
		var memories [2]*Memory
		for i := range memories {
			memories[i] = newMemory(t, lend[i], n)
		}
		each(t, 2, func(i int) error {
			b := memories[i].Bytes()
			v := unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(b))), n/4)
			for k := range v {
				v[k] = 0x01010101 * uint32(i+1+round)
			}
			return groups[i].Run(within(t), Allreduce(Sum, v, v))
		})
		for _, m := range memories {
			require.Equal(t, bytes.Repeat([]byte{byte(3 + 2*round)}, n), m.Bytes())
			require.NoError(t, m.Close())
		}
	}
}

// TestMemoryOfOthersOutlived: nodes end in any order; one whose memory others have handles over does not free it, and
// says so.
func TestMemoryOfOthersOutlived(t *testing.T) {
	need.Provider(t, "shm")
	for _, first := range []string{"users", "owners", "all"} {
		lend, nodes := join(t, 2, WithProviders("shm")), join(t, 2, WithProviders("shm"))
		m := newMemory(t, lend[0], 1<<20)
		s, r := declareBoth(t, nodes[0], nodes[1], Contiguous(m.Bytes()[:300_000]), Contiguous(m.Bytes()[400_000:][:300_000]))
		pass(t, s, r, r)
		b := m.Bytes()
		switch first {
		case "users":
			closeAll(t, nodes)
			require.NoError(t, m.Close())
		case "owners":
			require.NoError(t, lend[1].Close())
			require.ErrorIs(t, lend[0].Close(), memory.ErrUsed)
			b[7] = 77
			pass(t, s, r, r)
			require.EqualValues(t, 77, b[400_007])
			require.NoError(t, lend[0].Close(), "again")
		default:
			var wg sync.WaitGroup
			wg.Go(func() { closeAll(t, nodes) })
			for _, n := range nodes { // has begun to close
				ranks.Eventually(t, func() bool {
					err := n.call()
					if err == nil {
						n.calls.Done()
					}
					return err != nil
				})
			}
			closeAll(t, lend) // waits for them
			wg.Wait()
		}
	}
}

// TestRegistrationRefused: where a device has no room, registrations of Alloc memory that no handle is declared over
// make room, the least recently used first.
func TestRegistrationRefused(t *testing.T) {
	const size = 64 << 10
	nodes := join(t, 2, WithProviders("tcp"))
	n := nodes[0]
	var memories [3]*Memory
	for i := range memories {
		memories[i] = newMemory(t, n, size)
	}
	declare := func(b []byte) *Handle {
		return declareSend(t, n, Contiguous(b), 1)
	}
	r, at := receive(t, nodes[1], 0, size)
	var handles []*Handle
	for _, i := range []int{1, 2, 0, 1} {
		h := declare(memories[i].Bytes())
		memories[i].Bytes()[5] = byte(i + 1)
		pass(t, h, r, r)
		require.Equal(t, byte(i+1), at[5])
		handles = append(handles, h)
	}
	p := peerOf(t, n, 1)
	d := p.link.dev
	registered := func() (list []int) {
		for i, m := range memories {
			if m.regs.Len() > 0 {
				list = append(list, i)
			}
		}
		return list
	}
	tries := 0
	refuse := func() (*verbs.MR, error) {
		tries++
		return nil, fmt.Errorf("%w: none", verbs.ErrNoMemory)
	}
	_, err := d.sparing(size, refuse)
	require.ErrorIs(t, err, verbs.ErrNoMemory)
	require.Equal(t, []int{0, 1, 2}, registered(), "all are in use")
	require.Equal(t, 1, tries)
	for _, h := range handles {
		require.NoError(t, h.Close())
	}
	keep := declare(memories[2].Bytes())
	pass(t, keep, r, r)
	for _, c := range []struct {
		left  []int
		tries int
	}{{[]int{1, 2}, 2}, {[]int{2}, 2}, {[]int{2}, 1}} {
		tries = 0
		_, err := d.sparing(size, refuse)
		require.ErrorIs(t, err, verbs.ErrNoMemory)
		require.Equal(t, c.left, registered())
		require.Equal(t, c.tries, tries, "it is tried again where room has been made")
	}
	again := declare(memories[0].Bytes())
	pass(t, again, r, r)
	require.Equal(t, byte(1), at[5])
	pass(t, keep, r, r)
	require.Equal(t, byte(3), at[5])
	require.NoError(t, errors.Join(keep.Close(), again.Close()))
}

// TestMemoryOfOthersUnregistered: memory that the node cannot register is copied, and is not closed under a handle
// either.
func TestMemoryOfOthersUnregistered(t *testing.T) {
	need.Provider(t, "shm")
	lend, nodes := join(t, 2, WithProviders("shm")), join(t, 2, WithProviders("shm"))
	m := newMemory(t, lend[0], 600_000)
	var full []*verbs.MR
	for b := make([]byte, 8); ; {
		mr, err := nodes[0].memory.pd.RegMR(b, verbs.AccessLocalWrite)
		if err != nil {
			break
		}
		full = append(full, mr)
	}
	s := declareSend(t, nodes[0], Contiguous(m.Bytes()[:300_000]), 1)
	require.ErrorIs(t, m.Close(), memory.ErrUsed)
	for _, mr := range full {
		require.NoError(t, mr.Close())
	}
	r := declareReceive(t, nodes[1], Contiguous(m.Bytes()[300_000:]), 0)
	copy(m.Bytes(), bytes.Repeat([]byte{5}, 300_000))
	pass(t, s, r, r)
	require.Equal(t, m.Bytes()[:300_000], m.Bytes()[300_000:])
	require.NoError(t, errors.Join(s.Close(), r.Close(), m.Close()))
}
