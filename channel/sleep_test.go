package channel

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestGateWakes: a receiver that cannot copy a message, as it does not know the sender's layout yet, and
// then computes, wakes the sender, which can.
func TestGateWakes(t *testing.T) {
	const size = 300_000
	nodes := join(t, 2, WithProviders("shm"), WithWait("sleep"))
	memory := func(n *Node) Layout { return Contiguous(allocate(t, n, size, true)) }
	s, r := declareBoth(t, nodes[0], nodes[1], memory(nodes[0]), memory(nodes[1]))
	eventually(t, func() bool {
		return known(s.peer(), r) && known(r.peer(), s) && r.in.r.Load() != nil
	})
	require.NoError(t, s.Start())
	slept := nodes[0].Stats().Sleeps
	over := make(chan error, 1)
	go func() { over <- s.WaitContext(within(t)) }()
	eventually(t, func() bool { return nodes[0].Stats().Sleeps > slept })
	r.peer().dropLayout(s.id)
	require.NoError(t, r.Start())
	require.NoError(t, <-over) // that no sleep ends by itself is asserted of each job
	require.NoError(t, r.WaitContext(within(t)))
}

// deep makes sleepers of a node look only when they are woken.
func deep(nodes ...*Node) {
	for _, n := range nodes {
		n.sleepers.LookEvery(time.Hour)
	}
}

// asleep runs wait in a goroutine of a node, and returns its result when it sleeps.
func asleep(t *testing.T, n *Node, wait func() error) <-chan error {
	t.Helper()
	before := n.Stats().Sleeps
	over := make(chan error, 1)
	go func() { over <- wait() }()
	eventually(t, func() bool { return n.Stats().Sleeps > before })
	return over
}

// TestSleeperMovesOthers: a goroutine that sleeps for one message moves another one, which is not waited
// for and whose pipe or layout comes after the ring for it.
func TestSleeperMovesOthers(t *testing.T) {
	const size = 1 << 20
	for _, alloc := range []bool{false, true} {
		nodes := join(t, 2, WithProviders("shm"), WithWait("sleep"))
		deep(nodes...)
		a, b := nodes[0], nodes[1]
		x, xr := sendReceive(t, a, b, 8, OnStream(1))
		yr := declareReceive(t, b, Contiguous(make([]byte, size)), 0)
		require.NoError(t, x.Start()) // connects
		require.NoError(t, xr.Run(within(t)))
		require.NoError(t, x.WaitContext(within(t)))
		startAll(t, yr, xr)
		over := asleep(t, b, func() error { return xr.WaitContext(within(t)) })
		y := declareSend(t, a, Contiguous(allocate(t, a, size, alloc)), 1)
		require.NoError(t, y.Run(within(t)))
		require.NoError(t, x.Run(within(t)))
		require.NoError(t, <-over)
		require.NoError(t, yr.WaitContext(within(t)))
	}
}

// TestSleepsBehind: a packed message is received after those before it on its stream, of which another
// goroutine may be copying one.
func TestSleepsBehind(t *testing.T) {
	const big, small = 64 << 20, 10_000
	nodes := join(t, 2, WithProviders("shm"), WithWait("sleep"))
	deep(nodes...)
	a, b := nodes[0], nodes[1]
	var sends, receives [2]*Handle
	for i, size := range []int{big, small} {
		sends[i], receives[i] = declareBoth(t, a, b, Contiguous(allocate(t, a, size, i == 0)), Contiguous(make([]byte, size)))
	}
	for range 5 {
		startAll(t, sends[:]...)
		copied := make(chan error, 1)
		go func() { copied <- receives[0].Start() }()
		eventually(t, func() bool { return receives[0].Active() })
		require.NoError(t, receives[1].Run(within(t)))
		require.NoError(t, <-copied)
		require.NoError(t, receives[0].WaitContext(within(t)))
		require.NoError(t, WaitAllContext(within(t), sends[:]...))
	}
}

// TestSleepsForSlot: a member that runs ahead sleeps until another one, which rings no bell, has finished
// what used its slot before.
func TestSleepsForSlot(t *testing.T) {
	groups := worlds(t, 2, WithProviders("shm"), WithWait("sleep"))
	deep(groups[0].node, groups[1].node)
	var barriers [2][]*Collective
	for i := 1; i >= 0; i-- { // the first does not find the second's part
		for range 8 {
			c, err := groups[i].Declare(Barrier())
			require.NoError(t, err)
			require.NoError(t, c.Start())
			barriers[i] = append(barriers[i], c)
		}
	}
	for _, c := range barriers[0] {
		require.NoError(t, c.WaitContext(within(t)))
	}
	data := make([]byte, 8)
	over := asleep(t, groups[0].node, func() error { return groups[0].Run(within(t), Broadcast(data, 0)) })
	for _, c := range barriers[1] {
		require.NoError(t, c.WaitContext(within(t)))
	}
	require.NoError(t, <-over)
	require.NoError(t, groups[1].Run(within(t), Broadcast(data, 0)))
}

// TestLookAfterFailure: what is left in the team of an operation that has failed, as when a member that
// copies is stopped, is no operation of the group.
func TestLookAfterFailure(t *testing.T) {
	groups := worlds(t, 2, WithProviders("shm"))
	g := groups[0]
	c, err := g.Declare(Barrier())
	require.NoError(t, err)
	require.NoError(t, c.Start())
	g.host.peers[1].end(ErrPeerDied)
	require.True(t, g.team.Needs(1))
	active := g.active
	g.active = nil
	g.look()
	g.active = active
	require.ErrorIs(t, c.WaitContext(within(t)), ErrPeerDied)
}
