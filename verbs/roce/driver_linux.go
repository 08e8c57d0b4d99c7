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

// driver is the goroutine that runs an adapter while nothing polls. It is parked in ppoll(2) until
// the socket is readable and nothing polls, or a timer expires.
type driver struct {
	a     *adapter
	watch []unix.PollFd // the eventfd, then those of the wire
	stir  func()        // nil, or called when the wire's last descriptor is readable, and at intervals

	notices noticeWriter
	done    sync.WaitGroup

	waking sync.Mutex
	event  int // eventfd, for wake; -1: the driver has ended

	stop    atomic.Bool
	planned atomic.Int64 // when run will look again
	polled  atomic.Bool  // a CQ is being polled: the socket is not watched
	kicked  atomic.Bool  // the user will wait for an event

	// For run alone: the count of polls when it last looked, and when it began to watch the
	// socket; when it stirs the wire; and whether another goroutine kept the receive lock.
	seen, since uint64
	stirAt      int64
	kept        bool
}

// often is the number of polls after which a goroutine is presumably spinning.
const often = 64

// keptFor is the pause before the driver tries again to get a lock that was kept. It does not watch
// the socket then: a readable socket would not let it sleep.
const keptFor = int64(100 * time.Microsecond)

// startDriver starts the driver of an adapter. It watches the descriptors of the wire. If stir is not
// nil, it calls it when the last descriptor is readable, and every lookEvery while a CQ is polled.
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
		// A goroutine that has set a deadline since, but saw an earlier plan, did not wake us.
		until = min(until, d.a.deadlines.next.Load())
		ns := until - now
		// While a CQ is polled, polling also sends the responses that are left.
		late := d.a.late.Load() && !d.polled.Load()
		if late {
			d.planned.Store(now)
		}
		// A blocking system call keeps this goroutine's P until the runtime's monitor takes it
		// away, after 20 µs to 10 ms. So let goroutines that were just woken run first; and
		// with a single P, do not block while a CQ is being polled.
		if worked || late || d.polled.Load() && runtime.GOMAXPROCS(0) == 1 {
			runtime.Gosched()
			ns = 0
		}
		// Before a timer declares a loss, receive what has arrived: the user may have stopped
		// polling after the completion it waited for.
		if worked = d.wait(ns); worked || !d.polled.Load() || d.a.clock() >= d.a.deadlines.next.Load() {
			d.kept = !d.a.drive() && !d.polled.Load()
		}
		now = d.a.clock()
		d.a.expire(now, math.MaxInt)
		d.notices.write(d.a.stats.strange.Load(), now)
	}
}

// look finds out whether a CQ is being polled.
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

// wait blocks for at most ns, until the socket is readable (true), or wake is called.
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

// hurry wakes the driver if it would sleep beyond t.
func (d *driver) hurry(t int64) {
	if t < d.planned.Load() {
		d.wake()
	}
}

// kick: the user is about to wait for an event.
func (d *driver) kick() {
	d.kicked.Store(true)
	if d.polled.Load() {
		d.wake()
	}
}

// wake ends the driver's sleep. It may be called after the driver's end.
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
