package roce

import (
	"net/netip"

	"github.com/sluice-hpc/sluice/verbs/roce/internal/packet"
)

// wire moves packets between addresses: a UDP socket, AF_XDP, or the memory that the
// engine is tested on. It computes and checks the invariant CRC, as it alone knows
// all of the headers that this covers.
//
// Sending is in bursts under the adapter's tx lock: frame returns the room for the
// next packet, and flush sends all that were framed. What cannot be sent is lost, as
// anywhere on the way. Receiving is under the adapter's rx lock.
type wire interface {
	// local is the address that peers send to.
	local() netip.AddrPort
	// maxMTU is the largest payload in bytes that a packet on the link can have.
	maxMTU() int
	// window is how many bytes may be on their way to a wire of this kind and
	// configuration without flooding what receives them.
	window() int
	// frame returns n bytes for a packet to a peer, from the BTH to the last byte
	// before the CRC. They are valid until the next frame or flush.
	frame(f *flow, n int) []byte
	// cancel takes back the last frame, before anything else is called.
	cancel()
	flush()
	// recv takes packets that have come, at most len(into), and returns how many. They
	// are valid until the next recv. It does not block.
	recv(into []arrival) int
	// rest says whether recv left packets that have been taken from the network: nothing
	// else tells of them.
	rest() bool
	// unreachable takes the newest report of a peer's host that nothing receives what was sent
	// there. Anybody may have made it up.
	unreachable() (report, bool)
	close()
}

// arrival is a packet that has come, from the BTH to the last byte before the
// CRC, which was right.
type arrival struct {
	pkt []byte
	src netip.AddrPort
	id  uint16 // IPv4 identification with which the CRC is right
	ce  bool   // a router on the way marked it: congestion experienced (RFC 3168)
}

// report is what an ICMP message says.
type report struct {
	to     netip.AddrPort // that nothing receives at
	packet packet.Header  // that was sent there: of its fields those of packet.Header.ParseBTH
}

// flow is the way to a peer: of one QP, whose lock guards it.
type flow struct {
	local, remote netip.AddrPort
	class         uint8 // traffic class; of its lower two bits the wire decides
	hops          uint8 // hop limit; 0: the usual
	route         packet.Route
	raw           sockaddr
	way           way
}

// set makes the flow go from local to remote, with the class and the hops that it has.
func (f *flow) set(local, remote netip.AddrPort) {
	f.local, f.remote = local, remote
	f.route.Set(local, remote)
	f.raw.set(remote)
	f.way.set(f)
}
