package qmp

import (
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
// (QMP_sum_long_double_array). It moves 15 times as many bytes per element as
// [Comm.SumDoubleArray], and 154 times as many if elements are of very different size.
func (c *Comm) SumDoubleExtendedArray(x []float64) error {
	const op = "sum double extended array"
	if err := c.begin(op); err != nil {
		return err
	}
	defer c.end()
	defer c.m.watched(op)()
	sums := make([]exact.Accumulator, min(len(x), exactAtOnce))
	for len(x) > 0 {
		n := min(len(x), exactAtOnce)
		list := make([]*exact.Accumulator, n)
		for i := range list {
			list[i] = &sums[i]
			sums[i].Reset()
			sums[i].Add(x[i])
		}
		if err := channel.SumExact(background, c.group, list...); err != nil {
			return failed(op, err)
		}
		for i := range list {
			x[i] = sums[i].Round()
		}
		x = x[n:]
	}
	return nil
}

// SumExact merges the accumulators of all nodes, at every node: the i-th of each call into sums[i]. After
// that, its Round is the correctly rounded sum of all terms of all nodes, with the same bits for any number
// of nodes and any division of the terms among them. All nodes pass as many; several together take little
// longer than one (channel.SumExact). See [Comm.SumInt].
func (c *Comm) SumExact(sums ...*exact.Accumulator) error {
	const op = "sum exact"
	if err := c.begin(op); err != nil {
		return err
	}
	defer c.end()
	defer c.m.watched(op)()
	return failed(op, channel.SumExact(background, c.group, sums...))
}
