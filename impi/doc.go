// Package impi implements IMPI 0.0, Interoperable MPI: processes of several MPI implementations
// form one job and exchange messages with MPI's semantics (tags, wildcards, probes, cancellation,
// communicators).
//
//	job, err := impi.FromNode(ctx, node, impi.Config{})  // or Join
//	world := job.World()
//	err = world.Send(ctx, data, dest, tag)
//	status, err := world.Recv(ctx, buf, impi.AnySource, impi.AnyTag)
//	request, err := world.Isend(data, dest, tag)         // or Irecv
//	status, err = request.Wait(ctx)
//
// A job starts in one of two ways. [Join] makes this process a client of an IMPI server (`sluice
// server`, package startup), alongside other programs that use this package and foreign MPI
// implementations such as LAM/MPI. [FromNode] makes a job of the ranks of a [channel.Node], without
// a server.
//
// Two terms follow the protocol. A process is a rank of the job. A host is whatever listens at one
// address: in this package an operating system process, which holds one or more ranks
// ([Config.Processes]).
//
// # Messages
//
// Among the messages that match a receive, those from one process in one communicator are received
// in the order in which they were sent. A message of at most the packet length (64 KiB unless
// [Config.PacketLen] says otherwise) is eager: its send completes whether or not the message is
// received, wherever the two processes run. Of a longer message only the first packet is sent at
// once; the rest moves directly from memory to memory after a receive has matched. Messages that
// match no receive wait in memory bounded by [Config.Unexpected].
//
// A message is bytes. Elements of any type without pointers are sent as [channel.Bytes]; a
// [channel.Layout] ([Comm.IsendLayout], [Comm.IrecvLayout]) has counts and strides in elements. The
// elements of collectives are typed.
//
// A long message in ordinary memory is copied through an intermediate buffer, or its memory is
// registered with a device for this one message. A message between two pieces of memory of [Job.Alloc]
// or [channel.Node.Alloc] needs neither.
//
// # Collectives
//
// [Comm.Run] runs the collectives of package channel. If all members are processes of this package,
// it chooses the algorithm by message size and number of members, as channel does
// (docs/collectives.md).
//
// With foreign members, collectives work as the protocol describes and LAM/MPI implements them:
// each client uses its own means inside, and one process of each client talks to the other clients,
// linearly up to [Config.MaxLinear] clients and along a binomial tree beyond. Allreduce is a
// reduction to rank 0 followed by a broadcast. LAM/MPI 7.1.4 has no variants for long messages
// here, whatever [Config.XSize] was agreed, and neither has this package. LAM/MPI sends the
// messages of reductions in the user's context with tag 190. In the world of a job with foreign
// processes that tag is therefore reserved: receives and probes with [AnyTag] do not match it, and
// user messages should not use it.
//
// Only the world can have foreign members. [Comm.Ours] is the communicator of all other processes.
//
// # Progress
//
// A call that tests or waits makes progress on every operation of the job. While the program
// computes, a background goroutine makes progress within milliseconds.
package impi
