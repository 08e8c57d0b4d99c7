package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// What makes figures doubtful, and from where on it is said.
const (
	doubtSteal = 0.01 // of the CPUs' time: taken by the hypervisor for other guests
	doubtOther = 0.05 // CPUs: used by other processes
	doubtSpeed = 0.10 // change of the speed of computing between begin and end
)

// machineState is what tells whether the machine was quiet and steady.
type machineState struct {
	at    time.Time
	cpu   cpuTimes
	known bool    // cpu is
	speed float64 // steps per ns, see computeSpeed
}

// cpuTimes are sums over all CPUs since the system came up.
type cpuTimes struct {
	busy, steal, total time.Duration
}

func takeMachineState() machineState {
	m := machineState{speed: computeSpeed()}
	m.cpu, m.known = readCPUTimes()
	m.at = time.Now()
	return m
}

// doubts compares the machine before and after. own is the CPU time that the
// ranks themselves used meanwhile.
func doubts(before, after machineState, own time.Duration) []string {
	var list []string
	if before.known && after.known {
		total := after.cpu.total - before.cpu.total
		steal := after.cpu.steal - before.cpu.steal
		if share := float64(steal) / float64(total); total > 0 && share > doubtSteal {
			list = append(list, fmt.Sprintf("%.1f %% of the CPU time was stolen by the hypervisor", 100*share))
		}
		other := after.cpu.busy - before.cpu.busy - own
		// The kernel counts in ticks of 10 ms: a short run says nothing.
		wall := after.at.Sub(before.at)
		if cpus := other.Seconds() / wall.Seconds(); wall > time.Second && cpus > doubtOther {
			list = append(list, fmt.Sprintf("other processes used %.2f CPUs meanwhile", cpus))
		}
	}
	if change := after.speed/before.speed - 1; math.Abs(change) > doubtSpeed {
		than := "faster"
		if change < 0 {
			than = "slower"
		}
		list = append(list, fmt.Sprintf("the CPU computed %.0f %% %s at the end than at the beginning", 100*math.Abs(change), than))
	}
	return list
}

// standingDoubts are those that the environment alone gives.
func standingDoubts(e *Environment) []string {
	var list []string
	if e.Governor != "" && e.Governor != "performance" {
		list = append(list, fmt.Sprintf("the CPU frequency governor is %q, not \"performance\"", e.Governor))
	}
	if len(e.Ranks) > 1 && together(e.Ranks) && len(e.Ranks[0].CPUs) == 1 && sameCPUs(e.Ranks) {
		list = append(list, "both ranks share one CPU: latencies are those of the scheduler")
	}
	for i, r := range e.Ranks {
		if j := sharesCore(&r, e.Ranks[:i]); j >= 0 && !crowded(e.Ranks) {
			list = append(list, fmt.Sprintf("ranks %d and %d are on hardware threads of one core: each has half of it, and what they hand over never leaves it", j, r.Rank))
		}
		if len(r.CPUs) > 1 && !crowded(e.Ranks) {
			list = append(list, fmt.Sprintf("rank %d is not bound to a CPU", r.Rank))
		}
	}
	return list
}

// sameCPUs says whether all ranks are bound to the very same CPUs.
func sameCPUs(ranks []RankEnvironment) bool {
	return !slices.ContainsFunc(ranks, func(r RankEnvironment) bool { return !slices.Equal(r.CPUs, ranks[0].CPUs) })
}

// sharesCore returns the first of others that is bound to another hardware thread
// of the core that r is bound to; -1 if there is none.
func sharesCore(r *RankEnvironment, others []RankEnvironment) int {
	for _, o := range others {
		if r.Core != "" && o.Core == r.Core && o.Host == r.Host && !slices.Equal(o.CPUs, r.CPUs) {
			return o.Rank
		}
	}
	return -1
}

// crowded says whether there are more ranks than CPUs, where binding does not help.
func crowded(ranks []RankEnvironment) bool {
	cpus := map[int]bool{}
	for _, r := range ranks {
		for _, c := range r.CPUs {
			cpus[c] = true
		}
	}
	return len(cpus) > 0 && len(ranks) > len(cpus)
}

// sink keeps the loop of compute from being optimised away.
var sink atomic.Uint64

// compute keeps the CPU busy for so many steps, each of which waits for the one before, and
// uses no memory.
func compute(steps int) {
	x := sink.Load() | 1
	for range steps {
		x = x*6364136223846793005 + 1442695040888963407 // Knuth, MMIX
	}
	sink.Store(x)
}

// computeSpeed times a chain of dependent multiplications, whose speed is that
// of the clock alone; the best of several, so that interruptions do not count.
func computeSpeed() float64 {
	const steps = 50_000
	best := math.Inf(1)
	for range 10 {
		t := nanos()
		compute(steps)
		best = math.Min(best, float64(nanos()-t))
	}
	return steps / best
}

// doubtful collects the warnings of many runs, which differ in their figures.
type doubtful struct {
	runs  int
	first []string // of each kind, as first met
	count map[string]int
}

func (d *doubtful) add(warnings []string) {
	d.runs++
	if d.count == nil {
		d.count = map[string]int{}
	}
	for _, w := range warnings {
		kind := doubtKind(w)
		if d.count[kind] == 0 {
			d.first = append(d.first, w)
		}
		d.count[kind]++
	}
}

// doubtKind is a warning without its figures.
func doubtKind(w string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune("0123456789.+-", r) {
			return -1
		}
		return r
	}, w)
}

func (d *doubtful) list() []string {
	var l []string
	for _, w := range d.first {
		l = append(l, fmt.Sprintf("%s (so or similarly in %d of %d runs)", w, d.count[doubtKind(w)], d.runs))
	}
	return l
}
