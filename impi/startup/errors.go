package startup

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
)

// Reasons for which a startup fails, or a connection is refused; test for them with
// errors.Is. They come inside of an [*Error].
var (
	// ErrInvalid: a field of [Server] or [Config] is out of range.
	ErrInvalid = errors.New("invalid argument")
	// ErrAuth: the key is wrong, or the two ends have no method in common.
	ErrAuth = errors.New("not authenticated")
	// ErrProtocol: the other end wrote what the protocol does not allow.
	ErrProtocol = errors.New("protocol violation")
	// ErrLimit: the other end sent more than it may.
	ErrLimit = errors.New("limit exceeded")
	// ErrRank: a client asked for a rank that the job does not have, or that is taken.
	ErrRank = errors.New("rank not available")
	// ErrTimeout: a phase took longer than it may.
	ErrTimeout = errors.New("deadline passed")
	// ErrLost: the connection ended before its time. A server finds that a client is
	// gone; a client that the server is, or has given up the job: its log says why.
	ErrLost = errors.New("connection lost")
	// ErrCrowded: too many connections were waiting to become clients.
	ErrCrowded = errors.New("too many connections")
	// ErrLate: the job had all its clients, or had ended.
	ErrLate = errors.New("the job takes no more clients")
	// ErrDisagree: the clients have announced what does not fit together.
	ErrDisagree = errors.New("clients disagree")
	// ErrForeign: a client that is no Sluice could not do what was agreed.
	ErrForeign = errors.New("not possible with a foreign client")
)

// Phase is how far a client has come.
type Phase int

// The phases of a client, in their order.
const (
	PhaseAuth    Phase = iota // until it is authenticated
	PhaseJoin                 // until all clients are in the job
	PhaseCollect              // until all clients have sent DONE
	PhaseRun                  // until it sends FINI
	PhaseEnd                  // it has sent FINI
)

// String returns "authentication", "join", "collection", "run" or "end".
func (p Phase) String() string {
	switch p {
	case PhaseAuth:
		return "authentication"
	case PhaseJoin:
		return "join"
	case PhaseCollect:
		return "collection"
	case PhaseRun:
		return "run"
	case PhaseEnd:
		return "end"
	}
	return fmt.Sprintf("phase %d", int(p))
}

// Error says in which phase a startup failed, through which client, and why.
type Error struct {
	Phase Phase
	Rank  int   // of the client that it concerns; -1 where there is none, or it is not known
	Label Label // that it concerns; 0 where there is none
	Err   error // the reason
}

// Error names the phase, the client, the label and the reason.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "impi/startup: %v", e.Phase)
	if e.Rank >= 0 {
		fmt.Fprintf(&b, ", client %d", e.Rank)
	}
	if e.Label != 0 {
		fmt.Fprintf(&b, ", label %v", e.Label)
	}
	fmt.Fprintf(&b, ": %v", e.Err)
	return b.String()
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }

// lost gives errors of reading their name: what has ended is lost, what took too long
// has timed out.
func lost(err error) error {
	var e *Error
	if !errors.As(err, &e) {
		return err
	}
	var timeout net.Error
	switch {
	case errors.Is(e.Err, io.EOF), errors.Is(e.Err, io.ErrUnexpectedEOF):
		e.Err = ErrLost
	case errors.As(e.Err, &timeout) && timeout.Timeout():
		e.Err = ErrTimeout
	case !named(e.Err):
		e.Err = fmt.Errorf("%w: %w", ErrLost, e.Err)
	}
	return e
}

// named says whether the error has one of our names already.
func named(err error) bool {
	for _, name := range []error{ErrAuth, ErrProtocol, ErrLimit, ErrRank, ErrTimeout, ErrLost, ErrDisagree, ErrForeign, ErrInvalid} {
		if errors.Is(err, name) {
			return true
		}
	}
	return false
}
