package channel

import (
	"time"

	"github.com/sluice-hpc/sluice/internal/wait"
)

// barriers says whether a sleeper can take over the ringers' part of the ordering between their
// store of a flag and their load of the bell.
func barriers() bool { return wait.RegisterBarrier() == nil }

func barrier() { wait.Barrier() }

func sleepOn(p *uint32, v uint32, d time.Duration) { wait.FutexWait(p, v, d) }

func wakeSleepers(p *uint32) { wait.FutexWake(p) }
