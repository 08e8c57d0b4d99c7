package boot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
)

// The messages that rank and rendezvous exchange after they have proved themselves (package proof,
// protocol "sluice-boot"). Every message is a header and a body; integers are big-endian.
//
//	0  1  kind
//	1  3  zero
//	4  4  round
//	8  4  rank
//	12 4  length of the body in bytes
//
//	kind      from        round  rank           body
//	join      rank        -      the sender's   size of the job (4), name of the process, [program]
//	welcome   rendezvous  -      the receiver's -
//	refuse    rendezvous  -      the receiver's text
//	part      rank        k      the sender's   its data for round k
//	          rendezvous  k      0, 1, ... n-1  what each rank gave to round k
//	fail      rendezvous  k      the culprit    reason (1), text
//	leave     rank        -      the sender's   reason (1), text
//	          rendezvous  -      that runs it   reason (1), text
//	abort     both        -      the aborter    exit code (4), text
//	where     rank        -      any            -
//	          rendezvous  -      that one       reason (1), text; nothing if it is here, or to come
//	report    rendezvous  -      the receiver's text: for which ranks the job waits, and why
//
// A dash is zero. The parts of a round are sent in rank order; the last one ends it. A rank that
// gives up receives a fail with the reason why the round has failed. After leave a rank may still
// receive, and send abort. A rendezvous run by rank 0 sends leave before it ends; it also answers
// leave to a rank that joins again after it has left, because that rank means to join the next
// rendezvous. No other rendezvous sends leave. A rank asks about one rank at a time.
//
// A process that cannot join says why in a leave in place of join, with the rank -1 if its own is no
// number of a rank. Fail names such a rank, and one of a number that the job does not have, too.
//
// What is in brackets, that leave, report, and the reason refused are for minor versions from 2 on.
const (
	protocolName  = "sluice-boot"
	protocolMajor = 1
	protocolMinor = 2
	whereMinor    = 1        // from which a rendezvous answers where
	reportMinor   = 2        // from which either side knows program, report, and refused
	serverName    = "server" // identity of the rendezvous in the proof
)

const (
	headerSize = 16
	maxName    = 128 // bytes of the name of a process, and of a program
	maxBuild   = 16  // bytes of what identifies the build of a program
	maxJoin    = 4 + 2*maxName + maxBuild + 4
	maxText    = 1024 // bytes of an explanation
)

var errProtocol = errors.New("protocol violation")

type kind uint8

const (
	kindJoin kind = 1 + iota
	kindWelcome
	kindRefuse
	kindPart
	kindFail
	kindLeave
	kindAbort
	kindWhere
	kindReport
)

// noRank is the rank of a process whose own is no number of a rank: -1.
const noRank = 1<<32 - 1

