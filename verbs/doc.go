// Package verbs is the RDMA verbs model in Go: devices, contexts, protection
// domains (PD), memory regions (MR), completion queues (CQ), reliable-connected
// queue pairs (RC QP), shared receive queues (SRQ), work requests (WR) and work
// completions (WC).
//
//	context, err := device.Open(verbs.Config{})        // of Devices or Find
//	mr, err := pd.AllocMR(size, verbs.AccessAll)       // or RegMR, of memory of the program
//	qp, err := pd.CreateQP(verbs.QPInitAttr{…})        // then Connect
//	accepted, err := qp.PostSend([]verbs.SendWR{{…}})  // or PostRecv
//	n, err := cq.Poll(completions)                     // or Wait
//
// Names and meanings are those of libibverbs (rdma-core,
// libibverbs/man); where Go's form differs, the comment says so:
//
//   - a function that takes a chain of work requests in C takes a slice here and
//     returns how many it accepted. A full queue shortens that count; it is never
//     an error;
//   - immediate data is a uint32 in host byte order; it is big-endian on the wire;
//   - Close destroys an object. It returns [ErrBusy] while other objects depend on
//     this one; [Context.Close] closes everything beneath the context in order;
//   - the library acknowledges events ([CompChannel.Get], [Context.AsyncEvent])
//     itself.
//
// A provider moves the bytes: verbs/shm (ranks of one host), verbs/tcp (sockets),
// and others. A program imports the providers it wants, or verbs/all; importing a
// provider registers it, as with database/sql drivers.
//
// # Addresses
//
// As in libibverbs, a work request names memory by its address in the process
// that registered it, plus a key. [MR.SGE] and [MR.Addr] compute these. Every
// access, local or remote, is checked against the region of the key; an address
// outside a live region never touches memory.
//
// # Concurrency
//
// All methods of all types are safe for concurrent use. Posting and polling do
// not allocate; on shared memory and RDMA hardware they make no system call
// while the peer is awake.
//
// # Completion
//
// As on hardware, a send-side work completion with status [WCSuccess] means that
// the peer has executed the operation: the data is in the peer's memory, or in
// the receive buffer that the operation consumed. Completions of one QP arrive in
// posting order. The completion of a signalled operation implies that all earlier
// operations of the same queue are complete.
package verbs
