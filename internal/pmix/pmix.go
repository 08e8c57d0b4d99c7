// Package pmix is a client of PMIx, through the host's own libpmix.so.2: the protocol differs between
// versions, the ABI does not. The library is opened when it is needed, so a program runs without it too.
//
// It is used for what a process needs to find the others of its job, no more.
package pmix

import (
	"errors"
	"fmt"
)

// Env is the environment variable that names the library to open instead of libpmix.so.2; [None] stands
// for none.
const Env = "SLUICE_PMIX"

// None is the value of Env with which PMIx is not used.
const None = "none"

// ErrWithout: no library helps.
var ErrWithout = errors.New("this program is built without cgo, or not for Linux: PMIx needs both")

// Error is a call of the library that has failed.
type Error struct {
	Call   string // and what was asked for
	Status int
	Text   string // the library's name of the status
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s (%d)", e.Call, e.Text, e.Status) }

// Place is a process in its job.
type Place struct {
	Namespace            string // of the job
	Rank, Size           int
	LocalRank, LocalSize int // -1 and 0 if the launcher does not say
}
