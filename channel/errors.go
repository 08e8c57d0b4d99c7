package channel

import (
	"errors"
	"fmt"
	"strings"

	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/internal/collop"
)

// Reasons for which an operation fails; test for them with errors.Is. Unless a method
// says otherwise, it returns an [*Error] that wraps one of them.
var (
	// ErrLayout: the layout is invalid, or the blocks of a receive overlap.
	ErrLayout = errors.New("bad layout")
	// ErrInvalid: an argument is out of range.
	ErrInvalid = collop.ErrInvalid
	// ErrActive: the handle or collective has been started and its completion not been observed yet,
	// or another goroutine is in a call of the group.
	ErrActive = errors.New("still active")
	// ErrBusy: another open object, or a peer, still uses it.
	ErrBusy = errors.New("still in use")
	// ErrClosed: this process has closed the handle, the memory, the group or the node.
	ErrClosed = boot.ErrClosed
	// ErrLength: the k-th send and the k-th receive of a stream differ in length.
	// No data was moved, and both starts are consumed.
	ErrLength = errors.New("length mismatch")
	// ErrPeerDied: the peer's process ended without closing its node, or the
	// connection to it broke.
	ErrPeerDied = errors.New("peer died")
	// ErrPeerLeft: the peer closed its node, before or after it was connected.
	ErrPeerLeft = errors.New("peer left")
	// ErrRefused: Join has failed at all ranks because of a mistake of the process in the error: another
	// size, version, program or setting, or the number of another rank.
	ErrRefused = boot.ErrRefused
	// ErrUnreachable: the node could not connect to the peer.
	ErrUnreachable = errors.New("peer cannot be reached")
	// ErrAborted: a rank called Abort, or this rank has lost its rendezvous (see [WithOutlive]).
	ErrAborted = errors.New("job aborted")
	// ErrTimeout: the deadline passed. The handle is still active.
	ErrTimeout = errors.New("deadline passed")
	// ErrMismatch: members of a group called different collectives, or the same one with
	// different lengths, roots or operations. If a member completes its call before the mismatch is
	// detected, as a root of a small broadcast may be, the group's next collective fails
	// instead, at all members. If there is none, closing the group or the node returns the
	// error, but only for members that share memory.
	ErrMismatch = errors.New("collective mismatch")
	// ErrProtocol: the peer violated the protocol of this version.
	ErrProtocol = errors.New("protocol violation")
)

// errActive is the error of a call for which the handle or collective must be idle.
var errActive = fmt.Errorf("%w: call Wait, or Test until it returns true, before this call", ErrActive)

// errShared is the error of a call while another goroutine is in one of the same group.
var errShared = fmt.Errorf("%w: another goroutine is in a call of the group; call from one at a time", ErrActive)

// Error describes a failed operation: the ranks involved and the reason.
type Error struct {
	Op     string // "send", "receive", "declare send", "allocate"...
	Rank   int    // of the peer, or of the rank that keeps this one from joining; -1 if there is none
	Stream int    // -1 if there is none
	Start  uint64 // number of the start on its stream, from 1; 0 if there is none
	Len    int    // with ErrLength: length of the message here, in bytes
	Other  int    // with ErrLength: length of the message at the peer, in bytes; -1 if unknown
	Err    error  // the reason
}

// Error returns the operation, the peer, the stream, the start and the reason as text.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("channel: " + e.Op)
	if e.Rank >= 0 && e.Op != "join" {
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
