// Package channel moves messages between the ranks of a job through channels that are
// declared once and started many times.
//
//	channel.Main(func(ctx context.Context, n *channel.Node) error { … }) // joins, reports an error, closes
//	memory, err := n.Alloc(size)                                         // moves without an intermediate copy
//	send, err := n.DeclareSend(channel.Contiguous(memory.Bytes()), peer) // once; the peer: DeclareReceive
//	err = send.Run(ctx)                                                  // as often as needed: Start, then Wait
//	err = world.Run(ctx, channel.Allreduce(channel.Sum, dst, src))       // a group: Node.World, Group.Split
//
// [Join] makes this process a [Node] of its job. The job was started by one of the
// launchers in docs/launchers.md, or is assembled by an IMPI server
// (SLUICE_IMPI_SERVER). [Node.DeclareSend] and [Node.DeclareReceive] fix the layout of
// a message and its peer; everything expensive (pinning and registering memory,
// connecting, exchanging layouts) happens then. [Handle.Start], [Handle.Test] and
// [Handle.Wait] afterwards cost little more than the hardware. [Handle.Done] is a channel
// for select.
//
// [Node.Send], [Node.Recv] and [Node.Sendrecv] move messages that are used once, and [Node.SendLayout] and its
// like those that are not contiguous.
//
// A program imports the providers that reach its peers. This imports all of them:
//
//	import _ "github.com/sluice-hpc/sluice/verbs/all"
//
// A job of one rank needs none.
//
// # Matching
//
// A stream is an ordered pair of ranks and a small number ([OnStream]). On each stream
// the k-th send started matches the k-th receive started, whichever handles they belong
// to. There are no tags and no wildcards. The two must have the same length; their
// layouts may differ. A rank can send messages to itself.
//
// # Buffer ownership
//
// From Start until Test or Wait reports completion, the bytes of the layout belong to
// the handle. A completed send means that its buffer may be reused, not that the
// message has been received: a message of up to 4 KiB is copied, and its send completes
// at once, as long as there is room.
//
// # How messages move
//
// Between ranks of one host that share memory (provider shm), a message of up to 56
// bytes travels in the cache line of its flag, one of up to 184 in that and one or two
// more. A larger one is copied once, straight from the sender's layout into the
// receiver's. The side that arrives second copies it; if both wait, both copy, in
// pieces of 128 KiB. A message of up to 4 KiB that arrives before its receiver waits in
// a ring instead.
//
// This holds for [Node.Alloc] memory, which both sides can access. All other memory is
// accessible only to its own process. (The same goes for a layout whose description
// exceeds 16 MiB, which is 460,000 irregular blocks, and for one of [Node.SendLayout] or
// [Node.RecvLayout] that is not that of the message before.) A receive into such memory is
// copied by the receiver, in Start, Test or Wait of any handle of the node; while the
// program computes, only if it has a channel of [Handle.Done] that is open. A send from
// such memory goes straight to a receiver that is waiting with Alloc memory. Otherwise
// a message of up to 4 KiB goes through the ring, and a longer one through a pipe: shared
// memory for each stream, which the sender packs and the receiver unpacks at the same
// time. If a message is longer than the pipe, the sender packs the rest in Start, Test or
// Wait of any handle of the node; if the program computes, the node packs it after a
// millisecond or two.
//
// Over a queue pair (providers ibv and tcp), messages of up to 8 KiB are copied at both
// ends, and a sender may be ahead by 32 of them on each stream. A larger one goes
// straight from layout to layout. A receiver that arrives first tells the sender where
// its memory is, and the sender writes there (RDMA_WRITE). A receiver that arrives
// second reads the message from the sender's memory (RDMA_READ), unless that consists
// of blocks of less than 16 KiB. Blocks below 8 KiB (1 KiB over ibv) are packed and
// unpacked; larger ones move directly between user memory and the network. While the
// program computes, the node makes progress for it. Large messages of a higher priority
// ([WithPriority]) overtake others; over shared memory, priorities only order the
// handles of a multiple.
//
// A send of up to 4 KiB is eager on every provider: it is complete without its receive, as long as
// no more than 14 others of its stream wait for theirs. Rely on no more: provider, settings and memory
// decide whether a longer one, or one that is further ahead, waits for its receive.
//
// When the first handle towards a peer is declared, the node tries the providers in
// order of preference until one reaches the peer. [WithProviders] sets the providers
// and their order; without it, the environment variable SLUICE_TRANSPORT
// ([EnvTransport]) does: "ibv,tcp", or a single name to force one. The choice is logged
// at level Debug, and each provider not used, with the reason, at level Info.
// [Node.Stats] has both, and 'sluice info --job' shows them for a whole job.
//
// For RDMA (provider ibv) a node opens the device whose network interface has the
// address that the peers talk over, else the one nearest to its CPUs; [WithDevices] and
// [WithConnect] override this. Two ranks have one queue pair, connected when something
// is declared between them. A network outage shorter than the retries goes unnoticed;
// an error that ends the queue pair also ends the peer.
//
// # Collectives
//
// [Node.World] is the group of all ranks; [Group.Split] makes others. A collective is
// an [Operation], made by [Barrier], [Broadcast], [Reduce], [Allreduce],
// [ReduceScatter], [Scan], [Exscan], [Gather], [Scatter], [Allgather], [Alltoall] or
// their variants for blocks of different lengths. [Group.Run] runs it once;
// [Group.Declare] declares it to be started many times. [SumExact] sums without
// rounding. Ranks of one host work in shared memory; others send messages, by the
// algorithm that the settings select ([WithTuning], docs/collectives.md). Collectives
// make progress only in Start, Test or Wait of a collective of the group, not while the
// program computes.
//
// # Failure
//
// When a peer dies, leaves or cannot be reached, every pending and later operation with
// it fails with an [*Error] that says so; messages whose send had completed are
// received first. Other peers are not affected. A deadline that passes
// ([Handle.WaitContext]) leaves the handle active. If the lengths of a matching send
// and receive differ, both fail, and that pair of starts is consumed; a send that has
// completed by then, as a short one does, fails at the next Start of its handle
// instead. If connecting reveals that a handle needs more than the provider offers,
// only that handle fails, with the provider's error; the matching operation at the peer
// fails with [ErrLength].
//
// # Memory
//
// A rank takes about 1.5 MiB of shared memory, where there is any, and 300 bytes for
// each rank of the job. Over shm, a connected peer takes 60 KiB of heap, 76 KiB of
// shared memory and three descriptors, plus 85 KiB of shared memory for each stream to
// it, and if that stream has a pipe as much as the second-level cache of a CPU has, up to
// 2 MiB; from the third of the node on, 256 KiB. A stream gives this back, to the system, when both
// ends have closed its handles and all messages have been received; [Node.Send] and [Node.Recv]
// keep theirs. Over tcp, a connected peer takes 0.5 MiB
// of heap and two descriptors. The buffers for sends and receives over tcp and ibv are
// shared by all peers of a device: 1.5 MiB of registered memory, which grows with the
// number of messages in flight. A group takes 0.9 MiB of shared memory at each member, and less
// if it has more than 8: 230 KiB from 64 on.
// Either end of a stream may be ahead by any number of starts. The other end keeps up to 64 of them over
// shm; over a queue pair 32 messages of up to 8 KiB, and the announcements, or gates, of 1,024 longer
// ones. The others stay where they were started, and take at most 300 bytes each beside the handle.
// User memory is registered once, however many layouts lie in it. Ranks that never
// communicate are not connected. docs/scale.md has the measurements.
//
// # Trust
//
// On control connections and provider connections, each side first proves to the other
// that it knows the secret of the job. The connections are not encrypted.
package channel
