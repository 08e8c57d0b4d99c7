package channel

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// lonely returns a peer whose control messages are never written.
func lonely(n *Node) *peer {
	p := &peer{node: n, rank: 1, bell: ringer{bell: n.bell}, fenced: true, sends: map[uint32]*sendStream{}, receives: map[uint32]*receiveStream{},
		layouts: map[uint32]*remoteLayout{}, resting: map[uint32]uint32{}, had: map[uint32]had{}, handles: map[*Handle]struct{}{}, wake: make(chan struct{}, 1)}
	p.sends[0] = &sendStream{peer: p}
	p.state.Store(peerUp)
	return p
}

// TestRebaseUnread: what is queued for a peer that does not read does not grow with
// what is told again and again.
func TestRebaseUnread(t *testing.T) {
	const size, handles = 5000, 3
	n := join(t, 2, WithProviders("shm"))[0]
	p := lonely(n)
	var list []*Handle
	for i := range handles {
		h := &Handle{node: n, kind: kindSend, id: uint32(i)}
		require.NoError(t, h.adoptLayout(Strided(allocate(t, n, size, true), 0, 100, 10, 500)))
		require.NoError(t, h.attach(p, 0))
		list = append(list, h)
	}
	for range 100 {
		for _, h := range list {
			require.NoError(t, h.Rebase(allocate(t, n, size, true)))
		}
	}
	require.Len(t, p.out, handles)
	for i, h := range list {
		l, err := parseLayout(p.out[i][headerLen:])
		require.NoError(t, err)
		require.Equal(t, []uint32{h.id, 100}, []uint32{l.handle, l.version})
		h.release()
	}
}

// TestStreamNumbers: streams that a peer may not have are not made.
func TestStreamNumbers(t *testing.T) {
	p := lonely(join(t, 1)[0])
	for _, number := range []uint32{0, MaxStream, maxStreams - 1} {
		_, err := p.setRing(number, newRing(alignedMemory(ringSize)))
		require.NoError(t, err)
	}
	_, err := p.setRing(maxStreams, newRing(alignedMemory(ringSize)))
	require.ErrorIs(t, err, ErrProtocol)
	require.Len(t, p.receives, 3)
	// One that is closed here while the ring that the peer had announced was being mapped: its pipe, which is
	// announced next, is gone when the peer knows.
	const closed = MaxStream + 2
	p.closed = map[uint32]*streamMemory{closed: {}}
	in, err := p.setRing(closed, newRing(alignedMemory(ringSize)))
	require.NoError(t, err)
	require.Nil(t, in)
	require.Nil(t, p.ringed(closed))
}
