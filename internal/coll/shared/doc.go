// Package shared has the algorithms of collectives between processes that load and
// store each other's memory: the members of a group on one host.
//
// Each member owns a [Segment] that the others have mapped. An operation has a sequence
// number, the same at all members, and a slot in each segment. A member publishes its
// input there, once, and computes its result from what the others have published. No
// member writes to another's segment, and nothing is cleared: every line carries the
// number of its operation.
//
//	member 0            member 1            member 2
//	up: 3, my part      up: 3, my part      up: 3, my part       published
//	  all read what they need, and combine it in member order
//	done: 3             done: 3             done: 3              the slot may be reused
//
// The input of a member is in the line of its flag (up to [Inline] bytes), in the
// slot's data (up to [DataSize]), or stays in user memory if the others can access that,
// or where the results go: then members copy and reduce straight from memory to memory,
// and signal completion in a second line, down: see way. Longer inputs otherwise go
// through three buffers of the segment, piece by piece. In a reduction for several members
// each one reduces its share of a piece, and publishes it in its buffer: see down.
//
// With more than [Flat] members, short inputs are combined along a tree instead, so
// that no member reads more than [Radix] lines.
package shared
