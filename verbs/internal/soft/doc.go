// Package soft holds what the providers that implement verbs in software share:
// the table of memory regions, completion queues and channels, send and receive
// queues, the state of a QP, and asynchronous events. A provider embeds these
// and adds the wire.
//
// Locks, from the outside in. A holder of one takes only those below it:
//
//	QP.Lock           everything of one QP; posting waits for it, polling only tries
//	RecvQueue, CQ     leaves, held for a few instructions
//
// Polling never waits for a QP: whoever holds it moves its work forward or will
// be followed by the provider's engine, which does wait.
package soft
