package channel

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/coll/shared"
	"github.com/sluice-hpc/sluice/verbs"
)

// TestViewOfDead: a member whose queue pair has ended keeps its memory to itself until the control
// connection says why, and the error then says that.
func TestViewOfDead(t *testing.T) {
	worlds := worlds(t, 2, WithProviders("shm"))
	n, m := worlds[0].node, allocate(t, worlds[1].node, 1<<16, true)
	p := n.peers[1].Load()
	theirs := &hostCarrier{node: worlds[1].node}
	key, addr, ok := theirs.Export(m)
	require.True(t, ok)
	h := &hostCarrier{node: n, peers: []*peer{nil, p}}
	awaitView(t, h, key, addr, len(m))
	require.NoError(t, p.link.qp.Modify(&verbs.QPAttr{QPState: verbs.QPErr}, verbs.MaskState))
	_, err := h.View(1, key, addr, len(m))
	require.ErrorIs(t, err, shared.ErrLater)
	p.end(fmt.Errorf("%w: a test", ErrPeerDied))
	_, err = h.View(1, key, addr, len(m))
	requireError(t, err, ErrPeerDied, 1)
}

// awaitView waits until memory of member 1 has arrived.
func awaitView(t *testing.T, h *hostCarrier, key uint32, addr uint64, n int) {
	for ctx := within(t); ; {
		_, err := h.View(1, key, addr, n)
		if err == nil {
			return
		}
		require.ErrorIs(t, err, shared.ErrLater)
		require.NoError(t, ctx.Err())
	}
}
