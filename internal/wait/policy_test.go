package wait

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// world is what a policy sees: a clock that only looks, yields and sleeps move.
type world struct {
	now     int64
	sharing Sharing
	asked   int             // for the sharing
	gives   []time.Duration // how long the next yields take; then a microsecond each
	gave    int
	ran     int // how often other goroutines could run
}

const lookTime = 10 // ns

// policy returns a policy of this world that checks once in ten looks.
func (v *world) policy(s Setting) *Policy {
	p := NewPolicy(s, 10, NewCPUs(func() Sharing { v.asked++; return v.sharing }))
	p.clock = func() int64 { return v.now }
	p.cpus.due.Store(v.now + sharingEvery)
	p.yield = func() {
		v.gave++
		d := time.Microsecond
		if len(v.gives) > 0 {
			d, v.gives = v.gives[0], v.gives[1:]
		}
		v.now += int64(d)
	}
	p.run = func() { v.ran++ }
	return p
}

// course is how a wait has passed.
type course struct {
	spun   time.Duration // before it yielded or slept
	yields int
	sleeps int
	awake  time.Duration // before the first sleep
}

// wait waits until a time has passed, at most for so many sleeps, each of which a bell ends after bell.
func (v *world) wait(p *Policy, d, bell time.Duration) (c course) {
	start, gave := v.now, v.gave
	for range p.Glances() {
		if v.now-start >= int64(d) {
			p.Glanced()
			return c
		}
		v.now += lookTime
	}
	w := p.Begin()
	defer w.End()
	for v.now-start < int64(d) {
		v.now += lookTime
		if w.Spinning() {
			continue
		}
		step := w.Check()
		if c.spun == 0 && step >= GiveWay {
			c.spun = time.Duration(v.now - start)
		}
		if step == GiveWay {
			w.GiveWay()
		}
		if step == Sleep {
			if c.sleeps++; c.sleeps == 1 {
				c.awake = time.Duration(v.now - start)
			}
			if bell == 0 || v.now+int64(bell) > start+int64(d) {
				v.now = start + int64(d)
			} else {
				v.now += int64(bell)
				w.Woken()
			}
		}
	}
	c.yields = v.gave - gave
	return c
}

const us = time.Microsecond

// TestPolicy: what a wait does, by what its user asks for, what the ranks share, and how long it is.
func TestPolicy(t *testing.T) {
	t.Cleanup(func() { require.Zero(t, longWaits.Load()) })
	for _, c := range []struct {
		name    string
		setting Setting
		sharing Sharing
		wait    time.Duration
		spun    time.Duration // about; 0: the wait ends before
		yields  int
		sleeps  int
	}{
		{"a short wait only looks", Setting{}, Apart, 5 * us, 0, 0, 0},
		{"one that is longer than spinning pays sleeps", Setting{}, Apart, 10_000 * us, 200 * us, 0, 1},
		{"with little CPU time sooner", Setting{}, Limited, 10_000 * us, 100 * us, 0, 1},
		{"in a crowd it yields", Setting{}, Crowded, 500 * us, us, 500, 0},
		{"but not for ever", Setting{}, Crowded, 10_000 * us, us, 1000, 1},
		{"spin", Setting{Mode: Spinning}, Crowded, 10_000 * us, 0, 0, 0},
		{"spin for some time", Setting{Mode: Spinning, For: 50 * us}, Crowded, 10_000 * us, 50 * us, 0, 1},
		{"yield", Setting{Mode: Yielding}, Apart, 10_000 * us, us, 10_000, 0},
		{"yield for some time", Setting{Mode: Yielding, For: 100 * us}, Apart, 10_000 * us, us, 100, 1},
		{"sleep", Setting{Mode: Sleeping}, Apart, 10_000 * us, us, 0, 1},
		{"sleep after some time", Setting{Mode: Sleeping, For: 50 * us}, Apart, 10_000 * us, 50 * us, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := world{now: 1, sharing: c.sharing}
			got := v.wait(v.policy(c.setting), c.wait, 0)
			require.InDelta(t, c.spun, got.spun, float64(us))
			require.InDelta(t, c.yields, got.yields, 0.03*float64(c.yields))
			require.Equal(t, c.sleeps, got.sleeps)
		})
	}
}

