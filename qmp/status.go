package qmp

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/sluice-hpc/sluice/channel"
)

// Status is a status of the C API, with its number. It is an error, so errors.Is(err,
// qmp.StatusTimeout) tests for it.
type Status int

// The statuses, in the order of the QMP 1.2 document, "QMP Status Code".
const (
	StatusSuccess         Status = 0
	StatusError           Status = 0x1001 + iota - 1 // none of those below
	StatusNotInited                                  // before Init, or after Finalize
	StatusRTEnvErr                                   // the environment describes the job wrongly
	StatusCPUInfoErr                                 // not used here
	StatusNodeInfoErr                                // the nodes are not where they should be
	StatusNoMemErr                                   // no memory of the requested kind
	StatusMemSizeErr                                 // the two ends of a message differ in length
	StatusHostnameErr                                // not used here
	StatusInitSvcErr                                 // package channel could not join the job
	StatusTopologyExists                             // a topology or a layout has already been declared
	StatusChTimeout                                  // no connection to the peer could be made
	StatusNotSupported                               // this implementation does not have it
	StatusSvcBusy                                    // another goroutine is in a global operation of the communicator
	StatusBadMessage                                 // the nodes call different operations, or a peer breaks the protocol
	StatusInvalidArg                                 // an argument is out of range
	StatusInvalidTopology                            // the grid does not fit the nodes, or the lattice
	StatusNoNeighborInfo                             // a relative operation without a topology
	StatusMemSizeTooBig                              // not used here
	StatusBadMemory                                  // the message memory is impossible, or has been freed
	StatusNoPorts                                    // no more communicators
	StatusNodeOutRange                               // no node has this number
	StatusChDefErr                                   // not used here: messages to oneself are allowed
	StatusMemUsedErr                                 // handles are declared over the memory
	StatusInvalidOp                                  // the handle is in the wrong state
	StatusTimeout                                    // the timeout passed
)

// statusStrings holds the strings of the C API, QMP_error_string.
var statusStrings = [...]string{
	"general QMP error",
	"message passing system is not initialized yet",
	"run time environment set up error",
	"machine CPU information retrieval error",
	"node run time information retrieval error",
	"malloc failure",
	"sending memory size is larger than receiving memory size",
	"node hostname retrieval error",
	"initiate underlying service (gm) error",
	"logical topology exists already",
	"channel connection time out",
	"not supported",
	"underlying service (gm) is busy",
	"invalid communication message",
	"invalid function arguments",
	"invalid declared topology",
	"topology neighboring information error",
	"declare memory size exceeeds the maximum allowed size",
	"invalid memory for a message handle",
	"no more gm ports available",
	"remote node number is out of range",
	"channel definition error (send/recv to/from itself)",
	"receiving memory is already used by others",
	"a sending/receiving operation applied in a wrong state",
	"communication time out",
}

// Error returns the string of the C API for the status (QMP_error_string).
func (s Status) Error() string {
	switch i := int(s - StatusError); {
	case s == StatusSuccess:
		return "successful"
	case i >= 0 && i < len(statusStrings):
		return statusStrings[i]
	}
	return fmt.Sprintf("unknown error code %d", int(s))
}

// ErrorString returns the string of the C API for a status (QMP_error_string).
func ErrorString(s Status) string { return s.Error() }

// Error is the error type of the functions of this package: a status and the underlying error.
type Error struct {
	Op     string // the call: "start", "declare send to"...
	Status Status
	Err    error // the reason, from package channel or as text; nil if the status suffices
}

// Error names the call, the status in words of the C API, and the reason.
func (e *Error) Error() string {
	s := "qmp: " + e.Op + ": " + e.Status.Error()
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Is reports whether target is the status.
func (e *Error) Is(target error) bool {
	s, ok := target.(Status)
	return ok && s == e.Status
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }

// StatusOf returns the status of an error: StatusSuccess for nil, StatusError for an error without
// a status.
func StatusOf(err error) Status {
	if err == nil {
		return StatusSuccess
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Status
	}
	var s Status
	if errors.As(err, &s) {
		return s
	}
	return statusOfChannel(err)
}

// statusOfChannel returns the status for an error of package channel.
func statusOfChannel(err error) Status {
	for _, k := range [...]struct {
		is     error
		status Status
	}{
		{channel.ErrTimeout, StatusTimeout},
		{channel.ErrClosed, StatusNotInited},
		{channel.ErrActive, StatusInvalidOp},
		{channel.ErrLayout, StatusBadMemory},
		{channel.ErrBusy, StatusMemUsedErr},
		{channel.ErrLength, StatusMemSizeErr},
		{channel.ErrUnreachable, StatusChTimeout},
		{channel.ErrMismatch, StatusBadMessage},
		{channel.ErrProtocol, StatusBadMessage},
		{channel.ErrInvalid, StatusInvalidArg},
	} {
		if errors.Is(err, k.is) {
			return k.status
		}
	}
	return StatusError
}

// last is the error of the last operation of this process; nil after a success.
var last atomic.Pointer[Error]

// succeed notes that an operation has begun, or has succeeded.
func succeed() {
	if last.Load() != nil {
		last.Store(nil)
	}
}

// handler is called with every error.
var handler atomic.Pointer[func(error)]

// fail makes an error, remembers it, and passes it to the error function.
func fail(op string, s Status, err error) *Error {
	e := &Error{Op: op, Status: s, Err: err}
	last.Store(e)
	if f := handler.Load(); f != nil && *f != nil {
		(*f)(e)
	}
	return e
}

// failed is fail with the status of err; if err is nil, the operation has succeeded.
func failed(op string, err error) error {
	if err == nil {
		succeed()
		return nil
	}
	return fail(op, StatusOf(err), err)
}

// invalid is fail with a formatted reason.
func invalid(op string, s Status, format string, args ...any) error {
	return fail(op, s, fmt.Errorf(format, args...))
}

// LastError returns the error of the last operation of this process; nil if it succeeded or is
// still waiting (QMP_get_error_number and QMP_get_error_string without a handle). If several
// goroutines are in operations, the last one may be that of any of them.
func LastError() error {
	if e := last.Load(); e != nil {
		return e
	}
	return nil
}

// SetErrorFunction makes f be called with every error that a function of this package is about to
// return, by the goroutine that called the function (QMP_set_error_function). It returns the
// previous function. nil, which is the initial value, means that no function is called: errors are
// values. [PrintAndExit] does what the C library does.
func SetErrorFunction(f func(error)) func(error) {
	if old := handler.Swap(&f); old != nil {
		return *old
	}
	return nil
}
