package impi

import (
	"errors"
	"fmt"
	"strings"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/internal/limits"
)

// Reasons for which an operation fails; test for them with errors.Is. Methods return an [*Error]
// that wraps one of them, unless they say otherwise. Reasons that package channel has too are the
// same values.
var (
	// ErrInvalid: an argument is out of range.
	ErrInvalid = channel.ErrInvalid
	// ErrBusy: memory is or may still be in use: see [Memory.Close].
	ErrBusy = channel.ErrBusy
	// ErrActive: another goroutine is in a collective of the communicator.
	ErrActive = channel.ErrActive
	// ErrClosed: the job or the communicator has been closed.
	ErrClosed = channel.ErrClosed
	// ErrTimeout: the deadline passed. The operation is still active.
	ErrTimeout = channel.ErrTimeout
	// ErrPeerDied: the peer's process ended without closing its job, or the connection
	// to it broke.
	ErrPeerDied = channel.ErrPeerDied
	// ErrPeerLeft: the peer closed its job or freed the communicator.
	ErrPeerLeft = channel.ErrPeerLeft
	// ErrProtocol: the peer sent what the protocol does not allow.
	ErrProtocol = channel.ErrProtocol
	// ErrUnreachable: a connection to the peer could not be made.
	ErrUnreachable = channel.ErrUnreachable
	// ErrMismatch: members of a communicator have called different collectives, or the same one
	// with different lengths.
	ErrMismatch = channel.ErrMismatch
	// ErrTruncated: a message was longer than the receive (MPI_ERR_TRUNCATE). As much as fits has
	// been received.
	ErrTruncated = errors.New("message truncated")
	// ErrOverflow: more bytes have arrived from a process without a matching receive than
	// [Config.Unexpected] allows. The connection to its host has been closed.
	ErrOverflow = errors.New("too many unexpected bytes")
	// ErrForeign: the operation is not possible with a process of another MPI implementation.
	ErrForeign = errors.New("not possible with a foreign process")
)

// Error says which operation failed, with which peer, and why.
type Error struct {
	Op   string // "send", "receive", "probe", "join", "allreduce"...
	Rank int    // of the peer in the communicator, or in the job if there is no communicator; -1: no peer
	Tag  int    // of the message; -1: none
	Err  error  // the reason
}

// Error names the operation, the peer, the tag and the reason.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("impi: " + e.Op)
	if e.Rank >= 0 {
		prep := " with"
		switch e.Op {
		case "send", "connect":
			prep = " to"
		case "receive", "probe":
			prep = " from"
		}
		fmt.Fprintf(&b, "%s rank %d", prep, e.Rank)
	}
	if e.Tag >= 0 {
		fmt.Fprintf(&b, ", tag %d", e.Tag)
	}
	fmt.Fprintf(&b, ": %v", e.Err)
	return b.String()
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }

// jobError is an Error that concerns no particular peer.
func jobError(op string, err error) error {
	return &Error{Op: op, Rank: -1, Tag: -1, Err: limits.Files(err)}
}