// TestPolicyLearns: a sleep that is over within a millisecond makes waits spin for longer, one that takes
// longer makes them spin for a little less, within bounds; what ends while it spins changes nothing.
func TestPolicyLearns(t *testing.T) {
	v := world{now: 1}
	p := v.policy(Setting{})
	for _, c := range []struct {
		wait, bell, spin time.Duration
		times            int
	}{
		{300 * us, 0, 400 * us, 1},
		{us / 20, 0, 400 * us, 1000},
		{390 * us, 0, 400 * us, 1000},
		{900 * us, 0, 1000 * us, 9},
		{50_000 * us, 0, 875 * us, 1},
		{50_000 * us, 0, 10 * us, 100},
		{15 * us, 0, 20 * us, 1},
		{500 * us, 100 * us, 160 * us, 1}, // bells end sleeps after 120, 260 and 440 µs
	} {
		for range c.times {
			v.wait(p, c.wait, c.bell)
		}
		require.Equal(t, int64(c.spin), p.spin.Load(), "after %d of %v", c.times, c.wait)
	}
}

// TestPolicyBell: a wait that a bell wakes spins again, unless it may have been meant for another sleeper.
func TestPolicyBell(t *testing.T) {
	v := world{now: 1}
	require.Equal(t, 3, v.wait(v.policy(Setting{}), 2000*us, 200*us).sleeps)
	p := v.policy(Setting{})
	p.sleepers.Add(1)
	require.Equal(t, 9, v.wait(p, 2000*us, 200*us).sleeps)
	require.Equal(t, int32(1), p.sleepers.Load())
}

// TestPolicyNeighbour: waits of a crowd do not yield where that only gives the CPU to something that
// computes, as many yields in a row show, of one wait or of several; they sleep, for some time.
func TestPolicyNeighbour(t *testing.T) {
	const slice = 3000 * us
	long := func(n int) []time.Duration { return slices.Repeat([]time.Duration{slice}, n) }
	v := world{now: 1, sharing: Crowded, gives: slices.Concat(long(longMost-1), []time.Duration{us}, long(longMost-1))}
	p := v.policy(Setting{})
	got := v.wait(p, 300_000*us, 0)
	require.Equal(t, []int{1000, 1}, []int{got.yields, got.sleeps}, "not in a row")
	waits := 0
	for v.gives = long(1000); p.alone.Load() == 0; waits++ {
		v.wait(p, 2*slice, 0)
	}
	require.Greater(t, waits, longMost/2-1)
	require.Less(t, waits, longMost/2+measureEvery, "one in so many is measured at first")
	v.gives = nil
	for range 10 {
		got = v.wait(p, us, 0)
		require.Equal(t, []int{0, 1}, []int{got.yields, got.sleeps})
	}
	v.now += int64(200 * time.Millisecond)
	require.Equal(t, 1000, v.wait(p, 10_000*us, 0).yields)
	v.gives = append([]time.Duration{us}, slices.Repeat([]time.Duration{time.Hour}, longMost)...)
	v.wait(p, 100*time.Hour, 0)
	require.Less(t, p.alone.Load()-v.now, int64(time.Second), "a stop of the job is no measure")
}

// TestPolicyManyRanks: yields are long, too, where many ranks share a CPU and work. Waits that sleep
// then take longer than those that yielded did, and yield again.
func TestPolicyManyRanks(t *testing.T) {
	const slice = 600 * us
	for _, c := range []struct {
		naps   time.Duration
		yields bool
	}{{100 * us, false}, {3 * slice / 2, false}, {5000 * us, true}} {
		v := world{now: 1, sharing: Crowded}
		p := v.policy(Setting{})
		for v.gives = slices.Repeat([]time.Duration{slice}, 1000); p.alone.Load() == 0; {
			v.wait(p, 2*slice, 0)
		}
		v.gives = nil
		yielded := p.Begin() // before the others slept
		yielded.yields, yielded.slept, yielded.state, yielded.start = 1, true, spinning, v.now-int64(time.Hour)
		yielded.End()
		until := p.alone.Load()
		for range napsLeast {
			require.Equal(t, until, p.alone.Load())
			require.Zero(t, v.wait(p, c.naps, 0).yields)
			v.now -= int64(c.naps) // so that the time of sleeping does not end by itself
		}
		require.Equal(t, c.yields, p.alone.Load() == 0, "%v", c.naps)
		require.Equal(t, c.yields, v.wait(p, 100*us, 0).yields > 0, "%v", c.naps)
	}
}

