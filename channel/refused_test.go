package channel

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

// talk passes a message from a to b, and returns what each knows of the other.
func talk(t *testing.T, a, b *Node) (ofB, ofA PeerStats) {
	t.Helper()
	s, r := sendReceive(t, a, b, 8)
	require.NoError(t, errors.Join(s.Start(), r.Start()))
	require.NoError(t, errors.Join(s.WaitContext(within(t)), r.WaitContext(within(t))))
	return a.Stats().Peers[0], b.Stats().Peers[0]
}

// TestRefused: both sides know which provider was not used and why, and tell which
// one is.
func TestRefused(t *testing.T) {
	for _, provider := range []string{"shm", "ibv"} {
		t.Run(provider, func(t *testing.T) {
			need.Provider(t, provider)
			testRefused(t, provider)
		})
	}
}

// testRefused makes a job one rank of which has no use for the provider.
func testRefused(t *testing.T, provider string) {
	var out [2]lockedBuffer
	nodes, errs := tryJoinEach(t, 2, func(rank int) []Option {
		logger := slog.New(slog.NewTextHandler(&out[rank], &slog.HandlerOptions{Level: slog.LevelDebug}))
		return []Option{WithLogger(logger), WithProviders([][]string{{provider, "tcp"}, {"tcp"}}[rank]...)}
	})
	require.NoError(t, errors.Join(errs...))
	t.Cleanup(func() { closeAll(t, nodes) })
	ofB, ofA := talk(t, nodes[0], nodes[1])
	for i, p := range []PeerStats{ofB, ofA} {
		require.Equal(t, "tcp", p.Provider)
		require.Equal(t, "tcp_lo", p.Device)
		require.Len(t, p.Refused, 1)
		require.Equal(t, provider, p.Refused[0].Provider)
		require.Contains(t, p.Refused[0].Reason, "not to be used by rank 1, which uses tcp only: set the same "+EnvTransport)
		require.EqualValues(t, 1, p.Retries)
		require.Contains(t, out[i].String(), fmt.Sprintf(`level=INFO msg="channel: provider not used" rank=%d peer=%d provider=%s reason=`, i, 1-i, provider))
		require.Contains(t, out[i].String(), fmt.Sprintf(`level=DEBUG msg="channel: provider used" rank=%d peer=%d provider=tcp device=tcp_lo attempts=2`, i, 1-i))
	}
	require.True(t, strings.HasPrefix(ofB.Refused[0].Reason, "rank 1: "), "whose reason it is")
}

// TestRefusedBounds: a peer that proposes without end is not remembered without end.
func TestRefusedBounds(t *testing.T) {
	var p peer
	for i := range 3 * maxRefused {
		p.refused(Refusal{Provider: fmt.Sprint("provider", i/2), Reason: strings.Repeat("ä", (i/2)*maxReason)})
	}
	require.Len(t, p.refusals, maxRefused)
	require.Equal(t, Refusal{Provider: "provider0"}, p.refusals[0])
	require.Equal(t, Refusal{Provider: "provider1", Reason: strings.Repeat("ä", maxReason/2)}, p.refusals[1])
	p.refusals = nil
	p.refused(Refusal{Reason: "x" + strings.Repeat("ä", maxReason)})
	require.Len(t, p.refusals[0].Reason, maxReason-1)
	require.True(t, utf8.ValidString(p.refusals[0].Reason))
}
