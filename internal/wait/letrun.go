package wait

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-hpc/sluice/internal/netpoll"
)

// Tested is called after a test of the program that has found nothing. What it tests for needs goroutines of
// this process, which connect, read and write. Where there is one CPU for Go, a program that does nothing but
// test would keep it from them for 10 ms at a time.
func (p *Policy) Tested() {
	if !p.one {
		return
	}
	if p.tests.Add(1)%p.batch == 0 {
		LetRun()
	}
}

// lookEvery is how often LetRun looks at the network.
const lookEvery = int64(200 * time.Microsecond)

var (
	looking sync.Mutex
	looked  atomic.Int64 // ns: when LetRun did so last, or found that there are more CPUs
)

// LetRun lets other goroutines of this process run. A caller that looks for something in a loop, and keeps
// from sleeping, calls it after looks in vain. Where there is one CPU for Go, yielding is not enough for
// goroutines that wait for the network: see [netpoll.Look].
func LetRun() {
	runtime.Gosched()
	switch {
	case !lookDue():
	case runtime.GOMAXPROCS(0) == 1:
		look()
	default:
		looked.Store(now())
	}
}

func lookDue() bool { return now()-looked.Load() >= lookEvery }

// look has other callers wait until it is over: the scheduler does not look while they run.
func look() {
	looking.Lock()
	defer looking.Unlock()
	if lookDue() {
		netpoll.Look()
		looked.Store(now())
	}
}
