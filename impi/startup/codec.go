package startup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
)

// command is IMPI_Cmd's cmd: four letters (IMPI 0.0, Wire Protocols).
type command uint32

const (
	cmdAuth command = 0x41555448
	cmdImpi command = 0x494D5049
	cmdColl command = 0x434F4C4C
	cmdDone command = 0x444F4E45
	cmdFini command = 0x46494E49
)

func (c command) String() string {
	switch c {
	case cmdAuth, cmdImpi, cmdColl, cmdDone, cmdFini:
		return string(binary.BigEndian.AppendUint32(nil, uint32(c)))
	}
	return fmt.Sprintf("command %#08x", uint32(c))
}

// MaxClients is the most clients that a job may have: the number of bits in a client mask (IMPI
// 0.0, the COLL command).
const MaxClients = 32

const (
	headerLen    = 8 // Int4 cmd, len
	authReplyLen = 8 // Int4 which, len
	keyLen       = 8 // Uint8 key
	collLen      = 4 // Int4 label
	chdrLen      = 8 // Int4 label, client_mask
)

// header is IMPI_Cmd: what begins every command, and every answer but AUTH's.
type header struct {
	cmd command
	len int // bytes that follow
}

func (h header) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(h.cmd))
	return binary.BigEndian.AppendUint32(b, uint32(h.len))
}

// parseHeader reads a header from exactly headerLen bytes. len is an Int4; a negative one is
// invalid.
func parseHeader(b []byte) (header, error) {
	if len(b) != headerLen {
		return header{}, lengthError("header", len(b), headerLen)
	}
	n := int32(binary.BigEndian.Uint32(b[4:]))
	h := header{cmd: command(binary.BigEndian.Uint32(b)), len: int(n)}
	if n < 0 {
		return h, fmt.Errorf("%w: %v announces %d bytes", ErrProtocol, h.cmd, n)
	}
	return h, nil
}

// authCommand is a client's first command: the methods that it offers or, in the form of the draft
// of 1999, its key.
type authCommand struct {
	methods Methods
	old     bool
	key     uint64 // if old
}

func (a authCommand) append(b []byte) []byte {
	if a.old {
		b = header{cmdAuth, keyLen}.append(b)
		return binary.BigEndian.AppendUint64(b, a.key)
	}
	b = header{cmdAuth, 4}.append(b)
	return binary.BigEndian.AppendUint32(b, uint32(a.methods))
}

func parseAuth(payload []byte) (authCommand, error) {
	switch len(payload) {
	case 4:
		return authCommand{methods: Methods(binary.BigEndian.Uint32(payload))}, nil
	case keyLen:
		return authCommand{old: true, key: binary.BigEndian.Uint64(payload)}, nil
	}
	return authCommand{}, lengthError("AUTH", len(payload), 4)
}

// authReply is the server's answer to AUTH: the number of the method, and the number of bytes that
// follow, which is 0.
type authReply struct {
	which int32
	len   int32
}

func (a authReply) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(a.which))
	return binary.BigEndian.AppendUint32(b, uint32(a.len))
}

func parseAuthReply(b []byte) (authReply, error) {
	if len(b) != authReplyLen {
		return authReply{}, lengthError("answer to AUTH", len(b), authReplyLen)
	}
	a := authReply{int32(binary.BigEndian.Uint32(b)), int32(binary.BigEndian.Uint32(b[4:]))}
	if a.len != 0 {
		return a, fmt.Errorf("%w: answer to AUTH announces %d bytes", ErrProtocol, a.len)
	}
	return a, nil
}

// appendKey appends what a client sends if the server has picked KEY; there is no header.
func appendKey(b []byte, key uint64) []byte { return binary.BigEndian.AppendUint64(b, key) }

func parseKey(b []byte) (uint64, error) {
	if len(b) != keyLen {
		return 0, lengthError("key", len(b), keyLen)
	}
	return binary.BigEndian.Uint64(b), nil
}

// appendImpi appends the IMPI command, with the rank of a client, or the server's
// answer to it, with the size of the job: IMPI_Impi is a union of the two.
func appendImpi(b []byte, rankOrSize int) []byte {
	b = header{cmdImpi, 4}.append(b)
	return binary.BigEndian.AppendUint32(b, uint32(rankOrSize))
}

func parseImpi(payload []byte) (int, error) {
	if len(payload) != 4 {
		return 0, lengthError("IMPI", len(payload), 4)
	}
	return int(int32(binary.BigEndian.Uint32(payload))), nil
}

// collCommand is a client's submission under a label.
type collCommand struct {
	label Label
	data  []byte
}

func (c collCommand) append(b []byte) []byte {
	b = header{cmdColl, collLen + len(c.data)}.append(b)
	b = binary.BigEndian.AppendUint32(b, uint32(c.label))
	return append(b, c.data...)
}

// parseColl returns a command whose data is part of payload.
func parseColl(payload []byte) (collCommand, error) {
	if len(payload) < collLen {
		return collCommand{}, lengthError("COLL", len(payload), collLen)
	}
	c := collCommand{Label(binary.BigEndian.Uint32(payload)), payload[collLen:]}
	if c.label == 0 {
		return c, fmt.Errorf("%w: COLL with label 0, which is reserved", ErrProtocol)
	}
	return c, nil
}

// collReply is the concatenation of the submissions of the clients in mask.
type collReply struct {
	label Label
	mask  uint32
	data  []byte
}

func (c collReply) append(b []byte) []byte {
	b = appendChdr(b, c.label, c.mask, len(c.data))
	return append(b, c.data...)
}

// appendChdr appends an answer to COLL except its n bytes of data.
func appendChdr(b []byte, label Label, mask uint32, n int) []byte {
	b = header{cmdColl, chdrLen + n}.append(b)
	b = binary.BigEndian.AppendUint32(b, uint32(label))
	return binary.BigEndian.AppendUint32(b, mask)
}

// parseCollReply returns an answer whose data is part of payload.
func parseCollReply(payload []byte) (collReply, error) {
	if len(payload) < chdrLen {
		return collReply{}, lengthError("answer to COLL", len(payload), chdrLen)
	}
	return collReply{
		label: Label(binary.BigEndian.Uint32(payload)),
		mask:  binary.BigEndian.Uint32(payload[4:]),
		data:  payload[chdrLen:],
	}, nil
}

func lengthError(what string, n, want int) error {
	return fmt.Errorf("%w: %s has %d bytes, not %d", ErrProtocol, what, n, want)
}

// readHeader reads the next header. The error is io.EOF if the stream ends before it.
func readHeader(r io.Reader) (header, error) {
	var b [headerLen]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return header{}, err
	}
	return parseHeader(b[:])
}

// readPayload reads n bytes. It allocates as they arrive, so that a false length costs its sender
// as much as us.
func readPayload(r io.Reader, n int) ([]byte, error) {
	const first = 4096
	var b []byte
	for len(b) < n {
		have := len(b)
		b = slices.Grow(b, min(n-have, max(have, first)))
		b = b[:min(n, cap(b))]
		if _, err := io.ReadFull(r, b[have:]); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
	return b, nil
}

// maxPayload is the most that an Int4 can announce.
const maxPayload = math.MaxInt32
