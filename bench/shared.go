package main

import (
	"context"
	"time"
)

// exchanges is how many are timed on shared CPUs, if there is time for them.
const exchanges = 100_000

// Figures of any pattern whose ranks share CPUs: what an iteration takes, and the share of its
// core that a process gets that computes beside a rank.
const (
	figureMean      = "mean"
	figureP99       = "p99"
	figureNeighbour = "neighbour"
)

// takeShared times each iteration of a series until there are enough, or the time is over, and
// what the processes get meanwhile that compute beside the ranks. Rank 0 decides between
// chunks, outside of what is timed.
func (m *measurement) takeShared(ctx context.Context, job exchanger, s series) {
	const first, short = 16, 50 * time.Millisecond // of chunks, which grow until they take so long
	name, beside, err := loadAround()
	if err == nil && name != m.o.load {
		err = usagef("--load %s: in a job that something else has started, run that by bench load", m.o.load)
	}
	barrier(ctx, job, err)
	s.prepare()
	samples, times, per := make([]int64, chunk), newDistribution(), 1
	if m.unit == unitLatency {
		per = m.perIteration()
	}
	var spent, burned time.Duration
	for n, done := first, 0; done < exchanges && spent < m.o.time; {
		barrier(ctx, job, nil)
		s.run(1, nil) // who comes later has been waited for
		took, used := m.timeShared(s, samples[:n], beside)
		for _, v := range samples[:n] {
			times.add(float64(v) / float64(per))
		}
		took = agree(ctx, job, took)
		done, spent, burned = done+n, spent+took, burned+used
		if took < short {
			n = min(2*n, chunk)
		}
	}
	m.figure(figureMean, times.sum/float64(times.n))
	m.figure(figureP99, times.quantile(99))
	if len(beside) > 0 {
		m.figure(figureNeighbour, 100*burned.Seconds()/(spent.Seconds()*float64(len(beside))))
	}
	barrier(ctx, job, try(s.check))
}

// timeShared times an iteration for each sample. It returns what all take, and the CPU time that
// others use meanwhile.
func (m *measurement) timeShared(s series, samples []int64, beside []int) (took, used time.Duration) {
	before := must1(burnedCPU(beside))
	began := nanos()
	s.run(len(samples), samples)
	took = time.Duration(nanos() - began)
	return took, must1(burnedCPU(beside)) - before
}
