// Bench measures what this library moves, how fast, and against whom.
//
//	bench                     latency and bandwidth of every provider, two ranks on this host
//	bench verbs lat|bw|...    one pattern of the verbs layer, with all its options
//	bench channel lat|bw|...  one pattern of channels
//	bench halo                the faces of a lattice, exchanged with both neighbours
//	bench ring                a message round a ring of ranks, also more than CPUs
//	bench local               a message from a thread to itself
//	bench compare             the same against the MPIs that are installed
//
// Started alone it starts its ranks itself; started by a launcher it is one of
// them, and rank 0 prints.
package main

import (
	"context"
	"errors"
	"os"

	_ "github.com/sluice-hpc/sluice/verbs/all"
)

// UsageError is a command line that asks for what cannot be.
type UsageError struct{ Why string }

func (e *UsageError) Error() string { return e.Why }

// Exit statuses beside 0 and those that a rank ended with.
const (
	exitFailed = 1
	exitUsage  = 2
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
	switch {
	case err == nil:
		return 0
	case errors.As(err, &usage), errors.As(err, &sizes):
		return exitUsage
	case errors.As(err, &rank):
		return rank.Status
	}
	return exitFailed
}
