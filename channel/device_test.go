package channel

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/verbs"
)

// TestDeviceFatal: a fatal device error ends all peers reached through the device, and no
// others; the node closes as usual.
func TestDeviceFatal(t *testing.T) {
	queued(t, func(t *testing.T, provider string) {
		nodes := join(t, 3, WithProviders(provider))
		var waiting []*Handle
		for rank := 1; rank <= 2; rank++ {
			talk(t, nodes[0], nodes[rank])
			r, _ := receive(t, nodes[0], rank, 100_000)
			require.NoError(t, r.Start())
			waiting = append(waiting, r)
		}
		s, _ := send(t, nodes[1], 2, 8)
		r, _ := receive(t, nodes[2], 1, 8)
		pass(t, s, r, r)
		(*nodes[0].engines.Load())[0].fatal(verbs.EventDeviceFatal)
		for i, h := range waiting {
			err := h.WaitContext(within(t))
			require.ErrorIs(t, err, ErrUnreachable)
			require.ErrorContains(t, err, "event DEVICE_FATAL")
			var e *Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, 1+i, e.Rank)
			require.ErrorIs(t, h.Start(), ErrUnreachable)
		}
		pass(t, s, r, r)
	})
}
