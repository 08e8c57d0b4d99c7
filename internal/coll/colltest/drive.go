package colltest

import (
	"errors"
	"math/rand/v2"

	"github.com/sluice-hpc/sluice/internal/coll"
)

// ErrStalled means that no member of a group can continue.
var ErrStalled = errors.New("colltest: no member can continue")

// Drive starts the runs of all members with their headers and steps them until all are
// complete, one step of each in turn: in rank order or, with a source of random numbers, in an
// order that changes every time. It returns the error of each member, from its run or
// [ErrStalled].
func (n *Network) Drive(runs []*coll.Run, headers []coll.Header, random *rand.Rand) []error {
	errs := make([]error, len(runs))
	active := make([]int, 0, len(runs))
	started := make([]bool, len(runs))
	for i := range runs {
		active = append(active, i)
	}
	for len(active) > 0 {
		if random != nil {
			random.Shuffle(len(active), func(i, j int) { active[i], active[j] = active[j], active[i] })
		}
		before := n.events.Load()
		left := active[:0]
		for _, i := range active {
			var done bool
			if !started[i] {
				started[i] = true
				errs[i] = runs[i].Start(headers[i])
				done = errs[i] != nil
				n.events.Add(1)
			} else {
				done, errs[i] = runs[i].Step()
			}
			if !done {
				left = append(left, i)
			}
		}
		if len(left) == len(active) && n.events.Load() == before {
			for _, i := range left {
				errs[i] = ErrStalled
			}
			return errs
		}
		active = left
	}
	return errs
}

// Counts counts the messages that were sent over a network.
type Counts struct {
	Messages int64 // sent
	Bytes    int64 // sent, with their headers
	Most     int64 // messages sent and received by the busiest member
	Depth    int64 // messages in the longest chain in which each depends on the one before
}

// Counts returns and resets the counts since the network was made or Counts was last called. No
// messages may be in flight.
func (n *Network) Counts() Counts {
	var c Counts
	for i := range n.members {
		m := &n.members[i]
		sent := m.sent.Swap(0)
		c.Messages += sent
		c.Bytes += m.bytes.Swap(0)
		c.Most = max(c.Most, sent+m.received.Swap(0))
		c.Depth = max(c.Depth, m.clock.Swap(0))
	}
	return c
}
