package roce

import (
	"cmp"
	"fmt"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// socketRoom is the socket buffer size requested from the kernel, in bytes.
const socketRoom = 4 << 20

// The lower two bits of the traffic class (RFC 3168).
const (
	ecnCapable     = 2 // ECT(0)
	ecnExperienced = 3
)

// usualHops is the default hop limit.
const usualHops = 64

// tos returns the traffic class of packets sent.
func (f *flow) tos() uint8 { return f.class&^ecnExperienced | ecnCapable }

// ttl returns the hop limit of packets sent.
func (f *flow) ttl() uint8 { return cmp.Or(f.hops, usualHops) }

// newSocket creates a UDP socket for packets of an address of this family.
func newSocket(addr netip.Addr) (int, error) {
	family := unix.AF_INET6
	if addr.Is4() {
		family = unix.AF_INET
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if err != nil {
		return -1, fmt.Errorf("socket: %w", err)
	}
	type option struct {
		level, name, value int
		what               string
	}
	// The link's MTU limits the length of packets, not the path MTU that the kernel has
	// learned: the ICMP messages that it learns from can be forged.
	options := []option{
		{unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE, "IP_MTU_DISCOVER"}, // INTERFACE sets no DF
		{unix.IPPROTO_IP, unix.IP_RECVERR, 1, "IP_RECVERR"},
		{unix.IPPROTO_IP, unix.IP_RECVTOS, 1, "IP_RECVTOS"},
		{unix.IPPROTO_IP, unix.IP_TOS, ecnCapable, "IP_TOS"},
		{unix.IPPROTO_IP, unix.IP_TTL, usualHops, "IP_TTL"},
	}
	if addr.Is6() {
		options = []option{
			{unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_INTERFACE, "IPV6_MTU_DISCOVER"},
			{unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1, "IPV6_RECVERR"},
			{unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1, "IPV6_RECVTCLASS"},
			{unix.IPPROTO_IPV6, unix.IPV6_TCLASS, ecnCapable, "IPV6_TCLASS"},
			{unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, usualHops, "IPV6_UNICAST_HOPS"},
			{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1, "IPV6_V6ONLY"},
			{unix.SOL_UDP, unix.UDP_NO_CHECK6_RX, 1, "UDP_NO_CHECK6_RX"}, // rdma_rxe sends none
		}
	}
	for _, o := range options {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			unix.Close(fd)
			return -1, fmt.Errorf("set %s: %w", o.what, err)
		}
	}
	// Without GRO (kernels before 5.0), packets come one by one.
	unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_GRO, 1)
	return fd, nil
}

// widen makes a socket's buffers as large as the kernel allows.
func widen(fd int) {
	for _, o := range [][2]int{{unix.SO_RCVBUFFORCE, unix.SO_RCVBUF}, {unix.SO_SNDBUFFORCE, unix.SO_SNDBUF}} {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, o[0], socketRoom) != nil {
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, o[1], socketRoom) // as far as net.core.rmem_max goes
		}
	}
}

func bind(fd int, to netip.AddrPort) error {
	var own sockaddr
	own.set(to)
	if _, _, errno := unix.Syscall(unix.SYS_BIND, uintptr(fd), uintptr(unsafe.Pointer(&own.b)), uintptr(own.n)); errno != 0 {
		return fmt.Errorf("bind %v: %w", to, errno)
	}
	return nil
}

// boundTo returns the address of a socket.
func boundTo(fd int) (netip.AddrPort, error) {
	var own sockaddr
	n := uint32(len(own.b))
	if _, _, errno := unix.Syscall(unix.SYS_GETSOCKNAME, uintptr(fd), uintptr(unsafe.Pointer(&own.b)), uintptr(unsafe.Pointer(&n))); errno != 0 {
		return netip.AddrPort{}, fmt.Errorf("getsockname: %w", errno)
	}
	return own.addr(), nil
}
