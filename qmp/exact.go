package qmp

import (
	"fmt"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/exact"
)

// SumDoubleExtended sums one value of each node in place and without intermediate rounding: the
// result is the correctly rounded sum (QMP_sum_double_extended, QMP_sum_long_double), with the same
// bits however the values are distributed over the nodes. A sum that a node has already formed
// itself has been rounded; [Comm.SumExact] takes sums that have not. See [Comm.SumInt].
func (c *Comm) SumDoubleExtended(x *float64) error {
	const op = "sum double extended"
	if err := c.begin(op); err != nil {
		return err
	}
	defer c.end()
	defer c.m.watched(op)()
	var a exact.Accumulator
	a.Add(*x)
	if err := channel.SumExact(background, c.group, &a); err != nil {
		return failed(op, err)
	}
	*x = a.Round()
	return nil
}

// exactAtOnce is how many sums are reduced together: they take 280 KiB.
const exactAtOnce = 256

// SumDoubleExtendedArray is [Comm.SumDoubleExtended] element by element
// (QMP_sum_long_double_array). It moves 139 times as many bytes per element as
// [Comm.SumDoubleArray].
func (c *Comm) SumDoubleExtendedArray(x []float64) error {
	const op = "sum double extended array"
	if err := c.begin(op); err != nil {
		return err
	}
	defer c.end()
	defer c.m.watched(op)()
	words := make([]int64, exact.Words*min(len(x), exactAtOnce))
	for len(x) > 0 {
		n := min(len(x), exactAtOnce)
		for i := range n {
			var a exact.Accumulator
			a.Add(x[i])
			a.Words((*[exact.Words]int64)(words[i*exact.Words:]))
		}
		part := words[:n*exact.Words]
		if err := c.group.Run(background, channel.Allreduce(channel.Sum, part, part)); err != nil {
			return failed(op, err)
		}
		for i := range n {
			var a exact.Accumulator
			if err := a.SetWords((*[exact.Words]int64)(part[i*exact.Words:])); err != nil {
				return fail(op, StatusBadMessage, fmt.Errorf("element %d: %w", i, err))
			}
			x[i] = a.Round()
		}
		x = x[n:]
	}
	return nil
}

// SumExact merges the accumulators of all nodes into a, at every node. After that, a.Round() is the
// correctly rounded sum of all terms of all nodes, with the same bits for any number of nodes and
// any division of the terms among them (channel.SumExact). See [Comm.SumInt].
func (c *Comm) SumExact(a *exact.Accumulator) error {
	const op = "sum exact"
	if err := c.begin(op); err != nil {
		return err
	}
	defer c.end()
	defer c.m.watched(op)()
	return failed(op, channel.SumExact(background, c.group, a))
}
