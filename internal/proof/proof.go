// Package proof lets the two ends of a connection prove to each other that they know the secret of
// their job, before any other byte counts.
//
// It authenticates but does not encrypt. Everything sent after the proof travels in the clear, and
// an attacker that can rewrite packets between two hosts can change it. The proof keeps out
// everything that can merely connect: a stranger, a port scan, a process of another job.
//
// # The exchange
//
//	dialer                                      acceptor
//	   | -- hello: version, job, identity, nonce --> |
//	   | <-- hello: the same of the acceptor ------- |
//	   | -- tag: HMAC-SHA256 ----------------------> |  verified first
//	   | <-- tag: HMAC-SHA256 ---------------------- |
//
// Each tag is computed over a label naming the role of its sender and over both hellos in full, and
// thus over protocol, versions, features, job, both identities and both nonces. A tag of one side
// is never valid for the other, which rules out reflection; a tag of an earlier connection is never
// valid for this one, which rules out replay. The acceptor proves nothing to a dialer that has not
// proved itself. It gives the same answer to every failed proof: none.
//
// Whatever a stranger sends, it costs the acceptor at most 256 bytes read and, if the first eight
// bytes were right, one answer of fixed size. The caller bounds the time, or the number of
// connections that wait.
package proof

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
)

// Params describes what both ends must agree on, and this end's identity.
type Params struct {
	// Secret is the secret of the job. It may be empty only with Insecure. It is not kept after
	// Dial or Accept has returned.
	Secret []byte
	// Insecure admits peers without a secret. Both ends must set it, and neither may have a secret:
	// a secret that proves nothing would deceive.
	Insecure bool
	// Protocol names the protocol that follows the proof, for example "sluice-tcp"; 1 to 32 bytes,
	// equal at both ends.
	Protocol string
	// Major and Minor are the version of Protocol. The major version must be equal at both ends;
	// the minor version need not.
	Major, Minor uint16
	// Features is the mask of the optional features that this end has.
	Features uint64
	// Job is the id of the job, at most 64 bytes, equal at both ends. It is not secret.
	Job string
	// Self is the identity of this end, at most 64 bytes: the bytes of a rank or of a GID. The
	// proof covers it; it is not secret.
	Self []byte
}

// Peer describes the other end as it has proved to be. With Params.Insecure it has proved nothing,
// and ID is only a claim.
type Peer struct {
	ID           []byte // its Params.Self; the caller may keep it
	Major, Minor uint16 // the version that it speaks; Major equals our own
	Features     uint64 // the features that both ends have
	PageSize     uint32 // page size of its host in bytes; it may differ from ours, as nothing sent over a connection depends on it
}

// Dial proves knowledge of the secret to the acceptor at the other end of rw and demands the same
// proof from it. If want is not nil, the acceptor must prove that identity.
//
// Dial blocks until the exchange is complete: set a deadline on rw, or see that something closes it. It reads no byte beyond the
// exchange. Errors are of type [*Error]; after one, rw is unusable and should be closed. Calls on
// different connections may run concurrently.
func Dial(rw io.ReadWriter, p Params, want []byte) (Peer, error) {
	return dial(rw, p, want, randomNonce)
}

// Accept is the other end of [Dial]. If known is not nil, it decides whether to admit the identity
// that the dialer has proved; it is not called for an identity that has not been proved.
//
// Blocking, errors and concurrency are those of Dial.
func Accept(rw io.ReadWriter, p Params, known func(id []byte) bool) (Peer, error) {
	return accept(rw, p, known, randomNonce)
}

// randomNonce fills n from the system's source, which cannot fail.
func randomNonce(n *[nonceSize]byte) { rand.Read(n[:]) }

