package main

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"
)

// maxSize bounds the bytes of a message, whatever the device allows.
const maxSize = 1 << 30

// SizesError says what is wrong with a list of sizes.
type SizesError struct {
	Text string // what was given
	Why  string
}

func (e *SizesError) Error() string { return fmt.Sprintf("sizes %q: %s", e.Text, e.Why) }

// parseSizes reads "min:max", which stands for min, the powers of two between, and max;
// "min:max:x4", for min, as long as there is one of at most max four times as much, and so on;
// a list "8,4k,1M"; or one size. Suffixes are binary: k, M, G.
func parseSizes(text string) (sizes []int, err error) {
	if from, to, isRange := strings.Cut(text, ":"); isRange {
		sizes, err = parseRange(from, to)
	} else {
		for s := range strings.SplitSeq(text, ",") {
			n, e := parseSize(s)
			err = cmp.Or(err, e)
			sizes = append(sizes, n)
		}
	}
	if err != nil {
		return nil, &SizesError{text, err.Error()}
	}
	return sizes, nil
}

func parseRange(from, to string) ([]int, error) {
	to, by, multiplied := strings.Cut(to, ":x")
	lo, err := parseSize(from)
	if err != nil {
		return nil, err
	}
	hi, err := parseSize(to)
	switch {
	case err != nil:
		return nil, err
	case lo > hi:
		return nil, fmt.Errorf("%d is more than %d", lo, hi)
	case !multiplied:
		return doubling(lo, hi), nil
	}
	factor, err := strconv.Atoi(by)
	if err != nil || factor < 2 || lo == 0 {
		return nil, fmt.Errorf("%q does not multiply %d", by, lo)
	}
	var sizes []int
	for n := lo; n <= hi; n *= factor {
		sizes = append(sizes, n)
	}
	return sizes, nil
}

// doubling returns lo, the powers of two between, and hi.
func doubling(lo, hi int) []int {
	sizes := []int{lo}
	for n := 1 << bits.Len(uint(lo)); n < hi; n <<= 1 {
		sizes = append(sizes, n)
	}
	if hi > lo {
		sizes = append(sizes, hi)
	}
	return sizes
}

func parseSize(text string) (int, error) {
	digits, shift := strings.TrimSpace(text), 0
	if n := len(digits); n > 0 {
		switch digits[n-1] {
		case 'k', 'K':
			shift = 10
		case 'm', 'M':
			shift = 20
		case 'g', 'G':
			shift = 30
		}
		if shift > 0 {
			digits = digits[:n-1]
		}
	}
	n, err := strconv.ParseUint(digits, 10, 63)
	if err != nil {
		return 0, fmt.Errorf("%q is no size", text)
	}
	if n > maxSize>>shift {
		return 0, fmt.Errorf("%s is more than %s", text, formatSize(maxSize))
	}
	return int(n) << shift, nil
}

// formatSize writes n as parseSize reads it, with the largest suffix that fits.
func formatSize(n int64) string {
	for _, u := range []struct {
		shift  int
		suffix string
	}{{30, "G"}, {20, "M"}, {10, "k"}} {
		if n != 0 && n%(1<<u.shift) == 0 {
			return strconv.FormatInt(n>>u.shift, 10) + u.suffix
		}
	}
	return strconv.FormatInt(n, 10)
}

// formatValue writes a figure of a result with as many digits as mean something.
func formatValue(v float64) string {
	switch a := math.Abs(v); {
	case a >= 1000 || a == 0:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 100:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case a >= 1:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

// readable writes a figure of three digits, with a unit that suits it.
func readable(v float64, unit string) string {
	units := []string{unit}
	switch unit {
	case unitLatency:
		units = []string{"ns", "µs", "ms", "s"}
	case unitBandwidth:
		units = []string{"MB/s", "GB/s"}
	case unitRate, unitFanout:
		units = []string{unit, "k " + unit, "M " + unit}
	}
	for v >= 999.5 && len(units) > 1 {
		v /= 1000
		units = units[1:]
	}
	digits := 2
	for limit := 9.995; digits > 0 && v >= limit; limit *= 10 {
		digits--
	}
	return strconv.FormatFloat(v, 'f', digits, 64) + " " + units[0]
}
