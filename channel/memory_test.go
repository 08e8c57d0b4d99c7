package channel

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWaitersTakeNoNodeLock: going to sleep and registering memory work while another goroutine
// holds the node's lock.
func TestWaitersTakeNoNodeLock(t *testing.T) {
	nodes := join(t, 2, WithProviders("tcp"))
	a, b := nodes[0], nodes[1]
	s, r := sendReceive(t, a, b, 8)
	pass(t, s, r, r)
	m := newMemory(t, a, 100)
	p := peerOf(t, a, 1)
	require.Len(t, *a.engines.Load(), 1)
	done := make(chan error, 1)
	a.mu.Lock()
	defer a.mu.Unlock()
	go func() {
		a.kickEngines()
		_, err := m.on(p.link.dev)
		done <- err
	}()
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-within(t).Done():
		require.Fail(t, "waits for the node")
	}
}

// TestClosedMemory: memory that has been closed is not there any more, and nothing
// can be declared over it until it has been allocated again.
func TestClosedMemory(t *testing.T) {
	nodes := join(t, 2, WithProviders("shm"))
	a := nodes[0]
	var memories []*Memory
	var old [][]byte
	const size = 3 * 4096
	for range 4 {
		m := newMemory(t, a, size)
		require.Len(t, m.Bytes(), size)
		memories, old = append(memories, m), append(old, m.Bytes())
	}
	declare := func(b []byte) error {
		h, err := a.DeclareSend(Contiguous(b), 1)
		if err == nil {
			require.Contains(t, memories, h.memories[0])
			err = h.Close()
		}
		return err
	}
	heap := declareSend(t, a, Contiguous(make([]byte, 100)), 1)
	for _, i := range []int{1, 3, 2} {
		require.NoError(t, memories[i].Close())
		require.Nil(t, memories[i].Bytes())
		require.NoError(t, memories[i].Close())
		for _, b := range [][]byte{old[i], old[i][:1], old[i][size-1:], old[i][size/2:][:100]} {
			err := declare(b)
			var e *Error
			require.ErrorAs(t, err, &e)
			require.ErrorIs(t, err, ErrClosed)
		}
		require.ErrorIs(t, heap.Rebase(old[i]), ErrClosed)
		require.NoError(t, heap.Start())
		require.NoError(t, declare(old[0]))
		require.NoError(t, heap.WaitContext(within(t)))
	}
	for range 16 { // by then some of it has been given out again
		m := newMemory(t, a, 100)
		memories = append(memories, m)
		require.NoError(t, declare(m.Bytes()))
	}
	require.NoError(t, a.Close())
	for _, m := range memories {
		require.Nil(t, m.Bytes())
		require.NoError(t, m.Close())
	}
	require.ErrorIs(t, declare(old[0]), ErrClosed)
}

// TestMemoryAfterClose: to use a slice after its memory or its node has been closed does no
// harm: no peer sees it, nor does memory of a later node.
func TestMemoryAfterClose(t *testing.T) {
	apart(t, func(t *testing.T, provider string) {
		nodes := join(t, 2, WithProviders(provider))
		var old [][]byte
		for _, size := range []int{100, 4096, 3 << 20, 5 << 20} {
			m := newMemory(t, nodes[0], size)
			old = append(old, m.Bytes())
			if size == 5<<20 {
				require.NoError(t, m.Close())
			}
		}
		s, r, of, at := sendReceiveBytes(t, nodes[0], nodes[1], 4096)
		pass(t, s, r, r)
		_, _ = of, at
		require.NoError(t, nodes[0].Close())
		for _, b := range old {
			for i := 0; i < len(b); i += 1000 {
				b[i]++
			}
			b[len(b)-1] = 7
		}
		require.NoError(t, nodes[1].Close())
		again := join(t, 2, WithProviders(provider))
		for _, size := range []int{100, 3 << 20, 5 << 20} {
			m := newMemory(t, again[0], size)
			for _, b := range old {
				b[0] = 0xff
			}
			require.Equal(t, make([]byte, size), m.Bytes())
		}
	})
}