func dial(rw io.ReadWriter, p Params, want []byte, nonce func(*[nonceSize]byte)) (Peer, error) {
	const op = "dial"
	ours, err := p.hello(roleDialer, nonce)
	if err != nil {
		return Peer{}, &Error{Op: op, Err: err}
	}
	dialer := ours.Append(make([]byte, 0, helloSize))
	if _, err := rw.Write(dialer); err != nil {
		return Peer{}, &Error{Op: op, Err: fmt.Errorf("write hello: %w", err)}
	}
	theirs, acceptor, err := readHello(rw, roleAcceptor)
	if err != nil {
		return Peer{}, &Error{Op: op, Err: err}
	}
	fail := func(err error) (Peer, error) {
		return Peer{}, &Error{Op: op, Peer: theirs.identity, Err: err}
	}
	if err := ours.agree(&theirs); err != nil {
		if ours.akin(&theirs) {
			tag := makeTag(p.Secret, roleDialer, dialer, acceptor)
			rw.Write(tag[:]) // as a farewell: the acceptor may care that it is no stranger that cannot talk to it
		}
		return fail(err)
	}
	if want != nil && !bytes.Equal(want, theirs.identity) {
		return fail(fmt.Errorf("%w: expected %s", ErrIdentity, name(want)))
	}
	tag := makeTag(p.Secret, roleDialer, dialer, acceptor)
	if _, err := rw.Write(tag[:]); err != nil {
		return fail(fmt.Errorf("write proof: %w", err))
	}
	var got [tagSize]byte
	if _, err := io.ReadFull(rw, got[:]); err != nil {
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() {
			return fail(fmt.Errorf("read proof: %w", err))
		}
		// A closed connection is the only way in which an acceptor refuses.
		return fail(fmt.Errorf("%w (%w)", ErrRefused, err))
	}
	tag = makeTag(p.Secret, roleAcceptor, dialer, acceptor)
	if !hmac.Equal(tag[:], got[:]) {
		return fail(ErrSecret)
	}
	return ours.peer(&theirs), nil
}

func accept(rw io.ReadWriter, p Params, admitted func(id []byte) bool, nonce func(*[nonceSize]byte)) (Peer, error) {
	const op = "accept"
	ours, err := p.hello(roleAcceptor, nonce)
	if err != nil {
		return Peer{}, &Error{Op: op, Err: err}
	}
	theirs, dialer, err := readHello(rw, roleDialer)
	if err != nil {
		return Peer{}, &Error{Op: op, Err: err}
	}
	fail := func(err error) (Peer, error) {
		return Peer{}, &Error{Op: op, Peer: theirs.identity, Err: err}
	}
	// Before the check, so that a dialer of another version learns the reason from both numbers
	// instead of a closed connection.
	acceptor := ours.Append(make([]byte, 0, helloSize))
	if _, err := rw.Write(acceptor); err != nil {
		return fail(fmt.Errorf("write hello: %w", err))
	}
	differ := ours.agree(&theirs)
	if differ != nil && !ours.akin(&theirs) {
		return fail(differ)
	}
	var got [tagSize]byte
	_, err = io.ReadFull(rw, got[:])
	tag := makeTag(p.Secret, roleDialer, dialer, acceptor)
	known := err == nil && hmac.Equal(tag[:], got[:])
	switch {
	case differ != nil:
		return Peer{}, &Error{Op: op, Peer: theirs.identity, Err: differ, Proven: known}
	case err != nil:
		return fail(fmt.Errorf("read proof: %w", err))
	case !known:
		return fail(ErrSecret)
	}
	// After the tag; otherwise a stranger could find out which identities exist.
	if admitted != nil && !admitted(theirs.identity) {
		return fail(ErrIdentity)
	}
	tag = makeTag(p.Secret, roleAcceptor, dialer, acceptor)
	if _, err := rw.Write(tag[:]); err != nil {
		return fail(fmt.Errorf("write proof: %w", err))
	}
	return ours.peer(&theirs), nil
}

