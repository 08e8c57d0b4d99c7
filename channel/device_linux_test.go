package channel

import (
	"cmp"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs"
)

// system runs a command.
func system(t testing.TB, command ...string) {
	t.Helper()
	out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
	require.NoError(t, err, "%q: %s", command, out)
}

// TestDeviceChoice: of several RDMA devices the one that the program names, or any
// with an active port; none without.
func TestDeviceChoice(t *testing.T) {
	need.Guest(t)
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
	require.Equal(t, []Refusal{{"ibv", "rxe0", "port 1 of rxe0 is DOWN"}, {"ibv", "rxe1", "port 1 of rxe1 is DOWN"}}, ofB.Refused, "the lower rank's")
	nodes = join(t, 2, WithProviders("ibv"))
	s, _ := send(t, nodes[0], 1, 8)
	require.NoError(t, s.Start())
	err := s.WaitContext(within(t))
	require.ErrorIs(t, err, ErrUnreachable)
	require.True(t, strings.Contains(err.Error(), "rank 1") && strings.Contains(err.Error(), "port 1 of rxe0 is DOWN"), err)
}

// TestDeviceMTU: the least MTU that either rank wants is that of both.
func TestDeviceMTU(t *testing.T) {
	need.Guest(t)
	nodes, errs := tryJoinEach(t, 2, func(rank int) []Option {
		return []Option{WithProviders("ibv"), WithConnect(verbs.ConnectAttr{PathMTU: []verbs.MTU{0, verbs.MTU512}[rank]})}
	})
	require.NoError(t, errors.Join(errs...))
	t.Cleanup(func() { closeAll(t, nodes) })
	talk(t, nodes[0], nodes[1])
	for rank, n := range nodes {
		p := peerOf(t, n, 1-rank)
		a, err := p.link.qp.Query()
		require.NoError(t, err)
		require.Equal(t, verbs.MTU512, a.PathMTU, "rank %d", rank)
	}
}

// TestDeviceAddresses: a device that has several addresses is opened once, and what
// goes through a link has the address that the link is to have.
func TestDeviceAddresses(t *testing.T) {
	need.Guest(t)
	const more = "10.0.0.11"
	system(t, "ip", "address", "add", more+"/24", "dev", "v0")
	defer system(t, "ip", "address", "del", more+"/24", "dev", "v0")
	nodes := join(t, 2, WithProviders("ibv", "tcp"))
	v, err := verbs.Find("rxe0")
	require.NoError(t, err)
	var links [2]*link
	var ends [2]verbs.Endpoint
	for i, address := range []string{more, ""} {
		p := port{Device: v, number: 1, rdma: true}
		d, err := nodes[i].device(p)
		require.NoError(t, err)
		p.address = address
		same, err := nodes[i].device(p)
		require.NoError(t, err)
		require.Same(t, d, same)
		links[i], err = d.newLink(address)
		require.NoError(t, err)
		ends[i], err = links[i].endpoint()
		require.NoError(t, err)
	}
	require.Equal(t, more, ends[0].GID.Addr().String())
	require.Equal(t, "10.0.0.1", ends[1].GID.Addr().String())
	const bound = 20 * time.Second
	for i, l := range links {
		require.NoError(t, l.connect(ends[1-i], bound))
		a, err := l.qp.Query()
		require.NoError(t, err)
		gid, err := l.dev.ctx.QueryGID(1, int(a.AHAttr.SGIDIndex))
		require.NoError(t, err)
		require.Equal(t, ends[i].GID, gid)
	}
	probed := make(chan error, len(links))
	for _, l := range links {
		go func() {
			got := 0
			probed <- cmp.Or(l.post(), l.probe(t.Context(), bound, &got))
		}()
	}
	for range links {
		require.NoError(t, <-probed)
	}
	for _, l := range links {
		require.NoError(t, l.close())
	}
}
