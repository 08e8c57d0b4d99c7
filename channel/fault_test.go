package channel

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/test/need"
)

// A member that is told that another has failed, but not why, reports that, and no mismatch.
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
