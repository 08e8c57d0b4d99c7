// Package verbs is the RDMA verbs model in Go: devices, contexts, protection
// domains (PD), memory regions (MR), completion queues (CQ), reliable-connected
// queue pairs (RC QP), shared receive queues (SRQ), work requests (WR) and work
// completions (WC). Names and meanings are those of libibverbs (rdma-core,
// libibverbs/man); where Go's form differs, the comment says so:
//
//   - a function that takes a chain of work requests in C takes a slice here and
//     returns how many it took. "No room now" is that number being short, never
//     an error;
//   - immediate data is a plain uint32 in host order; what travels is big-endian;
//   - destroying an object is Close. An object that others still use answers
//     [ErrBusy]; [Context.Close] takes everything beneath it down in order;
//   - acknowledging an event ([CompChannel.Get], [Context.AsyncEvent]) is done by
//     the library.
//
// What actually moves the bytes is a provider: verbs/shm (ranks of one host),
// verbs/tcp (sockets), and others. A program imports the providers that it
// wants, or verbs/all, for their side effect of registering, as with
// database/sql drivers.
//
// # Addresses
//
// A work request names memory as libibverbs does: by the address in the process
// that registered it, plus a key. [MR.SGE] and [MR.Addr] compute them. Every
// access, local or remote, is checked against the region of the key; an address
// that is not inside a live region never touches memory.
//
// # Concurrency
//
// All methods of all types may be called from several goroutines at once.
// Posting and polling do not allocate, and on shared memory and RDMA hardware
// they make no system call while the peer is awake.
//
// # Completion
//
// A work completion with status [WCSuccess] for a send-side operation means, as
// on hardware, that the peer has executed it: the data lies in the peer's
// memory, or in the receive buffer that it consumed. Completions of one QP
// arrive in posting order. An unsignalled operation is known to be complete when
// a later signalled one of the same queue completes.
package verbs
