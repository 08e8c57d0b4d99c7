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
		{text: "", fail: `"" is not a size`},
		{text: "8,", fail: `"" is not a size`},
		{text: "k", fail: `"k" is not a size`},
		{text: "-1", fail: "is not a size"},
		{text: "8:4", fail: "8 is more than 4"},
		{text: "1:2:3", fail: "is not a size"},
		{text: "8:4M:x8", want: []int{8, 64, 512, 4096, 32 << 10, 256 << 10, 2 << 20}},
		{text: "8:512:x4", want: []int{8, 32, 128, 512}},
		{text: "3:20:x10", want: []int{3}},
		{text: "0:8:x4", fail: "does not multiply 0"},
		{text: "1:8:x1", fail: "does not multiply"},
		{text: "1:8:xk", fail: "does not multiply"},
		{text: "2G", fail: "is more than 1G"},
		{text: "99999999999999999999", fail: "is not a size"},
		{text: "9223372036854775807G", fail: "is more than 1G"},
	} {
		got, err := parseSizes(c.text)
		if c.fail != "" {
			var e *UsageError
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
		w := newWork(findPattern(layerVerbs, c.pattern), map[string]string{"op": c.op})
		specs := w.pattern.specs(w.o, 2)
		require.Equal(t, c.first, specs[0].bytes)
		require.Len(t, specs, c.n)
	}
}

func TestReadable(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		v    float64
		unit string
		want string
	}{
		{64.31, unitLatency, "64.3 ns"}, {9.996, unitLatency, "10.0 ns"}, {999.6, unitLatency, "1.00 µs"}, {12_345, unitLatency, "12.3 µs"}, {22_907_190, unitLatency, "22.9 ms"},
		{3e9, unitLatency, "3.00 s"}, {4e12, unitLatency, "4000 s"}, {0, unitLatency, "0.00 ns"},
		{512, unitBandwidth, "512 MB/s"}, {40_960, unitBandwidth, "41.0 GB/s"}, {14.1e6, unitRate, "14.1 M msg/s"}, {980, unitFanout, "980 chunks/s"}, {0.0625, unitCalls, "0.06 calls/msg"},
	} {
		require.Equal(t, c.want, readable(c.v, c.unit))
	}
}
