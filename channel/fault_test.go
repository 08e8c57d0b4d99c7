package channel

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/test/need"
)

// Who is told by a member that another one has failed, and by nobody why, says that: the
// calls do not differ.
func TestSecondHandFailure(t *testing.T) {
	t.Parallel()
	need.Full(t)
	c := &Collective{group: &Group{ranks: []int{3, 4, 5, 6}}}
	err := c.runError(&stage{members: []int{0, 1, 3}}, &coll.MismatchError{From: 2, Via: 1, Failed: true})
	var e *Error
	require.ErrorAs(t, err, &e)
	require.ErrorIs(t, err, ErrUnreachable)
	require.NotErrorIs(t, err, ErrMismatch)
	require.Equal(t, 6, e.Rank)
	require.ErrorContains(t, err, "as reported by rank 4")
}
