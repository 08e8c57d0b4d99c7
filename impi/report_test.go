package impi

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// TestJobReport: each request that is not complete has a line that says what it waits for.
func TestJobReport(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Comm) {
		any := irecv(t, a, make([]byte, 70), AnySource, AnyTag)
		one := irecv(t, a, make([]byte, 80), 1, 5)
		send := issend(t, a, make([]byte, 90), 1, 6)
		says := func(lines ...string) {
			t.Helper()
			ranks.Eventually(t, func() bool {
				tested(t, send)
				var out strings.Builder
				require.NoError(t, a.Job().Report(&out))
				for _, line := range lines {
					if !strings.Contains(out.String(), "rank 0: "+line) {
						return false
					}
				}
				return len(lines) > 0 || !strings.Contains(out.String(), "rank 0: ")
			})
		}
		says("receive from any rank, any tag, 70 bytes: waits for the sender",
			"receive from rank 1, tag 5, 80 bytes: waits for the sender",
			"send to rank 1, tag 6, 90 bytes: waits for the receiver, ")
		require.NoError(t, b.Send(within(t), make([]byte, 1), 0, 7))
		require.NoError(t, b.Send(within(t), make([]byte, 1), 0, 5))
		received(t, b, make([]byte, 90), 0, 6)
		for _, q := range []Request{any, one, send} {
			completed(t, q)
		}
		says()
	})
}
