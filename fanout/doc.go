// Package fanout hands chunks of data to the workers that ask for them: the pull-based
// fan-out of detector read-outs and task farms.
//
//	err := fanout.Map(ctx, comm, in, f, out)  // the common case: all of what follows in one call
//	supplier, err := fanout.NewSupplier(comm) // rank 0; End sends each worker one end
//	err = supplier.Send(ctx, header, body)    // to the next worker that asks
//	client, err := fanout.NewClient(comm)     // every other rank
//	chunk, err := client.Receive(ctx)         // io.EOF after the end; then Bytes, and Release
//
// A [Supplier] gives each chunk to the worker that asked first; a [Client] is the worker's side.
// Both use a communicator of package impi.
//
// # On the wire
//
// Without options the protocol is that of NSCLDAQ's CMPIFanoutTransport, so programs of
// other MPI implementations, joined by IMPI, can be at either end. A worker sends an empty
// message with [TagRequest]. The answer is a chunk, its parts gathered into one message with
// [TagData], or an empty message with [TagEnd]. A worker is identified by its rank. [Workers]
// tells the supplier in advance which ranks may ask, so that each gets exactly one end.
//
// Between processes of this package the tags from 16 up add more. A worker can leave
// ([Client.Leave]). A [Numbered] worker asks for several chunks at once, gets them with their
// sequence numbers, several small ones in one message ([Batch]), and acknowledges them. The
// supplier answers each worker in the dialect of its request, except that a supplier that
// keeps chunks sends sequence numbers to every worker that uses this package.
//
// # Nothing lost, nothing twice
//
// With [Redeliver] a supplier keeps every chunk until it has been acknowledged, and gives the
// chunks of a worker that dies to others. Each chunk is then processed at least once,
// whatever the options of the clients. Workers of other implementations need [OneAtATime].
// With [Results] workers send their results to a [Collector], which returns them in the order
// of their chunks, drops duplicates, and acknowledges each result that its user has
// released: each result comes out exactly once.
//
// # Bounds
//
// Nothing grows without limit. [Supplier.Send] returns when a worker has taken the chunk
// or, with a [Queue], when the chunk is in the queue. [Unacknowledged] bounds how far workers
// get ahead of the slowest one, and [Reorder] bounds what a collector keeps. The length that
// a peer announces for a message is checked against [Longest] or [LongestResult] before
// memory is allocated for it.
//
// docs/fanout.md describes the dialects byte by byte, and has measurements.
package fanout
