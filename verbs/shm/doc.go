// Package shm is the verbs provider between the processes of one host, over
// shared memory. Importing it registers the provider "shm" with one device, "shm0".
// It works only on Linux; elsewhere the probe says so.
//
//	import _ "github.com/sluice-hpc/sluice/verbs/shm"
//
//	device, err := verbs.Find("shm0")
//	context, err := device.Open(verbs.Config{}) // then as in package verbs: PD, CQ, QP, PostSend, Poll
//
// # How it works
//
// The CPUs of sender and receiver act as the two adapters. Each QP has an inbox: a ring
// of one-cache-line slots that only the peer writes. A message whose payload fits the
// slot travels in that one line; its valid flag is the slot's sequence number, so no
// slot is ever cleared and no index is shared. For a larger message the slot holds a
// description, and the receiver copies the message once, from the sender's registered
// memory straight into its receive buffer. RDMA_WRITE, RDMA_READ and atomics on memory
// from [verbs.PD.AllocMR] need no CPU of the target: the initiator accesses it through
// its own mapping, after checking the key in the target's table.
//
// AllocMR memory is in arenas: sealed, fully allocated memfds that peers map. Memory in an
// arena of another context of the process may be registered, too, and is mapped as one's own.
// Such regions must be closed before the owner's: else its Close returns [verbs.ErrBusy], and
// the memory is never freed. The receiving side reads other memory with process_vm_readv(2).
// Where that is forbidden, and for small messages, the bytes are copied through the ring.
//
// Polling a CQ of up to 8 QPs checks the inbox of each. With more QPs, a peer that
// writes to an inbox also sets a bit for it, and polling checks the bits: the cost of an
// empty poll does not grow with the number of QPs.
//
// A process that only computes does not hold up its peers: an engine goroutine makes
// progress while the program does not poll. It sleeps in a futex while a CQ is being polled or
// there is nothing to do.
//
// # Limits
//
//	message                       1 GiB
//	SGEs of a work request        32
//	inline data                   1024 bytes
//	regions of a context          8192
//	RDMA_READ/atomics executed    16 at once on memory outside arenas; inside: no limit
//	work requests of a queue      32768
//	inbox of a connected QP       76 KiB, allocated when the QP reaches RTR
//	QPs found by their bits       262144 bits in all; a CQ takes 512, 1024, 2048, ...
//
// # Access control
//
// Processes of the same effective user in the same network namespace: the control
// socket is in the abstract namespace, and both ends check SO_PEERCRED. Connected peers
// map each other's arenas writable. The ranks of a job must therefore trust each other
// with registered memory; the checks of keys and ranges there only guard against
// mistakes. Control words and lengths that a peer writes are read once and checked
// before use; a faulty peer breaks only its own connections.
//
// # Leaving
//
// While a peer copies from or to a region, it marks that in the inbox through which it
// reaches the QP. Before each piece of at most 1 MiB it checks that it still may. A QP
// that goes to ERR or RESET revokes that permission and then waits for the piece in
// flight; deregistering a region does the same with its key. Both wait at most
// [verbs.Config].PeerTimeout, because the peer may be stopped in mid-copy: after that
// the QP is in ERR nevertheless, and the region's memory is never reused. A payload that
// a peer fetched from a QP that was already leaving is discarded.
//
// # Death
//
// However a process ends, the kernel closes its control sockets, which moves its peers'
// QPs to ERR. No object has a name in a file system, so none can be left behind.
// [verbs.QP.Cause] wraps [verbs.ErrPeerDied] then. A process that cannot map an arena of its
// peer, for want of a descriptor or of address space, moves its own QPs to ERR, with that as
// the cause; the peer may still run, and reach memory of this process.
//
// # Deviations from hardware
//
// A QP goes to ERR as soon as its peer's process has ended; on hardware it would find out
// when it sends. If only the peer's QP is gone (closed, reset, in ERR), the next send
// fails, at once. A connected QP has no ACK timeout: it waits for a stopped peer.
package shm
