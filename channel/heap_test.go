package channel

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestHeapToWaiting: a large message out of the heap to a receiver that is waiting
// already, so that both sides copy.
func TestHeapToWaiting(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Node) {
		r := rand.New(rand.NewPCG(1, 2))
		src := make([]byte, 1<<20)
		s := declareSend(t, a, Contiguous(src), b.Rank())
		d, dst := receive(t, b, a.Rank(), len(src))
		for range 10 {
			random(r, src)
			require.NoError(t, d.Start())
			waited := make(chan error)
			go func() { waited <- d.WaitContext(within(t)) }()
			require.NoError(t, s.Run(within(t)))
			require.NoError(t, <-waited)
			require.True(t, bytes.Equal(src, dst))
		}
	})
}
