// Package startup implements the startup protocol of IMPI 0.0, Interoperable MPI (draft of 22 March
// 1999, chapter 2), through which the clients of a job find each other with the help of a server.
//
//	result, err := (&startup.Server{Clients: 2, Key: key}).Serve(ctx, listener)
//
//	job, err := startup.Dial(ctx, "host:7000", startup.Config{Rank: 0, Key: key, Hosts: hosts})
//	n := job.PacketLen(a, b)                   // what two processes have agreed on
//	err = job.Finish()                         // then job.Close
//
// A client is the processes of one MPI implementation, on one or more hosts. What the hosts send each
// other afterwards is not part of the protocol.
//
// All integers are big-endian. A command has a header, which holds its name in four letters and the
// number of bytes that follow:
//
//	client                                server
//	  AUTH  methods            ─────────▶
//	                           ◀─────────   which method, 0     (no header)
//	  key                      ─────────▶                       (KEY only; no header)
//	  IMPI  rank               ─────────▶
//	                           ◀─────────   IMPI  size          once all clients have joined
//	  COLL  label, data        ─────────▶
//	                           ◀─────────   COLL  label, mask, all data
//	  ...one for each label, in ascending order
//	  DONE                     ─────────▶
//	                           ◀─────────   DONE                once all clients have sent it
//	  ...the job runs
//	  FINI                     ─────────▶
//
// AUTH has the form of the later revision of the report, which the implementations use. In the
// draft of 1999 the command carries the key and has no answer; the server distinguishes the two
// forms by their length and accepts both.
//
// The server answers a label once every client has sent that label, a higher one, or DONE. The
// answer is the concatenation of the data in ascending order of the clients that sent it; their
// bits are set in the mask. It goes to all clients except those that had sent DONE before it. All
// labels are alike to the server. Clients of this package submit the labels of the protocol, then
// [LabelSluice], by which they recognize each other, then those of [Config.Extra]. A foreign client
// that submits the protocol's labels and DONE sees none of the latter.
//
// If a client breaks a rule, for example by submitting a label twice, the server disconnects it,
// names it in the log and in the result, and continues as if it had sent DONE. The other clients
// see that its bit is missing from the masks.
//
// docs/impi.md lists the deviations from the report.
//
// # Limits
//
// A job has at most 32 clients ([MaxClients]), with as many hosts and processes as the server's
// limits allow: the default [Server.MaxLabelBytes] of 1 MiB admits 65,536 processes per client. The
// server trusts neither the lengths nor the order nor the pace of what it receives. The protocol
// does not encrypt anything, including the key: use it only on networks with users you trust that
// far.
package startup
