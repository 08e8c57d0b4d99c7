package proof

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"unicode"
	"unicode/utf8"
)

// Reasons for which a proof fails; test for them with [errors.Is].
var (
	// ErrParams: the parameters given to Dial or Accept are not usable.
	// Nothing was sent.
	ErrParams = errors.New("unusable parameters")
	// ErrGarbage: the peer does not speak this protocol.
	ErrGarbage = errors.New("not a sluice peer")
	// ErrSecret: the peer has sent a wrong proof.
	ErrSecret = errors.New("the peer does not know the secret of the job")
	// ErrRefused: the acceptor closed the connection after our proof. It gives strangers no reason:
	// it has another secret, or it does not admit our identity.
	ErrRefused = errors.New("the peer refused the connection: the two ends have different secrets, or something else listens there")
	// ErrIdentity: the peer is not the expected one, or is unknown.
	ErrIdentity = errors.New("wrong identity")

	// ErrVersion: the major versions differ.
	ErrVersion = errors.New("version mismatch")
	// ErrEndianness: the byte orders differ.
	ErrEndianness = errors.New("endianness mismatch")
	// ErrProtocol: the peer uses another protocol after the proof.
	ErrProtocol = errors.New("protocol mismatch")
	// ErrJob: the peer belongs to another job.
	ErrJob = errors.New("job mismatch")
	// ErrInsecure: one end requires a secret and the other has none.
	ErrInsecure = errors.New("secret mismatch")
)

// Error is the error type of Dial and Accept.
type Error struct {
	Op   string // "dial" or "accept"
	Peer []byte // identity that the peer claimed, unproven; nil if it claimed none
	Err  error  // one of the reasons above, or the error of the connection
	// Proven says that the peer knows the secret of the job and belongs to it although it cannot talk to
	// this end, which accepts, because of its version or byte order: it is no stranger.
	Proven bool
}

func (e *Error) Error() string {
	if e.Peer == nil {
		return fmt.Sprintf("proof: %s: %v", e.Op, e.Err)
	}
	return fmt.Sprintf("proof: %s: peer claiming to be %s: %v", e.Op, name(e.Peer), e.Err)
}

// name renders an identity in words: text and addresses as they are, four bytes as a rank.
func name(id []byte) string {
	printable := func(r rune) bool { return r < utf8.RuneSelf && unicode.IsPrint(r) }
	switch {
	case len(id) == 0:
		return "nothing"
	case !bytes.ContainsFunc(id, func(r rune) bool { return !printable(r) }):
		return strconv.Quote(string(id))
	case len(id) == 4:
		return fmt.Sprintf("rank %d", int32(binary.BigEndian.Uint32(id)))
	case len(id) >= gidSize && len(id) <= gidSize+6: // and ports
		return netip.AddrFrom16([gidSize]byte(id)).Unmap().String()
	}
	return fmt.Sprintf("%d bytes that are no name", len(id))
}

// gidSize is the size of the GID that is the identity of an end of a device.
const gidSize = 16

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }

// MismatchError holds the two values that should have been equal.
type MismatchError struct {
	Err          error // which: ErrVersion, ErrEndianness, ...
	Ours, Theirs string
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("%v: this end has %q, the peer %q", e.Err, e.Ours, e.Theirs)
}

// Unwrap returns the reason, which identifies the value.
func (e *MismatchError) Unwrap() error { return e.Err }