// TestPolicyHopeful: hopeful waits of a crowd spin before each yield, less often the longer that has
// been in vain, until it helps once.
func TestPolicyHopeful(t *testing.T) {
	v := world{now: 1, sharing: Crowded}
	p := v.policy(Setting{})
	p.Hopeful = true
	got := v.wait(p, 9*us, 0)
	require.Zero(t, got.yields)
	got = v.wait(p, 10_000*us, 0)
	require.InDelta(t, 10, got.spun/us, 1)
	require.Equal(t, []int{1000, 1}, []int{got.yields, got.sleeps})
	require.InDelta(t, 1000*us+1000/33*10*us, got.awake, float64(100*us))
	for p.skip.Load() > 0 {
		v.wait(p, us, 0)
	}
	v.wait(p, 5*us, 0)
	require.Zero(t, p.vain.Load())
	require.InDelta(t, 33, v.wait(p, 33*us, 0).yields*11, 11, "each yield after spinning")
}

// TestPolicyLooksAgain: what the ranks share is found out again once a second, by waits that are not
// short, and the waits after that go by it.
func TestPolicyLooksAgain(t *testing.T) {
	v := world{now: 1}
	p := v.policy(Setting{})
	for _, s := range []Sharing{Crowded, Apart, Limited, Crowded, Limited, Apart} {
		was := p.Sharing()
		v.sharing = s
		v.wait(p, 2000*us, 0)
		require.Equal(t, was, p.Sharing())
		v.now += int64(time.Second)
		if was != Crowded { // where a wait yields at once
			v.wait(p, us/20, 0)
			require.Equal(t, was, p.Sharing(), "the short path asks for nothing")
		}
		v.wait(p, 2000*us, 0)
		require.Equal(t, s, p.Sharing())
		got := v.wait(p, 500*us, 0)
		require.Equal(t, s == Crowded, got.yields > 0, "%v", s)
	}
	require.Equal(t, 1+6, v.asked)
}

// TestPolicyFromCrowd: a wait that began in a crowd, without spinning, teaches waits outside of one to
// spin.
func TestPolicyFromCrowd(t *testing.T) {
	v := world{now: 1, sharing: Crowded}
	p := v.policy(Setting{})
	p.alone.Store(v.now + int64(time.Hour))
	v.sharing = Apart
	v.now += int64(time.Second)
	v.wait(p, 100*us, 0)
	require.Equal(t, Apart, p.Sharing())
	require.GreaterOrEqual(t, p.spin.Load(), spinLeast)
}

// TestPolicyGoroutines: a long wait lets other goroutines run, at each check if they wait, too.
func TestPolicyGoroutines(t *testing.T) {
	v := world{now: 1}
	p := v.policy(Setting{Mode: Spinning})
	v.wait(p, 19*us, 0)
	require.Zero(t, v.ran)
	v.wait(p, 1000*us, 0)
	require.InDelta(t, 1000/50, v.ran, 1)
	longWaits.Add(1)
	defer longWaits.Add(-1)
	v.ran = 0
	v.wait(p, 1000*us, 0)
	require.InDelta(t, 980*10, v.ran, 10)
}

// TestSetting: texts of settings.
func TestSetting(t *testing.T) {
	for text, want := range map[string]Setting{
		"": {}, "spin": {Mode: Spinning}, "yield:1ms": {Mode: Yielding, For: time.Millisecond}, "sleep": {Mode: Sleeping}, "sleep:20us": {Mode: Sleeping, For: 20 * us},
	} {
		got, err := parse(text)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, text := range []string{"nap", "spin:", "spin:0", "spin:-1s", "spin:5", "spin:1s:1s", ":1s"} {
		_, err := parse(text)
		require.ErrorContains(t, err, text)
	}
}
