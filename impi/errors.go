package impi

import (
	"errors"
	"fmt"
	"strings"

	"github.com/sluice-hpc/sluice/channel"
)

// Reasons for which an operation fails; test for them with errors.Is. What a method
// returns is an [*Error] around one of them, unless it says otherwise. Those that
// package channel has as well are the same.
var (
	// ErrInvalid: an argument is out of range.
	ErrInvalid = channel.ErrInvalid
	// ErrBusy: memory is still in use, or may be: see [Memory.Close].
	ErrBusy = channel.ErrBusy
	// ErrActive: another goroutine is in a collective of the communicator.
	ErrActive = channel.ErrActive
	// ErrClosed: the job or the communicator has been closed.
	ErrClosed = channel.ErrClosed
	// ErrTimeout: the deadline passed. What has been started is still active.
	ErrTimeout = channel.ErrTimeout
	// ErrPeerDied: the peer's process ended without closing its job, or the connection
	// to it broke.
	ErrPeerDied = channel.ErrPeerDied
	// ErrPeerLeft: the peer closed its job.
	ErrPeerLeft = channel.ErrPeerLeft
	// ErrProtocol: the peer sent what the protocol does not allow.
	ErrProtocol = channel.ErrProtocol
	// ErrUnreachable: no connection to the peer could be made.
	ErrUnreachable = channel.ErrUnreachable
	// ErrMismatch: members of a communicator have called different collectives, or
	// with different lengths.
	ErrMismatch = channel.ErrMismatch
	// ErrTruncated: a message was longer than the receive (MPI_ERR_TRUNCATE). What fits
	// has been received.
	ErrTruncated = errors.New("message truncated")
	// ErrOverflow: more bytes have arrived from a process without a receive than
	// [Config.Unexpected] admits. The connection to its host has been given up.
	ErrOverflow = errors.New("too many unexpected bytes")
	// ErrForeign: not possible with a process that is no Sluice.
	ErrForeign = errors.New("not possible with a foreign process")
)

// Error says which operation failed, between which processes, and why.
type Error struct {
	Op   string // "send", "receive", "probe", "join", "allreduce"...
	Rank int    // of the peer in the communicator, or in the job where there is none; -1 where it concerns no peer
	Tag  int    // of the message; -1 where there is none
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

// jobError is an Error that concerns no peer.
func jobError(op string, err error) error { return &Error{Op: op, Rank: -1, Tag: -1, Err: err} }
