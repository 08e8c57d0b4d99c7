// Package coll holds the algorithms of collectives between processes: which messages
// each member of a group sends and receives, in which order, and where it combines
// them. It transfers nothing itself and does not depend on package channel.
//
//   - [Shape] is one collective as one member sees it.
//   - [Settings] are the agreed settings of all members; [Settings.Choose] selects an
//     [Algorithm].
//   - [Build] makes the [Schedule] of one member: rounds of messages and local steps.
//   - [Run] executes a schedule many times over a [Carrier].
//   - [Cost] counts messages, bytes and depth by formulas; [LogGP.Estimate] simulates
//     the same schedules on a network with given parameters.
//   - [Placement] says which members share a host, for two-level collectives.
//
// # Guarantees of a schedule
//
// Matching: messages have no tags. The k-th message that one member sends to another is
// the k-th that the other receives from it.
//
// Progress: when all messages of a round are complete, the next round begins. No
// schedule deadlocks, even if a send completes only after its receiver has started to
// receive. A round has at most [MaxRound] messages.
//
// Order: an ordered (not commutative) reduction combines members in rank order, lower
// ranks on the left; only the grouping depends on the algorithm.
//
// Bits: the order and the grouping of a reduction depend only on the shape and the
// algorithm, not on timing, and members that compute the same value compute it in the
// same way. The result therefore has the same bits on every member and in every run, if
// the combining function is deterministic.
package coll
