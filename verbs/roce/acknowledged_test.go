package roce

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/verbs"
)

// pingPong sends messages of 64 bytes back and forth, and returns the number of packets for each.
func pingPong(t *testing.T, f faults, each bool) float64 {
	const warm, rounds = 10, 100
	how := usual
	how.each = each
	n, a, b := pair(t, 1, f, how, 16)
	a.a.ackEach, b.a.ackEach = each, each
	sent := 0
	for i := range warm + rounds {
		if i == warm {
			sent = n.sent
		}
		for _, s := range [][2]*side{{a, b}, {b, a}} {
			from, to := s[0], s[1]
			to.recv(t, 1, 0, 64)
			from.done, to.done = nil, nil
			from.post(t, verbs.SendWR{Opcode: verbs.OpSend, SGList: []verbs.SGE{from.sge(from.local, 0, 64)}})
			// As if the user polled until the message arrives, and no further.
			for steps := 0; len(to.done) == 0; steps++ {
				require.Less(t, steps, 1000)
				for len(n.flying) > 0 && n.flying[0].at > n.now {
					n.now = n.flying[0].at
				}
				n.deliver()
				to.poll(t)
			}
		}
	}
	packets := float64(n.sent-sent) / (2 * rounds)
	n.until(t, time.Second, func() bool { a.poll(t); b.poll(t); return !a.qp.SQ.Outstanding() && !b.qp.SQ.Outstanding() })
	return packets
}

// Between peers of this library, replies carry acknowledgements, unless each message has to have its
// own; with other peers each message always has.
func TestAcknowledgements(t *testing.T) {
	path := faults{delay: time.Microsecond}
	require.InDelta(t, 1, pingPong(t, path, false), 0.1)
	require.InDelta(t, 2, pingPong(t, path, true), 0.1)
	path.foreign = true
	require.InDelta(t, 2, pingPong(t, path, true), 0.1)
}
