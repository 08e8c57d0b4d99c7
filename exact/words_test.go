package exact_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/exact"
)

// Places in the words, after the limbs.
const (
	topWord = 133 + iota
	nanWord
	posInfWord
	negInfWord
	negZeroWord
	otherWord
)

func wordsOf(a *exact.Accumulator) (w [exact.Words]int64) {
	a.Words(&w)
	return w
}

// add is the reduction that words are made for.
func add(dst, src *[exact.Words]int64) {
	for i, v := range src {
		dst[i] += v
	}
}

// TestWordsAdd says that words merge by addition.
func TestWordsAdd(t *testing.T) {
	for name, source := range sources {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(15, 16))
			for range 50 {
				var merged exact.Accumulator
				var sum [exact.Words]int64
				for range r.IntN(20) {
					var part exact.Accumulator
					part.AddSlice(draw(r, r.IntN(300), source))
					if n := r.IntN(300); r.IntN(2) == 0 {
						part.AddProducts(draw(r, n, source), draw(r, n, source))
					}
					w := wordsOf(&part)
					add(&sum, &w)
					merged.Merge(&part)
				}
				a := *filled() // SetWords leaves nothing of what there was
				require.NoError(t, a.SetWords(&sum))
				require.Equal(t, encoded(t, &merged), encoded(t, &a))
				require.Equal(t, wordsOf(&merged), wordsOf(&a))
				requireSame(t, merged.Round(), a.Round())
			}
		})
	}
}

// TestMaxMerged adds the words of as many accumulators as may be, by doubling, with
// the largest digits there are.
func TestMaxMerged(t *testing.T) {
	for _, x := range []float64{-tiny, huge, -huge, 0x1.fffffffffffffp-1, -1} {
		var a exact.Accumulator
		for range 5 {
			a.AddProduct(x, x)
			a.Add(x)
			a.Add(-tiny) // all limbs between are 2^32-1
			a.AddProduct(x, -tiny)
		}
		a.Add(inf)
		w := wordsOf(&a)
		for range 31 {
			add(&w, &w)
			a.Merge(&a)
		}
		require.Equal(t, int64(exact.MaxMerged), w[otherWord])
		for i, v := range w[:topWord] {
			require.GreaterOrEqual(t, v, int64(0), i)
		}
		var sum exact.Accumulator
		require.NoError(t, sum.SetWords(&w))
		require.Equal(t, encoded(t, &a), encoded(t, &sum))
	}
}

// TestWordsOfRangesEnd adds words of sums at the end of the range: they count as
// infinite, as if they were merged.
func TestWordsOfRangesEnd(t *testing.T) {
	for _, top := range []int64{1<<30 - 1, -1 << 30} {
		var w [exact.Words]int64
		w[topWord], w[otherWord] = top, 1
		var a exact.Accumulator
		require.NoError(t, a.SetWords(&w))
		require.Equal(t, w, wordsOf(&a), "the range ends here")
		for range 31 {
			add(&w, &w)
		}
		require.NoError(t, a.SetWords(&w))
		requireSame(t, math.Inf(int(top)), a.Round())
	}
}

// TestWordsGolden pins the form that ranks of different builds exchange.
func TestWordsGolden(t *testing.T) {
	type words = map[int]int64
	for _, c := range []struct {
		name string
		make func(a *exact.Accumulator)
		want words
	}{
		{"none", func(*exact.Accumulator) {}, words{}},
		{"0", func(a *exact.Accumulator) { a.Add(0) }, words{otherWord: 1}},
		{"-0", func(a *exact.Accumulator) { a.Add(negZero); a.Add(negZero) }, words{negZeroWord: 1}},
		{"-0 and 0", func(a *exact.Accumulator) { a.Add(negZero); a.Add(0) }, words{otherWord: 1}},
		{"exceptions", func(a *exact.Accumulator) { a.Add(nan); a.Add(inf); a.Add(-inf) },
			words{nanWord: 1, posInfWord: 1, negInfWord: 1, otherWord: 1}},
		{"1", func(a *exact.Accumulator) { a.Add(1) }, words{67: 1 << 6, otherWord: 1}}, // 2150 = 67·32+6
		{"1.5·2^32", func(a *exact.Accumulator) { a.Add(0x1.8p32) }, words{68: 1<<6 + 1<<5, otherWord: 1}},
		{"least product", func(a *exact.Accumulator) { a.AddProduct(tiny, tiny) }, words{0: 1 << 2, otherWord: 1}},
		{"-2^1984", func(a *exact.Accumulator) { a.AddProduct(-0x1p992, 0x1p992) },
			words{129: 1<<32 - 1<<6, 130: 1<<32 - 1, 131: 1<<32 - 1, 132: 1<<32 - 1, topWord: -1, otherWord: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var a exact.Accumulator
			c.make(&a)
			got := words{}
			for i, v := range wordsOf(&a) {
				if v != 0 {
					got[i] = v
				}
			}
			require.Equal(t, c.want, got)
		})
	}
}

// TestBadWords has words that no sum has.
func TestBadWords(t *testing.T) {
	const limit = exact.MaxMerged
	for _, c := range []struct {
		name  string
		word  int
		value int64
		other int64
	}{
		{"negative limb", 0, -1, 1},
		{"limb of too many", 132, limit*(1<<32-1) + 1, limit},
		{"top of too many", topWord, limit << 30, limit},
		{"top of too many, negative", topWord, -limit<<30 - 1, limit},
		{"negative count", nanWord, -1, 1},
		{"count of too many", posInfWord, limit + 1, limit},
		{"count of too many others", otherWord, limit + 1, limit + 1},
		{"infinity without terms", negInfWord, 1, 0},
		{"NaN without terms", nanWord, 1, 0},
		{"limb without terms", 70, 1, 0},
		{"top without terms", topWord, -1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var w [exact.Words]int64
			w[otherWord], w[c.word] = c.other, c.value
			a := *filled()
			before := encoded(t, &a)
			require.ErrorIs(t, a.SetWords(&w), exact.ErrWords)
			require.Equal(t, before, encoded(t, &a))
		})
	}
}
