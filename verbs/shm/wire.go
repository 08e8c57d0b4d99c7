//go:build linux

package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/sluice-hpc/sluice/verbs"
)

// Messages on the control socket, one packet each, little-endian.

const (
	wireMagic = 0x4d48534543554c53 // the bytes "SLUCESHM"
	wireMajor = 4
	wireMinor = 0
	helloLen  = 72
	ctlLen    = 48
)

// hello is the first message of each end; the control segment's descriptor is
// attached to it.
type hello struct {
	major, minor uint16
	features     uint32 // featureFenced
	arch         uint32 // of the shared structures, see archCode
	pageSize     uint32
	from, to     verbs.GID
	probeAddr    uint64 // address of the control segment in the sender's process: reading its magic there proves process_vm_readv
	ctrlSize     uint64
}

// featureFenced: this end has no membarrier(2), so its peers must make publishing a full
// fence.
const featureFenced = 1

// archCode identifies what the layout of shared structures depends on: the machine, and its
// byte order, in which the code is stored.
func archCode() uint32 {
	switch runtime.GOARCH {
	case "amd64":
		return 1
	case "arm64":
		return 2
	default:
		return 0xffff
	}
}

func (h hello) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, wireMagic)
	b = binary.LittleEndian.AppendUint16(b, h.major)
	b = binary.LittleEndian.AppendUint16(b, h.minor)
	b = binary.LittleEndian.AppendUint32(b, h.features)
	b = binary.LittleEndian.AppendUint32(b, h.arch)
	b = binary.LittleEndian.AppendUint32(b, h.pageSize)
	b = append(b, h.from[:]...)
	b = append(b, h.to[:]...)
	b = binary.LittleEndian.AppendUint64(b, h.probeAddr)
	return binary.LittleEndian.AppendUint64(b, h.ctrlSize)
}

var errWire = errors.New("malformed control message")

func parseHello(b []byte) (hello, error) {
	if len(b) != helloLen || binary.LittleEndian.Uint64(b) != wireMagic {
		return hello{}, fmt.Errorf("%w: %d bytes are not a hello", errWire, len(b))
	}
	h := hello{
		major:     binary.LittleEndian.Uint16(b[8:]),
		minor:     binary.LittleEndian.Uint16(b[10:]),
		features:  binary.LittleEndian.Uint32(b[12:]),
		arch:      binary.LittleEndian.Uint32(b[16:]),
		pageSize:  binary.LittleEndian.Uint32(b[20:]),
		from:      verbs.GID(b[24:40]),
		to:        verbs.GID(b[40:56]),
		probeAddr: binary.LittleEndian.Uint64(b[56:]),
		ctrlSize:  binary.LittleEndian.Uint64(b[64:]),
	}
	switch {
	case h.major != wireMajor:
		return h, fmt.Errorf("peer speaks version %d.%d, this process %d.%d", h.major, h.minor, wireMajor, wireMinor)
	case h.arch != archCode():
		return h, fmt.Errorf("peer's architecture code is %d, this process has %d", h.arch, archCode())
	case int(h.pageSize) != os.Getpagesize():
		// The peers map each other's memory, by pages.
		return h, fmt.Errorf("peer's page size is %d bytes, this process has %d", h.pageSize, os.Getpagesize())
	}
	return h, nil
}

// Kinds of control messages after the hello.
const (
	ctlArena  = 1 + iota // arena id, size; descriptor attached
	ctlOpen              // QP src is ready to receive from dst
	ctlClose             // incarnation inc of QP src is gone: leave its inbox
	ctlClosed            // the inbox of dst's incarnation inc will not be accessed any more
	ctlCMA               // the sender can (size 1) or cannot (0) read this process' memory
	ctlGone              // the arena has been given back
	ctlAsk               // what has been queued of the arena?
	ctlAnswer            // that comes behind it
)

// ctl is a control message.
type ctl struct {
	kind     uint32
	src, dst uint32 // QP numbers
	inc      uint32 // incarnation of QP src (ctlClosed: of dst), counted over RESETs
	psn      uint32 // ctlOpen: first PSN that src expects
	arena    uint32 // ctlArena, ctlGone, ctlAsk, ctlAnswer: the arena; ctlOpen: the one that the inbox is in
	offset   uint64 // ctlOpen: of the inbox
	size     uint64 // ctlArena: bytes; ctlCMA: see there; ctlAsk, ctlAnswer: number of the question
}

func (m ctl) append(b []byte) []byte {
	for _, v := range [...]uint32{m.kind, m.src, m.dst, m.inc, m.psn, m.arena, 0, 0} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	b = binary.LittleEndian.AppendUint64(b, m.offset)
	return binary.LittleEndian.AppendUint64(b, m.size)
}

func parseCtl(b []byte) (ctl, error) {
	if len(b) != ctlLen {
		return ctl{}, fmt.Errorf("%w: message has %d bytes, want %d", errWire, len(b), ctlLen)
	}
	u := func(i int) uint32 { return binary.LittleEndian.Uint32(b[4*i:]) }
	m := ctl{kind: u(0), src: u(1), dst: u(2), inc: u(3), psn: u(4), arena: u(5),
		offset: binary.LittleEndian.Uint64(b[32:]), size: binary.LittleEndian.Uint64(b[40:])}
	if m.kind < ctlArena || m.kind > ctlAnswer {
		return m, fmt.Errorf("%w: unknown kind %d", errWire, m.kind)
	}
	if m.src >= 1<<24 || m.dst >= 1<<24 || m.psn >= 1<<24 || u(6) != 0 || u(7) != 0 {
		return m, fmt.Errorf("%w: QP %#x to %#x, PSN %#x, reserved %#x %#x", errWire, m.src, m.dst, m.psn, u(6), u(7))
	}
	return m, nil
}
