package main

import (
	"strconv"
	"time"
)

// Units of the further figures of procedures.
var (
	overlapFigures = map[string]string{"alone": unitLatency, "cpu": unitLatency, "wait": unitShare, "total": unitShare, "osu": unitShare}
	handleFigures  = map[string]string{"declare": unitLatency, "first": unitLatency, "close": unitLatency}
	cqFigures      = map[string]string{"poll": unitLatency, "growth": unitCount, "poll-growth": unitCount}
	startFigures   = map[string]string{"descriptors": unitCount, "threads": unitCount, "mappings": unitCount, "private": unitKiB}
)

// procedures are the patterns of what programs meet beside messages to and fro: most are no
// loop of equal iterations.
func procedures() []*pattern {
	alone := ranks{least: 2, most: 2, unbound: true}
	return []*pattern{
		{name: patternOverlap, layer: layerChannel, top: true, unit: unitShare, figures: overlapFigures, ranks: twoRanks, measure: measureOverlap, check: someBytes,
			vary: []dimension{byKind, byMemoryToo, bySize}, options: "provider kinds=send,allreduce memory=alloc,heap sizes=256k,1M,4M time=200ms",
			short: "Measure how much of a transfer goes on while both sides compute", long: longOverlap},
		{name: "handles", layer: layerChannel, top: true, unit: unitLatency, figures: handleFigures, ranks: twoRanks, measure: measureHandles, messages: pingPong,
			vary: []dimension{byMemory, byCount, bySize}, options: "provider memory=alloc sizes=8 count=1,100,10000 batch=0",
			short: "Measure ping-pong on one handle while many are declared, and what declaring costs", long: longHandles},
		{name: "waiters", layer: layerChannel, top: true, unit: unitShare, figures: map[string]string{"threads": unitCount}, ranks: alone, measure: measureWaiters,
			vary: []dimension{byMemory, byCount, noBytes}, options: "provider memory=alloc count=1000 time=5s",
			short: "Measure what goroutines cost that wait", long: longWaiters},
		{name: "idle", layer: layerChannel, top: true, unit: unitShare, ranks: twoRanks, measure: measureIdle, vary: []dimension{noBytes}, options: "provider time=3s",
			what: "of the rank that uses more", short: "Measure the CPU time of a rank that is connected and does nothing, as a share of one CPU"},
		{name: "cq", layer: layerVerbs, top: true, unit: unitLatency, figures: cqFigures, ranks: ranks{least: 1, most: 1, unbound: true}, open: openCQ, measure: measureCQ,
			check: someBytes, vary: []dimension{byCount, bySize}, options: "provider sizes=8 count=1,100,1000",
			short: "Measure a completion queue of many queue pairs, within one process", long: longCQ},
		{name: "oneshot", layer: layerChannel, top: true, unit: unitLatency, ranks: twoRanks, open: openQMP, declare: declareOneshot, messages: pingPong,
			vary: []dimension{byKind, byMemoryToo, bySize}, options: "provider kinds=" + oneshotDeclare + "," + oneshotRebase + "," + oneshotAddress + " memory=alloc,heap sizes=8,4k,256k batch=-1",
			what: "half a round trip", short: "Measure messages that are declared and thrown away, or have other memory each time", long: longOneshot},
		{name: "ahead", layer: layerChannel, top: true, unit: unitLatency, figures: map[string]string{"start": unitLatency, "handles": unitCount}, ranks: twoRanks, measure: measureAhead,
			alone: time.Minute, check: someBytes, vary: []dimension{byMemory, byCount, bySize}, options: "provider memory=alloc sizes=8,16k count=100000",
			short: "Start many sends before the first receive", long: longAhead},
		{name: "start", layer: layerChannel, top: true, unit: unitLatency, figures: startFigures, ranks: ranks{least: 1, unbound: true}, early: meetAll, measure: measureStart,
			alone: time.Minute, vary: []dimension{noBytes}, options: "provider ranks=8",
			short: "Measure how long a job takes to start, and what a rank has then", long: longStart},
		{name: "loss", layer: layerChannel, top: true, unit: unitLatency, figures: map[string]string{"rate": unitBandwidth}, ranks: alone, measure: measureLoss,
			alone: time.Minute, hosts: true, check: someBytes, vary: []dimension{byMemory, byLoss, bySize}, options: "provider=roce memory=alloc loss=0,0.1,1 sizes=64k window=8 time=3s",
			short: "Measure messages over a network that loses packets", long: longLoss},
		{name: "incast", layer: layerChannel, top: true, unit: unitBandwidth, figures: map[string]string{"sender": unitBandwidth, "fairness": unitCount}, ranks: ranks{least: 2, unbound: true},
			measure: measureIncast, alone: time.Minute, hosts: true, check: someBytes, vary: []dimension{byMemory, bySize}, options: "provider=roce ranks=9 memory=alloc sizes=64k window=8 time=3s",
			short: "Measure what many senders to one receiver get, each", long: longIncast},
	}
}

// maxCount bounds how many there can be of what is counted.
const maxCount = 1 << 20

// someBytes: there are messages.
func someBytes(o *options) error {
	for _, n := range o.bytes {
		if n == 0 {
			return &UsageError{"--sizes 0: want messages of some bytes"}
		}
	}
	return nil
}

// byKind is by what is done.
func byKind(o *options, list []spec) []spec {
	return vary(list, o.ops, func(s *spec, kind string) { s.kind, s.op = kind, kind })
}

// byMemoryToo is byMemory behind byKind.
func byMemoryToo(o *options, list []spec) []spec {
	return vary(list, o.memories, func(s *spec, m string) { s.memory, s.op = m, s.op+" "+m })
}

func byCount(o *options, list []spec) []spec {
	return vary(list, o.counts, func(s *spec, n int) { s.many = n })
}

func byLoss(o *options, list []spec) []spec {
	return vary(list, o.losses, func(s *spec, percent string) { s.loss, _ = strconv.ParseFloat(percent, 64) }) // it is one of lossWords
}

// noBytes: there is no message whose size counts.
func noBytes(_ *options, list []spec) []spec { return list }
