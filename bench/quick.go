package main

import (
	"errors"
	"fmt"
	"time"
)

// A quick comparison shows what is what; it is not to be believed to a tenth.
const (
	quickTime   = 10 * time.Millisecond // of a figure in a round
	quickRounds = 3                     // at most
	// quickBound is how long it takes at most, the building of the peers included. A round
	// is begun only if it would end by then; the first one always is: all rows are there.
	quickBound = 58 * time.Second
	// quickContender bounds one program, which takes half a second: longer it does not
	// take unless it hangs, or the machine is busy. On a busy machine one
	// that spins may take for ever: where its ranks lose their CPUs in turns, each message
	// lasts as long as the scheduler lets others run.
	quickContender = 20 * time.Second
)

// errNoTime: a quick comparison was over before a contender had its turn, or had its
// full time.
var errNoTime = errors.New("no time was left: the machine is busy")

// pace says whether another round is begun, and how long a contender may take.
type pace struct {
	rounds  int           // at most
	bound   time.Duration // of all; 0: none
	share   time.Duration // that a contender may have taken, in all its rounds, before another
	began   time.Time     // the program
	longest time.Duration // of the rounds that are over
	done    int
}

// another says whether there is another round at the time now.
func (p *pace) another(now time.Time) bool {
	if p.done == p.rounds {
		return false
	}
	return p.done == 0 || p.bound == 0 || now.Add(p.longest).Sub(p.began) <= p.bound
}

// over counts a round that lasted from since to now.
func (p *pace) over(since, now time.Time) {
	p.done++
	p.longest = max(p.longest, now.Sub(since))
}

// contender is how long one may take that is started at the time now, and what it is
// called if it takes longer.
func (p *pace) contender(now time.Time) (time.Duration, error) {
	if p.bound == 0 {
		return contenderBound, errHung
	}
	if left := p.bound - now.Sub(p.began); left < quickContender {
		return left, errNoTime
	}
	return quickContender, errHung
}

// saysQuick is what makes the figures of a quick comparison doubtful; empty of another.
func (o *compareOptions) saysQuick(rounds int, took time.Duration) string {
	if !o.quick {
		return ""
	}
	times := "1 round"
	if rounds != 1 {
		times = fmt.Sprintf("%d rounds", rounds)
	}
	return fmt.Sprintf("--quick: %s of %v a figure, by turns, in %.0f s, with fewer sizes and peers: a ratio near its bar says nothing, without --quick it does",
		times, o.time, took.Seconds())
}
