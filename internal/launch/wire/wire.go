// Package wire has the messages between 'sluice run' and its agents on other hosts.
//
// An agent first writes a preamble, for its shell may have written before: see [Preamble]. After it both
// sides write messages, each a header, a body, and a newline, for srun passes on whole lines alone. Integers
// are big-endian. On standard error text for the user follows the preamble, one line for each notice.
//
//	0  1  kind
//	1  3  zero
//	4  4  rank
//	8  4  length of the body in bytes
//
//	kind     from      rank      body
//	file     launcher  its index size (8), SHA-256 (32): a program, whose bytes follow
//	chunk    launcher  -         bytes of the file
//	setup    launcher  -         the host's part of the job: see [Setup]
//	signal   launcher  receiver  number (4)
//	stop     launcher  -         -
//	input    launcher  -         standard input of rank 0; nothing at its end
//	mute     launcher  -         stream (1)
//	ping     launcher  -         -
//	started  agent     -         ranks (4), 1 if more follow (1), failure (1), its rank or number (4), text
//	exit     agent     which     status (4)
//	output   agent     -         stream (1), bytes
//	taken    agent     -         bytes of input that rank 0 has been given (4)
//	pong     agent     -         -
//	done     agent     -         text: why output was lost
//
// A dash is zero. The launcher sends files, each with all its bytes, then setup, upon which the agent
// starts the ranks in the order of the setup and says so in one or more messages started, the first of
// them before any exit. After stop no more ranks are started: the agent answers with the last started, if
// it has not sent that before. After mute the stream of all ranks of the host is a broken pipe. Of input
// no more than [Window] bytes may be ahead of taken. After done the agent writes nothing. When its
// standard input ends, it kills the ranks.
package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const (
	// Version is that of these messages; launcher and agent must have the same.
	Version = 1

	headerSize = 12

	// MaxPiece is the most bytes of a file or of input in one message.
	MaxPiece = 64 << 10
	// MaxOutput is the most bytes of output: whole lines, each after its prefix.
	MaxOutput = 2 << 20
	// Window is the most bytes of input that the agent holds.
	Window = 128 << 10
	// MaxSetup is the longest body of a setup.
	MaxSetup = 16 << 20
	// MaxText is the longest explanation in bytes.
	MaxText = 4 << 10
	// MaxNoise is how many bytes may come before the preamble.
	MaxNoise = 64 << 10
	// MaxRank is the most ranks of a job.
	MaxRank = 1 << 20

	// end is the last byte of the preamble and of each message.
	end = '\n'
)

var (
	// ErrProtocol: bytes that no launcher or agent of this version writes.
	ErrProtocol = errors.New("protocol violation")
	// ErrVersion: the other side is of another version of Sluice.
	ErrVersion = errors.New("another version of Sluice")
	// ErrNoise: something else than an agent answered.
	ErrNoise = errors.New("no agent answered")
)

// Kind is the kind of a message.
type Kind uint8

// Kinds of messages.
const (
	KindFile Kind = 1 + iota
	KindChunk
	KindSetup
	KindSignal
	KindStop
	KindInput
	KindMute
	KindPing
	KindStarted
	KindExit
	KindOutput
	KindTaken
	KindPong
	KindDone
	kinds
)

func (k Kind) String() string {
	if k < KindFile || k >= kinds {
		return fmt.Sprintf("kind %d", uint8(k))
	}
	return [...]string{"file", "chunk", "setup", "signal", "stop", "input", "mute", "ping", "started", "exit", "output", "taken", "pong", "done"}[k-KindFile]
}

// bodyLimits are the shortest and the longest body of a kind in bytes.
func (k Kind) bodyLimits() (least, most uint32) {
	switch k {
	case KindFile:
		return 40, 40
	case KindChunk:
		return 1, MaxPiece
	case KindSetup:
		return 1, MaxSetup
	case KindSignal, KindExit, KindTaken:
		return 4, 4
	case KindInput:
		return 0, MaxPiece
	case KindMute:
		return 1, 1
	case KindStarted:
		return 10, 10 + MaxText
	case KindOutput:
		return 2, 1 + MaxOutput
	case KindDone:
		return 0, MaxText
	}
	return 0, 0
}

// hasRank says that the rank of a kind means something.
func (k Kind) hasRank() bool { return k == KindSignal || k == KindExit || k == KindFile }

