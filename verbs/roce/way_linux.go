package roce

import (
	"encoding/binary"

	"github.com/sluice-hpc/sluice/internal/xdp"
)

// way is how packets of a flow bypass the network stack. Only the AF_XDP wire uses it.
type way struct {
	path *xdp.Path
	// The headers, at the end of head: Ethernet, whose addresses come from the path, IP and UDP,
	// without lengths and checksum.
	head [maxHead]byte
	lead int
	sum  uint32 // of the words of the IPv4 header, except the length
}

// Headers before the BTH.
const (
	ethLen  = 14
	ip4Len  = 20
	ip6Len  = 40
	udpLen  = 8
	head4   = ethLen + ip4Len + udpLen
	head6   = ethLen + ip6Len + udpLen
	maxHead = head6

	etherType4  = 0x0800
	etherType6  = 0x86dd
	protocolUDP = 17
)

// set writes the headers of packets of the flow, and drops the path.
func (w *way) set(f *flow) {
	src, dst := f.local, f.remote
	w.path = nil
	clear(w.head[:])
	w.lead = head6
	if dst.Addr().Is4() {
		w.lead = head4
	}
	h := w.head[maxHead-w.lead:]
	ip := h[ethLen:]
	if dst.Addr().Is4() {
		binary.BigEndian.PutUint16(h[12:], etherType4)
		ip[0], ip[1] = 0x45, f.tos()
		ip[6] = 0x40 // do not fragment; the identification is 0
		ip[8], ip[9] = f.ttl(), protocolUDP
		s, d := src.Addr().As4(), dst.Addr().As4()
		copy(ip[12:], s[:])
		copy(ip[16:], d[:])
		w.sum = 0
		for i := 0; i < ip4Len; i += 2 {
			w.sum += uint32(binary.BigEndian.Uint16(ip[i:]))
		}
		ip = ip[ip4Len:]
	} else {
		binary.BigEndian.PutUint16(h[12:], etherType6)
		ip[0], ip[1] = 0x60|f.tos()>>4, f.tos()<<4
		ip[6], ip[7] = protocolUDP, f.ttl()
		s, d := src.Addr().As16(), dst.Addr().As16()
		copy(ip[8:], s[:])
		copy(ip[24:], d[:])
		ip = ip[ip6Len:]
	}
	// No UDP checksum, as adapters send none: the invariant CRC covers more.
	binary.BigEndian.PutUint16(ip[0:], src.Port())
	binary.BigEndian.PutUint16(ip[2:], dst.Port())
}

// write puts the headers before n bytes, CRC included.
func (w *way) write(b []byte, ethernet *[12]byte, n int) {
	copy(b, w.head[maxHead-w.lead:])
	copy(b, ethernet[:])
	ip := b[ethLen:]
	udp := udpLen + n
	if w.lead == head4 {
		binary.BigEndian.PutUint16(ip[2:], uint16(ip4Len+udp))
		sum := w.sum + uint32(ip4Len+udp)
		sum = sum>>16 + sum&0xffff
		sum += sum >> 16
		binary.BigEndian.PutUint16(ip[10:], ^uint16(sum))
		ip = ip[ip4Len:]
	} else {
		binary.BigEndian.PutUint16(ip[4:], uint16(udp))
		ip = ip[ip6Len:]
	}
	binary.BigEndian.PutUint16(ip[4:], uint16(udp))
}
