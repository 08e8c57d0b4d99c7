package parts

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestArea: messages are not written over before they are taken, also where places are prepared, fifteen of a part
// have room, what fits behind the others is not refused, and those of a receiver that keeps up stay in the first
// parts.
func TestArea(t *testing.T) {
	r := rand.New(rand.NewPCG(41, 42))
	for range 150 {
		type message struct{ off, n uint32 }
		var a Area
		mem := make([]byte, Len)
		var sent []message // those not taken yet
		k, known := uint64(0), uint64(0)
		taken := func() uint64 { return k - uint64(len(sent)) }
		most := 1 + r.IntN(64) // messages that are not taken
		prompt, answers := r.IntN(2) == 0, r.IntN(2) == 0
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
			sent = append(sent, m)
			copy(mem[m.off:m.off+m.n], bytes.Repeat([]byte{byte(k)}, int(m.n)))
			if answers && r.IntN(3) > 0 {
				if !a.Room(m.n) && prompt {
					known = taken()
				}
				a.Touch(mem, m.n, known)
			}
			for i, o := range sent {
				n := byte(k - uint64(len(sent)-1-i))
				if bytes.Count(mem[o.off:o.off+o.n], []byte{n}) != int(o.n) {
					require.FailNow(t, "written over", "message %v", o)
				}
			}
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

// TestTrail: where each message is answered, the receiver knows the place of the next one before it comes, and the
// sender has written to it; two parts are enough.
func TestTrail(t *testing.T) {
	for _, n := range []uint32{1, 64, 65, 1000, 1024, 1500, 2048, 2049, size - 1, size} {
		var a Area
		var trail Trail
		mem := make([]byte, Len)
		for k := uint64(1); k <= 200; k++ {
			off, ok := a.Next(k, n)
			if !ok {
				require.EqualValues(t, 1, k, "%d bytes: the place was not prepared", n)
				off, ok = a.Enter(k, n, 0)
				require.True(t, ok)
			} else {
				for i := off; i < off+n; i += align {
					require.Zero(t, mem[i])
				}
			}
			if k > 1 && (off%size != 0 || k > uint64(2*size/roomOf(n))) {
				require.Equal(t, trail.next(n), off, "message %d of %d bytes", k, n)
			}
			trail.Follow(off, n)
			require.Less(t, off, uint32(2*size))
			for i := range mem {
				mem[i] = 1
			}
			a.Touch(mem, n, k-1)
		}
	}
}

// TestTrailAtEnds: a receiver that is told any places fetches nothing outside the memory.
func TestTrailAtEnds(t *testing.T) {
	mem := make([]byte, Len)
	for _, m := range [][2]uint32{{0, 0}, {0, 1}, {Len - 1, 1}, {Len - 64, 64}, {0, Len}, {Len, 0}, {3, size}} {
		var trail Trail
		trail.Follow(0, 64)
		trail.Follow(m[0], m[1])
		for _, n := range []uint32{1, 64, size, size + 1, Len} {
			trail.Fetch(mem, n)
		}
	}
}
