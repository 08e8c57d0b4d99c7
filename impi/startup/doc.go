// Package startup is the startup protocol of IMPI 0.0, Interoperable MPI (draft of
// 22 March 1999, chapter 2): how the clients of a job, each of them the processes of
// one MPI implementation on one or many hosts, find each other through a server.
// [Server] is that server, [Dial] a client. What hosts then say to each other is not
// part of it.
//
// All integers are big-endian. A command has a header, its name in four letters and
// the number of bytes that follow:
//
//	client                                server
//	  AUTH  methods            ─────────▶
//	                           ◀─────────   which method, 0     (no header)
//	  key                      ─────────▶                       (KEY only; no header)
//	  IMPI  rank               ─────────▶
//	                           ◀─────────   IMPI  size          when all clients have come
//	  COLL  label, data        ─────────▶
//	                           ◀─────────   COLL  label, mask, all data
//	  ...one for each label, in ascending order
//	  DONE                     ─────────▶
//	                           ◀─────────   DONE                when all clients have sent it
//	  ...the job runs
//	  FINI                     ─────────▶
//
// AUTH is that of the later revision of the report, which its implementations speak.
// In the draft of 1999 the command carries the key, and is not answered; the server
// tells by the length, and takes both.
//
// A label is answered once every client has sent it, or a higher one, or DONE. The
// answer is the concatenation of the data in ascending order of the clients that sent
// it, whose bits are in the mask. It goes to all clients but those that had sent DONE
// before it. To the server all labels are alike; clients of this package submit those of
// the protocol, then [LabelSluice], by which they know each other, then those of
// [Config.Extra]. A foreign client that submits the protocol's labels and DONE sees nothing
// of the latter.
//
// A client that breaks a rule, like one that submits a label twice, is refused: the
// server cuts it off, names it in log and result, and goes on as if it had sent DONE. The
// others find it missing in the masks.
//
// Where this differs from the report is in docs/impi.md.
//
// # Limits
//
// A job has 32 clients at most ([MaxClients]), with any number of hosts and
// processes that fit the server's limits: [Server.MaxLabelBytes] of 1 MiB are 65,536
// processes a client. The server trusts no length, no order and no pace of what it is
// sent. Nothing of the protocol is encrypted, a key included: it is for networks
// whose users trust each other that far.
package startup
