package channel

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/exact"
)

// TestSumExact: sums of all kinds, several together, in calls one after the other, against sums in one
// accumulator.
func TestSumExact(t *testing.T) {
	kinds := []struct {
		name string
		term func(r *rand.Rand, call int) float64
		wide bool // the calls need more than narrow words
	}{
		{"near 1", func(r *rand.Rand, _ int) float64 { return r.NormFloat64() }, false},
		{"growing", func(r *rand.Rand, call int) float64 { return math.Ldexp(r.NormFloat64(), 3*call) }, false},
		{"fading", func(r *rand.Rand, call int) float64 { return math.Ldexp(r.NormFloat64(), -20*call) }, true},
		{"huge and tiny", func(r *rand.Rand, _ int) float64 { return math.Ldexp(r.NormFloat64(), r.IntN(2000)-1000) }, true},
		{"leaping", func(r *rand.Rand, call int) float64 { return math.Ldexp(r.NormFloat64(), call%2*1600-800) }, true},
		{"zero", func(*rand.Rand, int) float64 { return 0 }, false},
		{"-0", func(*rand.Rand, int) float64 { return math.Copysign(0, -1) }, false},
		{"special", func(r *rand.Rand, call int) float64 {
			return []float64{1, math.Inf(1), math.Inf(-1), math.NaN()}[r.IntN(1+call%4)]
		}, false},
	}
	const calls = 40
	for _, size := range []int{1, 2, 3, 4, 5, 8} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			groups := worlds(t, size, WithProviders("shm"))
			for _, k := range kinds {
				r := rand.New(rand.NewPCG(uint64(size), 7))
				tried := 0
				for call := range calls {
					several := 1 + call%3
					want := make([]exact.Accumulator, several)
					parts := make([][]exact.Accumulator, size)
					for rank := range parts {
						parts[rank] = make([]exact.Accumulator, several)
						for i := range parts[rank] {
							for range r.IntN(4) {
								x, y := k.term(r, call), k.term(r, call)
								parts[rank][i].Add(x)
								parts[rank][i].AddProduct(x, y)
							}
							want[i].Merge(&parts[rank][i])
						}
					}
					each(t, size, func(rank int) error {
						var list []*exact.Accumulator
						for i := range parts[rank] {
							list = append(list, &parts[rank][i])
						}
						return SumExact(context.Background(), groups[rank], list...)
					})
					for rank, list := range parts {
						for i := range list {
							require.Equal(t, form(t, &want[i]), form(t, &list[i]), "%s, call %d, rank %d, sum %d", k.name, call, rank, i)
						}
						require.Equal(t, groups[0].sums.Load().low, groups[rank].sums.Load().low)
						require.Equal(t, groups[0].sums.Load().vain, groups[rank].sums.Load().vain)
					}
					if groups[0].sums.Load().vain > 0 {
						tried++
					}
				}
				if !k.wide {
					require.Less(t, tried, 3, "%s: narrow words hold these sums, once it is known where they lie", k.name)
				}
				for _, g := range groups {
					g.sums.Store(nil)
				}
			}
		})
	}
}

func form(t *testing.T, a *exact.Accumulator) []byte {
	b, err := a.MarshalBinary()
	require.NoError(t, err)
	return b
}

// TestSumExactApart: ranks that expect the words of a sum in different places notice that.
func TestSumExactApart(t *testing.T) {
	const size = 3
	groups := worlds(t, size, WithProviders("shm"))
	for low := range sumWords - narrowWords {
		sums := make([]exact.Accumulator, size)
		for rank := range sums {
			groups[rank].sums.Store(&exactSums{low: []int{firstLow}})
			sums[rank].Add(float64(rank + 1))
		}
		groups[low%size].sums.Store(&exactSums{low: []int{low}})
		each(t, size, func(rank int) error { return SumExact(context.Background(), groups[rank], &sums[rank]) })
		for rank := range sums {
			require.Equal(t, 6.0, sums[rank].Round())
			require.Equal(t, groups[0].sums.Load().vain, groups[rank].sums.Load().vain)
		}
	}
}

// TestSumExactInvalid: words of a rank that no accumulator has are an error at every rank, which changes
// nothing.
func TestSumExactInvalid(t *testing.T) {
	groups := worlds(t, 2, WithProviders("shm"))
	var sums [2]exact.Accumulator
	sums[0].Add(1)
	errs := make(chan error, 2)
	go func() { errs <- SumExact(t.Context(), groups[0], &sums[0], &sums[1]) }()
	go func() {
		words := make([]int64, narrowHead+2*narrowEach)
		for i := range 2 {
			w := words[narrowHead+i*narrowEach:]
			w[0], w[1], w[2] = firstLow, firstLow*firstLow, 1 // a NaN without terms
		}
		errs <- groups[1].Run(t.Context(), Allreduce(Sum, words, words))
	}()
	var failed []error
	for range 2 {
		if err := <-errs; err != nil {
			failed = append(failed, err)
		}
	}
	require.Len(t, failed, 1)
	require.ErrorIs(t, failed[0], exact.ErrWords)
	require.ErrorIs(t, failed[0], ErrProtocol)
	require.Equal(t, 1.0, sums[0].Round())
}

// TestSumExactCounts: a rank that passes another number of accumulators is found out, by narrow words and by all,
// and nothing changes.
func TestSumExactCounts(t *testing.T) {
	const size = 3
	for _, provider := range []string{"shm", "tcp"} {
		for _, vain := range []int{0, vainMost} {
			groups := worlds(t, size, WithProviders(provider))
			var sums [size][2]exact.Accumulator
			errs := make([]error, size)
			each(t, size, func(rank int) error {
				groups[rank].sums.Store(&exactSums{vain: vain})
				s := &sums[rank]
				s[0].Add(float64(rank))
				list := []*exact.Accumulator{&s[0], &s[1]}
				if rank == 1 {
					list = list[:1]
				}
				errs[rank] = SumExact(within(t), groups[rank], list...)
				return nil
			})
			for rank, err := range errs {
				require.ErrorIs(t, err, ErrMismatch, "%s, rank %d", provider, rank)
				require.Equal(t, float64(rank), sums[rank][0].Round())
			}
		}
	}
}

// TestSumExactShared: a call that finds another goroutine in the group changes nothing that the ranks know of
// their sums in common.
func TestSumExactShared(t *testing.T) {
	groups := worlds(t, 2, WithProviders("shm"))
	for _, g := range groups {
		g.sums.Store(&exactSums{vain: vainMost})
	}
	var sums [2]exact.Accumulator
	for call := range vainEvery {
		if call == 3 {
			require.True(t, groups[0].tryEnter())
			require.ErrorIs(t, SumExact(t.Context(), groups[0], &sums[0]), ErrActive)
			groups[0].exit()
		}
		each(t, 2, func(rank int) error { return SumExact(t.Context(), groups[rank], &sums[rank]) })
		require.Equal(t, groups[0].sums.Load().calls, groups[1].sums.Load().calls)
	}
	s := groups[0].sums.Swap(busySums) // a goroutine is in a sum
	require.ErrorIs(t, SumExact(t.Context(), groups[0], &sums[0]), ErrActive)
	groups[0].sums.Store(s)
	each(t, 2, func(rank int) error { return SumExact(t.Context(), groups[rank], &sums[rank]) })
}
