package main

// laps times the iterations of a loop where that is asked for: what all loops that measure
// latency have in common.
//
//	t := startLaps(samples)
//	for i := range n {
//		... an iteration ...
//		t.lap(i)
//	}
type laps struct {
	samples []int64 // nil: the loop reads no clock
	last    int64
}

// startLaps begins the first lap.
func startLaps(samples []int64) laps { return laps{samples, nanos()} }

// lap ends lap i, and begins the next. It is inlined, as take must not be for that:
// a comparison, where no time is asked for.
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

// mover sends a message to another rank, and receives one.
type mover interface {
	send()
	receive()
}

// repeat makes n iterations. With samples, of length n, each is timed, in ns, and so is what
// the clock costs.
func repeat(n int, samples []int64, once func()) {
	t := startLaps(samples)
	for i := range n {
		once()
		t.lap(i)
	}
}

// pingpong makes n iterations of a message that goes to and fro, or round: one rank is the
// first to send. Each is timed as by repeat.
func pingpong[M mover](m M, first bool, n int, samples []int64) {
	t := startLaps(samples)
	for i := range n {
		if first {
			m.send()
		}
		m.receive()
		if !first {
			m.send()
		}
		t.lap(i)
	}
}
