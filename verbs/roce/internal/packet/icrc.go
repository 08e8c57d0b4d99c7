package packet

import (
	"encoding/binary"
	"hash/crc32"
	"math/bits"
	"net/netip"
)

// Route is the way of a packet as far as the invariant CRC covers it (annex
// A17.3.3): the IP and UDP headers with what routers may change set to ones. It
// is large; keep one and change it. Not for concurrent use.
type Route struct {
	// b is 8 bytes of ones, in the place of the local route header, then IP header and
	// UDP header. It lives in a Route because what crc32 is given escapes.
	b  [8 + 40 + 8]byte
	v4 bool
	// The CRC of b, for packets of this length and identification; length 0: of none.
	head    uint32
	headLen int
	headID  uint16
	// The multiplier that identification used last, and the length that it is for.
	unshift    uint32
	unshiftLen int
}

// Offsets in Route.b behind the ones.
const (
	routeIP = 8

	v4Len, v4Length, v4ID, v4Flags, v4Proto, v4Src, v4Dst = 20, 2, 4, 6, 9, 12, 16
	v6Len, v6Length, v6Next, v6Src, v6Dst                 = 40, 4, 6, 8, 24

	udpLen       = 8
	protocolUDP  = 17
	dontFragment = 0x40
)

// Set makes the route that of packets from src to dst, both IPv4 or both IPv6.
func (r *Route) Set(src, dst netip.AddrPort) {
	for i := range r.b {
		r.b[i] = 0xff
	}
	r.headLen = 0
	ip := r.b[routeIP:]
	r.v4 = src.Addr().Is4()
	n := v6Len
	if r.v4 {
		n = v4Len
		ip[0] = 0x45
		ip[v4Flags], ip[v4Flags+1] = dontFragment, 0
		ip[v4Proto] = protocolUDP
		s, d := src.Addr().As4(), dst.Addr().As4()
		copy(ip[v4Src:], s[:])
		copy(ip[v4Dst:], d[:])
	} else {
		ip[0] = 0x6f // version 6; the traffic class and the flow label are masked
		ip[v6Next] = protocolUDP
		s, d := src.Addr().As16(), dst.Addr().As16()
		copy(ip[v6Src:], s[:])
		copy(ip[v6Dst:], d[:])
	}
	binary.BigEndian.PutUint16(ip[n:], src.Port())
	binary.BigEndian.PutUint16(ip[n+2:], dst.Port())
}

// SetSource changes the source alone.
func (r *Route) SetSource(src netip.AddrPort) {
	r.headLen = 0
	ip := r.b[routeIP:]
	if r.v4 {
		s := src.Addr().As4()
		copy(ip[v4Src:], s[:])
		binary.BigEndian.PutUint16(ip[v4Len:], src.Port())
		return
	}
	s := src.Addr().As16()
	copy(ip[v6Src:], s[:])
	binary.BigEndian.PutUint16(ip[v6Len:], src.Port())
}

// SetDontFragment changes the one flag of an IPv4 header that a packet in one piece can have
// either way; Set sets it.
func (r *Route) SetDontFragment(on bool) {
	flags := byte(0)
	if on {
		flags = dontFragment
	}
	if at := &r.b[routeIP+v4Flags]; r.v4 && *at != flags {
		*at, r.headLen = flags, 0
	}
}

// ICRC returns the invariant CRC of pkt, which is a packet from the BTH to the
// last byte before the CRC, with this identification in its IPv4 header (IPv6 has
// none). On the wire it is little-endian. A byte of pkt is another one meanwhile.
func (r *Route) ICRC(pkt []byte, id uint16) uint32 {
	if r.headLen != len(pkt) || r.headID != id {
		r.begin(len(pkt), id)
	}
	masked := pkt[maskedByte]
	pkt[maskedByte] = 0xff
	crc := crc32.Update(r.head, crc32.IEEETable, pkt)
	pkt[maskedByte] = masked
	return crc
}

