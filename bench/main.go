// Bench measures what this library moves, how fast, and against whom.
//
//	bench                     latency and bandwidth of every provider, two ranks on this host
//	bench verbs lat|bw|...    one pattern of the verbs layer, with all its options
//	bench channel lat|bw|...  one pattern of channels
//	bench impi lat|bw|...     one pattern of impi's messages
//	bench halo                the faces of a lattice, exchanged with both neighbours
//	bench ring                a message round a ring of ranks, also more than CPUs
//	bench local               a message from a thread to itself
//	bench allreduce ...       a collective of all ranks; collectives: several kinds
//	bench exact               an exact sum of all ranks
//	bench addslice            terms added to an exact sum
//	bench qmp                 what QMP programs call, against C over MPI; qmp sum|faces: ours
//	bench tune                which settings of collectives are best here
//	bench scale               collectives on many hosts, estimated
//	bench compare             the same against the MPIs that are installed
//	bench compare OLD NEW     what has become better or worse, as benchstat tells it
//	bench report FILE...      plots of what --json has written
//	bench soak                mixed traffic on all layers, with kills, stalls and cut links
//	bench schema              the JSON Schema of --json
//	bench HOST                beside a bench --listen on another host, without a launcher
//
// Started alone it starts its ranks itself; started by a launcher it is one of
// them, and rank 0 prints.
package main

import (
	"context"
	"errors"
	"os"

	_ "github.com/sluice-hpc/sluice/verbs/all"
	_ "github.com/sluice-hpc/sluice/verbs/roce" // for who asks for it, or for xdp
)

// UsageError is a command line that asks for what cannot be.
type UsageError struct{ Why string }

func (e *UsageError) Error() string { return e.Why }

// Exit statuses beside 0 and those that a rank ended with.
const (
	exitFailed = 1
	exitUsage  = 2
	exitWorse  = 3 // bench compare OLD NEW, --base: a figure is worse
	exitFew    = 4 // these: there were too few rounds to tell
)

func main() {
	err := newRootCommand().ExecuteContext(context.Background())
	var told reported
	if err != nil && !errors.As(err, &told) {
		tell(err)
	}
	os.Exit(exitStatus(err))
}

func exitStatus(err error) int {
	var usage *UsageError
	var sizes *SizesError
	var rank *RankFailedError
	var worse *RegressionError
	var few *TooFewRoundsError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &usage), errors.As(err, &sizes):
		return exitUsage
	case errors.As(err, &worse):
		return exitWorse
	case errors.As(err, &few):
		return exitFew
	case errors.As(err, &rank):
		return rank.Status
	}
	return exitFailed
}
