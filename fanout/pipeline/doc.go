// Package pipeline takes event files of ring items through workers and puts what they
// make of them in order again:
//
//	source ─┐           ┌─ worker ─┐
//	source ─┼─ chunks ──┼─ worker ─┼─ results ── sorter ── sink
//	source ─┘           └─ worker ─┘
//
// Each stage is a function of the user's: a [Source] makes chunks, of which each has a
// sequence number among those of its source; a [Worker] takes whichever chunk comes next
// and makes a result of it, which may be empty; the sorter puts the results of a source
// in the order of their sequence numbers, and merges those of several sources by
// timestamp, or by [Config.Order]; the [Sink] gets the items in that order, each once.
// There are ready ones: [File] reads an event file, [Items] makes a worker of a function
// for one item, [Filter] one of another program, [Output] writes an event file.
//
// A worker that fails is closed and started anew, and its chunk goes to whichever worker
// is free, before all others. It does so [Config.Attempts] times at most.
//
// Memory is bounded: of each source there are [Config.Window] chunks between source and
// sink. When the oldest of them is slow, or the sink is, the source waits.
//
// A source that ends with an error, such as a file with a damaged item, ends there: what
// it gave before is written, the other sources go on, and [Pipeline.Run] returns the
// error at the end.
//
// The package also has the dialect of the sorter that NSCLDAQ's pipeline has, for workers
// or a sorter that are not of this package: [AppendForeign], [ForeignSorter].
package pipeline
