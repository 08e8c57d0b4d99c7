// Package choice learns which of several ways of doing the same is the fastest on this machine, for
// each size. Which it is depends on the CPU, on how far apart those of the two sides are, which a
// hypervisor may change at any time, and on the contents of their caches: so no constant says it.
package choice

import (
	"math/bits"
	"time"
)

// Ways is the most ways that a Choice is between.
const Ways = 3

const (
	// Classes are the powers of two from least on. Smaller sizes share the first, larger ones the last.
	least   = 8 << 10
	classes = 12
	// firsts is how often each way is tried before times are compared: the first one includes page
	// faults.
	firsts = 3
	// Another way than the fastest is tried at most once in probeEvery times, and as seldom as it takes
	// for that to cost no more than one part in probeShare of the time.
	probeEvery = 16
	probeShare = 32
)

// Choice is what is known of the ways, which are numbered from 0. The zero value knows nothing. It is not
// safe for concurrent use.
type Choice struct {
	classes [classes]class
}

type class struct {
	took  [Ways]time.Duration // smoothed
	seen  [Ways]uint8         // up to firsts
	tries uint8               // since another way than the fastest was tried
	turn  uint8               // which was
	spare time.Duration       // what trying another one may cost
}

func (c *Choice) class(n uint64) *class {
	return &c.classes[min(max(bits.Len64(n/least), 1), classes)-1]
}

// Best returns the fastest of the first ways for n bytes, or one that is hardly known yet.
func (c *Choice) Best(ways int, n uint64) int { return c.class(n).best(ways) }

func (k *class) best(ways int) int {
	best := 0
	for w := 1; w < ways; w++ {
		switch {
		case k.seen[w] != k.seen[best]:
			if k.seen[w] < k.seen[best] {
				best = w
			}
		case k.seen[w] == firsts && k.took[w] < k.took[best]:
			best = w
		}
	}
	return best
}

// Next is Best, but now and then another way, so that it is noticed when that has become faster. The
// caller notes how long it takes.
func (c *Choice) Next(ways int, n uint64) int {
	k := c.class(n)
	best := k.best(ways)
	if k.seen[best] < firsts || ways < 2 {
		return best
	}
	other := (best + 1 + int(k.turn)%(ways-1)) % ways
	if k.tries++; k.tries < probeEvery {
		return best
	}
	k.tries = probeEvery - 1
	if k.spare < k.took[other]-k.took[best] {
		return best
	}
	k.tries, k.spare = 0, 0
	k.turn++
	return other
}

// Note records how long a way has taken for n bytes.
func (c *Choice) Note(way int, n uint64, d time.Duration) {
	k := c.class(n)
	k.spare += d / probeShare
	old := &k.took[way]
	switch {
	case k.seen[way] == 0:
		*old = d
	case k.seen[way] < firsts:
		*old = min(*old, d)
	case d > 4**old: // one side was descheduled
		*old += *old / 8
	case d < *old:
		*old += (d - *old) / 2
	default:
		*old += (d - *old) / 8
	}
	if k.seen[way] < firsts {
		k.seen[way]++
	}
}
