// Package impi is IMPI 0.0, Interoperable MPI: the processes of several MPI
// implementations in one job, and messages between them with MPI's semantics: sends
// and receives with tags, wildcards, probes, cancelling, communicators.
//
// A job comes about in one of two ways. [Join] makes this process one of the clients
// of an IMPI server (`sluice server`, package startup), next to other programs of this
// package and to foreign MPI implementations such as LAM/MPI. [FromNode] makes a job of
// the ranks of a [channel.Node], without a server.
//
// # Messages
//
// Messages from one process to another in one communicator are received in the order
// in which they were sent, among those that a receive matches. A message of at most
// the packet length (64 KiB unless [Config.PacketLen] says otherwise) is eager: its
// send is complete whether or not it is received, wherever the processes are. Of a
// longer one the first packet leaves, and the rest goes straight from memory to memory once a
// receive has met it. What meets no receive waits in memory that is bounded
// ([Config.Unexpected]).
//
// Long messages between ordinary pieces of memory go through memory in between, or are
// registered with a device one by one. Between pieces of [Job.Alloc] they do not.
//
// # Collectives
//
// [Comm.Run] carries out the collectives of package channel. Where all members are
// processes of this package it takes the algorithms by size and members, as channel
// does (docs/collectives.md).
//
// With foreign processes they are what the protocol describes and LAM/MPI does: within
// each client by its own means, and between one process of each client, linear up to
// [Config.MaxLinear] clients and a binomial tree beyond. Allreduce is a reduction to
// rank 0 and a broadcast from there. LAM/MPI 7.1.4 has no variants for long messages
// here, whatever the agreed [Config.XSize], and neither has this package. LAM/MPI lets
// the messages of reductions travel among those of the users, with tag 190. So in the
// world of a job with foreign processes that tag is the reductions': receives and
// probes with [AnyTag] do not meet it, and messages of users should have another.
//
// Communicators other than the world cannot have foreign members. [Comm.Ours] is that of
// all other processes.
//
// # Progress
//
// Whoever tests or waits moves on all that can be moved. While users compute, a
// goroutine does, within milliseconds.
package impi
