package packet

import (
	"errors"
	"fmt"
)

// Type is the purpose of a packet (IMPI 0.0, pk_type).
type Type uint32

// The types of packets. Fini comes from the later revision of the report.
const (
	Data      Type = iota // user data
	DataSync              // user data; the receiver must acknowledge the match
	ProtoAck              // flow control: packets were received
	SyncAck               // a DataSync was matched
	Cancel                // request to cancel a message
	CancelYes             // the message was cancelled
	CancelNo              // the message had been matched already
	Fini                  // this host sends no more packets
)

var typeNames = [...]string{"DATA", "DATASYNC", "PROTOACK", "SYNCACK", "CANCEL", "CANCELYES", "CANCELNO", "FINI"}

// String returns the protocol's name of the type, or its number if it has none.
func (t Type) String() string {
	if int(t) < len(typeNames) {
		return typeNames[t]
	}
	return fmt.Sprintf("type %d", uint32(t))
}

// Dialect says how a peer reads bytes 80 to 87 of a header. The dialects agree for rank 0 with a
// non-negative tag.
type Dialect uint8

const (
	// Revised is the dialect of the later revision of the report, which the implementations use:
	// the rank of the source, then the tag, 4 bytes each.
	Revised Dialect = iota
	// Draft1999 is the dialect of the draft of 22 March 1999: a tag of 8 bytes.
	Draft1999
)

// String returns "revised" or "draft of 1999".
func (d Dialect) String() string {
	switch d {
	case Revised:
		return "revised"
	case Draft1999:
		return "draft of 1999"
	}
	return fmt.Sprintf("dialect %d", uint8(d))
}

// ErrType is matched by every [*TypeError] in errors.Is.
var ErrType = errors.New("unknown type of packet")

// TypeError reports a header of a type that the protocol does not define. The length of what follows it
// on its stream is then unknown.
type TypeError struct{ Type Type }

// Error names the type.
func (e *TypeError) Error() string {
	return fmt.Sprintf("impi/packet: %v: %d", ErrType, uint32(e.Type))
}

// Is reports whether target is ErrType.
func (e *TypeError) Is(target error) bool { return target == ErrType }
