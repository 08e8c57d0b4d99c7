package fanout

import (
	"errors"
	"fmt"

	"github.com/sluice-hpc/sluice/impi"
)

// Reasons why an operation fails; test for them with errors.Is. Other errors are those of
// package impi, which name the rank.
var (
	// ErrInvalid: an option or an argument is out of range.
	ErrInvalid = impi.ErrInvalid
	// ErrClosed: the supplier, client or collector has ended or been closed.
	ErrClosed = impi.ErrClosed
	// ErrDirection: chunks go only from supplier to client.
	ErrDirection = errors.New("chunks go from supplier to client only")
	// ErrEmptyChunk: a chunk without bytes would look like the end.
	ErrEmptyChunk = errors.New("the chunk is empty: it must have at least one byte")
	// ErrNoWorkers: all workers have died or left.
	ErrNoWorkers = errors.New("all workers have died or left")
	// ErrProtocol: a message violates the protocol.
	ErrProtocol = impi.ErrProtocol
)

// MessageError says which message violates the protocol. It is an [ErrProtocol].
type MessageError struct {
	Rank  int    // of the sender
	Tag   int    // of the message
	Bytes int    // of the message
	Why   string // what is wrong
}

// Error returns the rank, the tag, the length and the reason.
func (e *MessageError) Error() string {
	return fmt.Sprintf("fanout: message from rank %d with tag %d and %d bytes: %s", e.Rank, e.Tag, e.Bytes, e.Why)
}

// Unwrap returns ErrProtocol.
func (e *MessageError) Unwrap() error { return ErrProtocol }

// badLength returns what is wrong with the length that the sender of a message has announced,
// where an option admits at most so many bytes; "" if it is valid.
func badLength(n, most int, option string) string {
	if n >= 0 && n <= most {
		return ""
	}
	return fmt.Sprintf("its length must be 0 to %d bytes (option %s)", most, option)
}

// discard drops a message that has been probed, and returns why as a [*MessageError]. It
// does not wait for the rest of the message, which may never come.
func discard(comm *impi.Comm, st impi.Status, why string) error {
	req, err := comm.Irecv(nil, st.Source, st.Tag)
	req.Free()
	return errors.Join(&MessageError{st.Source, st.Tag, st.Len, why}, err)
}

// EndError says which workers have had no end when the context of [Supplier.End] ended. End
// may be called again.
type EndError struct {
	Never []int // ranks that have never asked
	Late  []int // ranks that have asked before, but not again
	Kept  int   // chunks that have not been handed out, or not been acknowledged
	Err   error // that of the context
}

// Error returns the number of chunks and the ranks.
func (e *EndError) Error() string {
	s := "fanout: end"
	if e.Kept > 0 {
		s += fmt.Sprintf(": %d chunks are not finished", e.Kept)
	}
	if len(e.Never) > 0 {
		s += fmt.Sprintf(": ranks %v never asked", e.Never)
	}
	if len(e.Late) > 0 {
		s += fmt.Sprintf(": ranks %v have not asked again", e.Late)
	}
	return s + ": " + e.Err.Error()
}

// Unwrap returns the error of the context.
func (e *EndError) Unwrap() error { return e.Err }

// HopelessError says that a chunk has been given up: as many workers as [Attempts] admits
// died, or closed their clients, while they had it.
type HopelessError struct {
	Seq      uint64 // number of the chunk at its supplier
	Attempts int
}

// Error returns the number of the chunk and of the workers.
func (e *HopelessError) Error() string {
	return fmt.Sprintf("chunk %d is given up: %d workers died or closed their clients while they had it", e.Seq, e.Attempts)
}

// opError puts the name of the package before an error.
func opError(op string, err error) error { return fmt.Errorf("fanout: %s: %w", op, err) }
