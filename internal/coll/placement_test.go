package coll

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPlacement(t *testing.T) {
	t.Parallel()
	p, err := NewPlacement([]int{7, 7, 3, 3, 3, 9})
	require.NoError(t, err)
	require.Equal(t, 6, p.Size())
	require.Equal(t, 3, p.Hosts())
	require.True(t, p.Contiguous())
	require.False(t, p.Flat())
	require.False(t, p.Single())
	require.Equal(t, 3, p.Largest())
	require.Equal(t, []int{2, 3, 4}, p.Members(1))
	require.Equal(t, []int{0, 2, 5}, p.Masters(-1))
	require.Equal(t, []int{0, 3, 5}, p.Masters(3))
	require.True(t, p.IsMaster(3, 3))
	require.False(t, p.IsMaster(2, 3))
	require.True(t, p.IsMaster(2, 1))
	require.Equal(t, []int{3, 12, 6}, p.HostCounts([]int{1, 2, 3, 4, 5, 6}))

	_, err = NewPlacement(nil)
	require.ErrorIs(t, err, ErrShape)
}

// TestPlacements: any placement, against the definitions.
func TestPlacements(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(3, 4))
	for range 500 {
		hosts := make([]int, 1+random.IntN(9))
		for i := range hosts {
			hosts[i] = random.IntN(4) * 100
		}
		p, err := NewPlacement(hosts)
		require.NoError(t, err)
		contiguous, seen := true, map[int]bool{}
		for m, h := range hosts {
			contiguous = contiguous && (!seen[h] || hosts[m-1] == h)
			seen[h] = true
			require.Equal(t, m, p.Members(p.Host(m))[p.Index(m)])
			for other, o := range hosts {
				require.Equal(t, h == o, p.Host(m) == p.Host(other))
			}
		}
		require.Equal(t, contiguous, p.Contiguous(), hosts)
		require.Equal(t, len(seen), p.Hosts())
		require.Equal(t, len(seen) == len(hosts), p.Flat())
		require.Equal(t, len(seen) == 1, p.Single())
		require.IsIncreasing(t, append([]int{-1}, p.Masters(-1)...))
		root := random.IntN(len(hosts))
		require.Equal(t, root, p.Masters(root)[p.Host(root)])
	}
}