func (k kind) String() string {
	switch k {
	case kindJoin:
		return "join"
	case kindWelcome:
		return "welcome"
	case kindRefuse:
		return "refuse"
	case kindPart:
		return "part"
	case kindFail:
		return "fail"
	case kindLeave:
		return "leave"
	case kindAbort:
		return "abort"
	case kindWhere:
		return "where"
	case kindReport:
		return "report"
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// kinds is a set of kinds: those that may arrive at one point of the conversation.
type kinds uint16

func setOf(list ...kind) (s kinds) {
	for _, k := range list {
		s |= 1 << k
	}
	return s
}

func (s kinds) has(k kind) bool { return k < 16 && s&(1<<k) != 0 }

// bodyLimits are the shortest and the longest body of a kind in bytes.
func (k kind) bodyLimits() (least, most uint32) {
	switch k {
	case kindJoin:
		return 4, maxJoin
	case kindRefuse, kindReport:
		return 0, maxText
	case kindPart:
		return 0, MaxData
	case kindFail, kindLeave:
		return 1, 1 + maxText
	case kindAbort:
		return 4, 4 + maxText
	case kindWhere:
		return 0, 1 + maxText
	}
	return 0, 0
}

// header is the fixed part of every message.
type header struct {
	kind   kind
	round  uint32
	rank   uint32
	length uint32 // bytes of the body
}

// Append appends the wire form, headerSize bytes, to b.
func (h header) Append(b []byte) []byte {
	b = append(b, byte(h.kind), 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, h.round)
	b = binary.BigEndian.AppendUint32(b, h.rank)
	return binary.BigEndian.AppendUint32(b, h.length)
}

// parseHeader reads a header from the front of b and returns the number of bytes that it takes. The
// body of a header that parses may be read: its length is within the limits of its kind.
func parseHeader(b []byte) (h header, n int, err error) {
	if len(b) < headerSize {
		return header{}, 0, fmt.Errorf("%w: header of %d bytes, expected %d", errProtocol, len(b), headerSize)
	}
	h = header{
		kind:   kind(b[0]),
		round:  binary.BigEndian.Uint32(b[4:]),
		rank:   binary.BigEndian.Uint32(b[8:]),
		length: binary.BigEndian.Uint32(b[12:]),
	}
	least, most := h.kind.bodyLimits()
	switch {
	case h.kind < kindJoin || h.kind > kindReport:
		return header{}, 0, fmt.Errorf("%w: %v", errProtocol, h.kind)
	case b[1] != 0 || b[2] != 0 || b[3] != 0:
		return header{}, 0, fmt.Errorf("%w: %v: unknown flags", errProtocol, h.kind)
	case h.rank >= MaxSize && (h.rank != noRank || h.kind != kindFail && h.kind != kindLeave):
		return header{}, 0, fmt.Errorf("%w: %v: rank %d", errProtocol, h.kind, h.rank)
	case h.kind != kindPart && h.kind != kindFail && h.round != 0:
		return header{}, 0, fmt.Errorf("%w: %v: round %d", errProtocol, h.kind, h.round)
	case h.length < least || h.length > most:
		return header{}, 0, fmt.Errorf("%w: %v: body of %d bytes, expected %d to %d", errProtocol, h.kind, h.length, least, most)
	}
	return h, headerSize, nil
}

// message is any of the kinds.
type message interface {
	// Append appends header and body to b.
	Append(b []byte) []byte
}

// parseMessage reads a message from the front of b and returns the number of
// bytes that it takes. The message may refer to b.
func parseMessage(b []byte) (m message, n int, err error) {
	h, n, err := parseHeader(b)
	if err != nil {
		return nil, 0, err
	}
	if uint64(len(b)-n) < uint64(h.length) {
		return nil, 0, fmt.Errorf("%w: %v: %d of %d bytes", errProtocol, h.kind, len(b)-n, h.length)
	}
	end := n + int(h.length)
	m, err = h.parseBody(b[n:end:end])
	if err != nil {
		return nil, 0, err
	}
	return m, end, nil
}

// parseBody decodes body, whose length is that in the header. The message may refer to body.
func (h header) parseBody(body []byte) (message, error) {
	switch h.kind {
	case kindJoin:
		m := join{rank: h.rank, size: binary.BigEndian.Uint32(body)}
		if m.size > MaxSize {
			return nil, fmt.Errorf("%w: %v: job of %d ranks", errProtocol, h.kind, m.size)
		}
		if err := m.parseNames(string(body[4:])); err != nil {
			return nil, err
		}
		return m, nil
	case kindWelcome:
		return welcome{rank: h.rank}, nil
	case kindRefuse:
		return refuse{rank: h.rank, text: string(body)}, nil
	case kindPart:
		return part{round: h.round, rank: h.rank, data: body}, nil
	case kindFail:
		m := fail{round: h.round, rank: h.rank, reason: reason(body[0]), text: string(body[1:])}
		if !m.reason.valid() {
			return nil, fmt.Errorf("%w: %v: reason %d", errProtocol, h.kind, m.reason)
		}
		return m, nil
	case kindLeave:
		m := leave{rank: h.rank, reason: reason(body[0]), text: string(body[1:])}
		if m.reason != reasonLeft && m.reason != reasonGaveUp {
			return nil, fmt.Errorf("%w: %v: reason %d", errProtocol, h.kind, m.reason)
		}
		return m, nil
	case kindAbort:
		return abort{rank: h.rank, code: int32(binary.BigEndian.Uint32(body)), text: string(body[4:])}, nil
	case kindWhere:
		m := where{rank: h.rank}
		if len(body) > 0 {
			m.reason, m.text = reason(body[0]), string(body[1:])
			if !m.reason.valid() {
				return nil, fmt.Errorf("%w: %v: reason %d", errProtocol, h.kind, m.reason)
			}
		}
		return m, nil
	case kindReport:
		return report{rank: h.rank, text: string(body)}, nil
	}
	return nil, fmt.Errorf("%w: %v", errProtocol, h.kind)
}

// readMessage reads one message, whose kind must be in want: an unexpected message is refused
// before room is made for its body.
func readMessage(r io.Reader, want kinds) (message, error) {
	var b [headerSize]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return nil, err
	}
	h, _, err := parseHeader(b[:])
	if err != nil {
		return nil, err
	}
	if !want.has(h.kind) {
		return nil, fmt.Errorf("%w: %v was not expected", errProtocol, h.kind)
	}
	body := make([]byte, h.length)
	if _, err := io.ReadFull(r, body); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return h.parseBody(body)
}

// join asks to be a rank of the job.
type join struct {
	rank    uint32
	size    uint32 // of the job, as known to the rank
	name    string // of the process, for messages to people; at most maxName bytes
	program program
}

// program is what a process runs; without a name it is not known. On the wire its three parts follow the
// name of the process, each after a zero byte.
type program struct {
	name  string // for people, at most maxName bytes
	build string // identifies it, at most maxBuild bytes; may be empty
	same  bool   // all ranks of the job are to run it
}

// parseNames sets the name of the process and the program.
func (m *join) parseNames(names string) error {
	parts := strings.Split(names, "\x00")
	m.name = parts[0]
	ok := len(m.name) <= maxName
	if len(parts) > 1 && ok {
		ok = len(parts) == 4 && parts[1] != "" && len(parts[1]) <= maxName && len(parts[2]) <= maxBuild && (parts[3] == "" || parts[3] == "1")
		if ok {
			m.program = program{name: parts[1], build: parts[2], same: parts[3] != ""}
		}
	}
	if !ok {
		return fmt.Errorf("%w: %v: %d bytes that are no names", errProtocol, kindJoin, len(names))
	}
	return nil
}

func (m join) Append(b []byte) []byte {
	names := m.name
	if p := m.program; p.name != "" {
		same := ""
		if p.same {
			same = "1"
		}
		names = strings.Join([]string{m.name, p.name, p.build, same}, "\x00")
	}
	b = header{kind: kindJoin, rank: m.rank, length: uint32(4 + len(names))}.Append(b)
	b = binary.BigEndian.AppendUint32(b, m.size)
	return append(b, names...)
}

// welcome admits a rank.
type welcome struct{ rank uint32 }

func (m welcome) Append(b []byte) []byte {
	return header{kind: kindWelcome, rank: m.rank}.Append(b)
}

// refuse refuses a rank.
type refuse struct {
	rank uint32
	text string // at most maxText bytes
}

func (m refuse) Append(b []byte) []byte {
	b = header{kind: kindRefuse, rank: m.rank, length: uint32(len(m.text))}.Append(b)
	return append(b, m.text...)
}

// part is one rank's contribution to a round.
type part struct {
	round uint32
	rank  uint32
	data  []byte // at most MaxData bytes
}

func (m part) Append(b []byte) []byte { return append(m.header().Append(b), m.data...) }

func (m part) header() header {
	return header{kind: kindPart, round: m.round, rank: m.rank, length: uint32(len(m.data))}
}

// fail ends a round and all later ones: rank no longer takes part.
type fail struct {
	round  uint32
	rank   uint32
	reason reason
	text   string // at most maxText bytes
}

func (m fail) Append(b []byte) []byte {
	b = header{kind: kindFail, round: m.round, rank: m.rank, length: uint32(1 + len(m.text))}.Append(b)
	b = append(b, byte(m.reason))
	return append(b, m.text...)
}

// leave says that the rank contributes to no further round and, if it runs the rendezvous, that no
// rank does.
type leave struct {
	rank   uint32
	reason reason // reasonLeft or reasonGaveUp
	text   string // at most maxText bytes
}

func (m leave) Append(b []byte) []byte {
	b = header{kind: kindLeave, rank: m.rank, length: uint32(1 + len(m.text))}.Append(b)
	b = append(b, byte(m.reason))
	return append(b, m.text...)
}

// abort ends the job.
type abort struct {
	rank uint32
	code int32
	text string // at most maxText bytes
}

func (m abort) Append(b []byte) []byte {
	b = header{kind: kindAbort, rank: m.rank, length: uint32(4 + len(m.text))}.Append(b)
	b = binary.BigEndian.AppendUint32(b, uint32(m.code))
	return append(b, m.text...)
}

// where asks whether a rank is still there, and is the answer.
type where struct {
	rank   uint32
	reason reason // why it is not; 0: it is, or is to come
	text   string // at most maxText bytes
}

func (m where) Append(b []byte) []byte {
	if m.reason == 0 {
		return header{kind: kindWhere, rank: m.rank}.Append(b)
	}
	b = header{kind: kindWhere, rank: m.rank, length: uint32(1 + len(m.text))}.Append(b)
	b = append(b, byte(m.reason))
	return append(b, m.text...)
}

// report says for which ranks the job waits, and why.
type report struct {
	rank uint32
	text string // at most maxText bytes
}

func (m report) Append(b []byte) []byte {
	b = header{kind: kindReport, rank: m.rank, length: uint32(len(m.text))}.Append(b)
	return append(b, m.text...)
}

// reason says why a rank no longer takes part.
type reason uint8

const (
	reasonDied reason = 1 + iota
	reasonLeft
	reasonGaveUp
	reasonRefused
)

func (r reason) valid() bool { return r >= reasonDied && r <= reasonRefused }

// err returns the error value for r.
func (r reason) err() error {
	switch r {
	case reasonLeft:
		return ErrLeft
	case reasonGaveUp:
		return ErrGaveUp
	case reasonRefused:
		return ErrRefused
	}
	return ErrDied
}

// shorten cuts s to at most n bytes without splitting a character.
func shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}
