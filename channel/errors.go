package channel

import (
	"errors"
	"fmt"
	"strings"

	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/internal/collop"
)

// Reasons for which an operation fails; test for them with errors.Is. What a
// method returns is an [*Error] around one of them, unless it says otherwise.
var (
	// ErrLayout: the layout is impossible, or blocks overlap in one to receive into.
	ErrLayout = errors.New("bad layout")
	// ErrInvalid: an argument is out of range.
	ErrInvalid = collop.ErrInvalid
	// ErrActive: the handle has been started and not been waited for.
	ErrActive = errors.New("handle is active")
	// ErrBusy: something that is still open uses it.
	ErrBusy = errors.New("still in use")
	// ErrClosed: the handle, the memory or the node has been closed.
	ErrClosed = boot.ErrClosed
	// ErrLength: the k-th send and the k-th receive of a stream differ in length.
	// Nothing was moved, and the pair is used up.
	ErrLength = errors.New("length mismatch")
	// ErrPeerDied: the peer's process ended without closing its node, or the
	// connection to it broke.
	ErrPeerDied = errors.New("peer died")
	// ErrPeerLeft: the peer closed its node, before or after it was connected.
	ErrPeerLeft = errors.New("peer left")
	// ErrUnreachable: no connection to the peer could be made.
	ErrUnreachable = errors.New("peer cannot be reached")
	// ErrAborted: a rank has called Abort.
	ErrAborted = errors.New("job aborted")
	// ErrTimeout: the deadline passed. The handle is still active.
	ErrTimeout = errors.New("deadline passed")
	// ErrMismatch: members of a group have called different collectives, or with
	// different lengths, roots or operations.
	ErrMismatch = errors.New("collective mismatch")
	// ErrProtocol: the peer wrote what no peer of this version writes.
	ErrProtocol = errors.New("protocol violation")
)

// Error says which operation failed, between which ranks, and why.
type Error struct {
	Op     string // "send", "receive", "declare send", "allocate"...
	Rank   int    // of the peer; -1 where there is none
	Stream int    // -1 where there is none
	Start  uint64 // number of the start on its stream, from 1; 0 where there is none
	Len    int    // length of the message here, in bytes; with ErrLength
	Other  int    // length of the message at the peer, in bytes; with ErrLength, -1 if not known
	Err    error  // the reason
}

// Error names the operation, the peer, the stream, the start and the reason.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("channel: " + e.Op)
	if e.Rank >= 0 {
		prep := " to"
		if strings.HasSuffix(e.Op, "receive") {
			prep = " from"
		}
		fmt.Fprintf(&b, "%s rank %d", prep, e.Rank)
	}
	if e.Stream >= 0 {
		fmt.Fprintf(&b, ", stream %d", e.Stream)
	}
	if e.Start > 0 {
		fmt.Fprintf(&b, ", start %d", e.Start)
	}
	fmt.Fprintf(&b, ": %v", e.Err)
	if errors.Is(e.Err, ErrLength) {
		fmt.Fprintf(&b, ": %d bytes here", e.Len)
		if e.Other >= 0 {
			fmt.Fprintf(&b, ", %d there", e.Other)
		}
	}
	return b.String()
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }

// nodeError is an Error that concerns no peer.
func nodeError(op string, err error) error {
	return &Error{Op: op, Rank: -1, Stream: -1, Err: err}
}