// TestAlignment: memory begins at a page of this machine, where there are devices
// and where there are none.
func TestAlignment(t *testing.T) {
	n := join(t, 1)[0]
	for _, size := range []int{1, 100, 4096, 100_000} {
		m := newMemory(t, n, size)
		require.Zero(t, m.start()%uintptr(pageSize))
	}
	n = join(t, 2, WithProviders("shm"))[0]
	for _, size := range []int{1, 100, 4096, 100_000} {
		m := newMemory(t, n, size)
		require.Zero(t, m.start()%uintptr(pageSize))
	}
}

// TestRegisteredOnce: memory is registered once however many layouts lie in it, and
// as long as one does.
func TestRegisteredOnce(t *testing.T) {
	queued(t, func(t *testing.T, provider string) {
		nodes := join(t, 2, WithProviders(provider))
		b := make([]byte, 4*100_000)
		in := make([]byte, 100_000)
		whole, r := declareBoth(t, nodes[0], nodes[1], Strided(b, 0, 25_000, 4, 100_000), Contiguous(in))
		pass(t, whole, r, r)
		part := declareSend(t, nodes[0], Contiguous(b[100_000:200_000]), 1)
		pass(t, part, r, r)
		again := declareSend(t, nodes[0], Contiguous(b[300_000:]), 1)
		list := (*nodes[0].engines.Load())[0].registered.list
		require.Len(t, list, 1)
		require.Equal(t, 3, list[0].users)
		require.NoError(t, whole.Close())
		b[100_000], b[199_999] = 1, 2
		pass(t, part, r, part)
		require.Equal(t, b[100_000:200_000], in)
		other := declareSend(t, nodes[0], Contiguous(make([]byte, 100_000)), 1)
		require.Len(t, (*nodes[0].engines.Load())[0].registered.list, 2)
		for _, h := range []*Handle{part, again, other} {
			require.NoError(t, h.Close())
		}
		require.Empty(t, (*nodes[0].engines.Load())[0].registered.list)
	})
}

// TestRegistrations: what is registered is found by any range of it, however registrations overlap, and ends
// with its last user.
func TestRegistrations(t *testing.T) {
	queued(t, func(t *testing.T, provider string) {
		nodes := join(t, 2, WithProviders(provider))
		sends, err := nodes[0].DeclareSend(Contiguous(make([]byte, 100_000)), 1) // so that there is a device
		require.NoError(t, err)
		receives, err := nodes[1].DeclareReceive(Contiguous(make([]byte, 100_000)), 0)
		require.NoError(t, err)
		pass(t, sends, receives, receives)
		require.NoError(t, sends.Close())
		d := (*nodes[0].engines.Load())[0]
		require.Empty(t, d.registered.list)
		r := rand.New(rand.NewPCG(31, 32))
		memory := make([]byte, 1<<16)
		var users []*registration
		holds := func(g *registration, from, to int) bool {
			at := int(g.mr.Addr() - uint64(addressOf(memory)))
			return at <= from && to <= at+g.mr.Len()
		}
		for range 2000 {
			if len(users) > 0 && r.IntN(9) < 4 {
				i := r.IntN(len(users))
				g := users[i]
				users = slices.Delete(users, i, i+1)
				require.NoError(t, d.deregister(g))
				require.Equal(t, slices.Contains(users, g), slices.Contains(d.registered.list, g))
				continue
			}
			from := r.IntN(len(memory))
			to := from + 1 + r.IntN(min(len(memory)-from, 1<<r.IntN(17)))
			found := slices.ContainsFunc(users, func(g *registration) bool { return holds(g, from, to) })
			before := len(d.registered.list)
			g, err := d.register(memory[from:to])
			require.NoError(t, err)
			require.True(t, holds(g, from, to))
			require.Equal(t, found, len(d.registered.list) == before)
			users = append(users, g)
		}
		for _, g := range users {
			require.NoError(t, d.deregister(g))
		}
		require.Empty(t, d.registered.list)
	})
}
