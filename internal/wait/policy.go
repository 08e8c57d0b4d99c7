package wait

import (
	"runtime"
	"sync/atomic"
	"time"
)

// Sharing says whether the ranks of a job that one kernel runs have a CPU each.
type Sharing uint8

const (
	Apart   Sharing = iota // each has one
	Limited                // each may have one, but together not the time of so many: a cgroup has a quota
	Crowded                // there are fewer CPUs than ranks
)

// CPUs is what the policies of a process know of the CPUs that its ranks share.
type CPUs struct {
	find  func() Sharing
	known atomic.Uint32
	due   atomic.Int64 // ns: when it is to be found out again
}

// NewCPUs returns what find says, and has waits that are not short call it again, once a second.
func NewCPUs(find func() Sharing) *CPUs {
	c := &CPUs{find: find}
	c.known.Store(uint32(find()))
	c.due.Store(now() + sharingEvery)
	return c
}

// Sharing is what was found out last.
func (c *CPUs) Sharing() Sharing { return Sharing(c.known.Load()) }

// look finds it out again if that is due.
func (c *CPUs) look(now int64) {
	if due := c.due.Load(); now >= due && c.due.CompareAndSwap(due, now+sharingEvery) {
		c.known.Store(uint32(c.find()))
	}
}

// Step is what a waiter does next.
type Step uint8

const (
	Check   Step = iota // do what others may wait for, see whether to end the wait, then look again
	GiveWay             // do all that, then call Waiter.GiveWay before looking again
	Sleep               // do all that, then sleep until a bell rings
)

// A Policy is how the waits of one kind pass in this process. A wait looks in a loop ("spins"); in a
// crowd it yields its CPU to the other ranks; then it sleeps. For how long it pays to spin is learned from
// how long waits take; most are over after a few looks, the glances, which teach nothing and read no
// clock. Several goroutines may wait by one policy.
type Policy struct {
	// Hopeful waits spin in a crowd, too, before each yield, unless that has been in vain lately: what
	// they wait for may come from any of several ranks, of which one may run elsewhere now. Set it
	// before the first wait.
	Hopeful bool

	setting Setting
	cpus    *CPUs
	batch   uint32 // looks between two checks
	one     bool   // CPU for Go, when the policy was made

	spin  atomic.Int64  // ns to spin where ranks are apart: learned
	vain  atomic.Int32  // in a crowd: so many times in a row spinning has been in vain
	skip  atomic.Int32  // in a crowd: so many times waits do not spin
	long  atomic.Int32  // so many yields in a row have been long
	alone atomic.Int64  // ns: until then waits do not yield
	tolls atomic.Int64  // ns: how long waits take whose yields are long; a mean
	naps  atomic.Int64  // ns: how long waits have taken since then, together
	slept atomic.Int32  // and how many they were
	gaps  atomic.Uint64 // how often waits have yielded
	tests atomic.Uint32 // that have found nothing, where there is one CPU

	sleepers atomic.Int32 // waits that sleep

	clock func() int64 // ns
	yield func()       // the CPU
	run   func()       // other goroutines
}

