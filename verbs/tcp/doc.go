// Package tcp is the verbs provider over TCP sockets: the fallback that works on
// every network and every operating system. Importing it registers the provider
// "tcp" with one device for each network interface that is up and has an address,
// named after the interface: "tcp_lo", "tcp_eth0".
//
//	import _ "github.com/sluice-hpc/sluice/verbs/tcp"
//
//	device, err := verbs.Find("tcp_eth0")
//	context, err := device.Open(verbs.Config{Secret: secret}) // then as in package verbs: PD, CQ, QP, PostSend, Poll
//
// # How it works
//
// A context listens on all addresses of its interface, on one TCP port, which is the
// LID of the verbs port. A connected pair of QPs has one TCP connection; the QP with
// the smaller identity (GID, port, QP number) dials, in the background, as soon as it
// is in RTR. Small payloads are copied behind their headers and sent together; larger
// ones move directly between user memory and the socket. A send completes when the
// peer has executed it and acknowledged that.
//
// On Linux the sockets are non-blocking and driven by raw system calls: a poll of a CQ
// reads and writes the sockets of its QPs. An engine goroutine, parked until epoll has
// events, takes over for CQs that have not been polled for a millisecond, and at once for
// CQs that are armed. Elsewhere, and with [verbs.Config].Portable, two goroutines for each
// connection do it through package net.
//
// # Limits
//
//	message                        1 GiB
//	SGEs of a work request         32
//	inline data                    1024 bytes
//	work requests of a queue       32768
//	regions of a context           16384
//	queue pairs of a context       65536
//	RDMA_READ/atomics outstanding  128, each way
//	GIDs of a port                 16; IPv6 link-local addresses are left out
//	memory of a connected QP       70 KiB (portable: 450 KiB), and its socket
//	peer timeout                   at least 2 s on idle connections, up to a quarter
//	                               longer while data is on its way; after a long stop
//	                               of the peer's process up to 4 min longer. On all
//	                               systems but Linux the system decides how long to
//	                               wait for acknowledgements, and a peer on another
//	                               host that accepts nothing for so long is lost
//
// The path MTU, service level and traffic class of a QP have no effect. Atomics
// are atomic among all operations of a host's contexts, and with its CPUs.
//
// # Environment
//
// The provider reads no environment variable. It depends on system limits:
// descriptors (RLIMIT_NOFILE: one for each connected QP, five for a context with one
// address and one CQ of many QPs), net.core.somaxconn for jobs whose ranks all connect
// at once, and net.ipv4.tcp_rmem and tcp_wmem for bandwidth over long distances.
//
// # Security
//
// Before either end of a connection accepts any data, both prove that they know the
// job's secret, [verbs.Config].Secret (HMAC-SHA256 over both identities, both nonces,
// the job and the version; see internal/proof). This authenticates but does not
// encrypt: an attacker that can read the network can read the data, and one that can alter
// packets in flight can alter the data. With Insecure, any process that can connect is
// admitted, and may do what the access flags of QPs and regions allow.
//
// Strangers, port scans and half-open connections occupy at most 128 descriptors, for
// at most 5 seconds each; the oldest is closed to make room. Authenticated peers are
// checked as well: lengths and numbers before use, keys and ranges at every access.
//
// # Failure
//
// A QP detects the loss of its peer (its QP closed, its process dead, or the network
// broken) without sending: it receives the messages that the peer completed before,
// then goes to ERR with [verbs.EventQPFatal], and the oldest outstanding send fails
// with WCRetryExcErr. A silent peer is declared lost after [verbs.Config].PeerTimeout,
// by TCP keep-alive and, while data is on its way, by what TCP_INFO says of acknowledgements.
// A stopped process is not silent, on any host: its kernel answers, also to probes of a full
// receive buffer. It is waited for, on Linux however much is on its way to it.
// If the peer's QP goes to ERR, this QP keeps its state until it sends, as with an adapter.
//
// Sends posted before the peer is connected wait up to 4 × timeout × (retries + 1),
// then fail with WCRetryExcErr. A connected QP has no ACK timeout; TCP has its own.
// VendorErr of WCRetryExcErr is 1 if the peer did not connect in time, 2 if the
// connection was lost, 3 if the peer's QP is in ERR; [verbs.QP.Cause] has the error.
//
// # Wire format, version 1.0
//
// A connection begins with the proof of the secret, in which the dialer's identity is
// GID (16 bytes), port (2) and QP number (4); the acceptor's is the same with QP number
// 0. Frames follow. All integers are big-endian:
//
//	 0  1  kind
//	 1  1  flags
//	 2  2  zero
//	 4  4  size: bytes of payload after the extension, at most 256 KiB
//	 8  4  ack: requests of the receiver of this frame executed so far
//	12  4  msn: number of the request that the frame is, or refers to; the first is 0
//	16     extension by kind, then payload
//
// Request numbers are modulo 2^32. The kinds and their extensions:
//
//	 1 OPEN      handshake: dst(4) src(4) psn(4) expected psn(4) answers(1) zero(3) reason(4)
//	 2 OPENED    likewise
//	 3 REFUSED   likewise; reason: 1 no such QP, 2 not its peer, 3 PSNs differ, 4 state, 5 connected, 6 not in RTR
//	 4 CONFIRM   likewise
//	 5 START     psn(4) RNR retries(1) zero(3): precedes the first request
//	 6 SEND      total(4) immediate(4), payload
//	 7 WRITE     address(8) rkey(4) total(4) immediate(4) zero(4), payload
//	 8 READ      address(8) rkey(4) total(4)
//	 9 ATOMIC    address(8) rkey(4) zero(4) compare or add(8) swap(8)
//	10 MORE      payload: the next bytes of the SEND or WRITE before it
//	11 RESPONSE  payload: the next bytes of the response to READ or ATOMIC msn
//	12 ACK
//	13 NAK       status(4) zero(4): request msn fails; no later request is executed
//	14 RNR       no receive was posted for request msn; it and all later ones were dropped
//	15 READY     a receive is posted now
//	16 RESUME    reply to READY: the requests follow again, starting at msn
//	17 DOWN      the QP is in ERR; the last frame
//	18 BYE       the QP is gone; the last frame
//
// Flags: 1 immediate present (SEND, WRITE); 2 solicited (SEND, WRITE); 4 compare and
// swap, otherwise fetch and add (ATOMIC); 8 the PSN is final (OPEN, OPENED); 16 a
// trailer of one byte follows the payload: not zero if the payload is void because its
// memory was deregistered while the frame was being sent.
//
// Requests are executed in order. The SEND, WRITE and MORE frames of a message are
// consecutive; only frames of other kinds may come between them. Responses come in the
// order of their requests. If no receive is posted for a message, the receiver stops
// reading; after a while it sends RNR and drops requests, to have them sent again.
package tcp
