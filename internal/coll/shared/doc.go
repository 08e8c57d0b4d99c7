// Package shared has the algorithms of collectives between processes that load and
// store each other's memory: the members of a group on one host.
//
// Each member owns a [Segment] that the others have mapped. An operation has a
// sequence number, the same at all members, and a slot in each segment; a member
// publishes what it gives there, once, and computes what it wants from what the
// others have published. Nobody writes to another's segment, and nothing is
// cleared: every line says which operation it belongs to.
//
//	member 0            member 1            member 2
//	up: 3, my part      up: 3, my part      up: 3, my part       published
//	  all read all that they need, and compute in the order of the members
//	done: 3             done: 3             done: 3              the slot may be used again
//
// What each gives is in the line of its flag (up to [Inline] bytes), in the slot's
// data (up to [DataSize]), or stays where the user has it, if all can reach it: then
// each member does its share straight from memory to memory, and says so in a second
// line, down. Longer parts that cannot be reached go through four buffers of the
// segment, piece by piece.
//
// With more than [Flat] members what is short is combined along a tree instead, so
// that nobody looks at more than [Radix] lines.
package shared
