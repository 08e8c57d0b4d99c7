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
func (m *measurement) takeShared(ctx context.Context, job exchanger, s series) error {
	const first, short = 16, 50 * time.Millisecond // of chunks, which grow until they take so long
	name, beside, err := loadAround()
	if err == nil && name != m.o.load {
		err = usagef("--load %s: in a job that something else has started, run that by bench load", m.o.load)
	}
	if err := barrier(ctx, job, err); err != nil {
		return err
	}
	s.prepare()
	samples, times, per := make([]int64, chunk), newDistribution(), 1
	if m.unit == unitLatency {
		per = m.perIteration()
	}
	var spent, burned time.Duration
	for n, done := first, 0; done < exchanges && spent < m.o.time; {
		if err := barrier(ctx, job, nil); err != nil {
			return err
		}
		if err := s.run(1, nil); err != nil { // who comes later has been waited for
			return err
		}
		took, used, err := m.timeShared(s, samples[:n], beside)
		if err != nil {
			return err
		}
		for _, v := range samples[:n] {
			times.add(float64(v) / float64(per))
		}
		if took, err = agree(ctx, job, took); err != nil {
			return err
		}
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
	return barrier(ctx, job, s.check())
}

// timeShared times an iteration for each sample. It returns what all take, and the CPU time that
// others use meanwhile.
func (m *measurement) timeShared(s series, samples []int64, beside []int) (took, used time.Duration, err error) {
	before, err := burnedCPU(beside)
	if err != nil {
		return 0, 0, err
	}
	began := nanos()
	if err := s.run(len(samples), samples); err != nil {
		return 0, 0, err
	}
	took = time.Duration(nanos() - began)
	after, err := burnedCPU(beside)
	return took, after - before, err
}
