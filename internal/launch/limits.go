package launch

import (
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-hpc/sluice/internal/launch/wire"
)

// LimitError: the job has more ranks than this host is estimated to support.
type LimitError struct {
	Ranks int    // of the job
	Most  int    // ranks that the host supports
	What  string // what bounds them, with its figure
	// Raise says what to raise where the system refuses what goes beyond the bound, so that Oversubscribe
	// is of no use; empty if it does not.
	Raise string
	// Refused is the lowest bound with a Raise that the job exceeds as well, if this one has none.
	Refused *LimitError
}

// Error names the number of ranks, the bound, and its cause.
func (e *LimitError) Error() string {
	return fmt.Sprintf("launch: %d ranks, at most %d: %s", e.Ranks, e.Most, e.What)
}

// text has what an agent tells its launcher, besides Most, for limitOf.
func (e *LimitError) text() string {
	lines := []string{e.What, e.Raise}
	if r := e.Refused; r != nil {
		lines = append(lines, strconv.Itoa(r.Most), r.What, r.Raise)
	}
	return strings.Join(lines, "\n")
}

// limitOf is the [LimitError] of an agent that was to start so many ranks.
func limitOf(ranks, most int, text string) error {
	lines := strings.Split(text, "\n")
	if len(lines) != 2 && len(lines) != 5 {
		return fmt.Errorf("%w: a limit in %d lines", wire.ErrProtocol, len(lines))
	}
	e := &LimitError{Ranks: ranks, Most: most, What: lines[0], Raise: lines[1]}
	if len(lines) == 5 {
		n, err := strconv.Atoi(lines[2])
		if err != nil {
			return fmt.Errorf("%w: a limit of %.20q", wire.ErrProtocol, lines[2])
		}
		e.Refused = &LimitError{Ranks: ranks, Most: n, What: lines[3], Raise: lines[4]}
	}
	return e
}

// bound is the most ranks that a resource allows.
type bound struct {
	most  int
	what  string
	raise string // see LimitError
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
	e := o.exceeded(bounds)
	if e == nil || o.Oversubscribe {
		return nil
	}
	if e.Raise == "" {
		e.Refused = o.exceeded(hard(bounds))
	}
	return e
}

// exceeded is the lowest bound that the job exceeds; nil if it exceeds none.
func (o *Options) exceeded(bounds []bound) (worst *LimitError) {
	for _, b := range bounds {
		if most := max(b.most, 0); o.Size > most && (worst == nil || most < worst.Most) {
			worst = &LimitError{Ranks: o.Size, Most: most, What: b.what, Raise: b.raise}
		}
	}
	return worst
}

// hard are the bounds beyond which the system refuses to start ranks.
func hard(bounds []bound) []bound {
	return slices.DeleteFunc(slices.Clone(bounds), func(b bound) bool { return b.raise == "" })
}

// cpuBound bounds the ranks that share a number of CPUs.
func cpuBound(cpus int) bound {
	return bound{max(ranksAnyway, ranksPerCPU*cpus), fmt.Sprintf("%d CPUs support %d ranks each, and any host supports %d", cpus, ranksPerCPU, ranksAnyway), ""}
}

// fleetBounds lists the bounds on the ranks of a job whose ranks run on other hosts: those for each host
// its agent knows.
func (o *Options) fleetBounds() []bound { return descriptorBound(1, filesPerAgent*len(o.Hosts.List)) }

// filesPerAgent is how many descriptors of this process an agent takes: three pipes, and one that reports
// the end of its shell.
const filesPerAgent = 4

// bounds lists all bounds on the ranks of this host.
func (o *Options) bounds() []bound {
	return append(systemBounds(o.filesPerRank()), cpuBound(runtime.NumCPU()))
}
