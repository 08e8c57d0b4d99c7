package channel

import (
	"encoding/binary"
	"fmt"
)

// header begins every message of a queue. An address of where follows it.
type header struct {
	kind    queueKind
	credits uint16 // that the sender of the header gives back
	stream  uint32
	k       uint64
	length  uint64
	where          // of queueReady and queueGate
	taken   uint32 // of queueEager, instead of handle: messages taken from the stream with this number in the other direction, modulo 2^32
}

type queueKind uint8

const (
	queueEager  queueKind = 1 + iota // payload of length bytes follows
	queueReady                       // sender: a message of length bytes lies there
	queueGate                        // receiver: write a message of length bytes there; the immediate names the handle
	queueDone                        // receiver: the message has been read
	queueWrong                       // receiver: the length of the message was wrong; length is that of the receive
	queueTaken                       // receiver: k eager messages of the stream have been taken
	queueCredit                      // nothing but credits
	queueEnd                         // each: nothing of the stream is in progress here, nor will be
	queueKinds
)

// addrSize is the length of an address.
const addrSize = 8

// more is the length of what follows the header and belongs to it.
func (h *header) more() int {
	if h.addr != 0 {
		return addrSize
	}
	return 0
}

func (h *header) put(b []byte) {
	b[0], b[1] = byte(h.kind), 0
	if h.addr != 0 {
		b[1] = 1
		binary.BigEndian.PutUint64(b[headerSize:], h.addr)
	}
	binary.BigEndian.PutUint16(b[2:], h.credits)
	binary.BigEndian.PutUint32(b[4:], h.stream)
	binary.BigEndian.PutUint64(b[8:], h.k)
	binary.BigEndian.PutUint64(b[16:], h.length)
	word := h.handle
	if h.kind == queueEager {
		word = h.taken
	}
	binary.BigEndian.PutUint32(b[24:], word)
	binary.BigEndian.PutUint32(b[28:], h.version)
}

// parseHeader parses the header of a message and checks what does not depend on state.
func parseHeader(b []byte) (header, error) {
	if len(b) < headerSize {
		return header{}, fmt.Errorf("%w: message of %d bytes", ErrProtocol, len(b))
	}
	h := header{
		kind:    queueKind(b[0]),
		credits: binary.BigEndian.Uint16(b[2:]),
		stream:  binary.BigEndian.Uint32(b[4:]),
		k:       binary.BigEndian.Uint64(b[8:]),
		length:  binary.BigEndian.Uint64(b[16:]),
		where:   where{handle: binary.BigEndian.Uint32(b[24:]), version: binary.BigEndian.Uint32(b[28:])},
	}
	if h.kind == queueEager {
		h.handle, h.taken = 0, h.handle
	}
	payload := uint64(len(b) - headerSize)
	if named := h.kind == queueReady || h.kind == queueGate; named && b[1] == 1 && payload == addrSize {
		h.addr = binary.BigEndian.Uint64(b[headerSize:])
		payload = 0
	}
	switch {
	case h.kind == 0 || h.kind >= queueKinds || b[1] != 0 && h.addr == 0,
		h.kind == queueEager && h.length != payload, h.kind != queueEager && payload != 0,
		h.stream >= maxStreams, h.credits > queueRecvs:
		return h, fmt.Errorf("%w: message of kind %d on stream %d with %d bytes and %d credits", ErrProtocol, b[0], h.stream, payload, h.credits)
	}
	return h, nil
}
