package endpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Version of what is said on a path. Both ends must have the same major version; what is
// new in a minor one is asked for by a feature.
const (
	Major = 1
	Minor = 0
)

// Features that an end may have. Unknown bits are those of a newer end, and are not used.
type Features uint32

// HeaderLen and GreetingLen are lengths in bytes on every medium that has frames.
const (
	HeaderLen   = 32
	GreetingLen = 64
)

// MaxPayload is the most bytes that a message has behind its header.
const MaxPayload = 1 << 20

// MaxStreams bounds the numbers of streams: 0 to MaxStreams-1.
const MaxStreams = 1 << 20

// Kind is what a frame is.
type Kind uint8

// Kinds of frames. Values are part of the wire format.
const (
	KindMessage Kind = 1 + iota // run a handler
	KindAck                     // nothing but the watermark
	KindResume                  // the path that Arg names is fenced; the payload has the watermarks of its streams
	KindBye                     // everything that was sent has been taken, and nothing more will be sent
	KindHeard                   // an answer to RESUME, with its Arg, or to BYE, with ArgBye
	kinds
)

func (k Kind) String() string {
	if k == 0 || k >= kinds {
		return fmt.Sprintf("kind %d", uint8(k))
	}
	return [...]string{"", "message", "ack", "resume", "bye", "heard"}[k]
}

// FlagAsk asks for the watermark of this stream soon: see [Endpoint.Quiet].
const FlagAsk = 1

// ArgBye is the argument of a HEARD that answers a BYE: no path has that number.
const ArgBye = 1 << 32

// Header begins every frame; little-endian, as all words that lie in shared memory:
//
//	 0 uint8  kind
//	 1 uint8  handler, of a message
//	 2 uint16 flags
//	 4 uint32 stream
//	 8 uint32 number of the message in its stream, from 1, modulo 2^32
//	12 uint32 watermark of the stream the other way: number of the last message taken
//	16 uint64 argument
//	24 uint32 bytes of payload behind the header
//	28 uint32 0
//
// A medium that has a word for the number anyway, such as the flag of a cache line, carries
// the same values in its own places.
type Header struct {
	Kind      Kind
	Handler   uint8
	Flags     uint16
	Stream    uint32
	Number    uint32
	Watermark uint32
	Arg       uint64
	Length    uint32
}

// Put writes the header to the first HeaderLen bytes of b.
func (h *Header) Put(b []byte) {
	_ = b[HeaderLen-1]
	le := binary.LittleEndian
	b[0], b[1] = byte(h.Kind), h.Handler
	le.PutUint16(b[2:], h.Flags)
	le.PutUint32(b[4:], h.Stream)
	le.PutUint32(b[8:], h.Number)
	le.PutUint32(b[12:], h.Watermark)
	le.PutUint64(b[16:], h.Arg)
	le.PutUint32(b[24:], h.Length)
	le.PutUint32(b[28:], 0)
}

// ParseHeader reads the header of a frame, of which b is all, and checks what can be
// checked of a frame by itself. The error wraps [ErrProtocol].
func ParseHeader(b []byte) (Header, error) {
	if len(b) < HeaderLen {
		return Header{}, fmt.Errorf("%w: frame of %d bytes, want at least %d", ErrProtocol, len(b), HeaderLen)
	}
	le := binary.LittleEndian
	h := Header{
		Kind: Kind(b[0]), Handler: b[1], Flags: le.Uint16(b[2:]), Stream: le.Uint32(b[4:]), Number: le.Uint32(b[8:]),
		Watermark: le.Uint32(b[12:]), Arg: le.Uint64(b[16:]), Length: le.Uint32(b[24:]),
	}
	switch {
	case h.Kind == 0 || h.Kind >= kinds, h.Flags&^FlagAsk != 0, le.Uint32(b[28:]) != 0,
		h.Kind != KindMessage && (h.Handler != 0 || h.Number != 0), h.Kind > KindAck && h.Stream != 0:
		return h, fmt.Errorf("%w: %v of handler %d, flags %#x, on stream %d", ErrProtocol, h.Kind, h.Handler, h.Flags, h.Stream)
	case h.Stream >= MaxStreams:
		return h, fmt.Errorf("%w: stream %d, there are %d", ErrProtocol, h.Stream, MaxStreams)
	case h.Kind == KindMessage && h.Length > MaxPayload:
		return h, fmt.Errorf("%w: message of %d bytes, the most are %d", ErrProtocol, h.Length, MaxPayload)
	case int64(h.Length) != int64(len(b)-HeaderLen):
		return h, fmt.Errorf("%w: %v with %d bytes of payload says %d", ErrProtocol, h.Kind, len(b)-HeaderLen, h.Length)
	case h.Kind != KindMessage && h.Kind != KindResume && h.Length != 0:
		return h, fmt.Errorf("%w: %v with %d bytes of payload", ErrProtocol, h.Kind, h.Length)
	}
	return h, nil
}

// mark is a line of a RESUME's payload: how many messages of a stream have been taken.
type mark struct{ stream, watermark uint32 }

const markLen = 8

func appendMarks(b []byte, list []mark) []byte {
	for _, m := range list {
		b = binary.LittleEndian.AppendUint32(b, m.stream)
		b = binary.LittleEndian.AppendUint32(b, m.watermark)
	}
	return b
}