const (
	// A wait spins for spinFirst until experience says more. The bounds of what is learned are far
	// apart, for hosts differ in what it costs to sleep and to wake: more than spinLeast anywhere, and
	// little beside spinMost.
	spinFirst = int64(200 * time.Microsecond)
	spinLeast = int64(10 * time.Microsecond)
	spinMost  = int64(time.Millisecond)
	// Under a quota spinning uses up what the ranks could compute in. But where the wake-up of a peer
	// takes longer than the peer spins, the two put each other to sleep for ever.
	spinLimited = int64(100 * time.Microsecond)
	// Where sleeping was wrong, waits spin for twice as long; where it was right, for a part less: a
	// sleep that was wrong costs a message its latency, and spinning that was wrong some CPU time.
	spinFade = 8
	// In a crowd hopeful waits spin for spinCrowded at a time. From the vainAfter-th time in a row on
	// that this is in vain, each doubles how often they then do without, vainMost times at most.
	spinCrowded = int64(10 * time.Microsecond)
	vainAfter   = 3
	vainMost    = 5
	// A wait yields yieldMost times, to ranks that give the CPU back within microseconds if they wait,
	// too. Where longMost yields in a row have taken yieldLong, something computes here that does not
	// wait for ranks: for yieldPause times as long as the last of them, waits sleep instead, for the
	// scheduler prefers what wakes to what has yielded. But it may be the ranks, if there are many on
	// each CPU: if napsLeast waits have then taken longer than those whose yields were long, waits yield
	// again.
	yieldMost  = 1000
	yieldLong  = int64(500 * time.Microsecond)
	longMost   = 32
	yieldPause = 64
	napsLeast  = 8
	tollFade   = 8
	yieldMay   = int64(10 * time.Millisecond) // more is a stop, of all processes
	// One yield in measureEvery is measured while yields are short.
	measureEvery = 16
	// After longAfter a wait is long: from then on it lets other goroutines run, each othersEvery or,
	// if other waits are long, at each check.
	longAfter   = int64(20 * time.Microsecond)
	othersEvery = int64(50 * time.Microsecond)
	// sharingEvery is how often waits find out what the ranks share.
	sharingEvery = int64(time.Second)
	// A batch of looks that takes coarse is cut by coarseCut from then on.
	coarse    = int64(10 * time.Microsecond)
	coarseCut = 8
)

// longWaits counts the waits of this process that are long and not asleep.
var longWaits atomic.Int32

var began = time.Now()

func now() int64 { return int64(time.Since(began)) }

// NewPolicy returns a policy for waits that check once in batch looks. Without CPUs ranks are apart.
func NewPolicy(s Setting, batch int, cpus *CPUs) *Policy {
	if cpus == nil {
		cpus = NewCPUs(func() Sharing { return Apart })
	}
	p := &Policy{setting: s, cpus: cpus, batch: uint32(batch), one: runtime.GOMAXPROCS(0) == 1, clock: now, yield: Yield, run: LetRun}
	p.spin.Store(spinFirst)
	return p
}

// Sharing is what the policy knows about the CPUs of the ranks.
func (p *Policy) Sharing() Sharing { return p.cpus.Sharing() }

// Yields is how often waits have yielded so far.
func (p *Policy) Yields() uint64 { return p.gaps.Load() }

// Waiter is one wait, of one goroutine.
type Waiter struct {
	p      *Policy
	left   uint32 // looks before the next check
	batch  uint32
	checks uint32
	yields uint32
	state  state
	woken  bool  // by a bell, since the last check
	slept  bool  // at least once
	asleep bool  // since the last check
	long   bool  // and counted
	toll   bool  // a yield was long
	start  int64 // ns: the first check
	from   int64 // ns: when it began to spin, or to yield
	before int64 // ns: the last check, or the end of the last yield
	ran    int64 // ns: when other goroutines could run
	spin   int64 // ns
}

type state uint8

const (
	fresh    state = iota // no check yet
	spinning              // for spin
	yielding
	drowsy // each check is followed by a sleep
)

// Begin begins a wait that was not over after the glances.
func (p *Policy) Begin() Waiter {
	return Waiter{p: p, left: 1, batch: uint32(p.Glances())}
}

// Glances is how often a wait looks, with a Pause after each look, before it begins.
func (p *Policy) Glances() int {
	switch p.setting.Mode {
	case Adaptive:
		if p.Sharing() == Crowded && (!p.Hopeful || p.skip.Load() > 0) {
			return 1
		}
	case Yielding:
		return 1
	}
	return int(p.batch)
}

// Glanced says that a wait was over after a few looks.
func (p *Policy) Glanced() {
	if p.Hopeful && p.vain.Load() != 0 {
		p.vain.Store(0)
	}
}

