package fanout

import (
	"errors"
	"fmt"

	"github.com/sluice-hpc/sluice/impi"
)

// Reasons for which an operation fails; test for them with errors.Is. Beside these there
// are those of package impi, which name the rank.
var (
	// ErrInvalid: an option or an argument is out of range.
	ErrInvalid = impi.ErrInvalid
	// ErrClosed: the supplier, client or collector has ended or been closed.
	ErrClosed = impi.ErrClosed
	// ErrDirection: chunks go from supplier to client, and only that way.
	ErrDirection = errors.New("chunks go from supplier to client only")
	// ErrEmptyChunk: a chunk without bytes would be taken for the end.
	ErrEmptyChunk = errors.New("a chunk has at least one byte")
	// ErrNoWorkers: all workers have died or left.
	ErrNoWorkers = errors.New("all workers have died or left")
	// ErrProtocol: a message is not what the protocol allows.
	ErrProtocol = impi.ErrProtocol
)

// MessageError says which message is against the protocol. It is an [ErrProtocol].
type MessageError struct {
	Rank  int    // who sent it
	Tag   int    // of the message
	Bytes int    // of the message
	Why   string // what is wrong
}

// Error names the rank, the tag, the length and the fault.
func (e *MessageError) Error() string {
	return fmt.Sprintf("fanout: message of rank %d with tag %d and %d bytes: %s", e.Rank, e.Tag, e.Bytes, e.Why)
}

// Unwrap returns ErrProtocol.
func (e *MessageError) Unwrap() error { return ErrProtocol }

// badLength says what is wrong with the length of a message as its sender has announced
// it, where an option admits at most so many bytes; nothing if nothing is.
func badLength(n, most int, option string) string {
	if n >= 0 && n <= most {
		return ""
	}
	return fmt.Sprintf("its length is not 0 to %d bytes (option %s)", most, option)
}

// discard drops a message that has been probed, and returns why as a [*MessageError]. It
// does not wait for the rest of the message, which may never come.
func discard(comm *impi.Comm, st impi.Status, why string) error {
	req, err := comm.Irecv(nil, st.Source, st.Tag)
	req.Free()
	return errors.Join(&MessageError{st.Source, st.Tag, st.Len, why}, err)
}

// EndError says which workers have not been given their end. [Supplier.End] may be
// called again.
type EndError struct {
	Never []int // have never asked
	Late  []int // have asked before, and not for more
	Kept  int   // chunks that have not been handed out, or not been acknowledged
	Err   error // that of the context
}

// Error names the ranks.
func (e *EndError) Error() string {
	s := "fanout: end"
	if e.Kept > 0 {
		s += fmt.Sprintf(": %d chunks are not done with", e.Kept)
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

// HopelessError says that a chunk was with so many workers when they died, or closed their
// clients, as [Attempts] admits. No worker gets it again.
type HopelessError struct {
	Seq      uint64 // number of the chunk at its supplier
	Attempts int
}

// Error names the chunk.
func (e *HopelessError) Error() string {
	return fmt.Sprintf("chunk %d was with %d workers when they went: it is given up", e.Seq, e.Attempts)
}

// opError puts the name of the package before an error.
func opError(op string, err error) error { return fmt.Errorf("fanout: %s: %w", op, err) }
