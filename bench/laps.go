package main

// laps times the iterations of a loop where somebody asks for it: what all loops
// that measure latency have in common. (A loop that took its iteration as a
// function would have a call through a pointer in each, which is more than
// what is compared here differs by.)
//
//	t := startLaps(samples)
//	for i := range n {
//		... an iteration ...
//		t.lap(i)
//	}
type laps struct {
	samples []int64 // nil: nobody asks, and the loop reads no clock
	last    int64
}

// startLaps begins the first lap.
func startLaps(samples []int64) laps { return laps{samples, nanos()} }

// lap ends lap i, and begins the next. It is inlined, as take must not be for that:
// a comparison, where nobody asks.
func (l *laps) lap(i int) {
	if l.samples != nil {
		l.take(i)
	}
}

//go:noinline
func (l *laps) take(i int) {
	now := nanos()
	l.samples[i] = now - l.last
	l.last = now
}