// Spinning reports whether the waiter has only to look again; it has paused meanwhile. If not, Check
// says what to do.
func (w *Waiter) Spinning() bool {
	if w.left--; w.left == 0 {
		return false
	}
	Pause(1)
	return true
}

// Check returns Check, GiveWay or Sleep. It may have let other goroutines run.
func (w *Waiter) Check() Step {
	p := w.p
	if w.state == fresh && w.batch == 1 && p.quick() {
		w.state, w.left = yielding, 1
		return GiveWay
	}
	now := w.before
	if w.state != yielding {
		now = p.clock()
	}
	switch w.state {
	case fresh:
		w.begin(now)
	case spinning:
		if now-w.before > coarse {
			w.batch = min(w.batch, max(1, p.batch/coarseCut))
		}
	case drowsy:
		w.awake(now)
	}
	w.left, w.before, w.woken = w.batch, now, false
	w.checks++
	w.letRun(now)
	if w.state == spinning && now-w.from >= w.spin {
		w.spun(now)
	}
	switch w.state {
	case spinning:
		return Check
	case yielding:
		return GiveWay
	default:
		w.sleep()
		return Sleep
	}
}

// quick says whether a wait may yield without a look at the clock: in a crowd in which yields have been
// short, but for one in so many.
func (p *Policy) quick() bool {
	return p.setting.Mode == Adaptive && p.Sharing() == Crowded && p.alone.Load() == 0 && p.long.Load() == 0 && p.gaps.Load()%measureEvery != 0
}

// sleep is for a wait that is about to sleep.
func (w *Waiter) sleep() {
	if !w.slept { // the P may stay in the system call for a while
		w.p.run()
	}
	w.slept, w.asleep = true, true
	w.p.sleepers.Add(1)
	if w.long {
		longWaits.Add(-1)
	}
}

// rise is for a wait that sleeps no more.
func (w *Waiter) rise() {
	if !w.asleep {
		return
	}
	w.asleep = false
	w.p.sleepers.Add(-1)
	if w.long {
		longWaits.Add(1)
	}
}

// awake is for a wait that has slept: when it has been woken, what it waits for may come at once. If
// others sleep, too, all that may have been woken for the same are not to spin.
func (w *Waiter) awake(now int64) {
	w.rise()
	w.p.cpus.look(now)
	if w.woken && w.p.setting.Mode == Adaptive && w.p.sleepers.Load() == 0 {
		w.learn(now)
		w.state, w.from = spinning, now
	}
}

// begin decides for how long to spin.
func (w *Waiter) begin(now int64) {
	p := w.p
	w.state, w.start, w.from = spinning, now, now
	switch {
	case p.setting.Mode == Yielding:
		w.spin = 0
	case p.setting.Mode != Adaptive:
		w.spin = p.setting.most()
	case p.Sharing() == Apart:
		w.spin = p.spin.Load()
	case p.Sharing() == Limited:
		w.spin = min(p.spin.Load(), spinLimited)
	default:
		w.spin = p.hope()
	}
}

// hope is for how long a wait of a crowd spins.
func (p *Policy) hope() int64 {
	switch {
	case !p.Hopeful:
		return 0
	case p.skip.Load() > 0:
		p.skip.Add(-1)
		return 0
	}
	return spinCrowded
}

// spun is for a wait that has spun for long enough.
func (w *Waiter) spun(now int64) {
	p := w.p
	w.state = drowsy
	switch p.setting.Mode {
	case Adaptive:
	case Yielding:
		w.state, w.from = yielding, now
		return
	default:
		return
	}
	if p.cpus.look(now); p.Sharing() != Crowded {
		return
	}
	if w.spin > 0 {
		v := min(p.vain.Load()+1, vainAfter+vainMost)
		if p.vain.Store(v); v >= vainAfter {
			p.skip.Store(1 << (v - vainAfter))
		}
	}
	switch alone := p.alone.Load(); {
	case w.yields == yieldMost || now < alone:
		return
	case alone != 0:
		p.alone.Store(0)
	}
	w.state, w.from = yielding, now
}

