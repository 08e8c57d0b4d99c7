package startup

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
)

// Reasons for which a startup fails or a connection is refused; test for them with errors.Is. They
// are wrapped in an [*Error].
var (
	// ErrInvalid: a field of [Server] or [Config] is out of range.
	ErrInvalid = errors.New("invalid argument")
	// ErrAuth: the key is wrong, or the two ends have no method in common.
	ErrAuth = errors.New("not authenticated")
	// ErrProtocol: the other end wrote what the protocol does not allow.
	ErrProtocol = errors.New("protocol violation")
	// ErrLimit: the other end sent more than the limit allows.
	ErrLimit = errors.New("limit exceeded")
	// ErrRank: a client asked for a rank that is taken or that the job does not have.
	ErrRank = errors.New("rank not available")
	// ErrTimeout: a phase took longer than its limit.
	ErrTimeout = errors.New("deadline passed")
	// ErrLost: the connection ended early. On a server, the client is gone; on a client, the server
	// is gone or has given up the job, for a reason that is in its log.
	ErrLost = errors.New("connection lost")
	// ErrCrowded: too many connections were in the handshake.
	ErrCrowded = errors.New("too many connections")
	// ErrLate: the job had all its clients or had ended.
	ErrLate = errors.New("the job accepts no more clients")
	// ErrDisagree: the announcements of the clients are inconsistent.
	ErrDisagree = errors.New("clients disagree")
	// ErrForeign: a client that does not use this package cannot do what was agreed.
	ErrForeign = errors.New("not possible with a foreign client")
)

// Phase is a client's progress.
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

// Error says in which phase a startup failed, because of which client, and why.
type Error struct {
	Phase Phase
	Rank  int   // of the client that it concerns; -1 if there is none or it is unknown
	Label Label // that it concerns; 0 if there is none
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

// lost maps the errors of a read: an ended connection is lost, an expired deadline a timeout.
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

// named says whether the error wraps one of our reasons already.
func named(err error) bool {
	for _, name := range []error{ErrAuth, ErrProtocol, ErrLimit, ErrRank, ErrTimeout, ErrLost, ErrDisagree, ErrForeign, ErrInvalid} {
		if errors.Is(err, name) {
			return true
		}
	}
	return false
}
