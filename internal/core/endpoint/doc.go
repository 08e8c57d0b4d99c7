// Package endpoint is the contract between what moves bytes to a peer and what gives them a
// meaning, and the part of it that is the same on every medium: order, repetition after a
// failure, room, and the end.
//
// An [Endpoint] is one process's end of its connection with one other process of the job;
// there is one for each pair of processes, whatever uses it. It offers
//
//   - active messages ([Endpoint.Send]): a handler, an argument and a payload. Those of a
//     stream run their handlers in the order in which they were sent, each exactly once.
//     Streams are independent of each other. A short message is copied before Send returns;
//     a buffered one is referred to until it is done.
//   - put and get of layouts ([Endpoint.Put], [Endpoint.Get]): bytes between memory of this
//     process and memory that the peer has exposed, without the peer's doing. A put ends in a
//     message of its stream, which runs when all of its bytes can be seen. Nothing orders a
//     get behind what was sent before it: it waits for that to be done where it has to.
//   - map ([Endpoint.Map]): memory of the peer that this process can load and store.
//
// # Paths
//
// How bytes reach the peer is a [Path]: a queue pair, a segment of shared memory, a
// connection. An endpoint has a set of paths, which may grow, shrink and be replaced while
// messages are under way. A stream uses one path at a time, the one that it was bound to when
// it had nothing under way, so that order is the path's business.
//
// A path that breaks ends nothing that another one can carry on:
//
//	      break, or the peer's RESUME for it
//	OPEN ────────────────────────────────────▶ FENCED ──── the peer's RESUME ────▶ GONE
//	                                             │ RESUME is sent, on another path,
//	                                             ▼ as soon as there is one
//
// A fenced path delivers nothing any more, and nothing that was sent on it touches memory of
// this process: [Path.Fence] sees to that. RESUME says so, and how many messages of each of
// its streams have been taken. Only when both sides have said it are the messages that the
// other side has not taken sent again, in order, on another path. That a message is repeated
// only behind the fence is why none is ever run twice, and why a put can simply be done once
// more: what it writes to is not given back before its message has run.
//
// An endpoint without a path waits for one. How long is for its owner to say
// ([Endpoint.Fail]), which also makes the paths ([Endpoint.Add]).
//
// # Room
//
// Every message has a number in its stream, and every header the watermark of the stream of
// the same number the other way: how many of its messages have been taken, that is, how many
// handlers have returned. A sender keeps what is above the watermark, at most [Window]
// messages of a stream. Send then answers that there is no room now; nothing has happened,
// and [Config.Room] is called when there is. Being ahead is never an error.
//
// # The end
//
//	         Add                     BYE, all messages before it taken
//	WAITING ◀──────▶ UP ─────────────────────────────────────────────▶ LEFT
//	   │    last path │
//	   │    breaks    │ Fail                                            Close, from any state
//	   └──────────────┴──────────▶ DEAD                                 ──────────▶ CLOSED
//
// A peer that has left is not dead: what it had sent has been taken, and what is sent to it
// fails with [ErrLeft]. Everything under way to a dead one fails with what it died of.
//
// # Concurrency
//
// All methods may be called by several goroutines at once. Handlers, Done and Room are called
// without locks held, in the goroutine that drives a path, and must not block; they may call every
// method but Close. Handlers of one stream never run at the same time.
package endpoint
