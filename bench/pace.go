package main

import (
	"errors"
	"fmt"
	"time"
)

// How long is compared: all rows within an hour; with --quick, which shows what is what and
// is not to be believed to a tenth, those that have a bar within five minutes.
const (
	fullTime  = 100 * time.Millisecond // of a figure in a round
	quickTime = 10 * time.Millisecond

	fullRounds  = 11 // at most
	quickRounds = 3

	// Building the peers and screening them included. A round is begun only if it would end
	// by then; the first one always is: all rows are there.
	fullBound  = 58 * time.Minute
	quickBound = 4*time.Minute + 50*time.Second

	// A program takes some seconds, with --quick half a second: longer only if it hangs, or
	// the machine is busy. One whose rounds have taken as long together is in no more of them.
	fullContender  = 2 * time.Minute
	quickContender = 20 * time.Second
)

// errHung: a program did not end within its bound.
var errHung = errors.New("did not end in time")

// pace says whether another round is begun, and how long a contender may take.
type pace struct {
	rounds  int // at most
	bound   time.Duration
	each    time.Duration // that a contender may take
	began   time.Time     // the program
	longest time.Duration // of the rounds that are over
	done    int
}

func newPace(o *compareOptions) pace {
	p := pace{rounds: o.rounds, bound: fullBound, each: fullContender, began: time.Now()}
	if o.quick {
		p.bound, p.each = quickBound, quickContender
	}
	return p
}

// another says whether there is another round at the time now.
func (p *pace) another(now time.Time) bool {
	return p.done < p.rounds && (p.done == 0 || now.Add(p.longest).Sub(p.began) <= p.bound)
}

// over counts a round that lasted from since to now.
func (p *pace) over(since, now time.Time) {
	p.done++
	p.longest = max(p.longest, now.Sub(since))
}

// contender is how long one may take that is started at the time now. In the first round
// each has its time.
func (p *pace) contender(now time.Time) time.Duration {
	if p.done == 0 {
		return p.each
	}
	return max(0, min(p.each, p.bound-now.Sub(p.began)))
}

// saysShort is what makes the figures doubtful where there were fewer rounds than full ones.
func (c *comparison) saysShort(now time.Time) []string {
	took := now.Sub(c.began).Seconds()
	if c.quick {
		return []string{fmt.Sprintf("--quick: %s of %v a figure, by turns, in %.0f s: a ratio near its bar says nothing, without --quick it does", plural(c.done, "round"), c.time, took)}
	}
	if c.done < c.pace.rounds {
		return []string{fmt.Sprintf("%d of %d rounds were possible within %.0f s: --only measures fewer rows", c.done, c.pace.rounds, took)}
	}
	return nil
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