// Streams of output.
const (
	Stdout = 1
	Stderr = 2
)

// Message is any of the kinds.
type Message interface {
	// Append appends header and body to b.
	Append(b []byte) []byte
}

// Messages, by their kinds; Setup is another one.
type (
	File struct {
		Index uint32
		Size  uint64
		Sum   [32]byte
	}
	Chunk  struct{ Data []byte }
	Signal struct{ Rank, Number uint32 }
	Stop   struct{}
	Input  struct{ Data []byte } // empty: the end
	Mute   struct{ Stream uint8 }
	Ping   struct{}
	// Started reports the next ranks of the setup that have been started.
	Started struct {
		Ranks   uint32
		More    bool
		Failure Failure
		Number  uint32 // the rank that could not be started; the most ranks that the host takes
		Text    string // of the failure
	}
	Exit   struct{ Rank, Status uint32 }
	Output struct {
		Stream uint8
		Data   []byte
	}
	Taken struct{ Bytes uint32 }
	Pong  struct{}
	Done  struct{ Text string }
)

// Failure says why ranks could not be started.
type Failure uint8

// Reasons why there are no more ranks.
const (
	None     Failure = iota
	NotFound         // no such program
	Denied           // a program that cannot be run
	Other            // another error of starting a rank
	Limit            // more ranks than the host takes: Number
	Host             // something of the host, before any rank was started
	failures
)

func header(b []byte, k Kind, rank uint32, length int) []byte {
	b = append(b, byte(k), 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, rank)
	return binary.BigEndian.AppendUint32(b, uint32(length))
}

func (m File) Append(b []byte) []byte {
	b = header(b, KindFile, m.Index, 40)
	b = binary.BigEndian.AppendUint64(b, m.Size)
	return append(append(b, m.Sum[:]...), end)
}

func (m Chunk) Append(b []byte) []byte { return data(b, KindChunk, m.Data) }

func (m Signal) Append(b []byte) []byte { return number(b, KindSignal, m.Rank, m.Number) }

func (m Stop) Append(b []byte) []byte { return data(b, KindStop, nil) }

func (m Input) Append(b []byte) []byte { return data(b, KindInput, m.Data) }

func (m Mute) Append(b []byte) []byte { return data(b, KindMute, []byte{m.Stream}) }

func (m Ping) Append(b []byte) []byte { return data(b, KindPing, nil) }

func (m Started) Append(b []byte) []byte {
	text := shorten(m.Text)
	b = header(b, KindStarted, 0, 10+len(text))
	b = binary.BigEndian.AppendUint32(b, m.Ranks)
	b = append(b, flag(m.More), byte(m.Failure))
	b = binary.BigEndian.AppendUint32(b, m.Number)
	return append(append(b, text...), end)
}

func (m Exit) Append(b []byte) []byte { return number(b, KindExit, m.Rank, m.Status) }

func (m Output) Append(b []byte) []byte {
	b = append(header(b, KindOutput, 0, 1+len(m.Data)), m.Stream)
	return append(append(b, m.Data...), end)
}

func (m Taken) Append(b []byte) []byte { return number(b, KindTaken, 0, m.Bytes) }

func (m Pong) Append(b []byte) []byte { return data(b, KindPong, nil) }

func (m Done) Append(b []byte) []byte { return data(b, KindDone, []byte(shorten(m.Text))) }

// data appends a message whose body is bytes.
func data(b []byte, k Kind, body []byte) []byte {
	return append(append(header(b, k, 0, len(body)), body...), end)
}

// number appends a message whose body is a number.
func number(b []byte, k Kind, rank, n uint32) []byte {
	return append(binary.BigEndian.AppendUint32(header(b, k, rank, 4), n), end)
}

func flag(set bool) byte {
	if set {
		return 1
	}
	return 0
}

func shorten(text string) string { return text[:min(len(text), MaxText)] }

// parseHeader reads a header. The body of one that parses may be read: its length is within the limits of
// its kind.
func parseHeader(b []byte) (k Kind, rank, length uint32, err error) {
	k, rank, length = Kind(b[0]), binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:])
	least, most := k.bodyLimits()
	switch {
	case k < KindFile || k >= kinds:
		err = fmt.Errorf("%w: %v", ErrProtocol, k)
	case b[1] != 0 || b[2] != 0 || b[3] != 0:
		err = fmt.Errorf("%w: %v: unknown flags", ErrProtocol, k)
	case rank >= MaxRank || rank != 0 && !k.hasRank():
		err = fmt.Errorf("%w: %v: rank %d", ErrProtocol, k, rank)
	case length < least || length > most:
		err = fmt.Errorf("%w: %v: body of %d bytes, expected %d to %d", ErrProtocol, k, length, least, most)
	}
	return k, rank, length, err
}

