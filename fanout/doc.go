// Package fanout hands chunks of data to workers that ask for them: pull-based fan-out,
// as detector read-outs and task farms use it. A [Supplier] gives each chunk to whichever
// worker asked first, a [Client] is the worker's side, over a communicator of package impi.
//
//	supplier, err := fanout.NewSupplier(comm)       // rank 0
//	err = supplier.Send(ctx, header, body)          // to the next that asks
//	err = supplier.End(ctx)                         // one end for each worker
//
//	client, err := fanout.NewClient(comm)           // all others
//	chunk, err := client.Receive(ctx)               // io.EOF after the end
//	use(chunk.Bytes())
//	chunk.Release()
//
// # On the wire
//
// Without options this is what the CMPIFanoutTransport of NSCLDAQ does, so that programs
// of other MPI implementations, joined by IMPI, may be at either end: a worker sends an
// empty message with [TagRequest], and is answered by a chunk, its parts gathered into one
// message, with [TagData], or by an empty message with [TagEnd]. A worker is known by its
// rank. Its first request makes it known; the supplier is told beforehand, by [Workers],
// who may ask, so that each gets exactly one end.
//
// Between processes of this package there is more, under tags of 16 and above: a worker
// leaves ([Client.Leave]); a [Numbered] one asks for several chunks at once, gets them with
// their sequence numbers, several small ones in one message ([Batch]), and acknowledges
// them. The supplier answers each worker in the dialect in which it asks, but where it
// keeps chunks it numbers those of all workers of this package.
//
// # Nothing lost, nothing twice
//
// A supplier that is to [Redeliver] keeps every chunk until it has been acknowledged. Of a
// worker that dies the chunks go to others: each chunk is worked on at least once, whatever
// the options of clients. Workers of other implementations need [OneAtATime]. A
// [Collector], which results are sent to by [Results], puts them back in the order of
// the chunks, drops what comes twice, and acknowledges what its user has taken: each
// result comes out exactly once.
//
// # Bounds
//
// Nothing grows without limit. [Supplier.Send] returns when a worker has taken the chunk,
// or, with a [Queue], when there is room in it. [Unacknowledged] bounds how far workers
// get ahead of the slowest, and [Reorder] what a collector keeps. What a peer says of the
// length of a message is held to [Longest] and [LongestResult] before memory is allocated
// for it.
//
// docs/fanout.md has the dialects byte by byte, and what the figures are.
package fanout
