package soft

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A place gets a new key with each use, until it has had all of them; a key reveals neither
// the next one nor that of another place.
func TestKeys(t *testing.T) {
	const places, genBits = 256, 8
	table := NewMRTable("test", places, genBits)
	var used [places]map[uint32]bool
	list := make([]*MR, places)
	var begins, steps []uint32
	for round := range 1 << genBits {
		for i := range list {
			m, err := table.Add(new(PD), make([]byte, 1), 0, nil)
			require.NoError(t, err)
			require.EqualValues(t, m.Key>>genBits, m.Index())
			found, fault := table.Lookup(nil, m.Key, m.Addr(), 1, 0)
			require.True(t, found == m && fault == OK)
			if used[m.Index()] == nil {
				used[m.Index()] = map[uint32]bool{}
			}
			require.False(t, used[m.Index()][m.Key], "%#x in round %d", m.Key, round)
			used[m.Index()][m.Key] = true
			const mask = 1<<genBits - 1
			switch round {
			case 0:
				begins = append(begins, (m.Key-uint32(i))&mask)
			case 1:
				steps = append(steps, (m.Key-list[i].Key)&mask)
			}
			list[i] = m
		}
		for _, m := range list {
			table.Remove(m)
			_, fault := table.Lookup(nil, m.Key, m.Addr(), 1, 0)
			require.Equal(t, BadKey, fault)
			table.Release(m)
		}
	}
	// 256 draws of 256 values, and of the 128 odd ones: with fewer than 64 and 32 different ones
	// they are not drawn.
	for _, c := range []struct {
		drawn []uint32
		least int
	}{{begins, 64}, {steps, 32}} {
		different := map[uint32]bool{}
		for _, v := range c.drawn {
			different[v] = true
		}
		require.Greater(t, len(different), c.least)
	}
}
