package channel

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/verbs"
)

// inGuest skips a test that needs the devices of internal/vm: rxe0 and rxe1, which
// this process may do with as it likes.
func inGuest(t testing.TB) {
	if os.Getenv("SLUICE_VM") != "run" {
		t.Skip("no soft-RoCE guest: internal/vm/vm run")
	}
}

// system runs a command.
func system(t testing.TB, command ...string) {
	t.Helper()
	out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
	require.NoError(t, err, "%q: %s", command, out)
}

// TestDeviceChoice: of several RDMA devices the one that the program names, or any
// with an active port; none without.
func TestDeviceChoice(t *testing.T) {
	inGuest(t)
	used := func(opts ...Option) string {
		nodes := join(t, 2, append(opts, WithProviders("ibv", "tcp"))...)
		ofB, ofA := talk(t, nodes[0], nodes[1])
		require.Equal(t, ofA.Device, ofB.Device)
		return ofB.Device
	}
	require.Equal(t, "rxe0", used())
	require.Equal(t, "rxe1", used(WithDevices("rxe1")))
	require.Equal(t, "rxe1", used(WithDevices("rxe1", "rxe0")))
	require.Equal(t, "rxe1", used(WithDevices("rxe1"), WithConnect(verbs.ConnectAttr{
		Port: 1, SGIDIndex: 1, ServiceLevel: 1, TrafficClass: 104, Timeout: 16, RetryCnt: verbs.Retries(5), RNRRetry: verbs.Retries(7), MinRNRTimer: 5})))
	require.Equal(t, "tcp_lo", used(WithDevices("mlx5_7")))
	require.Equal(t, "tcp_lo", used(WithConnect(verbs.ConnectAttr{Port: 2})))

	shell(t, linkDown) // both ends of the veth pair lose their carrier
	defer shell(t, linkUp)
	nodes := join(t, 2, WithProviders("ibv", "tcp"))
	ofB, ofA := talk(t, nodes[0], nodes[1])
	require.Equal(t, "tcp", ofA.Provider)
	require.Equal(t, "tcp", ofB.Provider)
	require.Len(t, ofB.Refused, 1) // the lower rank's
	require.Contains(t, ofB.Refused[0].Reason, "port 1 of rxe0 is DOWN")
	require.Contains(t, ofB.Refused[0].Reason, "port 1 of rxe1 is DOWN")
	nodes = join(t, 2, WithProviders("ibv"))
	s, _ := send(t, nodes[0], 1, 8)
	require.NoError(t, s.Start())
	err := s.WaitContext(within(t))
	require.ErrorIs(t, err, ErrUnreachable)
	require.True(t, strings.Contains(err.Error(), "rank 1") && strings.Contains(err.Error(), "port 1 of rxe0 is DOWN"), err)
}
