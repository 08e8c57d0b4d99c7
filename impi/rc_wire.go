package impi

import (
	"encoding/binary"
	"fmt"

	"github.com/sluice-hpc/sluice/impi/packet"
	"github.com/sluice-hpc/sluice/internal/machine"
	"github.com/sluice-hpc/sluice/verbs"
)

// Between processes of this package, packets over a queue pair have a header of 32 bytes, so that a
// short message fits in a cache line. It is little-endian, like everything in memory that a peer
// reads:
//
//	 0 uint8  type, as in IMPI; 8: the slots of a stage are returned, as many as the
//	          context says; 9: nothing, to wake the peer
//	 1 uint8  flags: 1: of the rest of a message; 2: it lies in the stage, in the slot that
//	          the tag says, as many bytes as the context says; 4, of DATASYNC
//	          and SYNCACK: the rest of the message lies in memory that need not be
//	          registered for it; 8, of DATASYNC: the message must be accepted whether or
//	          not a receive matches it
//	 2 uint16 destination process, by its number in its host
//	 4 uint16 source process, likewise
//	 6 uint16 messages that went through the lane before it, modulo 2^16
//	 8 int32  tag
//	12 uint32 context
//	16 uint64 bytes of the message; of SYNCACK the receiver's request,
//	          of CANCELYES 1 if the receiver has freed the communicator, 2 if it closes the job
//	24 uint64 sender's request; of the rest of a message the receiver's
//
// The header of DATA and DATASYNC is followed by user data up to the end of the SEND. That of
// SYNCACK is followed by the memory to which the rest of the message is to be written. With flag 2
// the rest goes through the stage, and the memory, sent the first time only, is that of the stage; with
// flag 16, too, the sender stores it past its caches:
//
//	uint64 address, uint32 length, uint32 rkey, of each piece
//
// The last write has the index of the receiver's request as its immediate. A SYNCACK without pieces
// asks for DATA packets.

const (
	rcHeader = 32
	rcPiece  = 16
	// maxRCPieces is the most pieces of memory that a SYNCACK may list.
	maxRCPieces = 64

	rcRest   = 1
	rcStaged = 2
	rcKnown  = 4
	rcEager  = 8
	rcPast   = 16
)

// rcPacket is the contents of the header.
type rcPacket struct {
	t      packet.Type
	flags  uint8
	dest   uint16
	src    uint16
	lines  uint16
	tag    int32
	cid    uint32
	length uint64
	srqid  uint64
}

func (p *rcPacket) put(b *[rcHeader]byte) {
	le := binary.LittleEndian
	b[0], b[1] = byte(p.t), p.flags
	le.PutUint16(b[2:], p.dest)
	le.PutUint16(b[4:], p.src)
	le.PutUint16(b[6:], p.lines)
	le.PutUint32(b[8:], uint32(p.tag))
	le.PutUint32(b[12:], p.cid)
	le.PutUint64(b[16:], p.length)
	le.PutUint64(b[24:], p.srqid)
}

// parseRC reads a header.
func parseRC(b []byte) (p rcPacket, err error) {
	if len(b) < rcHeader {
		return p, fmt.Errorf("%w: packet of %d bytes", ErrProtocol, len(b))
	}
	le := binary.LittleEndian
	p = rcPacket{t: packet.Type(b[0]), flags: b[1], dest: le.Uint16(b[2:]), src: le.Uint16(b[4:]), lines: le.Uint16(b[6:]),
		tag: int32(le.Uint32(b[8:])), cid: le.Uint32(b[12:]), length: le.Uint64(b[16:]), srqid: le.Uint64(b[24:])}
	first, rest := p.flags&(rcKnown|rcEager), p.flags&(rcRest|rcStaged)
	switch {
	case p.t > rcWake, p.flags >= 2*rcPast, first != 0 && rest != 0,
		first&rcEager != 0 && p.t != packet.DataSync,
		first == rcKnown && p.t != packet.DataSync && p.t != packet.SyncAck,
		rest&rcRest != 0 && p.t != packet.Data,
		rest == rcStaged && p.t != packet.SyncAck,
		p.flags&rcPast != 0 && p.flags != rcStaged|rcPast:
		return p, fmt.Errorf("%w: packet of type %d, flags %#x", ErrProtocol, b[0], b[1])
	}
	return p, nil
}