// hello returns the first message of this end, or an error if p is invalid.
func (p *Params) hello(r role, nonce func(*[nonceSize]byte)) (hello, error) {
	bad := func(format string, a ...any) (hello, error) {
		return hello{}, fmt.Errorf("%w: %s", ErrParams, fmt.Sprintf(format, a...))
	}
	switch {
	case len(p.Secret) == 0 && !p.Insecure:
		return bad("no secret, and not insecure")
	case len(p.Secret) != 0 && p.Insecure:
		return bad("a secret, and insecure")
	case len(p.Protocol) == 0 || len(p.Protocol) > maxProtocol:
		return bad("protocol name of %d bytes, want 1 to %d", len(p.Protocol), maxProtocol)
	case len(p.Job) > maxJob:
		return bad("job id of %d bytes, at most %d", len(p.Job), maxJob)
	case len(p.Self) > maxIdentity:
		return bad("identity of %d bytes, at most %d", len(p.Self), maxIdentity)
	}
	h := hello{
		role:     r,
		order:    nativeOrder(),
		insecure: p.Insecure,
		pageSize: uint32(os.Getpagesize()),
		major:    p.Major,
		minor:    p.Minor,
		features: p.Features,
		protocol: p.Protocol,
		job:      p.Job,
		identity: p.Self,
	}
	nonce(&h.nonce)
	return h, nil
}

// akin says that the two ends belong to one job although they may not be able to talk.
func (h *hello) akin(theirs *hello) bool {
	return h.protocol == theirs.protocol && h.job == theirs.job && h.insecure == theirs.insecure
}

// agree returns nil if the two ends can talk, otherwise a [*MismatchError].
func (h *hello) agree(theirs *hello) error {
	differ := func(err error, ours, theirs any) error {
		return &MismatchError{Err: err, Ours: fmt.Sprint(ours), Theirs: fmt.Sprint(theirs)}
	}
	switch {
	case h.protocol != theirs.protocol:
		return differ(ErrProtocol, h.protocol, theirs.protocol)
	case h.major != theirs.major:
		return differ(ErrVersion,
			fmt.Sprintf("%d.%d", h.major, h.minor), fmt.Sprintf("%d.%d", theirs.major, theirs.minor))
	case h.order != theirs.order:
		return differ(ErrEndianness, h.order, theirs.order)
	case h.job != theirs.job:
		return differ(ErrJob, h.job, theirs.job)
	case h.insecure != theirs.insecure:
		return differ(ErrInsecure, security(h.insecure), security(theirs.insecure))
	}
	return nil
}

func security(insecure bool) string {
	if insecure {
		return "none"
	}
	return "a secret"
}

func (h *hello) peer(theirs *hello) Peer {
	return Peer{
		ID:       theirs.identity,
		Major:    theirs.major,
		Minor:    theirs.minor,
		Features: h.features & theirs.features,
		PageSize: theirs.pageSize,
	}
}

// readHello reads the hello of a peer in the given role and also returns its wire form.
func readHello(r io.Reader, want role) (hello, []byte, error) {
	b := make([]byte, helloSize)
	// The prefix alone identifies a stranger, which may never send the rest.
	if _, err := io.ReadFull(r, b[:prefixSize]); err != nil {
		return hello{}, nil, fmt.Errorf("read hello: %w", err)
	}
	if err := checkPrefix(b); err != nil {
		return hello{}, nil, err
	}
	if _, err := io.ReadFull(r, b[prefixSize:]); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return hello{}, nil, fmt.Errorf("read hello: %w", err)
	}
	h, _, err := parseHello(b)
	if err != nil {
		return hello{}, nil, err
	}
	if h.role != want {
		return hello{}, nil, fmt.Errorf("%w: the peer claims the role of %v, which is this end's", ErrGarbage, h.role)
	}
	return h, b, nil
}

// makeTag computes the tag of the end in role r from the wire forms of both hellos. They and the
// label have fixed sizes, so the concatenation is unambiguous.
func makeTag(secret []byte, r role, dialer, acceptor []byte) (tag [tagSize]byte) {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte("sluice proof 1: "))
	mac.Write([]byte{byte(r)})
	mac.Write(dialer)
	mac.Write(acceptor)
	mac.Sum(tag[:0])
	return tag
}