// GiveWay yields the CPU.
func (w *Waiter) GiveWay() {
	p, now := w.p, w.before
	w.left = 1
	w.yields++
	p.gaps.Add(1)
	p.yield()
	then := p.clock()
	w.before = then
	p.cpus.look(then)
	if w.start == 0 { // it is not known how long that took
		w.start, w.from = then, then
		w.hopeAgain(then)
		return
	}
	if p.setting.Mode == Yielding {
		if then-w.from >= p.setting.most() {
			w.state = drowsy
		}
		return
	}
	took := min(then-now, yieldMay)
	if took < yieldLong {
		if p.long.Load() != 0 {
			p.long.Store(0)
		}
	} else if w.toll = true; p.long.Add(1) >= longMost {
		p.long.Store(0)
		p.pay(then - w.start)
		p.naps.Store(0)
		p.slept.Store(0)
		p.alone.Store(then + yieldPause*took)
		w.state = drowsy
		return
	}
	w.hopeAgain(then)
}

// hopeAgain decides what follows a yield.
func (w *Waiter) hopeAgain(now int64) {
	p := w.p
	if w.yields >= yieldMost {
		w.state = drowsy
	} else if spin := p.hope(); spin > 0 {
		w.state, w.from, w.spin, w.batch, w.left = spinning, now, spin, p.batch, p.batch
	}
}

// letRun lets other goroutines run if that is due.
func (w *Waiter) letRun(now int64) {
	if now-w.start < longAfter {
		return
	}
	if !w.long {
		w.long = true
		longWaits.Add(1)
	}
	if now-w.ran >= othersEvery || longWaits.Load() > 1 {
		w.ran = now
		w.p.run()
	}
}

// Long reports whether the wait has taken some microseconds.
func (w *Waiter) Long() bool { return w.long }

// Late reports whether the wait has taken some microseconds, but the longer it takes the less often.
func (w *Waiter) Late() bool { return w.long && w.checks&(w.checks-1) == 0 }

// Woken says that the wait has been woken: its sleep has not ended by itself.
func (w *Waiter) Woken() { w.woken = true }

// Again says that part of what is awaited has come: the wait for the rest begins now.
func (w *Waiter) Again() {
	w.End()
	*w = w.p.Begin()
}

// End ends the wait. A later End does nothing.
func (w *Waiter) End() {
	p := w.p
	switch w.state {
	case fresh:
		return
	case spinning:
		p.Glanced()
		w.nap(w.before)
	case drowsy:
		if w.rise(); w.slept && p.setting.Mode == Adaptive {
			now := p.clock()
			w.nap(now)
			w.learn(now)
		}
	case yielding:
		if w.toll {
			p.pay(w.before - w.start)
		}
	}
	if w.long {
		longWaits.Add(-1)
	}
	w.state, w.long, w.toll, w.batch = fresh, false, false, 1
}

// pay counts a wait that has taken so long and of whose yields one was long.
func (p *Policy) pay(took int64) {
	mean := p.tolls.Load()
	if mean == 0 {
		mean = took
	}
	p.tolls.Store(mean + (took-mean)/tollFade)
}

// nap counts a wait that is over now, if it has slept instead of yielding.
func (w *Waiter) nap(now int64) {
	p := w.p
	if !w.slept || w.yields > 0 || p.alone.Load() == 0 {
		return
	}
	sum := p.naps.Add(now - w.start)
	if n := int64(p.slept.Add(1)); n >= napsLeast && sum > n*p.tolls.Load() {
		p.alone.Store(0)
	}
}

// learn learns from a wait that has slept and of which a part is over: whether it had better spun.
func (w *Waiter) learn(now int64) {
	p := w.p
	if p.Sharing() == Crowded {
		return
	}
	known := p.spin.Load()
	if now-w.from <= spinMost {
		w.spin = min(max(known, 2*w.spin), spinMost)
	} else {
		w.spin = max(known-known/spinFade, spinLeast)
	}
	p.spin.Store(w.spin)
}