// remote is a piece of the peer's memory.
type remote struct {
	addr   uint64
	length uint32
	rkey   uint32
}

func (r remote) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, r.addr)
	b = binary.LittleEndian.AppendUint32(b, r.length)
	return binary.LittleEndian.AppendUint32(b, r.rkey)
}

func parseRemotes(b []byte) ([]remote, error) {
	if len(b)%rcPiece != 0 || len(b)/rcPiece > maxRCPieces {
		return nil, fmt.Errorf("%w: malformed SYNCACK with %d bytes of memory pieces", ErrProtocol, len(b))
	}
	var list []remote
	for ; len(b) > 0; b = b[rcPiece:] {
		list = append(list, remote{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint32(b[12:])})
	}
	return list, nil
}

// offer describes the devices through which a host can be reached, and its limits. Two hosts of
// this package exchange offers over their TCP connection before any packet, each preceded by its
// length; little-endian:
//
//	uint32 version, uint32 endpoints
//	uint64 machine, uint64 kernel
//	uint32 bytes of a packet, uint32 likewise where the device maps memory
//	uint32 packets in flight of a pair of processes
//	uint32 bytes of the set of CPUs, and the set
//	endpoints, as package verbs encodes them
type offer struct {
	machine   uint64 // the same for hosts that reach each other over loopback
	kernel    uint64 // the same for hosts that share CPUs
	slot      uint32 // bytes of a packet
	mapped    uint32 // likewise, where the device maps memory
	window    uint32
	process   machine.Process
	endpoints []verbs.Endpoint
}

const (
	offerVersion = 6
	offerHead    = 36
	maxOffers    = 16
	maxOfferLen  = offerHead + machine.MaxProcess + maxOffers*verbs.EndpointLen
)

func (o *offer) append(b []byte) ([]byte, error) {
	le := binary.LittleEndian
	process := o.process.Append(nil)
	b = le.AppendUint32(b, uint32(offerHead+len(process)+len(o.endpoints)*verbs.EndpointLen))
	b = le.AppendUint32(b, offerVersion)
	b = le.AppendUint32(b, uint32(len(o.endpoints)))
	b = le.AppendUint64(b, o.machine)
	b = le.AppendUint64(b, o.kernel)
	b = le.AppendUint32(b, o.slot)
	b = le.AppendUint32(b, o.mapped)
	b = le.AppendUint32(b, o.window)
	b = append(b, process...)
	var err error
	for _, e := range o.endpoints {
		if b, err = e.AppendBinary(b); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// parseOffer decodes what append has encoded after the length.
func parseOffer(b []byte) (o offer, err error) {
	le := binary.LittleEndian
	if len(b) < offerHead || le.Uint32(b) != offerVersion {
		return o, fmt.Errorf("%w: offer of %d bytes", ErrProtocol, len(b))
	}
	n := le.Uint32(b[4:])
	o.machine, o.kernel, o.slot, o.mapped, o.window = le.Uint64(b[8:]), le.Uint64(b[16:]), le.Uint32(b[24:]), le.Uint32(b[28:]), le.Uint32(b[32:])
	if o.process, b, err = machine.ParseProcess(b[offerHead:]); err != nil {
		return o, fmt.Errorf("%w: offer: %w", ErrProtocol, err)
	}
	if n > maxOffers || len(b) != int(n)*verbs.EndpointLen {
		return o, fmt.Errorf("%w: offer of %d endpoints in %d bytes", ErrProtocol, n, len(b))
	}
	if n > 0 && (min(o.slot, o.mapped) < minSlot || max(o.slot, o.mapped) > maxSlot || o.window < minWindow || o.window > maxWindow) {
		return o, fmt.Errorf("%w: offer of %d packets of %d and %d bytes", ErrProtocol, o.window, o.slot, o.mapped)
	}
	for range n {
		e, err := verbs.ParseEndpoint(b[:verbs.EndpointLen])
		if err != nil {
			return o, fmt.Errorf("%w: %w", ErrProtocol, err)
		}
		o.endpoints = append(o.endpoints, e)
		b = b[verbs.EndpointLen:]
	}
	return o, nil
}
