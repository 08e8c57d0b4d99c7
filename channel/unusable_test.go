package channel

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs"
)

// connected makes two nodes that are connected.
func connected(t *testing.T, provider string) (a, b *Node) {
	nodes := join(t, 2, WithProviders(provider))
	s, r := sendReceive(t, nodes[0], nodes[1], 8, OnStream(99))
	pass(t, s, r, r)
	return nodes[0], nodes[1]
}

// TestNoRing: a stream whose ring cannot be had is not there, and can be declared
// again.
func TestNoRing(t *testing.T) {
	a, b := connected(t, "shm")
	p := peerOf(t, a, b.Rank())
	closed, err := p.link.dev.ctx.AllocPD()
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	declare := func() (*Handle, error) { return a.DeclareSend(Contiguous(make([]byte, 8)), b.Rank()) }
	p.mu.Lock()
	good := p.link.dev.pd
	p.link.dev.pd = closed
	p.mu.Unlock()
	_, err = declare()
	require.ErrorIs(t, err, verbs.ErrClosed)
	p.mu.Lock()
	p.link.dev.pd = good
	p.mu.Unlock()
	s, err := declare()
	require.NoError(t, err)
	r, _ := receive(t, b, a.Rank(), 8)
	pass(t, s, r, r)
}

// TestNoRings: a wire-up that finds memory for some of the rings only announces none, and frees them.
func TestNoRings(t *testing.T) {
	a, b := connected(t, "shm")
	dev := a.peers[b.rank].Load().link.dev
	spare := func() (n int) {
		for _, s := range dev.rings.slabs {
			n += len(s.free)
		}
		return n
	}
	var taken []ringPlace
	for spare() != 2 {
		place, err := dev.rings.take(dev.pd)
		require.NoError(t, err)
		taken = append(taken, place)
	}
	closed, err := dev.ctx.AllocPD()
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	p := lonely(a)
	p.link = a.peers[b.rank].Load().link
	p.state.Store(peerConnecting)
	clear(p.sends)
	p.mu.Lock()
	for number := range uint32(3) {
		_, err := p.sendLocked(number)
		require.NoError(t, err)
	}
	p.mu.Unlock()
	good, used := dev.pd, dev.rings.used
	dev.pd = closed
	err = p.up(p.link, nodeInfo{bell: regionOf(b.bellMR)})
	dev.pd = good
	require.ErrorIs(t, err, verbs.ErrClosed)
	require.ErrorIs(t, err, ErrUnreachable)
	require.ErrorContains(t, err, ": stream ")
	require.Empty(t, p.out)
	require.Equal(t, used, dev.rings.used)
	require.Equal(t, 2, spare())
	for _, s := range p.sends {
		require.Nil(t, s.memory.ring.slab)
	}
	p.state.Store(peerConnecting)
	require.NoError(t, p.up(p.link, nodeInfo{bell: regionOf(b.bellMR)}))
	require.Len(t, p.out, 3)
	for _, s := range p.sends {
		require.NoError(t, s.memory.free())
	}
	for _, place := range taken {
		require.NoError(t, place.give())
	}
	require.Equal(t, used-len(taken), dev.rings.used)
}

// startUnusable starts a handle as if that had been before the wire-up, at which it was
// unusable.
func startUnusable(t *testing.T, h *Handle) {
	reason := fmt.Errorf("%w: no memory to pack it into", verbs.ErrNoMemory)
	h.bindErr.Store(&reason)
	if h.kind == kindSend {
		require.NoError(t, h.out.start(h))
	} else {
		require.NoError(t, h.in.start(h))
	}
}

