package main

import (
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

// parseSizes reads "min:max", which stands for min, the powers of two between,
// and max; or a list "8,4k,1M"; or one size. Suffixes are binary: k, M, G.
func parseSizes(text string) ([]int, error) {
	fail := func(format string, args ...any) ([]int, error) {
		return nil, &SizesError{text, fmt.Sprintf(format, args...)}
	}
	if from, to, isRange := strings.Cut(text, ":"); isRange {
		lo, err := parseSize(from)
		if err != nil {
			return fail("%v", err)
		}
		hi, err := parseSize(to)
		if err != nil {
			return fail("%v", err)
		}
		if lo > hi {
			return fail("%d is more than %d", lo, hi)
		}
		return doubling(lo, hi), nil
	}
	var sizes []int
	for _, s := range strings.Split(text, ",") {
		n, err := parseSize(s)
		if err != nil {
			return fail("%v", err)
		}
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
