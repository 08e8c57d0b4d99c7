package eventgen

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
)

const (
	minSize     = 8       // the number of the event
	maxSize     = 8 << 20 // so that an item stays below ring.DefaultLimit
	defaultSize = 256
	tail        = 64 // an exponential size is at most so many times the mean
)

// Size is the distribution of the sizes of event bodies, in bytes. The zero value is 256 for
// all. No body is smaller than 8 bytes.
type Size struct {
	shape     shape
	low, high int // fixed and exponential: low alone
}

type shape int

const (
	fixed shape = iota
	uniform
	exponential
)

// Fixed returns the distribution with one size for all bodies.
func Fixed(n int) Size { return Size{fixed, n, 0} }

// Uniform returns the uniform distribution from low to high.
func Uniform(low, high int) Size { return Size{uniform, low, high} }

// Exponential returns the exponential distribution with the given mean, cut off at 64 times
// the mean.
func Exponential(mean int) Size { return Size{exponential, mean, 0} }

// String returns the text that Set takes.
func (s Size) String() string {
	switch s.shape {
	case uniform:
		return fmt.Sprintf("%d:%d", s.low, s.high)
	case exponential:
		return fmt.Sprintf("exp:%d", s.low)
	}
	if s.low == 0 {
		return strconv.Itoa(defaultSize)
	}
	return strconv.Itoa(s.low)
}

// Type describes for a flag what Set takes.
func (*Size) Type() string { return "N|MIN:MAX|exp:MEAN" }

// Set takes "256" for Fixed, "64:4096" for Uniform, "exp:1024" for Exponential. The
// error is [ErrConfig].
func (s *Size) Set(text string) error {
	first, second, two := strings.Cut(text, ":")
	set := Size{}
	var err error
	switch {
	case first == "exp":
		set.shape = exponential
		set.low, err = strconv.Atoi(second)
	case two:
		set.shape = uniform
		if set.low, err = strconv.Atoi(first); err == nil {
			set.high, err = strconv.Atoi(second)
		}
	default:
		set.low, err = strconv.Atoi(first)
	}
	if err != nil {
		return fmt.Errorf("%w: size %q, want a number, MIN:MAX or exp:MEAN", ErrConfig, text)
	}
	if err := set.check(); err != nil {
		return err
	}
	*s = set
	return nil
}

func (s Size) check() error {
	if s == (Size{}) {
		return nil
	}
	if s.low < minSize || max(s.low, s.high) > maxSize || s.shape == exponential && s.low > maxSize/tail || s.shape == uniform && s.high < s.low {
		return fmt.Errorf("%w: size %v, want %d to %d bytes, and a mean of %d at most", ErrConfig, s, minSize, maxSize, maxSize/tail)
	}
	return nil
}

func (s Size) draw(r *rand.Rand) int {
	switch s.shape {
	case uniform:
		return s.low + r.IntN(s.high-s.low+1)
	case exponential:
		return max(minSize, min(int(r.ExpFloat64()*float64(s.low)), tail*s.low))
	}
	if s.low == 0 {
		return defaultSize
	}
	return s.low
}
