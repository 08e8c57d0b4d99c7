package channel

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/boot"
)

// TestAbort: operations pending at any rank fail and name the rank that aborted the job; so do
// later ones, also with ranks that have not been contacted yet.
func TestAbort(t *testing.T) {
	apart(t, func(t *testing.T, provider string) {
		nodes := join(t, 3, WithProviders(provider))
		first, r := sendReceive(t, nodes[1], nodes[0], 8)
		require.NoError(t, errors.Join(first.Start(), r.Start(), r.WaitContext(within(t)), first.WaitContext(within(t))))
		self, _ := receive(t, nodes[1], 1, 8)
		large, _ := send(t, nodes[1], 0, 100_000, OnStream(1))
		pending := []*Handle{r, self, large}
		startAll(t, pending...)
		nodes[1].Abort(9, "enough")
		check := func(err error) {
			t.Helper()
			require.ErrorIs(t, err, ErrAborted)
			var e *Error
			require.ErrorAs(t, err, &e)
			var a *boot.AbortError
			require.ErrorAs(t, err, &a)
			require.Equal(t, &boot.AbortError{Rank: 1, Code: 9, Why: "enough"}, a)
		}
		again := func(h *Handle) error {
			if err := h.Start(); err != nil {
				return err
			}
			return h.WaitContext(within(t))
		}
		for _, h := range pending {
			check(h.WaitContext(within(t)))
			check(again(h))
		}
		for _, n := range nodes {
			<-n.job.Done()
		}
		require.Eventually(t, func() bool { // the node is told by the job
			nodes[2].mu.Lock()
			defer nodes[2].mu.Unlock()
			return nodes[2].over != nil
		}, limit, time.Millisecond)
		late, _ := send(t, nodes[2], 0, 8)
		check(again(late))
	})
}
