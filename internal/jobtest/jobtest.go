// Package jobtest makes jobs whose ranks are nodes of one process, for tests of the
// packages that stand on package channel.
package jobtest

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/internal/nettest"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
	_ "github.com/sluice-hpc/sluice/verbs/all" // the providers
)

// Local returns the providers between ranks of one host. A test over each begins with
// [Need].
func Local() []string { return []string{"shm", "tcp", "roce", "ibv"} }

// Providers returns those of [Local], and those between networks, for a program whose
// TestMain calls [nettest.Main].
func Providers() []string { return append(Local(), nettest.Providers()...) }

// Need states what a test over a provider needs. With -short, shm speaks for all that every
// machine has.
func Need(t testing.TB, provider string) {
	t.Helper()
	need.Provider(t, provider)
	if provider == "tcp" || provider == "roce" {
		need.Full(t)
	}
}

// Everywhere runs a test for each provider, if it has a device.
func Everywhere(t *testing.T, test func(t *testing.T, provider string)) {
	for _, p := range Providers() {
		t.Run(p, func(t *testing.T) {
			Need(t, p)
			test(t, p)
		})
	}
}

// Join makes a job of several nodes in this process, which are closed when the test is
// over.
func Join(t testing.TB, size int, opts ...channel.Option) []*channel.Node {
	t.Helper()
	ctx := ranks.Within(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	env := boot.Environment{Launched: true, Size: size, LocalSize: size, Server: ln.Addr().String(), Job: "test", Secret: []byte("the secret of a job of a test...")}
	s, err := boot.Serve(context.Background(), ln, boot.ServerOptions{Size: size, Job: env.Job, Secret: env.Secret})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	nodes := make([]*channel.Node, size)
	ranks.Each(t, size, func(i int) (err error) {
		e := env
		e.Rank, e.LocalRank = i, i
		nodes[i], err = channel.Join(boot.WithEnvironment(ctx, e), opts...)
		return err
	})
	t.Cleanup(func() { ranks.Each(t, size, func(i int) error { return nodes[i].Close() }) })
	return nodes
}

// Alone makes the environment say that this process is a job of one.
func Alone(t testing.TB) {
	t.Helper()
	for _, v := range append(boot.Variables(), boot.ForeignVariables()...) {
		t.Setenv(v.Name, "")
	}
}
