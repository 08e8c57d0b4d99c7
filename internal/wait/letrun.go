package wait

import (
	"runtime"
	"time"
)

// LetRun lets other goroutines of this process run. A caller that looks for something in a loop, and keeps
// from sleeping, calls it after looks in vain, turn counting its calls. Where there is one CPU for Go, yielding
// is not enough for goroutines that wait for the network: the scheduler looks at that only when there
// is nothing else to run, as during a short sleep now and then.
func LetRun(turn uint32) {
	runtime.Gosched()
	const often = 16
	if turn%often == 0 && runtime.GOMAXPROCS(0) == 1 {
		time.Sleep(time.Microsecond)
	}
}
