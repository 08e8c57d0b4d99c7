package roce

import (
	"net/netip"

	"github.com/sluice-hpc/sluice/verbs/roce/internal/packet"
)

// wire moves packets between addresses: a UDP socket, AF_XDP, or memory for tests of the engine. It
// computes and checks the invariant CRC, because only it knows all the headers covered.
//
// Sending is in bursts under the adapter's tx lock: frame returns the room for the next packet, and
// flush sends all framed packets. Packets that cannot be sent are lost, as anywhere in the network.
// Receiving is under the adapter's rx lock.
type wire interface {
	// local returns the address that peers send to.
	local() netip.AddrPort
	// maxMTU returns the largest payload of a packet on the link, in bytes.
	maxMTU() int
	// window returns how many bytes may be in flight to a wire of this kind and
	// configuration without overrunning the receiver.
	window() int
	// frame returns n bytes for a packet to a peer, from the BTH to the last byte
	// before the CRC. They are valid until the next frame or flush.
	frame(f *flow, n int) []byte
	// cancel revokes the last frame, before any other call.
	cancel()
	flush()
	// recv receives up to len(into) packets and returns how many. They are valid until the
	// next recv. It does not block.
	recv(into []arrival) int
	// rest says whether recv left packets that it has already taken from the network: the
	// descriptors do not show them.
	rest() bool
	// unreachable takes the newest report of a peer's host that nothing receives what was
	// sent there. The report may be forged.
	unreachable() (report, bool)
	close()
}

// arrival is a received packet, from the BTH to the last byte before the CRC, which was right.
type arrival struct {
	pkt []byte
	src netip.AddrPort
	id  uint16 // IPv4 identification for which the CRC is right
	ce  bool   // a router marked it: congestion experienced (RFC 3168)
}

// report is the content of an ICMP message.
type report struct {
	to     netip.AddrPort // address at which nothing receives
	packet packet.Header  // the packet sent there: only the fields set by packet.Header.ParseBTH
}

// flow is the path of one QP to its peer. The QP's lock guards it.
type flow struct {
	local, remote netip.AddrPort
	class         uint8 // traffic class; the wire sets its lower two bits
	hops          uint8 // hop limit; 0: the default
	route         packet.Route
	raw           sockaddr
	way           way
}

// set sets the flow's addresses; it keeps its class and hops.
func (f *flow) set(local, remote netip.AddrPort) {
	f.local, f.remote = local, remote
	f.route.Set(local, remote)
	f.raw.set(remote)
	f.way.set(f)
}
