package launch

import (
	"fmt"
	"runtime"
)

// LimitError: the job has more ranks than this host is believed to bear.
type LimitError struct {
	Ranks int    // of the job
	Most  int    // ranks that the host bears
	What  string // what bounds them, with its figure
}

// Error names the number of ranks, the bound, and what it comes from.
func (e *LimitError) Error() string {
	return fmt.Sprintf("launch: %d ranks, at most %d: %s", e.Ranks, e.Most, e.What)
}

// bound is how many ranks something bears.
type bound struct {
	most int
	what string
}

// What is beyond any use of sharing CPUs but tests.
const (
	ranksPerCPU = 128
	ranksAnyway = 256
)

// filesPerRank is how many descriptors of this process a rank takes: two that tell of its
// end, its connection to the rendezvous, and the pipes of its output.
func (o *Options) filesPerRank() int {
	n := 3
	for _, w := range []any{o.Stdout, o.Stderr} {
		if w != nil {
			n++
		}
	}
	return n
}

// bearable returns a [LimitError] for the bound that is the least.
func (o *Options) bearable(bounds []bound) error {
	if o.Oversubscribe {
		return nil
	}
	var worst *LimitError
	for _, b := range bounds {
		if most := max(b.most, 0); o.Size > most && (worst == nil || most < worst.Most) {
			worst = &LimitError{o.Size, most, b.what}
		}
	}
	if worst == nil {
		return nil
	}
	return worst
}

// cpuBound bounds the ranks that share so many CPUs.
func cpuBound(cpus int) bound {
	return bound{max(ranksAnyway, ranksPerCPU*cpus), fmt.Sprintf("%d CPUs bear %d each, and any host bears %d", cpus, ranksPerCPU, ranksAnyway)}
}

// bounds lists what bounds the ranks that this host bears.
func (o *Options) bounds() []bound {
	return append(systemBounds(o.filesPerRank()), cpuBound(runtime.NumCPU()))
}
