package launch

import (
	"fmt"
	"runtime"
)

// LimitError: the job has more ranks than this host is estimated to support.
type LimitError struct {
	Ranks int    // of the job
	Most  int    // ranks that the host supports
	What  string // what bounds them, with its figure
}

// Error names the number of ranks, the bound, and its cause.
func (e *LimitError) Error() string {
	return fmt.Sprintf("launch: %d ranks, at most %d: %s", e.Ranks, e.Most, e.What)
}

// bound is the most ranks that a resource allows.
type bound struct {
	most int
	what string
}

// Sharing CPUs beyond these figures is of use only to tests.
const (
	ranksPerCPU = 128
	ranksAnyway = 256
)

// filesPerRank is how many descriptors of this process a rank takes: two that report its end, its
// connection to the rendezvous, and the pipes of its output.
func (o *Options) filesPerRank() int {
	n := 3
	for _, w := range []any{o.Stdout, o.Stderr} {
		if w != nil {
			n++
		}
	}
	return n
}

// bearable returns a [LimitError] for the lowest bound that the job exceeds.
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

// cpuBound bounds the ranks that share a number of CPUs.
func cpuBound(cpus int) bound {
	return bound{max(ranksAnyway, ranksPerCPU*cpus), fmt.Sprintf("%d CPUs support %d ranks each, and any host supports %d", cpus, ranksPerCPU, ranksAnyway)}
}

// bounds lists all bounds on the ranks of this host.
func (o *Options) bounds() []bound {
	return append(systemBounds(o.filesPerRank()), cpuBound(runtime.NumCPU()))
}
