package channel

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCrossovers: each provider packs blocks below a size of its own.
func TestCrossovers(t *testing.T) {
	const total = 64 << 10
	queued(t, func(t *testing.T, provider string) {
		least := 8 << 10
		if provider == "ibv" {
			least = 1 << 10
		}
		for _, block := range []int{512, least / 2, least, 2 * least} {
			nodes := join(t, 2, WithProviders(provider))
			layout := func(b []byte) Layout { return Strided(b, 0, block, total/block, 2*block) }
			from, into := make([]byte, 2*total), make([]byte, 2*total)
			random(rand.New(rand.NewPCG(1, uint64(block))), from)
			s, r := declareBoth(t, nodes[0], nodes[1], layout(from), layout(into))
			pass(t, s, r, r)
			require.Equal(t, packed(layout(from)), packed(layout(into)))
			want := uint64(0)
			if block < least {
				want = 1
			}
			require.Equal(t, want, nodes[0].Stats().Peers[0].Sent.Packed, "blocks of %d bytes", block)
			require.Equal(t, want, nodes[1].Stats().Peers[0].Received.Packed, "blocks of %d bytes", block)
		}
	})
}
