// Package channel moves messages between the ranks of a job through channels that
// are declared once and started again and again.
//
// [Join] makes this process a [Node] of its job, which any of the launchers of
// docs/launchers.md has started, or an IMPI server brings together
// (SLUICE_IMPI_SERVER). [Node.DeclareSend] and
// [Node.DeclareReceive] say once what a message consists of and who the peer is:
// everything that is expensive (pinning and registering memory, connecting,
// exchanging layouts) is done then. [Handle.Start], [Handle.Test] and
// [Handle.Wait] then cost little more than the hardware.
//
// A program imports the providers that reach its peers, all of them with
//
//	import _ "github.com/sluice-hpc/sluice/verbs/all"
//
// or one by one; a job of one rank needs none.
//
// # Matching
//
// A stream is an ordered pair of ranks and a small number ([OnStream]). On each
// stream the k-th send that is started meets the k-th receive that is started,
// whichever handles they are of. There are no tags and no wildcards. The two must
// have the same length; layouts may differ. Messages to oneself are messages like
// any other.
//
// # Whose buffer it is
//
// From Start until Test or Wait has said that the message is over, the bytes of
// the layout belong to the handle. A send that is over says that its buffer may be
// reused, not that the message has been received: up to 4 KiB (8 KiB over a queue
// pair) it is copied and over at once, as long as there is room.
//
// # How messages move
//
// Between ranks of one host that share memory (provider shm) a message of up to 56
// bytes travels in the cache line of its flag. A larger one is copied once, from the
// sender's layout straight into the receiver's, by whichever side comes second, or
// by both in pieces of 128 KiB when both wait; but up to 4 KiB of one that comes
// before its receiver wait in a ring.
//
// So it is with memory of [Node.Alloc], which both sides reach. Other memory only
// its own process reaches (and so it is with layouts that take more than 16 MiB to
// tell, 460,000 blocks without regularity). A receive into it is copied by the
// receiver: in Start, Test or Wait of any handle of the node, not while he computes.
// A send from it goes straight to a receiver who waits with memory of Alloc, up to
// 4 KiB through the ring, and else through a pipe: 256 KiB of shared memory of the
// stream, which the sender packs and the receiver unpacks at the same time. Of a
// longer message the sender packs the rest when he comes back, in Start, Test or
// Wait of any handle of the node; for one who computes the node does, after a
// millisecond or two.
//
// Over a queue pair (providers ibv and tcp) messages of up to 8 KiB are copied at both ends,
// and a sender may be ahead by 32 of them on each stream. A larger one goes straight
// from layout to layout: a receiver that comes first tells where its memory is, and
// the sender writes there (RDMA_WRITE); one that comes second reads it where the
// sender has it (RDMA_READ), unless that is in pieces of less than 16 KiB. Blocks
// below 8 KiB, over ibv 1 KiB, are packed and unpacked, others go from user memory to the network and
// from the network to user memory. What the user leaves while it computes the node
// does. Larger messages of a higher priority ([WithPriority]) overtake others; over
// shared memory priorities only order the handles of a multiple.
//
// Which provider reaches which peer is found out by trying, in the order of
// preference, when something is first declared towards that peer. [WithProviders]
// gives the providers and their order, and where the program does not, the variable
// SLUICE_TRANSPORT of the environment ([EnvTransport]): "ibv,tcp", or one that is
// forced. What was chosen is logged at level Debug, what was not, and why, at level
// Info; [Node.Stats] has both, and 'sluice info --job' shows them for a whole job.
//
// For RDMA (provider ibv) a node opens the device whose network interface has the
// address that the peers talk over, else the one nearest to its CPUs; [WithDevices]
// and [WithConnect] say otherwise. Two ranks have one queue pair, connected when
// something is declared between them. A network that is away for less than the retries
// take is not noticed; what ends a queue pair ends the peer.
//
// # Collectives
//
// [Node.World] is the group of all ranks, [Group.Split] makes others. A collective is an
// [Operation], made by [Barrier], [Broadcast], [Reduce], [Allreduce], [ReduceScatter],
// [Scan], [Exscan], [Gather], [Scatter], [Allgather], [Alltoall] and those for blocks of
// different lengths. [Group.Run] calls it; [Group.Declare] declares it, to be started
// often. [SumExact] sums without rounding. Ranks of one host work in shared memory;
// others send messages, by the algorithm that the settings choose ([WithTuning],
// docs/collectives.md). What is under way is moved on by whoever is in Start, Test or
// Wait of a collective of the group, not while the user computes.
//
// # Failure
//
// When a peer dies, leaves or cannot be reached, every pending and later operation
// with it ends with an [*Error] that says so; messages whose send was complete
// before are received first. Other peers are not affected. A deadline that passes
// ([Handle.WaitContext]) leaves the handle active. A difference in length uses up
// the pair of starts and is an error at both ends. A handle that turns out, when its
// peer is connected, to need more than its provider has fails alone: with what the
// provider says, and what it meets at the other side with [ErrLength].
//
// # Memory
//
// A rank takes about 1.5 MiB of shared memory where there is any, and 300 bytes for
// each rank of the job. A connected peer takes 60 KiB of heap, 76 KiB of shared
// memory, 72 KiB more for each stream that leads to it over shm and 256 KiB where
// that has a pipe, with three descriptors; 0.5 MiB of heap and two descriptors over
// tcp. What is sent from and received into over tcp or ibv is shared by all
// peers of a device: 1.5 MiB that are registered, and grow with what is under way at the same time.
// A group takes 200 KiB of shared memory at each member.
// User memory is registered once, however many layouts lie in it. Ranks that never
// talk are not connected. docs/scale.md has the measurements.
//
// # Trust
//
// Control connections and provider connections prove the secret of the job both
// ways before anything else counts. They are not encrypted.
package channel
