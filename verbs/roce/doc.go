// Package roce is the verbs provider that implements RoCEv2 itself, without an RDMA
// device: the reliable connection of the InfiniBand architecture in UDP packets to port
// 4791. It interoperates with adapters and with soft-RoCE (rdma_rxe), and extends the
// protocol between its own contexts. Importing it registers the provider "roce" with one
// device for each network interface that is up and has an address: "roce_lo",
// "roce_eth0". It works only on Linux; elsewhere the probe says so. It is used only if
// named (see [verbs.Device.OnRequest]), for channels by SLUICE_TRANSPORT=roce.
//
//	import _ "github.com/sluice-hpc/sluice/verbs/roce"
//
//	device, err := verbs.Find("roce_eth0")
//	context, err := device.Open(verbs.Config{}) // then as in package verbs: PD, CQ, QP, PostSend, Poll
//
// It also registers the provider "xdp": the same protocol over AF_XDP sockets, which
// bypass the network stack, with devices "xdp_eth0" for every interface except loopback.
// Devices of the two providers can talk to each other.
//
// # How it works
//
// A context has one UDP socket on one address: [verbs.Config].Address, or the first
// address of the interface, IPv4 before IPv6. It binds to port 4791 if that is free, else
// to any other: ranks that share an address have ports of their own, which their
// endpoints carry as the LID. Adapters have no LID on Ethernet. A peer with LID 0 is
// therefore one that sends to and receives on port 4791, and to which nothing applies
// that is said below about peers of this library.
//
// With SLUICE_ROCE_SHARE, all ranks that share an address can also be reached at port
// 4791, through a second socket that each of them has (SO_REUSEPORT): the upper 7 bits of
// a QP's number identify its context, and a classic BPF program dispatches packets by
// them. That needs no privilege. Every rank holds the sockets of all ranks; otherwise the
// sockets would change places when a rank ends.
//
// Polling a CQ receives the packets of all QPs of its context, and sends replies and
// whatever else is due. While nothing polls, a goroutine parked in ppoll(2), the driver,
// does so. Both serve the timers: the driver when the earliest expires, polls at regular
// intervals, so that a timer does not depend on a goroutine that has no CPU. Neither
// waits for the other. Packets of the same length to the same peer are sent together
// (UDP_SEGMENT) and received together (UDP_GRO).
//
// Payloads are copied from the registered memory into packets, and from packets to their
// destination. Each packet of an RDMA operation is checked again against the key, the
// range and the access flags of the region before its bytes are written.
//
// # AF_XDP
//
// An xdp device has a UDP socket as well, which owns the port. It sends packets that do
// not leave through the interface (to the host itself, through other interfaces, to
// neighbours that are not resolved yet), and receives those that the AF_XDP socket does
// not see (fragments, packets of other queues, ICMP errors). A program on the interface
// picks out the packets to the address and port of each context and passes everything
// else to the kernel. It runs in the driver (native) or behind it (generic). Frames are
// copied, so any driver will do. Routes and neighbours are the kernel's, read every 2 s.
//
// The link's MTU is read when a path MTU is chosen. If the path has a smaller one, the
// user must say so ([verbs.ConnectAttr].PathMTU), because ICMP messages about it can be
// forged. If the link's MTU later drops below the path MTU of a QP, the QP's requests
// complete with [verbs.WCRetryExcErr].
//
// Contexts of a process share a queue of the interface, 4 at a time. To share one between
// processes, or to run without privileges, start the helper, `sluice xdp-helper`;
// otherwise a process needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF. See package
// internal/xdp and docs/roce.md.
//
// A packet that is longer than a frame takes several. A frame holds 1792 bytes if the
// link's MTU is 1774 or less, else 3840. That needs Linux 6.6; older kernels get a smaller
// path MTU.
//
// A virtual interface passes messages that are to be segmented later (UDP_SEGMENT) on
// whole, and generic XDP sees them so; a peer of provider roce at the other end of a veth
// pair sends such messages. Those longer than the MTU are passed to the UDP socket.
// Shorter ones are dropped, and their packets are then resent one by one, unless
// segmentation is switched off there ('ethtool -K veth0 tx-udp-segmentation off').
// Network adapters always send single packets.
//
// # Reliability
//
// The requester requests an acknowledgement at the end of what is posted, and every 16
// packets. The responder sends it at once, with one exception: if each of the last
// messages was of one packet and was replied to, it waits, a few polls at most, for the
// reply to carry it. With SLUICE_ROCE_ACK=message every message requests an
// acknowledgement, which is a packet of its own, as an adapter sends it, behind the reply
// in the same burst. Unacknowledged packets are resent when the responder reports a gap,
// or after one round-trip time plus four times its deviation, at least 2 ms, doubled on
// each retry up to the QP's timeout.
//
// A peer of this library that has been heard from is declared dead when it has
// acknowledged nothing for [verbs.Config].PeerTimeout; a stopped process is silent too. An
// adapter, or a peer that has not been heard from, is declared dead after 4 × timeout ×
// (retries + 1), which is how long the architecture lets timers run (9.7.6.1.3). A timer
// that fires late counts only for its set time: while this process has no CPU, its peers
// are not taken for silent. A peer is declared dead earlier if its host answers all
// retries with port unreachable (ICMP), and at once if its QP says that it has left.
//
// The data of an RDMA READ is placed as it arrives, and only missing packets are requested
// again; from a peer that may be an adapter, everything from the gap to the end of the
// part is. If a late packet overwrites data that a later RDMA READ has already placed
// there, that data is read again. Responses to RDMA READs are sent in bursts of 64
// packets, taking the QPs in turn.
//
// Peers of this library exchange additional packets, with opcodes of the manufacturers'
// range (see internal/packet): one that reports what has arrived behind a gap, so that
// only missing packets are resent, and again after two round-trip times if these were
// lost as well; SENDs and RDMA WRITEs that carry an acknowledgement; a first RDMA READ
// request that has the length of the whole, since data is read in parts of 16 packets;
// and one by which a QP says that it has left.
//
// The window, in packets, follows Swift (Kumar et al., SIGCOMM 2020); pace.go lists the
// differences and their reasons. Packets are marked as ECN-capable; a congestion mark is
// returned as a CNP, which shrinks the window. The rest of the traffic class, with the
// DSCP, and the hop limit (0: 64) come from the QP's address vector; its other fields are
// ignored.
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
//	packets outstanding            255 for each QP
//	GIDs of a port                 1
//	packets held behind gaps       64 QPs of a context at once, 1 MiB each
//
// A message of several parts that is read from an adapter may have arrived in part when
// the adapter refuses the rest. There is no automatic path migration, there are no memory
// windows, and the default partition key is the only one. Atomics are atomic among the
// operations through one context, and with atomic operations of its process.
//
// # Environment
//
// net.core.rmem_max limits what the socket can queue, and with it the window. For roce:
//
//	SLUICE_ROCE_SHARE  the number of contexts on an address, of one user, that adapters
//	                   can reach: 1 to 128, the same for all. If it is not set, another
//	                   program or rdma_rxe has the port, or there are already that many
//	                   contexts, adapters reach only the context that owns port 4791, if any
//
// For both:
//
//	SLUICE_ROCE_ACK  lazy (the default) or message: when acknowledgements are requested and sent
//
// For xdp:
//
//	SLUICE_XDP_SOCKET  path of the helper's socket. If it is not set, and nothing listens at
//	                   /run/sluice/xdp.sock, the process opens the interface itself
//	SLUICE_XDP_MODE    generic (the default) or native, for a process that opens the
//	                   interface itself
//
// # Invariant CRC
//
// The CRC is computed and checked on every packet. It covers the IPv4 identification,
// which a UDP socket does not show for packets from other hosts. The check then accepts a
// CRC that is right for any identification, and so detects corruption with 16 bits in
// place of 32 (see packet.Route.Check). IPv6 has no identification, and AF_XDP shows it.
//
// # Security
//
// RoCE packets neither authenticate their sender nor are encrypted: as with adapters, the
// network must be trusted. [verbs.Config].Secret has no effect. QP numbers, first PSNs and
// parts of keys are random, so packets of an earlier connection, or from an attacker that
// cannot see the network, are unlikely to match. Packets from an address other than the
// peer's are dropped. From peers of this library, so are packets from another port, and
// packets whose PSN is further off than such a peer's can be. An ICMP message counts only
// if it returns a request that is in flight.
package roce
