// Package roce is the verbs provider that speaks RoCEv2 by itself, without an RDMA
// device: the reliable connection of the InfiniBand architecture in UDP packets to
// port 4791. It interoperates with adapters and with soft-RoCE (rdma_rxe), and does
// more between its own. Importing it registers the provider "roce" with one device for
// each network interface that is up and has an address: "roce_lo", "roce_eth0". Linux
// only; elsewhere the probe says so. It is used where it is asked for by name (see
// [verbs.Device.OnRequest]): SLUICE_TRANSPORT=roce does that for channels.
//
// It also registers the provider "xdp", the same protocol over AF_XDP sockets, past the
// network stack: devices "xdp_eth0" of interfaces but loopback. Devices of the two talk to
// each other.
//
// # How it works
//
// A context has one UDP socket on one address: [verbs.Config].Address, or the first
// of the interface, IPv4 before IPv6. It is bound to port 4791 if that is free, else
// to any: ranks that share an address have ports of their own, which their endpoints
// tell as the LID. Adapters have no LID on Ethernet, so that a peer with LID 0 is one
// that sends to and receives on port 4791, and knows nothing of what is said below
// about peers of this library.
//
// With SLUICE_ROCE_SHARE ranks that share an address are all reached at port 4791 as well,
// by a socket that each of them has beside its own (SO_REUSEPORT): the upper 7 bits of a QP's
// number say whose it is, and a classic BPF program looks at them. That needs no
// privilege. All the ranks hold all the sockets, which otherwise would change places when one
// of them ends.
//
// Polling a CQ receives the packets of all QPs of its context and sends what they call for;
// a goroutine parked in ppoll(2), the driver, does so while nothing polls. Both serve the timers:
// the driver when the earliest runs out, polls every so often, so that a timer does not wait for
// a goroutine that has no CPU. Neither waits for the other. Packets of the same length to the same peer leave the process
// together (UDP_SEGMENT), and arrive together (UDP_GRO).
//
// Payloads are copied from the registered memory into packets, and from packets to
// where they belong. Each packet of an RDMA operation is checked against the key, the
// range and the rights of the region again, before its bytes are written.
//
// # AF_XDP
//
// A device of xdp has a UDP socket as well. It has the port, and takes what goes another
// way than the interface: to the host itself, through other interfaces, to neighbours that are
// not known yet; and what comes another way: fragments, other queues, reports of who is
// not there. A program on the interface picks packets to the address and port of
// each context, everything else passes. It is in the driver (native) or behind it (generic); frames
// are copied, so that every driver will do. Routes and neighbours are the kernel's,
// looked at every 2 s.
//
// The MTU of the link is looked at when a path MTU is chosen; that of a path beyond it is for the
// user to know ([verbs.ConnectAttr].PathMTU), as ICMP messages about it can be forged. Where it becomes smaller under
// way, requests of QPs that have a larger one complete with [verbs.WCRetryExcErr].
//
// Contexts of a process share a queue of the interface, 4 at a time. For processes to share
// one, and for those without privileges, there is the helper, `sluice xdp-helper`; else a process needs
// CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF. See package internal/xdp and docs/roce.md.
//
// A packet is in several frames where it is longer than one: up to 1792 bytes of a link whose MTU
// is 1774 or less, else 3840. That needs Linux 6.6; before, the path MTU is smaller.
//
// Generic XDP sees messages that a virtual interface takes whole to be cut later
// (UDP_SEGMENT), as a peer of provider roce at the other end of a veth pair sends them.
// Those that are longer than the MTU pass to the UDP socket; packets of shorter ones are
// dropped, and come again one by one, unless segmentation is switched off there
// ('ethtool -K veth0 tx-udp-segmentation off'). Network adapters send packets.
//
// # Reliability
//
// Acknowledgements are asked for at the end of what is posted, and every 16 packets.
// They go at once, but for those of messages of one packet where the last messages have
// each been replied to: these wait, a few polls at most, for the reply to carry them. With
// SLUICE_ROCE_ACK=message they are asked for with every message and are packets of their own,
// as those of adapters, behind the reply in the same burst. What
// is not acknowledged is sent again when the responder reports a gap, or after a round
// trip and four times its deviation, 2 ms at least, doubled each time up to the QP's
// timeout. A peer of this library that has been there counts as dead when it has acknowledged nothing for
// [verbs.Config].PeerTimeout: it is silent also while its process is stopped. One that has not been there
// yet, and an adapter, count as dead after 4 × timeout × (retries + 1), as the architecture
// lets timers run that long (9.7.6.1.3). A timer that is late counts for the time that it was set
// to: while this process has no CPU, nobody else is silent. A peer counts as dead earlier when its host
// says of all retries that nothing has that port (ICMP), and at once when its QP says that it has left.
//
// What is read is placed as it comes, and only what is missing of it is asked for again; of a
// peer that may be an adapter, from there to the end of the part. Where what comes late writes
// over what a later RDMA READ has brought to the same place, that is read once more. Answers to RDMA READs go in
// bursts of 64 packets, of each QP in turn.
//
// Between peers of this library there are more packets, with opcodes of the range that
// is the manufacturers' own (see internal/packet): one that says what has arrived
// behind a gap, so that only what is missing is sent again, and once more after two round
// trips where that was lost as well; SENDs and RDMA WRITEs that
// an acknowledgement rides on; a first RDMA READ request that has the length of the
// whole, as what is read arrives in parts of 16 packets; and one by which a QP that has
// left says so.
//
// The window in packets follows Swift (Kumar et al., SIGCOMM 2020): see pace.go for
// what is otherwise, and why. Packets are marked as capable of ECN; a mark is returned
// as CNP, and makes the window smaller. The rest of the traffic class, which has the DSCP, and
// the hop limit (0: 64) are those of the QP's address vector; its other fields are not heeded.
//
// # Limits
//
//	message                        1 GiB
//	SGEs of a work request         32
//	inline data                    1024 bytes
//	work requests of a queue       32768
//	regions of a context           16384
//	queue pairs of a context       16384
//	RDMA_READ/atomics outstanding  32, each way
//	packets outstanding            255 of a QP
//	GIDs of a port                 1
//	packets held behind gaps       64 QPs of a context at once, 1 MiB each
//
// A message of several parts that is read from an adapter may have arrived in part when
// the adapter refuses the rest. Automatic path migration, memory windows and partition
// keys other than the default one do not exist. Atomics are atomic among the
// operations through one context, and with atomic operations of its process.
//
// # Environment
//
// net.core.rmem_max bounds what the socket can queue, and with it the window. By roce:
//
//	SLUICE_ROCE_SHARE  how many contexts of an address, of one user, adapters are to reach: 1
//	                   to 128, the same for all; where it is not set, or another program or
//	                   rdma_rxe has the port, or so many contexts are there, they reach who
//	                   has port 4791 for itself, if anybody has
//
// By both:
//
//	SLUICE_ROCE_ACK  lazy (the default) or message: when acknowledgements are asked for and sent
//
// By xdp:
//
//	SLUICE_XDP_SOCKET  path of the helper's socket; where it is not set, and nobody listens at
//	                   /run/sluice/xdp.sock, the process opens the interface itself
//	SLUICE_XDP_MODE    generic (the default) or native, of a process that does that
//
// # Invariant CRC
//
// It is computed and checked on every packet. A socket does not show the IPv4
// identification, which it covers, of packets that come from elsewhere; there the CRC
// is taken for right if it is with any identification, and so detects what is broken
// with 16 bits in place of 32 (see packet.Route.Check). IPv6 has none, and AF_XDP shows
// it.
//
// # Security
//
// RoCE packets carry no proof of who has sent them, and are not encrypted: the network
// must be trusted, as with adapters. [verbs.Config].Secret has no effect. QP numbers,
// first PSNs and parts of keys are drawn at random, so that packets of an earlier
// connection, or of somebody who cannot see the network, hardly match; packets from
// another address than the peer's are dropped, and of peers of this library those from another port
// and those whose PSN is further off than these can be. An ICMP message counts only if it returns
// a request that is on its way.
package roce
