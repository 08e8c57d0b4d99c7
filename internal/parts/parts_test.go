package parts

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestArea: messages do not overlap before they are taken, fifteen of a part have room, what fits behind the others
// is not refused, and those of a receiver that keeps up stay in the first parts.
func TestArea(t *testing.T) {
	r := rand.New(rand.NewPCG(41, 42))
	for range 500 {
		type message struct{ off, n uint32 }
		var a Area
		var sent []message // those not taken yet
		k, known := uint64(0), uint64(0)
		taken := func() uint64 { return k - uint64(len(sent)) }
		most := 1 + r.IntN(64) // messages that are not taken
		prompt := r.IntN(2) == 0
		longest := 1 + r.Uint32N([]uint32{100, size, 5 * size, Len}[r.IntN(4)])
		for range 500 {
			for len(sent) >= most || len(sent) > 0 && r.IntN(3) == 0 {
				sent = sent[1:]
			}
			if prompt || r.IntN(3) == 0 {
				known = taken() // the sender learns of it later
			}
			m := message{n: 1 + r.Uint32N(longest)}
			if r.IntN(4) == 0 {
				m.n = longest
			}
			ok := false
			if m.off, ok = a.Next(k+1, m.n); !ok {
				for m.off, ok = a.Enter(k+1, m.n, known); !ok; m.off, ok = a.Enter(k+1, m.n, known) {
					require.NotZero(t, k-known)
					if m.n <= size && longest <= size {
						require.GreaterOrEqual(t, k-known, uint64(15))
					}
					if len(sent) > 0 && taken() == known {
						sent = sent[1:]
					}
					known = taken()
				}
			}
			k++
			require.Zero(t, m.off%align)
			require.LessOrEqual(t, m.off+m.n, uint32(Len))
			if most == 1 && prompt && longest <= size {
				require.LessOrEqual(t, m.off+m.n, uint32(3*size))
			}
			for _, o := range sent {
				require.True(t, m.off+m.n <= o.off || o.off+o.n <= m.off, "%v over %v", m, o)
			}
			sent = append(sent, m)
		}
	}
}

// TestFull: messages of one length fill the memory, as long as none is taken; where one has been taken, one has room.
func TestFull(t *testing.T) {
	for _, n := range []uint32{1, 64, 100, 2049, size - 1, size, size + 1, 4 * size, Len/2 + 1, Len} {
		var a Area
		room := (n + align - 1) / align * align
		k := uint64(0)
		for off := uint32(0); off+room <= Len; off += room {
			k++
			at, ok := a.Next(k, n)
			require.Equal(t, off%size != 0 && off%size+room <= size, ok, "message %d of %d bytes", k, n)
			if !ok {
				at, ok = a.Enter(k, n, 0)
			}
			require.True(t, ok, "message %d of %d bytes", k, n)
			require.Equal(t, off, at)
		}
		_, ok := a.Next(k+1, n)
		require.False(t, ok)
		_, ok = a.Enter(k+1, n, 0)
		require.False(t, ok, "message %d of %d bytes", k+1, n)
		if room == size || room >= Len/2 {
			at, ok := a.Enter(k+1, n, 1)
			require.True(t, ok)
			require.Zero(t, at)
		}
	}
}