// TestUnusable: a start of a handle whose memory turns out not to be usable fails at
// once; the start that it meets at the other side fails with the pair; those before
// and behind are not affected.
func TestUnusable(t *testing.T) {
	type pair struct {
		provider  string
		s, r      bool // which of them is unusable
		send, get int  // sizes
	}
	all := []pair{
		{"shm", true, false, 20_000, 20_000}, {"shm", true, false, 20_000, 8},
		{"tcp", true, false, 20_000, 20_000}, {"tcp", true, false, 20_000, 8},
		{"tcp", false, true, 20_000, 20_000}, {"tcp", false, true, 8, 20_000},
		{"tcp", true, true, 20_000, 20_000},
		{"ibv", true, false, 20_000, 8}, {"ibv", false, true, 8, 20_000}, {"ibv", true, true, 20_000, 20_000},
	}
	for _, c := range all {
		for _, sendFirst := range []bool{false, true} {
			t.Run(fmt.Sprintf("%+v, send first %v", c, sendFirst), func(t *testing.T) {
				need.Provider(t, c.provider)
				if c.provider != "ibv" && (!sendFirst || c.send == c.get) {
					need.Full(t)
				}
				a, b := connected(t, c.provider)
				s, _ := send(t, a, b.Rank(), c.send)
				r, _ := receive(t, b, a.Rank(), c.get)
				sound, soundToo, out, in := sendReceiveBytes(t, a, b, 20_000)
				for i := range ringSlots + 8 {
					start := []func(){func() {
						if c.s {
							startUnusable(t, s)
						} else {
							require.NoError(t, s.Start())
						}
					}, func() {
						if c.r {
							startUnusable(t, r)
						} else {
							require.NoError(t, r.Start())
						}
					}}
					if !sendFirst {
						slices.Reverse(start)
					}
					for _, f := range start {
						f()
					}
					other := -1
					for _, h := range []*Handle{r, s} { // the receiver finds out, if the sender is sound
						unusable := h == s && c.s || h == r && c.r
						err := h.WaitContext(within(t))
						var e *Error
						switch {
						case unusable && errors.Is(err, ErrLength): // a message of another length had come
							require.Less(t, c.send, eagerQueued)
							other = c.get
							h.bindErr.Store(nil)
						case unusable:
							require.ErrorAs(t, err, &e)
							require.ErrorIs(t, err, verbs.ErrNoMemory)
							require.EqualValues(t, 2*i+1, e.Start)
							h.bindErr.Store(nil)
						case h == s && c.send <= eagerQueued && err == nil: // over before; it comes with the next start
							eventually(t, func() bool {
								q := h.out.q.Load()
								q.progress()
								q.lock.Lock()
								defer q.lock.Unlock()
								return q.out[0].late.take(h.k) != nil
							})
						default:
							require.ErrorAs(t, err, &e)
							require.ErrorIs(t, err, ErrLength)
							require.Equal(t, other, e.Other)
						}
					}
					out[0], out[19_999] = byte(i), byte(i)
					pass(t, sound, soundToo, soundToo)
					require.Equal(t, out, in)
				}
			})
		}
	}
}

// fillDevice registers as many regions as a node's device takes, which it opens by a message to another node.
func fillDevice(t *testing.T, n, other *Node) (regions []*verbs.MR) {
	s, r := sendReceive(t, n, other, 8)
	pass(t, s, r, r)
	pd := (*n.engines.Load())[0].pd
	for {
		mr, err := pd.RegMR(make([]byte, 1), verbs.AccessLocalWrite)
		if err != nil {
			require.ErrorIs(t, err, verbs.ErrNoMemory)
			return regions
		}
		regions = append(regions, mr)
	}
}

// TestTooManyRegions: of more handles than a device registers, declared and started
// before the wire-up, some fail; the others, and the peer, go on.
func TestTooManyRegions(t *testing.T) {
	const size, count, room = 9000, 8, 3
	nodes := join(t, 3, WithProviders("tcp"))
	a, b := nodes[0], nodes[1]
	for _, mr := range fillDevice(t, a, nodes[2])[:room] {
		require.NoError(t, mr.Close())
	}

	p := peerOf(t, a, 1)
	p.state.Store(peerConnecting) // so that the wire-up is when everything is declared
	var sends []*Handle
	for range count {
		s := declareSend(t, a, Contiguous(make([]byte, size)), 1)
		require.NoError(t, s.Start())
		sends = append(sends, s)
	}
	p.state.Store(peerIdle)
	p.connect()
	r := declareReceive(t, b, Contiguous(make([]byte, size)), 0)
	failed := 0
	for _, s := range sends {
		require.NoError(t, r.Start())
		err, serr := r.WaitContext(within(t)), s.WaitContext(within(t))
		require.Equal(t, err != nil, serr != nil)
		if err == nil {
			continue
		}
		failed++
		require.ErrorIs(t, err, ErrLength)
		var e *Error
		require.ErrorAs(t, serr, &e)
		require.ErrorIs(t, serr, verbs.ErrNoMemory)
		require.ErrorIs(t, s.Start(), verbs.ErrNoMemory)
		require.NoError(t, s.Close())
	}
	require.Equal(t, count-room, failed)
}

// TestOnceUnusable: memory of a message used once that cannot be registered fails that message, and no later one.
func TestOnceUnusable(t *testing.T) {
	nodes := join(t, 3, WithProviders("tcp"))
	a, b := nodes[0], nodes[1]
	fillDevice(t, a, nodes[2])
	p := peerOf(t, a, 1)
	p.state.Store(peerConnecting) // so that the wire-up is when the message has been started
	sent := make(chan error, 1)
	go func() { sent <- a.Send(within(t), make([]byte, 20_000), 1) }()
	eventually(t, func() bool {
		s := p.sending(0)
		if s == nil {
			return false
		}
		s.lock.Lock()
		defer s.lock.Unlock()
		return len(s.pending) == 1
	})
	p.state.Store(peerIdle)
	p.connect()
	require.ErrorIs(t, b.Recv(within(t), make([]byte, 20_000), 0), ErrLength)
	require.ErrorIs(t, <-sent, verbs.ErrNoMemory)
	in := make([]byte, 1)
	require.NoError(t, a.Send(within(t), []byte{7}, 1))
	require.NoError(t, b.Recv(within(t), in, 0))
	require.EqualValues(t, 7, in[0])
}
