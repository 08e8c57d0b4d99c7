package roce

import (
	"encoding/binary"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sendControl has room for the control messages that a train may need (cmsg(3)): the length of its
// segments, the traffic class and the hop limit.
type sendControl [3]struct {
	hdr   unix.Cmsghdr
	value [8]byte
}

// set writes those of a train, and returns their length in bytes. Defaults of newSocket need none.
func (c *sendControl) set(t *train) int {
	n := 0
	if t.n > 1 {
		m := &c[n]
		m.hdr.Level, m.hdr.Type = unix.SOL_UDP, unix.UDP_SEGMENT
		m.hdr.SetLen(unix.CmsgLen(2))
		binary.NativeEndian.PutUint16(m.value[:], uint16(t.segment))
		n++
	}
	if f := t.f; f.tos() != ecnCapable || f.ttl() != usualHops {
		level, class, hops := int32(unix.IPPROTO_IP), int32(unix.IP_TOS), int32(unix.IP_TTL)
		if f.remote.Addr().Is6() {
			level, class, hops = unix.IPPROTO_IPV6, unix.IPV6_TCLASS, unix.IPV6_HOPLIMIT
		}
		for _, v := range [2]struct {
			kind  int32
			value uint8
		}{{class, f.tos()}, {hops, f.ttl()}} {
			m := &c[n]
			m.hdr.Level, m.hdr.Type = level, v.kind
			m.hdr.SetLen(unix.CmsgLen(4))
			binary.NativeEndian.PutUint32(m.value[:], uint32(v.value))
			n++
		}
	}
	return n * int(unsafe.Sizeof(c[0]))
}
