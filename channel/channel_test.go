package channel

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

// newMemory allocates memory of a node.
func newMemory(t testing.TB, n *Node, size int) *Memory {
	t.Helper()
	m, err := n.Alloc(size)
	require.NoError(t, err)
	return m
}

// allocate returns n bytes of a node, or of the heap.
func allocate(t testing.TB, n *Node, size int, own bool) []byte {
	if !own {
		return make([]byte, size)
	}
	return newMemory(t, n, size).Bytes()
}

// random fills b, by words: the race detector looks at each store.
func random(r *rand.Rand, b []byte) {
	for ; len(b) >= 8; b = b[8:] {
		binary.NativeEndian.PutUint64(b, r.Uint64())
	}
	for i := range b {
		b[i] = byte(r.Uint32())
	}
}

func TestSizes(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Node) {
		r := rand.New(rand.NewPCG(1, 2))
		for i, size := range []int{0, 1, 8, 55, 56, 57, 64, 128, inlineMax, inlineMax + 1, 4096, eagerMax, eagerMax + 1, 100_000, chunkMin, chunkMin + 1, 3 << 20} {
			if testing.Short() && size > chunkMin+1 {
				continue
			}
			for k, own := range []struct{ src, dst bool }{{true, true}, {true, false}, {false, true}, {false, false}} {
				src, dst := allocate(t, a, size+1, own.src)[:size], allocate(t, b, size+1, own.dst)[:size]
				for _, receiveFirst := range []bool{true, false} {
					if (testing.Short() || size > 100_000 && !need.WantLong()) && receiveFirst == ((i+k)%2 == 0) {
						continue // at the next size
					}
					name := fmt.Sprintf("%d bytes, own %v, receive first %v", size, own, receiveFirst)
					s, d := declareBoth(t, a, b, Contiguous(src), Contiguous(dst))
					rounds := 2
					switch {
					case testing.Short() || strings.Contains(t.Name(), "/roce") || size > 100_000:
						rounds = 1
					case need.WantLong():
						rounds = 3
					}
					for range rounds {
						random(r, src)
						first, second := s, d
						if receiveFirst {
							first, second = d, s
						}
						startAll(t, first, second)
						arrives(t, s, d, name)
						require.True(t, bytes.Equal(src, dst), name)
					}
					require.NoError(t, s.Close())
					require.NoError(t, d.Close())
				}
			}
		}
	})
}
