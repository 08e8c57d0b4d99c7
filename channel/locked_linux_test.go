package channel

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs"
)

// TestLockedMemory: a user with a low limit of locked memory gets an error for the memory of a
// message; if not even the buffers of a device fit, the next provider is used.
func TestLockedMemory(t *testing.T) {
	need.RDMA(t)
	need.User(t)
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit))
	nodes := join(t, 2, WithProviders("ibv"))
	talk(t, nodes[0], nodes[1])
	b := make([]byte, limit.Cur+1<<20)
	_, err := nodes[0].DeclareSend(Contiguous(b), 1, OnStream(1))
	require.ErrorIs(t, err, verbs.ErrNoMemory)
	require.ErrorContains(t, err, fmt.Sprintf("RLIMIT_MEMLOCK (ulimit -l) is %d KiB", limit.Cur>>10))
	var e *Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, 1, e.Rank)
	s, _ := send(t, nodes[0], 1, 100_000, OnStream(2)) // the peer is up as before
	r, _ := receive(t, nodes[1], 0, 100_000, OnStream(2))
	pass(t, s, r, r)

	few := limit
	few.Cur = 256 << 10
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &few))
	defer func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &limit)) }()
	nodes = join(t, 2, WithProviders("ibv", "tcp"))
	ofB, ofA := talk(t, nodes[0], nodes[1])
	require.Equal(t, "tcp", ofB.Provider)
	require.Equal(t, "tcp", ofA.Provider)
	require.Contains(t, fmt.Sprint(ofB.Refused), "RLIMIT_MEMLOCK (ulimit -l) is 256 KiB")
}

// TestUnprivileged: the tests that register memory, and those that choose devices and are refused
// them, also pass for a user with a low limit of locked memory.
func TestUnprivileged(t *testing.T) {
	need.RDMA(t)
	need.User(t)
	setTo(t, &places, []setting{{"self", 1}, {"ibv", 2}})
	setTo(t, &queueProviders, []string{"ibv"})
	for name, test := range map[string]func(*testing.T){
		"Transport": TestTransport, "Refused": TestRefused, "Order": TestOrder, "RegisteredOnce": TestRegisteredOnce,
		"Crossovers": TestCrossovers, "NoSendBuffers": TestNoSendBuffers, "Forgotten": TestForgotten, "Leaving": TestLeaving,
	} {
		t.Run(name, test)
	}
}
