package memory

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestIndex: against a list of what is there. What has been removed as stale is stale until a block lies there
// again.
func TestIndex(t *testing.T) {
	const places = 600 // of two pages each
	space := make([]byte, (2*places+1)*pageSize)
	r := rand.New(rand.NewPCG(3, 7))
	var x Index[int]
	var there, stale [places]bool
	ids := make([]int, places)
	at := func(i int) []byte { return space[2*i*pageSize:][: pageSize+1+i : pageSize+1+i] }
	check := func(i int) {
		for _, b := range [][]byte{at(i), at(i)[:1], at(i)[pageSize:], at(i)[5:9]} {
			if there[i] {
				require.Same(t, &ids[i], x.Find(b))
			} else {
				require.Nil(t, x.Find(b))
			}
			require.Equal(t, stale[i], x.Stale(b))
		}
		require.Nil(t, x.Find(space[2*i*pageSize:][:2*pageSize])) // more than the block
		require.Nil(t, x.Find(space[(2*i+2)*pageSize-1:][:2]))    // none
	}
	for round := range 4000 {
		i := r.IntN(places)
		if lean := round / 1000 % 2; !there[i] && r.IntN(4) > lean {
			x.Add(at(i), &ids[i])
			there[i], stale[i] = true, false
		} else if there[i] && r.IntN(4) > 1-lean {
			becomes := r.IntN(2) == 0
			x.Remove(at(i), becomes)
			there[i], stale[i] = false, stale[i] || becomes
		} else if there[i] && r.IntN(10) == 0 {
			x.Spoil(at(i))
			stale[i] = true
		}
		check(i)
		check(r.IntN(places))
		require.Equal(t, slices.Contains(stale[:], true), x.Spoiled())
	}
	var want, got []*int
	for i := range places {
		if check(i); there[i] {
			want = append(want, &ids[i])
		}
	}
	for p := range x.All() {
		got = append(got, p)
	}
	require.Equal(t, want, got)
	require.Equal(t, len(want), x.Len())
	for i := range places {
		if there[i] {
			x.Remove(at(i), false)
		}
	}
	require.Zero(t, x.Len())
	require.Nil(t, x.Find(at(0)))
}

// TestAddReplaces: a block takes the place of all that have some of its addresses.
func TestAddReplaces(t *testing.T) {
	const places = 500
	space := make([]byte, places*pageSize)
	r := rand.New(rand.NewPCG(5, 11))
	var x Index[int]
	var is [places]*int
	for id := range 1000 {
		from := r.IntN(places)
		to := from + 1 + r.IntN(min(places-from, 1+id%40))
		for _, p := range slices.Compact(slices.Clone(is[from:to])) {
			for i := range is {
				if is[i] == p {
					is[i] = nil
				}
			}
		}
		x.Add(space[from*pageSize:to*pageSize:to*pageSize], &id)
		for i := from; i < to; i++ {
			is[i] = &id
		}
		for i := range is {
			require.Same(t, is[i], x.Find(space[i*pageSize:][:pageSize]))
		}
	}
	blocks := slices.DeleteFunc(slices.Compact(is[:]), func(p *int) bool { return p == nil })
	require.Equal(t, len(blocks), x.Len())
}

// TestFindMeanwhile: a block is found while others come and go around it.
func TestFindMeanwhile(t *testing.T) {
	const places = 300
	space := make([]byte, places*pageSize)
	at := func(i int) []byte { return space[i*pageSize:][:pageSize] }
	var x Index[int]
	ids := make([]int, places)
	for i := 0; i < places; i += 2 {
		x.Add(at(i), &ids[i])
	}
	var wg sync.WaitGroup
	for k := range 2 {
		wg.Go(func() {
			for range 5 {
				for i := 1 + 2*k; i < places; i += 4 {
					x.Add(at(i), &ids[i])
				}
				for i := 1 + 2*k; i < places; i += 4 {
					x.Remove(at(i), i%8 < 4)
				}
			}
		})
	}
	for range 100 {
		for i := 0; i < places; i += 2 {
			if x.Find(at(i)) != &ids[i] {
				require.Fail(t, "a block is not found", "%d", i)
			}
		}
	}
	wg.Wait()
	require.Equal(t, places/2, x.Len())
}

// TestFindAllocatesNothing: nor does Stale.
func TestFindAllocatesNothing(t *testing.T) {
	space := make([]byte, 3*pageSize)
	var x Index[int]
	x.Add(space[:pageSize], new(int))
	x.Spoil(space[pageSize:])
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if x.Find(space[10:20]) == nil || !x.Stale(space[2*pageSize-1:]) {
			panic("not found")
		}
	}))
}
