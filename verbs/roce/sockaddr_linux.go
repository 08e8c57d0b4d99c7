package roce

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// sockaddr is an address in the kernel's form.
type sockaddr struct {
	b [unix.SizeofSockaddrInet6]byte
	n uint32
}

func (s *sockaddr) set(a netip.AddrPort) {
	clear(s.b[:])
	binary.BigEndian.PutUint16(s.b[2:], a.Port())
	if a.Addr().Is4() {
		s.n = unix.SizeofSockaddrInet4
		binary.NativeEndian.PutUint16(s.b[:], unix.AF_INET)
		ip := a.Addr().As4()
		copy(s.b[4:], ip[:])
		return
	}
	s.n = unix.SizeofSockaddrInet6
	binary.NativeEndian.PutUint16(s.b[:], unix.AF_INET6)
	ip := a.Addr().As16()
	copy(s.b[8:], ip[:])
}

// addr is the inverse of set.
func (s *sockaddr) addr() netip.AddrPort {
	port := binary.BigEndian.Uint16(s.b[2:])
	if binary.NativeEndian.Uint16(s.b[:]) == unix.AF_INET {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(s.b[4:8])), port)
	}
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(s.b[8:24])), port)
}
