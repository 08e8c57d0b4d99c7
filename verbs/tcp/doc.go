// Package tcp is the verbs provider over TCP sockets: the fallback that is there
// on every network and every operating system. Importing it registers the
// provider "tcp" with one device for each network interface that is up and has an
// address, named after it: "tcp_lo", "tcp_eth0".
//
// # How it works
//
// A context listens on the addresses of its interface, all on one TCP port, which
// is the port's LID. A connected pair of QPs has one TCP connection; the one with
// the smaller identity (GID, port, QP number) dials, in the background, as soon
// as it is in RTR. Small payloads are copied behind their headers and leave
// together; larger ones go from user memory to the socket and from the socket to
// user memory. A send completes when the peer has executed it and said so.
//
// On Linux the sockets are non-blocking and driven by raw system calls: whoever
// polls a CQ reads and writes the sockets of its QPs. An engine goroutine, parked
// in epoll, does it for CQs that are not polled, from a millisecond after the
// last poll on, and at once for CQs that are armed. Elsewhere, and with
// [verbs.Config].Portable, two goroutines for each connection do it through
// package net.
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
//	peer timeout                   2 s at least for connections that are idle;
//	                               where there is no TCP_USER_TIMEOUT (all but
//	                               Linux), bytes that the peer's kernel does not
//	                               acknowledge are waited for as long as that
//	                               system does
//
// The path MTU, service level and traffic class of a QP have no effect. Atomics
// are atomic among all operations of a host's contexts, and with its CPUs.
//
// # Environment
//
// No environment variable is read. The system's limits count: descriptors
// (RLIMIT_NOFILE: one for a connected QP, five for a context with one address and
// one CQ of many QPs), net.core.somaxconn for jobs whose ranks all connect at
// once, and net.ipv4.tcp_rmem and tcp_wmem for bandwidth over long distances.
//
// # Security
//
// Before any other byte counts, both ends of a connection prove that they know
// the job's secret, [verbs.Config].Secret (HMAC-SHA256 over both identities, both
// nonces, the job and the version; see internal/proof). This authenticates; it
// does not encrypt. Who can read the network can read the data, and who can
// change packets under way can change it. With Insecure whoever can connect is
// admitted, and may do what the rights of QPs and regions allow.
//
// Strangers, port scans and half-open connections occupy at most 128 descriptors
// for at most 5 seconds each; the oldest give way. Peers that have proved
// themselves are held to the protocol all the same: lengths and numbers are
// checked before they are used, keys and ranges at every access.
//
// # Failure
//
// The end of a peer, by closing its QP, by death or by a broken network, is
// noticed without sending to it: what it sent completely before is received, then
// the QP goes to ERR with [verbs.EventQPFatal], the oldest outstanding send with
// WCRetryExcErr. A silent peer is given up after [verbs.Config].PeerTimeout, by
// TCP keep-alive and TCP_USER_TIMEOUT. A process that is stopped is not silent:
// its kernel answers, until there is no room for what is sent to it. A QP whose
// peer's QP goes to ERR stays as it is until it sends, as with an adapter.
//
// Sends posted before the peer is connected wait up to 4 × timeout × (retries +
// 1), then fail with WCRetryExcErr. Once connected there is no ACK timeout: TCP
// has its own. VendorErr of WCRetryExcErr is 1 if the peer did not connect in
// time, 2 if the connection was lost, 3 if the peer's QP is in ERR.
//
// # Wire format, version 1.0
//
// A connection begins with the proof of the secret, in which the dialer's
// identity is GID (16 bytes), port (2) and QP number (4), the acceptor's the same
// with QP number 0. All integers are big-endian. Everything behind it is frames:
//
//	 0  1  kind
//	 1  1  flags
//	 2  2  zero
//	 4  4  size: bytes of payload behind the extension, at most 256 KiB
//	 8  4  ack: requests of the other side executed so far
//	12  4  msn: number of the request that this is, or is about; the first is 0
//	16     extension by kind, then payload
//
// Numbers count modulo 2^32. The kinds and their extensions:
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
//	11 RESPONSE  payload: the next bytes of the answer to READ or ATOMIC msn
//	12 ACK
//	13 NAK       status(4) zero(4): request msn fails; nothing behind it is executed
//	14 RNR       request msn found no receive; it and all behind it were dropped
//	15 READY     there is one now
//	16 RESUME    answer to READY: the requests come again, from msn on
//	17 DOWN      the QP is in ERR; the last frame
//	18 BYE       the QP is gone; the last frame
//
// Flags: 1 an immediate is there (SEND, WRITE); 2 solicited (SEND, WRITE); 4
// compare and swap (ATOMIC; without it fetch and add); 8 the PSN is final (OPEN,
// OPENED); 16 a trailer of one byte follows the payload, which is not zero if the
// payload is void because its memory was deregistered under way.
//
// Requests are executed in order; SEND, WRITE and MORE frames of one message
// follow each other, with other kinds between them at most. Answers come in the
// order of the questions. A receiver without a receive for a message stops
// reading, and after a while (RNR) drops requests, to have them sent again.
package tcp
