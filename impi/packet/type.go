package packet

import (
	"errors"
	"fmt"
)

// Type is what a packet is for (IMPI 0.0, pk_type).
type Type uint32

// The types of packets. Fini is of the later revision of the report.
const (
	Data      Type = iota // user data
	DataSync              // user data whose sender wants to know that it was matched
	ProtoAck              // flow control: packets were received
	SyncAck               // a DataSync was matched
	Cancel                // a message shall be taken back
	CancelYes             // it was
	CancelNo              // it was matched already
	Fini                  // this host sends nothing more
)

var typeNames = [...]string{"DATA", "DATASYNC", "PROTOACK", "SYNCACK", "CANCEL", "CANCELYES", "CANCELNO", "FINI"}

// String returns the protocol's name of the type or, of others, its number.
func (t Type) String() string {
	if int(t) < len(typeNames) {
		return typeNames[t]
	}
	return fmt.Sprintf("type %d", uint32(t))
}

// Dialect is how a peer reads bytes 80 to 87 of a header. On rank 0 and tags that are
// not negative the two agree.
type Dialect uint8

const (
	// Revised is that of the later revision of the report, which its implementations
	// speak: the rank of the source, then the tag, 4 bytes each.
	Revised Dialect = iota
	// Draft1999 is that of the draft of 22 March 1999: a tag of 8 bytes.
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

// ErrType is what every [*TypeError] is, for errors.Is.
var ErrType = errors.New("unknown type of packet")

// TypeError is a header whose type the protocol does not have. What follows it on its
// stream cannot be known.
type TypeError struct{ Type Type }

// Error says which type it was.
func (e *TypeError) Error() string {
	return fmt.Sprintf("impi/packet: %v: %d", ErrType, uint32(e.Type))
}

// Is says whether target is ErrType.
func (e *TypeError) Is(target error) bool { return target == ErrType }
