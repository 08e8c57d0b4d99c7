package channel

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPlace: messages in the data of a ring do not overlap before they are taken, fifteen always have room, and
// those of a receiver that keeps up stay in one part.
func TestPlace(t *testing.T) {
	r := rand.New(rand.NewPCG(41, 42))
	for range 200 {
		s := &sendStream{r: newRing(alignedMemory(ringSize))}
		type message struct{ off, n uint32 }
		var sent []message // those not taken yet
		taken := uint64(0)
		take := func() {
			taken++
			s.r.acks[taken%ringSlots] = taken << 1
			sent = sent[1:]
		}
		most := 1 + r.IntN(ringSlots-1) // messages that are not taken
		long := 1 + r.Uint32N(eagerMax)
		lone := most == 1
		for range 500 {
			for len(sent) >= most || len(sent) > 0 && r.IntN(3) == 0 {
				take()
			}
			m := message{n: 1 + r.Uint32N(long)}
			if r.IntN(4) == 0 {
				m.n = long
			}
			s.next++
			ok := false
			for m.off, ok = s.place(s.next, m.n); !ok; m.off, ok = s.place(s.next, m.n) {
				require.GreaterOrEqual(t, len(sent), 15)
				take()
			}
			require.Zero(t, m.off%eagerAlign)
			require.LessOrEqual(t, m.off+m.n, uint32(ringData))
			if lone {
				require.LessOrEqual(t, m.off+m.n, uint32(2*ringPart))
			}
			for _, o := range sent {
				require.True(t, m.off+m.n <= o.off || o.off+o.n <= m.off, "%v over %v", m, o)
			}
			sent = append(sent, m)
		}
	}
}
