package packet

import (
	"encoding/binary"
	"hash/crc32"
	"math/bits"
	"net/netip"
)

// Route holds what the invariant CRC covers of a packet's IP and UDP headers (annex A17.3.3), with
// the fields that routers may change set to ones. It is large: keep one and change it. It is not
// safe for concurrent use.
type Route struct {
	// b is 8 bytes of ones, in place of the local route header, then IP header and UDP header.
	// It is part of Route because the argument of crc32 escapes.
	b  [8 + 40 + 8]byte
	v4 bool
	// The CRC of b, for packets of this length and identification; length 0: not computed.
	head    uint32
	headLen int
	headID  uint16
	// The multiplier that identification last used, and its length.
	unshift    uint32
	unshiftLen int
}

// Offsets in Route.b after the ones.
const (
	routeIP = 8

	v4Len, v4Length, v4ID, v4Flags, v4Proto, v4Src, v4Dst = 20, 2, 4, 6, 9, 12, 16
	v6Len, v6Length, v6Next, v6Src, v6Dst                 = 40, 4, 6, 8, 24

	udpLen       = 8
	protocolUDP  = 17
	dontFragment = 0x40
)

// Set sets the route of packets from src to dst, both IPv4 or both IPv6.
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

// SetSource changes only the source.
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

// SetDontFragment sets or clears the flag DF of the IPv4 header, the only flag that may differ
// between unfragmented packets; Set sets it.
func (r *Route) SetDontFragment(on bool) {
	flags := byte(0)
	if on {
		flags = dontFragment
	}
	if at := &r.b[routeIP+v4Flags]; r.v4 && *at != flags {
		*at, r.headLen = flags, 0
	}
}

// ICRC returns the invariant CRC of pkt, a packet from the BTH to the last byte before the CRC, with
// the identification id in its IPv4 header (IPv6 has none). On the wire the CRC is little-endian.
// ICRC changes a byte of pkt temporarily.
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

// begin computes the CRC of the headers before the BTH of a packet of n bytes.
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

// Check reports whether the CRC at the end of b is right, and for which identification. It tries
// guess first. A socket does not show the identification of an IPv4 packet: if the CRC is wrong for
// guess, Check computes the only identification for which it can be right, if there is one. On IPv4
// a packet corrupted elsewhere thus passes with a probability of 2^-16 instead of 2^-32, in addition
// to UDP's checksum if the sender has computed one. exact says that guess is known to be right:
// then there is no second try.
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
	// The CRC is linear: diff is the CRC, started with zero, of a message that is zero
	// except for the difference of the identifications. Undoing the steps of all bytes after
	// that field leaves the register as it was when the two bytes were added.
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

// Polynomials modulo that of IEEE 802.3. Bit 31 is the coefficient of x^0, as in the CRC on the
// wire.
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

// unshift returns x^-8n; multiplying the register by it undoes the steps of n bytes.
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