// begin computes the CRC of what is in front of the BTH of a packet of n bytes.
func (r *Route) begin(n int, id uint16) {
	ip := r.b[routeIP:]
	udp := udpLen + n + ICRCLen
	end := v6Len
	if r.v4 {
		end = v4Len
		binary.BigEndian.PutUint16(ip[v4Length:], uint16(v4Len+udp))
		binary.BigEndian.PutUint16(ip[v4ID:], id)
	} else {
		binary.BigEndian.PutUint16(ip[v6Length:], uint16(udp))
	}
	binary.BigEndian.PutUint16(ip[end+4:], uint16(udp))
	r.head, r.headLen, r.headID = crc32.ChecksumIEEE(r.b[:routeIP+end+udpLen]), n, id
}

// Seal appends the CRC to a packet.
func (r *Route) Seal(pkt []byte, id uint16) []byte {
	return binary.LittleEndian.AppendUint32(pkt, r.ICRC(pkt, id))
}

// Check says whether the CRC at the end of b is right, and with which
// identification. It tries guess first. A socket does not show the identification
// of an IPv4 packet: if the CRC is not right with guess, Check finds the only
// identification with which it can be, if there is one. So on IPv4 a packet that
// is broken elsewhere passes with a probability of 2^-16 in place of 2^-32, which
// comes on top of UDP's checksum where the sender has computed that. Exact says
// that guess is known to be right: then there is no second try.
func (r *Route) Check(b []byte, guess uint16, exact bool) (id uint16, ok bool) {
	if len(b) < bthLen+ICRCLen {
		return 0, false
	}
	if !r.v4 {
		guess = 0
	}
	n := len(b) - ICRCLen
	diff := binary.LittleEndian.Uint32(b[n:]) ^ r.ICRC(b[:n], guess)
	switch {
	case diff == 0:
		return guess, true
	case exact || !r.v4:
		return 0, false
	}
	// The CRC is linear: diff is the CRC, begun with zero, of a message that is zero
	// but for the difference of the identifications. Taking back the step of every
	// byte from that field on leaves the register as those two bytes were added to it.
	behind := udpLen + v4Len - v4ID + n
	if r.unshiftLen != behind {
		r.unshift, r.unshiftLen = unshift(behind), behind
	}
	d := multiply(diff, r.unshift)
	if d>>16 != 0 {
		return 0, false
	}
	return guess ^ bits.ReverseBytes16(uint16(d)), true
}

// Polynomials modulo that of IEEE 802.3, of which bit 31 is the coefficient of
// x^0: the way in which the CRC goes over the wire.
const (
	one  = 1 << 31
	byX8 = one >> 8 // x^8
)

// multiply returns the product of two polynomials.
func multiply(a, b uint32) uint32 {
	var p uint32
	for ; a != 0; a <<= 1 {
		if a&one != 0 {
			p ^= b
		}
		b = b>>1 ^ crc32.IEEE&-(b&1)
	}
	return p
}

// unshift is x^-8n, by which the register is to be multiplied to take back the
// steps of n bytes.
func unshift(n int) uint32 {
	p := uint32(one)
	for i := 0; n > 0; i, n = i+1, n>>1 {
		if n&1 != 0 {
			p = multiply(p, unshifts[i])
		}
	}
	return p
}

// unshifts are x^(-8*2^i), for messages of up to 128 KiB. The polynomial is primitive, so
// the order of x is 2^32-1.
var unshifts = func() (t [17]uint32) {
	const order = 1<<32 - 1
	p, base := uint32(one), uint32(byX8)
	for e := uint64(order - 1); e > 0; e >>= 1 {
		if e&1 != 0 {
			p = multiply(p, base)
		}
		base = multiply(base, base)
	}
	for i := range t {
		t[i] = p
		p = multiply(p, p)
	}
	return t
}()
