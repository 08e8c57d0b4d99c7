// Package pipeline sends event files of ring items through workers and puts the results back
// in order.
//
//	p, err := pipeline.New(pipeline.Config{Sources: sources, NewWorker: newWorker, Sink: output.Sink})
//	err = p.Run(ctx)
//	source := pipeline.File(file, pipeline.FileOptions{}).Next
//	worker := pipeline.Items(ring.V12, limit, keep) // for each item
//	output, err := pipeline.Create("out.evt")       // output.Commit when Run has succeeded
//
//	source ─┐           ┌─ worker ─┐
//	source ─┼─ chunks ──┼─ worker ─┼─ results ── sorter ── sink
//	source ─┘           └─ worker ─┘
//
// The user provides the stages as functions. A [Source] makes chunks, numbered within the
// source. A [Worker] takes the next chunk and makes a result of it, which may be empty. The
// sorter puts the results of a source in the order of their sequence numbers, and merges
// those of several sources by timestamp, or by [Config.Order]. The [Sink] gets the items in
// that order, each once. Ready-made stages: [File] reads an event file, [Items] makes a worker
// from a function for one item, [Filter] from another program, and [Output] writes an event
// file.
//
// A worker that fails is closed and replaced, and its chunk goes to the next free worker,
// before all other chunks, at most [Config.Attempts] times.
//
// Memory is bounded: each source has at most [Config.Window] chunks between source and sink.
// When the oldest of them, or the sink, is slow, the source waits.
//
// A source that fails, such as a file with a damaged item, ends there: its earlier chunks are
// written, the other sources go on, and [Pipeline.Run] returns the error at the end.
//
// The package also implements the protocol between workers and sorter of NSCLDAQ's pipeline,
// for workers or a sorter of NSCLDAQ: [AppendForeign], [ForeignSorter].
package pipeline
