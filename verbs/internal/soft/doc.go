// Package soft holds the parts that software providers share: the table of memory
// regions, completion queues and channels, send and receive queues, the state of a QP,
// and asynchronous events. A provider embeds these and adds the wire protocol.
//
// Locks, from the outside in. The holder of one takes only those below it:
//
//	QP.Lock           everything of one QP; posting waits for it, polling only tries
//	RecvQueue, CQ     leaves, held for a few instructions
//
// Polling never waits for a QP's lock: its holder makes progress on the QP's work, or
// is followed by the provider's engine, which does wait.
package soft
