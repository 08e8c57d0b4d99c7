package main

import "time"

// programRows are what programs meet beside messages to and fro on a quiet machine. Most have
// no bar that holds today, or none.
func programRows() (list []row) {
	overlap := func(provider, kind string, peers ...string) {
		list = append(list, row{suite: patternOverlap, layer: layerChannel, pattern: patternOverlap, provider: provider, kind: kind, memory: bothMemories, sizes: "256k,1M,4M",
			time: 200 * time.Millisecond, peers: peers, bars: []bar{{sizes: "1M", figure: "wait", fixed: 20, limit: 1}, {sizes: "1M", figure: "total", fixed: 105, limit: 1}}})
	}
	for _, provider := range []string{"shm", "tcp"} {
		overlap(provider, kindSend, "mpi overlap -c send")
		overlap(provider, kindAllreduce, "mpi overlap -c allreduce")
	}
	overlap(providerRoCE, kindSend)

	// CPUs that are shared: only with a neighbour on each core there is a bar.
	for _, load := range []string{loadBusy, loadQuota} {
		bars := []bar{{figure: figureMean, limit: 1.2}, {figure: figureNeighbour, fixed: 45, limit: 1}}
		if load == loadQuota {
			bars = nil
		}
		r := row{suite: "shared", layer: layerChannel, provider: "shm", load: load, memory: memoryAlloc, ranks: 2, time: 2 * time.Second, bars: bars}
		lat, allreduce, halo := r, r, r
		lat.pattern, lat.sizes, lat.ranks, lat.peers = patternLat, "8,4k,64k", 0, []string{"mpi shared -c lat"}
		allreduce.pattern, allreduce.sizes, allreduce.args, allreduce.peers = kindAllreduce, "8", []string{"--call", callCalled}, []string{"mpi shared -c allreduce"}
		halo.pattern, halo.axes, halo.peers = patternHalo, axisAll, []string{"mpi shared -c halo"}
		list = append(list, lat, allreduce, halo)
	}

	// Messages of impi that have to be looked for.
	for _, provider := range []string{"shm", carrierTCP} {
		r := row{suite: suiteIMPI, layer: layerIMPI, provider: provider, sizes: "8,4k,64k"}
		unexpected, posted, anySource := r, r, r
		unexpected.pattern, unexpected.window, unexpected.peers = patternUnexpected, 64, []string{"mpi match -c unexpected"}
		posted.pattern, posted.window, posted.sizes, posted.peers = patternPosted, 1000, "8", []string{"mpi match -c posted"}
		anySource.pattern, anySource.peers = patternAnySource, []string{"mpi match -c anysource"}
		list = append(list, unexpected, posted, anySource)
	}

	// Many of something.
	for _, provider := range []string{"shm", "tcp"} {
		for _, count := range []int{1, 100, 10_000} {
			list = append(list, row{suite: "handles", layer: layerChannel, pattern: "handles", provider: provider, count: count, memory: memoryAlloc, sizes: "8"})
		}
		list = append(list,
			row{suite: "waiters", layer: layerChannel, pattern: "waiters", provider: provider, count: 1000, time: 5 * time.Second,
				bars: []bar{{fixed: 1, limit: 1}, {figure: "threads", fixed: 4, limit: 1}}},
			row{suite: "idle", layer: layerChannel, pattern: "idle", provider: provider, time: 3 * time.Second, bars: []bar{{fixed: 0.1, limit: 1}}})
		for _, count := range []int{1, 100, 1000} {
			r := row{suite: "cq", layer: layerVerbs, pattern: "cq", provider: provider, count: count, sizes: "8"}
			if count == 1000 {
				r.bars = []bar{{figure: "growth", fixed: 2, limit: 1}, {figure: "poll-growth", fixed: 2, limit: 1}}
			}
			list = append(list, r)
		}
	}

	// Messages that are declared and thrown away, or have other memory each time.
	for _, provider := range []string{"shm", "tcp"} {
		for _, kind := range []string{oneshotDeclare, oneshotRebase, oneshotAddress} {
			list = append(list, row{suite: "oneshot", layer: layerChannel, pattern: "oneshot", provider: provider, kind: kind, memory: bothMemories, sizes: "8,4k,256k",
				peers: []string{"mpi oneshot -c isend", "mpi oneshot -c init"}})
		}
	}

	// Far ahead of the receiver, and over networks that lose packets.
	for _, provider := range []string{"shm", "tcp"} {
		list = append(list, row{suite: "ahead", layer: layerChannel, pattern: "ahead", provider: provider, count: 100_000, memory: memoryAlloc, sizes: "8,16k"})
	}
	for _, provider := range []string{providerRoCE, "tcp"} {
		for _, loss := range []string{"0.1", "1"} {
			for _, window := range []int{1, 8} {
				list = append(list, row{suite: "loss", layer: layerChannel, pattern: "loss", provider: provider, loss: loss, window: window, memory: memoryAlloc, sizes: "4k,64k", time: 3 * time.Second})
			}
		}
		list = append(list, row{suite: "incast", layer: layerChannel, pattern: "incast", provider: provider, ranks: 9, memory: memoryAlloc, sizes: "64k", time: 3 * time.Second})
	}

	// The start of a job.
	for _, ranks := range []int{8, 32, 128, 256} {
		list = append(list, row{suite: "start", layer: layerChannel, pattern: "start", provider: "shm", ranks: ranks, unbound: true, peers: []string{"mpi start"}})
	}
	return list
}
