package exact_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/exact"
)

// limbs is how many words of Words are of the sum.
const limbs = exact.Words - exact.FlagWords

// TestNarrowWords: narrow words merge by addition, as all words do, and are refused to a sum that they do
// not hold.
func TestNarrowWords(t *testing.T) {
	for name, source := range sources {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(17, 18))
			held := 0
			for range 300 {
				parts := make([]exact.Accumulator, r.IntN(6))
				lowest, highest := limbs, -1
				for i := range parts {
					parts[i].AddSlice(draw(r, r.IntN(4), source))
					if n := r.IntN(3); r.IntN(2) == 0 {
						parts[i].AddProducts(draw(r, n, source), draw(r, n, source))
					}
					low, high := parts[i].Span()
					lowest, highest = min(lowest, low), max(highest, high)
				}
				low := max(min(lowest, limbs-2)-r.IntN(2), 0)
				n := min(max(highest-low+1, 2)+r.IntN(3), limbs-low)
				if r.IntN(4) == 0 { // anywhere
					low = r.IntN(limbs - 1)
					n = 2 + r.IntN(limbs-low-1)
				}
				sum, all := make([]int64, exact.FlagWords+n), true
				var merged exact.Accumulator
				for i := range parts {
					words := make([]int64, len(sum))
					l, h := parts[i].Span()
					fits := parts[i].NarrowWords(words, low)
					require.Equal(t, h < l || l >= low && h < low+n, fits)
					if all = all && fits; fits {
						var one exact.Accumulator
						require.NoError(t, one.SetNarrowWords(words, low))
						require.Equal(t, encoded(t, &parts[i]), encoded(t, &one))
					} else {
						require.Equal(t, make([]int64, n), words[exact.FlagWords:])
					}
					for k, v := range words {
						sum[k] += v
					}
					merged.Merge(&parts[i])
				}
				if !all {
					continue
				}
				held++
				a := *filled() // nothing of what there was is left
				require.NoError(t, a.SetNarrowWords(sum, low))
				require.Equal(t, encoded(t, &merged), encoded(t, &a))
				require.Equal(t, wordsOf(&merged), wordsOf(&a))
				requireSame(t, merged.Round(), a.Round())
			}
			require.Greater(t, held, 100)
		})
	}
}

// TestNarrowMost adds the narrow words of as many accumulators as may be, by doubling.
func TestNarrowMost(t *testing.T) {
	for _, x := range []float64{tiny, -tiny, 1, -1, 0x1.fffffffffffffp-1, huge, -huge} {
		var a exact.Accumulator
		a.AddProduct(x, x)
		a.Add(-x)
		a.Add(-x)
		low, high := a.Span()
		for _, n := range []int{high - low + 1, high - low + 2, limbs - low} {
			words := make([]int64, exact.FlagWords+max(n, 2))
			from := min(low, limbs-len(words)+exact.FlagWords)
			require.True(t, a.NarrowWords(words, from))
			merged := a
			for range 31 {
				for i := range words {
					words[i] *= 2
				}
				merged.Merge(&merged)
			}
			var sum exact.Accumulator
			require.NoError(t, sum.SetNarrowWords(words, from))
			require.Equal(t, encoded(t, &merged), encoded(t, &sum))
		}
	}
}

// TestNarrowGolden pins the form that ranks of different builds exchange.
func TestNarrowGolden(t *testing.T) {
	one := 2150 / 32 // the word of 1, which weighs 2^(32*67-2150)
	for _, c := range []struct {
		term float64
		low  int
		want []int64
	}{
		{1, one, []int64{0, 0, 0, 0, 1, 1 << 6, 0}},
		{-1, one, []int64{0, 0, 0, 0, 1, 1<<32 - 1<<6, -1}},
		{-1, one - 1, []int64{0, 0, 0, 0, 1, 0, -1 << 6}},
		{1, one + 1, []int64{0, 0, 0, 0, 1, 0, 0}}, // which it does not hold
		{nan, 0, []int64{1, 0, 0, 0, 1, 0, 0}},
		{inf, 0, []int64{0, 1, 0, 0, 1, 0, 0}},
		{-inf, limbs - 2, []int64{0, 0, 1, 0, 1, 0, 0}},
		{negZero, 5, []int64{0, 0, 0, 1, 0, 0, 0}},
	} {
		var a exact.Accumulator
		a.Add(c.term)
		words := make([]int64, len(c.want))
		require.Equal(t, c.term != 1 || c.low == one, a.NarrowWords(words, c.low), "%v", c)
		require.Equal(t, c.want, words, "%v", c)
	}
}

// TestNarrowInvalid: words that no accumulators have.
func TestNarrowInvalid(t *testing.T) {
	const most = exact.MaxMerged * (1<<32 - 1)
	for _, c := range []struct {
		low   int
		words []int64
	}{
		{3, []int64{0, 0, 0, 0, 1, -1, 0}},
		{3, []int64{0, 0, 0, 0, 1, most + 1, 0}},
		{3, []int64{0, 0, 0, 0, 1, 0, most + 1}},
		{3, []int64{0, 0, 0, 0, 0, 0, 1}},
		{3, []int64{0, 0, 0, 1, 0, 1, 0}},
		{3, []int64{0, 0, 0, 0, exact.MaxMerged + 1, 0, 0}},
		{3, []int64{-1, 0, 0, 0, 1, 0, 0}},
		{3, []int64{1, 0, 0, 0, 0, 0, 0}},
		{limbs - 2, []int64{0, 0, 0, 0, 1, 0, exact.MaxMerged << 30}},
		{limbs - 2, []int64{0, 0, 0, 0, 1, 0, -exact.MaxMerged<<30 - 1}},
	} {
		a := *filled()
		require.ErrorIs(t, a.SetNarrowWords(c.words, c.low), exact.ErrWords, "%v", c)
		require.Equal(t, *filled(), a)
	}
}

// TestNarrowPanics: words that do not exist, or too few, of which nothing is read and nothing written.
func TestNarrowPanics(t *testing.T) {
	const flags = exact.FlagWords
	for _, c := range []struct{ words, low int }{
		{flags + 2, -1}, {flags + 2, limbs - 1}, {flags + 2, limbs}, {flags + 2, math.MaxInt}, {flags + 2, math.MinInt},
		{flags + 1, 0}, {flags + limbs + 1, 0}, {flags, 0}, {1, 0}, {0, 0}, {0, math.MinInt},
	} {
		a, words := *filled(), make([]int64, c.words)
		if c.words >= flags {
			words[flags-1] = 7
		}
		before := slices.Clone(words)
		message := fmt.Sprintf("exact: a narrow form of %d words from word %d on", c.words-flags, c.low)
		require.PanicsWithValue(t, message, func() { a.NarrowWords(words, c.low) })
		require.PanicsWithValue(t, message, func() { _ = a.SetNarrowWords(words, c.low) })
		require.Equal(t, *filled(), a)
		require.Equal(t, before, words)
	}
}
