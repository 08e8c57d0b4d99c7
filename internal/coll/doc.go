// Package coll holds the algorithms of collectives between processes: which
// messages each member of a group sends and receives, in which order, and where it
// combines them. It moves nothing itself and knows no channel.
//
//   - [Shape] is one collective as one member sees it.
//   - [Settings] are what all members have agreed on; [Settings.Choose] takes the
//     [Algorithm] from them.
//   - [Build] makes the [Schedule] of one member: rounds of messages and local steps.
//   - [Run] carries a schedule out, again and again, over a [Carrier].
//   - [Cost] counts messages, bytes and depth by formulas; [LogGP.Estimate] is the
//     time that the same schedules take on a network of given parameters.
//   - [Placement] says which members share a host, for collectives of two levels.
//
// # What a schedule promises
//
// Matching: messages have no tags. The k-th message that a member sends to another
// is the k-th that the other receives from it.
//
// Progress: a round is over when its messages are, and then the next begins. That
// never stands still, also where a send is over only when its receiver has started
// to receive. A round has at most [MaxRound] messages.
//
// Order: an ordered reduction (not commutative) combines members by rank, the lower
// on the left; only the grouping is the algorithm's.
//
// Bits: the order and the grouping of a reduction are those of the shape and the
// algorithm, whatever the timing, and where several members compute the same value
// they compute it in the same way. So the result is the same bits on every member
// and in every run, if the function that combines is a function of its bytes.
package coll
