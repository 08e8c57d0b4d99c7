package verbs

import (
	"errors"
	"fmt"

	"github.com/sluice-hpc/sluice/internal/limits"
)

// Errors that functions of this package wrap; test with [errors.Is].
var (
	// ErrClosed: the object, or an object that it depends on, is closed.
	ErrClosed = errors.New("use of closed object")
	// ErrBusy: other objects, or accesses in flight, still use the object (EBUSY of libibverbs).
	ErrBusy = errors.New("still in use")
	// ErrInvalid: an argument is outside what the device or the model allows (EINVAL).
	ErrInvalid = errors.New("invalid argument")
	// ErrState: the QP is in a state that forbids the operation.
	ErrState = errors.New("wrong queue pair state")
	// ErrNotSupported: the provider or the device lacks this feature (EOPNOTSUPP).
	ErrNotSupported = errors.New("not supported")
	// ErrNoDevice: there is no device of that name.
	ErrNoDevice = errors.New("no such device")
	// ErrNoMemory: memory, or a table of the device, is exhausted (ENOMEM).
	ErrNoMemory = errors.New("out of resources")
	// ErrKey: an lkey does not name a live region of the QP's protection domain.
	ErrKey = errors.New("memory key does not match")
	// ErrRange: an SGE is not inside its region.
	ErrRange = errors.New("address range outside memory region")
	// ErrAccess: the region's access flags forbid the operation.
	ErrAccess = errors.New("access flags forbid the operation")
	// ErrCQOverrun: the CQ had no room for a completion; the CQ and its QPs are unusable.
	ErrCQOverrun = errors.New("completion queue overrun")
	// ErrEndpoint: the bytes are not an endpoint, or are one of another provider or version.
	ErrEndpoint = errors.New("malformed endpoint")
	// ErrPeerDied: the peer process is gone.
	ErrPeerDied = errors.New("peer died")
	// ErrSecret: no job secret was given, or the peer's proof of it failed.
	ErrSecret = errors.New("job secret missing or wrong")
)

// OpError is the error of an operation on an object of this package.
// It is a plain value: safe to share, nothing to release.
type OpError struct {
	Op     string // e.g. "create QP"
	Device string // device name, may be empty
	Detail string // the offending value and its limit; may be empty
	Err    error  // one of the errors above, or an error of the operating system
}

// Error names the device, the operation, the cause and the detail.
func (e *OpError) Error() string {
	s := "verbs"
	if e.Device != "" {
		s += " " + e.Device
	}
	s += ": " + e.Op + ": " + e.Err.Error()
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

// Unwrap returns the cause.
func (e *OpError) Unwrap() error { return e.Err }

// Errorf builds an [OpError]. Providers use it to give all messages the same form.
func Errorf(device, op string, err error, format string, args ...any) error {
	detail := ""
	if !errors.Is(err, limits.ErrRoom) { // which says how much was asked for
		detail = fmt.Sprintf(format, args...)
	}
	return &OpError{Op: op, Device: device, Err: err, Detail: detail}
}