// Read reads a message. It refers to no memory of the next one. The error is io.EOF only between messages.
func Read(r io.Reader) (Message, error) {
	var h [headerSize]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return nil, err
	}
	k, rank, length, err := parseHeader(h[:])
	if err != nil {
		return nil, err
	}
	body := make([]byte, length+1)
	if _, err := io.ReadFull(r, body); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	if body[length] != end {
		return nil, fmt.Errorf("%w: %v: it goes on after its end", ErrProtocol, k)
	}
	return parseBody(k, rank, body[:length:length])
}

// parseBody decodes a body whose length is within the limits of its kind. The message may refer to it.
func parseBody(k Kind, rank uint32, body []byte) (Message, error) {
	bad := func(format string, a ...any) (Message, error) {
		return nil, fmt.Errorf("%w: %v: %s", ErrProtocol, k, fmt.Sprintf(format, a...))
	}
	switch k {
	case KindFile:
		return File{rank, binary.BigEndian.Uint64(body), [32]byte(body[8:])}, nil
	case KindChunk:
		return Chunk{body}, nil
	case KindSetup:
		return parseSetup(body)
	case KindSignal:
		n := binary.BigEndian.Uint32(body)
		if n == 0 || n > 64 {
			return bad("signal %d", n)
		}
		return Signal{rank, n}, nil
	case KindStop:
		return Stop{}, nil
	case KindInput:
		return Input{body}, nil
	case KindMute, KindOutput:
		if body[0] != Stdout && body[0] != Stderr {
			return bad("stream %d", body[0])
		}
		if k == KindMute {
			return Mute{body[0]}, nil
		}
		return Output{body[0], body[1:]}, nil
	case KindPing:
		return Ping{}, nil
	case KindStarted:
		m := Started{binary.BigEndian.Uint32(body), body[4] == 1, Failure(body[5]), binary.BigEndian.Uint32(body[6:]), string(body[10:])}
		switch {
		case m.Ranks > MaxRank || m.Number > MaxRank:
			return bad("%d ranks, number %d", m.Ranks, m.Number)
		case body[4] > 1 || m.Failure >= failures || m.More && m.Failure != None || m.Failure == None && (m.Number != 0 || m.Text != ""):
			return bad("flags %d and %d do not fit its text", body[4], body[5])
		}
		return m, nil
	case KindExit:
		return Exit{rank, binary.BigEndian.Uint32(body)}, nil
	case KindTaken:
		n := binary.BigEndian.Uint32(body)
		if n > Window {
			return bad("%d bytes, the most is %d", n, Window)
		}
		return Taken{n}, nil
	case KindPong:
		return Pong{}, nil
	}
	return Done{string(body)}, nil
}

// mark begins the preamble: what no shell prints.
var mark = []byte("\x00sluice-agent\x00")

// Preamble is what an agent writes first: a mark, the version of the messages, and a newline.
func Preamble() []byte { return append(binary.BigEndian.AppendUint16(bytes.Clone(mark), Version), end) }

// Await reads up to the preamble and returns what came before it. Errors: [ErrNoise], [ErrVersion], those
// of r.
func Await(r io.ByteReader) (noise []byte, err error) {
	for !bytes.HasSuffix(noise, mark) {
		if len(noise) == MaxNoise {
			return noise, fmt.Errorf("%w: it wrote %d bytes of something else", ErrNoise, len(noise))
		}
		c, err := r.ReadByte()
		if err != nil {
			return noise, err
		}
		noise = append(noise, c)
	}
	noise = noise[:len(noise)-len(mark)]
	var v [3]byte
	for i := range v {
		if v[i], err = r.ReadByte(); err != nil {
			return noise, err
		}
	}
	if got := binary.BigEndian.Uint16(v[:]); got != Version {
		return noise, fmt.Errorf("%w: its agent speaks version %d, this sluice %d", ErrVersion, got, Version)
	}
	return noise, nil
}