// parseMarks reads the payload of a RESUME: streams in ascending order.
func parseMarks(b []byte) ([]mark, error) {
	if len(b)%markLen != 0 || len(b)/markLen > MaxStreams {
		return nil, fmt.Errorf("%w: resume with %d bytes of watermarks", ErrProtocol, len(b))
	}
	list := make([]mark, 0, len(b)/markLen)
	for ; len(b) > 0; b = b[markLen:] {
		m := mark{binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])}
		if m.stream >= MaxStreams || len(list) > 0 && m.stream <= list[len(list)-1].stream {
			return nil, fmt.Errorf("%w: resume with stream %d out of order", ErrProtocol, m.stream)
		}
		list = append(list, m)
	}
	return list, nil
}

// Identity names a process of the job. An incarnation is a number that no other process that has had
// this rank in this job has, other than 0.
type Identity struct {
	Rank        uint32
	Incarnation uint64
}

func (i Identity) String() string {
	return fmt.Sprintf("rank %d (incarnation %#x)", i.Rank, i.Incarnation)
}

// Greeting is the first that either end says on a path, before any frame; little-endian:
//
//	 0 [8]byte "SLUICEep"
//	 8 uint16  major version
//	10 uint16  minor version
//	12 uint32  features
//	16 uint32  0x01020304, as this machine stores it
//	20 uint32  bytes of a page
//	24 uint32  rank of the sender
//	28 uint32  rank of the receiver
//	32 uint64  incarnation of the sender
//	40 uint64  incarnation of the receiver, 0 if not known yet
//	48 uint32  number of the path, the same at both ends
//	52 [12]byte 0
type Greeting struct {
	Major, Minor uint16
	Features     Features
	PageSize     uint32
	From, To     Identity
	Path         uint32
}

const (
	greetingMagic = "SLUICEep"
	byteOrder     = 0x01020304
)

// Append appends the greeting to b.
func (g *Greeting) Append(b []byte) []byte {
	le := binary.LittleEndian
	b = append(b, greetingMagic...)
	b = le.AppendUint16(b, g.Major)
	b = le.AppendUint16(b, g.Minor)
	b = le.AppendUint32(b, uint32(g.Features))
	b = binary.NativeEndian.AppendUint32(b, byteOrder)
	b = le.AppendUint32(b, g.PageSize)
	b = le.AppendUint32(b, g.From.Rank)
	b = le.AppendUint32(b, g.To.Rank)
	b = le.AppendUint64(b, g.From.Incarnation)
	b = le.AppendUint64(b, g.To.Incarnation)
	b = le.AppendUint32(b, g.Path)
	return append(b, make([]byte, 12)...)
}

// ParseGreeting reads what [Greeting.Append] has written. Whether the two ends fit is for
// [Greeting.Check] to say.
func ParseGreeting(b []byte) (Greeting, error) {
	if len(b) != GreetingLen || string(b[:8]) != greetingMagic {
		return Greeting{}, fmt.Errorf("%w: greeting of %d bytes", ErrProtocol, len(b))
	}
	le := binary.LittleEndian
	g := Greeting{
		Major: le.Uint16(b[8:]), Minor: le.Uint16(b[10:]), Features: Features(le.Uint32(b[12:])), PageSize: le.Uint32(b[20:]),
		From: Identity{le.Uint32(b[24:]), le.Uint64(b[32:])}, To: Identity{le.Uint32(b[28:]), le.Uint64(b[40:])}, Path: le.Uint32(b[48:]),
	}
	if order := binary.NativeEndian.Uint32(b[16:]); order != byteOrder {
		return g, fmt.Errorf("%w: byte order %#x, here %#x", ErrMismatch, order, uint32(byteOrder))
	}
	return g, nil
}

// Check says whether the end that has sent g can talk to the one that has sent mine, and is
// the one meant. A difference is an error that names both values and wraps [ErrMismatch], or
// [ErrStranger] where another process than the one meant has spoken.
func (g *Greeting) Check(mine *Greeting) error {
	switch {
	case g.Major != mine.Major:
		return fmt.Errorf("%w: version %d.%d, here %d.%d", ErrMismatch, g.Major, g.Minor, mine.Major, mine.Minor)
	case g.PageSize != mine.PageSize:
		return fmt.Errorf("%w: pages of %d bytes, here %d", ErrMismatch, g.PageSize, mine.PageSize)
	case g.Path != mine.Path:
		return fmt.Errorf("%w: path %d, here %d", ErrMismatch, g.Path, mine.Path)
	case g.From.Incarnation == 0:
		return fmt.Errorf("%w: %v", ErrProtocol, g.From)
	case g.From.Rank != mine.To.Rank, mine.To.Incarnation != 0 && g.From.Incarnation != mine.To.Incarnation:
		return fmt.Errorf("%w: %v, meant was %v", ErrStranger, g.From, mine.To)
	case g.To.Rank != mine.From.Rank, g.To.Incarnation != 0 && g.To.Incarnation != mine.From.Incarnation:
		return fmt.Errorf("%w: %v means %v, this is %v", ErrStranger, g.From, g.To, mine.From)
	}
	return nil
}

// Common returns the features that both ends have.
func (g *Greeting) Common(mine *Greeting) Features { return g.Features & mine.Features }

// Errors that operations and parsers wrap.
var (
	ErrProtocol = errors.New("endpoint: protocol violation")
	ErrMismatch = errors.New("endpoint: the two ends do not fit")
	ErrStranger = errors.New("endpoint: another process than the one meant")
	ErrLeft     = errors.New("endpoint: peer left")
	ErrClosed   = errors.New("endpoint: closed")
	ErrRange    = errors.New("endpoint: out of range")
)
