package machine

import (
	"bytes"
	"os"

	"github.com/sluice-hpc/sluice/internal/limits"
	"github.com/sluice-hpc/sluice/internal/wait"
)

// Population is the processes of a job that one kernel runs, and the CPUs that they may run on.
type Population struct {
	mine  []byte   // when the job began
	sets  [][]byte // of all, mine included, likewise
	quota *limits.Quota
}

// NewPopulation returns the population of this process, which has the set of CPUs mine, and of others.
func NewPopulation(mine []byte, others ...[]byte) *Population {
	return &Population{mine, append(others[:len(others):len(others)], mine), limits.Host{FS: os.DirFS("/")}.Quota()}
}

// Sharing says whether each has a CPU to itself now. A process whose set was this one's when the job
// began is taken to have this one's still.
func (p *Population) Sharing() wait.Sharing {
	now := CPUs()
	sets := make([][]byte, len(p.sets))
	for i, s := range p.sets {
		if sets[i] = s; bytes.Equal(s, p.mine) {
			sets[i] = now
		}
	}
	switch {
	case len(sets) > Count(sets...):
		return wait.Crowded
	case float64(len(sets)) > p.quota.CPUs():
		return wait.Limited
	}
	return wait.Apart
}
