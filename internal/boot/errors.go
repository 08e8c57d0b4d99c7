package boot

import (
	"errors"
	"fmt"
)

var (
	// ErrDied: a rank ended, or its connection broke, without saying goodbye.
	ErrDied = errors.New("died")
	// ErrLeft: a rank closed its Job.
	ErrLeft = errors.New("left")
	// ErrGaveUp: the context of a rank's Exchange ended before the round was complete.
	ErrGaveUp = errors.New("gave up")
	// ErrRefused: a process of this job made a mistake for which the rendezvous refused it before all
	// ranks had joined: another size, a number that another rank has, another version or program.
	ErrRefused = errors.New("was refused")
	// ErrClosed: this Job or this Server is closed.
	ErrClosed = errors.New("closed by this process")
	// ErrTooLarge: Exchange was called with more than MaxData bytes.
	ErrTooLarge = errors.New("too large")
	// ErrServerLost: the connection to the rendezvous broke. The launcher, or rank 0 if it ran the
	// rendezvous, is probably gone.
	ErrServerLost = errors.New("lost the rendezvous")
	// ErrUnknown: there is no rendezvous, any more or yet of this version, to say what became of a rank.
	ErrUnknown = errors.New("no rendezvous can be asked about the rank")
	// ErrJoined: this process has already joined its job, and has not closed it, or its launcher allows
	// that only once.
	ErrJoined = errors.New("this process has already joined its job")
	// ErrOptions: the options given to Serve or to Environment.Join are invalid.
	ErrOptions = errors.New("invalid options")
)

// EnvError says which variable of the environment is wrong.
type EnvError struct {
	Name  string // of the variable
	Value string // empty if the variable is a secret or not set
	Err   error
}

func (e *EnvError) Error() string {
	if e.Value == "" {
		return fmt.Sprintf("boot: %s: %v", e.Name, e.Err)
	}
	return fmt.Sprintf("boot: %s=%q: %v", e.Name, e.Value, e.Err)
}

// Unwrap returns what is wrong with the variable.
func (e *EnvError) Unwrap() error { return e.Err }

// RankError names the rank that made a round impossible. Every later round fails for the same
// reason.
type RankError struct {
	Rank int    // -1 if its process has no number that can be one of a rank
	Err  error  // ErrDied, ErrLeft, ErrGaveUp or ErrRefused
	Text string // details; may be empty
}

func (e *RankError) Error() string {
	switch {
	case e.Rank < 0:
		return fmt.Sprintf("a process that is no rank %v: %s", e.Err, e.Text)
	case e.Text == "":
		return fmt.Sprintf("rank %d %v", e.Rank, e.Err)
	}
	return fmt.Sprintf("rank %d %v: %s", e.Rank, e.Err, e.Text)
}

// Unwrap returns ErrDied, ErrLeft, ErrGaveUp or ErrRefused.
func (e *RankError) Unwrap() error { return e.Err }

// AbortError says which rank ended the job, and why.
type AbortError struct {
	Rank int
	Code int // exit code that the job should have
	Why  string
}

func (e *AbortError) Error() string {
	return fmt.Sprintf("the job was aborted by rank %d with code %d: %s", e.Rank, e.Code, e.Why)
}

// RefusedError says why the rendezvous did not admit a rank that had proved its knowledge of the
// secret.
type RefusedError struct {
	Rank int
	Why  string
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("the rendezvous refused rank %d: %s", e.Rank, e.Why)
}

// Unwrap returns ErrRefused.
func (e *RefusedError) Unwrap() error { return ErrRefused }

// LauncherError names a launcher that has started this process without providing what Join needs,
// and says what to do instead.
type LauncherError struct {
	Launcher string
	Err      error  // what is missing
	Advice   string // what to do
}

func (e *LauncherError) Error() string {
	return fmt.Sprintf("boot: %s: %v: %s", e.Launcher, e.Err, e.Advice)
}

// Unwrap returns what is missing.
func (e *LauncherError) Unwrap() error { return e.Err }

// PMIError names the command of the PMI-1 protocol that failed.
type PMIError struct {
	Command string // as it appears after cmd=
	Err     error
}

func (e *PMIError) Error() string { return fmt.Sprintf("boot: PMI: %s: %v", e.Command, e.Err) }

// Unwrap returns the reason, given by the launcher, the network or the context.
func (e *PMIError) Unwrap() error { return e.Err }
