// Package bare tests a program that imports no provider. It is a package of its own
// so that its test is one.
package bare

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
	"github.com/sluice-hpc/sluice/verbs"
)

// joined joins as a rank of a job that is served here.
func joined(t *testing.T, rank, size int, opts ...channel.Option) (*channel.Node, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	ln := ranks.Listen(t)
	s, err := boot.Serve(context.Background(), ln, boot.ServerOptions{Size: size, Insecure: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	for _, v := range append(boot.Variables(), boot.ForeignVariables()...) {
		t.Setenv(v.Name, "")
	}
	t.Setenv("SLUICE_RANK", string(rune('0'+rank)))
	t.Setenv("SLUICE_SIZE", string(rune('0'+size)))
	t.Setenv("SLUICE_SERVER", s.Addr().String())
	t.Setenv("SLUICE_INSECURE", "1")
	return channel.Join(ctx, opts...)
}

// TestNoProvider: where there are peers to be reached, Join says what the program has
// to import.
func TestNoProvider(t *testing.T) {
	require.Empty(t, verbs.Providers())
	for _, opts := range [][]channel.Option{nil, {channel.WithProviders("shm")}} {
		n, err := joined(t, 1, 2, opts...)
		require.Nil(t, n)
		var e *channel.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, "join", e.Op)
		require.ErrorIs(t, err, channel.ErrInvalid)
		require.ErrorContains(t, err, `import _ "github.com/sluice-hpc/sluice/verbs/all"`)
	}
}

// TestAlone: a job of one needs no provider.
func TestAlone(t *testing.T) {
	n, err := joined(t, 0, 1)
	require.NoError(t, err)
	s, err := n.DeclareSend(channel.Contiguous([]byte("a message")), 0)
	require.NoError(t, err)
	in := make([]byte, 9)
	r, err := n.DeclareReceive(channel.Contiguous(in), 0)
	require.NoError(t, err)
	require.NoError(t, errors.Join(s.Start(), r.Start()))
	require.NoError(t, channel.WaitAll(s, r))
	require.Equal(t, "a message", string(in))
	require.NoError(t, n.Close())
}
