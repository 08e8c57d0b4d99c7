// Package shm is the verbs provider between the processes of one host, over
// shared memory. Importing it registers the provider "shm" with one device,
// "shm0". Linux only; elsewhere the probe says so.
//
// # How it works
//
// The sender's CPU plays the sending adapter, the receiver's CPU the receiving
// one. Each QP has an inbox: a ring of one-cache-line slots that only the peer
// writes. A message whose payload fits the slot travels in that one line, behind
// a flag that is the slot's sequence number, so that nothing is ever cleared and
// no index is shared. A larger message is described in the slot, and the
// receiver copies it once, from the sender's registered memory straight into its
// receive buffer. RDMA_WRITE, RDMA_READ and atomics on memory of [verbs.PD.AllocMR]
// need no CPU of the target at all: the initiator reaches it through its own
// mapping, after checking the key in the target's table.
//
// Memory of AllocMR lies in arenas: sealed memfds, allocated in full, that peers
// map. Other memory is read with process_vm_readv(2), always by the side that
// receives; where that is forbidden, and for small messages, the bytes are
// packed through the ring.
//
// Polling a CQ of up to 8 QPs looks at the inbox of each. Where there are more, a peer
// that writes to an inbox also sets a bit for it, by which polling finds it: a look at a
// CQ with nothing in it takes the same time whatever the number of QPs.
//
// A process that only computes is not in the way of its peers: an engine
// goroutine, asleep in a futex while somebody polls or nothing happens, moves
// what nobody else does.
//
// # Limits
//
//	message                       1 GiB
//	SGEs of a work request        32
//	inline data                   1024 bytes
//	regions of a context          8192
//	RDMA_READ/atomics answered    16 at once (memory outside arenas; inside: no limit)
//	work requests of a queue      32768
//	inbox of a connected QP       76 KiB, allocated when it reaches RTR
//	QPs found by their bits       262144 places, of which a CQ takes 512, 1024, 2048, ...
//
// # Who may connect
//
// Processes of the same effective user (SO_PEERCRED, checked at both ends of a
// socket in the abstract namespace, which belongs to the network namespace).
// Peers then map each other's arenas writable: ranks of one job trust each other
// with registered memory, and the checks of keys and ranges there guard against
// mistakes. Control words and lengths that a peer writes are read once and
// checked before they are used; a broken peer breaks its own connections.
//
// # Leaving
//
// While a peer copies from or to a region it says so in the inbox that it reaches
// the QP by. Going to ERR or RESET withdraws the leave, which the peer looks at
// before each piece of at most 1 MiB, and then waits for the piece under way;
// deregistering a region does the same with its key. Both are bounded by
// [verbs.Config].PeerTimeout, for a peer may have been stopped in the middle: ERR is
// then reached all the same, and the region's memory is never used again. A
// payload that a peer has fetched from a QP that was leaving by then is not taken
// for a message.
//
// # Death
//
// The end of the control socket, which the kernel closes however a process ends,
// moves its peers' QPs to ERR. Nothing has a name in a file system: nothing can
// stay behind.
//
// # Deviations from hardware
//
// A QP whose peer's process has ended goes to ERR by itself; on hardware it would
// find out when it sends. Where only the peer's QP is gone (closed, reset, in ERR)
// it finds out when it sends, at once. There is no ACK timeout once connected: a
// stopped peer is waited for.
package shm
