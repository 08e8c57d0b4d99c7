package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseSizes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text string
		want []int
		fail string // part of the error
	}{
		{text: "8", want: []int{8}},
		{text: "0,8,4k,1M", want: []int{0, 8, 4096, 1 << 20}},
		{text: "0:8", want: []int{0, 1, 2, 4, 8}},
		{text: "3:20", want: []int{3, 4, 8, 16, 20}},
		{text: "4k:4K", want: []int{4096}},
		{text: "1G", want: []int{1 << 30}},
		{text: " 16 , 32", want: []int{16, 32}},
		{text: "", fail: `"" is no size`},
		{text: "8,", fail: `"" is no size`},
		{text: "k", fail: `"k" is no size`},
		{text: "-1", fail: "is no size"},
		{text: "8:4", fail: "8 is more than 4"},
		{text: "1:2:3", fail: "is no size"},
		{text: "2G", fail: "is more than 1G"},
		{text: "99999999999999999999", fail: "is no size"},
		{text: "9223372036854775807G", fail: "is more than 1G"},
	} {
		got, err := parseSizes(c.text)
		if c.fail != "" {
			var e *SizesError
			require.ErrorAs(t, err, &e, c.text)
			require.ErrorContains(t, err, c.fail)
			continue
		}
		require.NoError(t, err, c.text)
		require.Equal(t, c.want, got, c.text)
	}
}

// What formatSize writes parseSizes reads.
func TestFormatSize(t *testing.T) {
	t.Parallel()
	for _, n := range append(doubling(0, maxSize), 3, 1000, 1025, 3<<20) {
		got, err := parseSizes(formatSize(int64(n)))
		require.NoError(t, err)
		require.Equal(t, []int{n}, got)
	}
}

func TestFormatValue(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]string{0: "0", 0.0123456: "0.0123", 1.005: "1.00", 71.26: "71.26", 123.44: "123.4", 4567.8: "4568"} {
		require.Equal(t, want, formatValue(v))
	}
}

func TestDefaultSizes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern, op string
		first, n    int
	}{
		{patternLat, "send", 0, 24},
		{patternLat, "write", 1, 23},
		{patternLat, "cmp-swap", 8, 1},
		{patternBW, "write", 1, 23},
		{patternRate, "send", 0, 14},
	} {
		op, err := findOperation(c.op)
		require.NoError(t, err)
		sizes := op.defaultSizes(c.pattern)
		require.Equal(t, c.first, sizes[0])
		require.Len(t, sizes, c.n)
	}
}
