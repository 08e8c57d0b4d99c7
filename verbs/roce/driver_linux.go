package roce

import (
	"encoding/binary"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// driver is the goroutine of an adapter that moves it when nobody else does: parked
// in ppoll(2) until the socket has something and nobody polls, or something is due.
type driver struct {
	a     *adapter
	watch []unix.PollFd // the eventfd, then those of the wire
	stir  func()        // nil, or called when the wire's last descriptor has something, and every so often

	notices noticeWriter
	done    sync.WaitGroup

	waking sync.Mutex
	event  int // eventfd, for wake; -1: the driver has ended

	stop    atomic.Bool
	planned atomic.Int64 // when run means to look again
	polled  atomic.Bool  // somebody polls: the socket is not watched
	kicked  atomic.Bool  // somebody is going to sleep until an event comes

	// Of run alone: the polls when it last looked, and when it began to watch the socket; when it
	// stirs the wire; and whether another goroutine kept the receive lock.
	seen, since uint64
	stirAt      int64
	kept        bool
}

// often is after how many polls somebody seems to do nothing else.
const often = 64

// keptFor is after how long the driver tries again to have a lock that was kept: meanwhile the
// socket, which has something, would not let it sleep.
const keptFor = int64(100 * time.Microsecond)

// startDriver starts the driver of an adapter. It watches the descriptors of the wire, and calls
// stir, if there is one, when the last of them has something, and every lookEvery while somebody
// polls.
func startDriver(a *adapter, stir func(), fds ...int) error {
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	d := &driver{a: a, event: event, stir: stir, notices: noticeWriter{notices: &a.notices}}
	for _, fd := range append([]int{event}, fds...) {
		d.watch = append(d.watch, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	a.hurry, a.kick, a.end = d.hurry, d.kick, d.close
	d.done.Go(d.run)
	return nil
}

func (d *driver) run() {
	worked := false
	for !d.stop.Load() {
		now := d.a.clock()
		d.look()
		until := d.a.deadlines.next.Load()
		if d.polled.Load() {
			until = min(until, now+lookEvery)
			if d.stir != nil && now >= d.stirAt {
				d.stirAt = now + lookEvery
				d.stir()
			}
		}
		d.planned.Store(until)
		// Whoever made something due since, and saw an earlier plan, did not wake us.
		until = min(until, d.a.deadlines.next.Load())
		ns := until - now
		// Where somebody polls, he also sends what is left to send.
		late := d.a.late.Load() && !d.polled.Load()
		if late {
			d.planned.Store(now)
		}
		// A system call that blocks keeps the P that this goroutine runs on until the
		// runtime's monitor takes it away, which is 20 µs to 10 ms. So those run first who
		// have just been woken; and if there is but one P, nothing blocks while somebody
		// polls.
		if worked || late || d.polled.Load() && runtime.GOMAXPROCS(0) == 1 {
			runtime.Gosched()
			ns = 0
		}
		// Before a timer says that something was lost, what has come is looked at: the
		// user may have polled until he had what he waited for, and not since.
		if worked = d.wait(ns); worked || !d.polled.Load() || d.a.clock() >= d.a.deadlines.next.Load() {
			d.kept = !d.a.drive() && !d.polled.Load()
		}
		now = d.a.clock()
		d.a.expire(now, math.MaxInt)
		d.notices.write(d.a.stats.strange.Load(), now)
	}
}

// look finds out whether somebody polls.
func (d *driver) look() {
	n := d.a.attended.Load()
	switch {
	case d.kicked.Swap(false):
		d.since = n
		d.polled.Store(false)
	case d.polled.Load():
		if n == d.seen {
			d.since = n
			d.polled.Store(false)
			d.kept = !d.a.drive()
		}
	case n-d.since > often:
		d.polled.Store(true)
	}
	d.seen = n
}

// wait blocks for at most ns, until the socket has something (true), or wake.
func (d *driver) wait(ns int64) bool {
	watch := d.watch
	if d.polled.Load() || d.kept {
		watch = watch[:1]
	}
	if d.kept {
		ns = min(ns, keptFor)
	}
	var limit *unix.Timespec
	if ns < math.MaxInt64/2 {
		t := unix.NsecToTimespec(max(ns, 0))
		limit = &t
	}
	n, _ := unix.Ppoll(watch, limit, nil)
	if n <= 0 {
		return false
	}
	if watch[0].Revents != 0 {
		var b [8]byte
		unix.Read(d.event, b[:])
	}
	if d.stir != nil && watch[len(watch)-1].Revents != 0 {
		d.stir()
	}
	for i := range watch[1:] {
		if watch[1+i].Revents != 0 {
			return true
		}
	}
	return false
}

// hurry wakes the driver if it means to sleep beyond t.
func (d *driver) hurry(t int64) {
	if t < d.planned.Load() {
		d.wake()
	}
}

// kick: somebody is going to sleep until an event comes.
func (d *driver) kick() {
	d.kicked.Store(true)
	if d.polled.Load() {
		d.wake()
	}
}

// wake ends the driver's sleep. Who has it kicked may come after its end.
func (d *driver) wake() {
	d.waking.Lock()
	defer d.waking.Unlock()
	if d.event < 0 {
		return
	}
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	unix.Write(d.event, one[:])
}

func (d *driver) close() {
	d.stop.Store(true)
	d.wake()
	d.done.Wait()
	d.waking.Lock()
	defer d.waking.Unlock()
	unix.Close(d.event)
	d.event = -1
}
