package main

import (
	"context"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/qmp"
	"github.com/sluice-hpc/sluice/verbs"
)

// qmpOptions are the flags of bench qmp sum and bench qmp faces.
type qmpOptions struct {
	pattern string
	jobFlags
	memoryFlags
	doubles string
	axis    string
	timing

	counts []int
	axes   []string
}

func newQMPCommand(out *outputOptions) *cobra.Command {
	o := compareOptions{qmp: true}
	cmd := &cobra.Command{
		Use:   "qmp",
		Short: "Measure what QMP programs call, against C over the MPIs that are installed",
		Long: `Sums of one double and of several, in place, by 2, 4 and 8 nodes, and the faces of a
lattice of 16×16×16×16 sites of 192 bytes, exchanged with both neighbours of a ring
through one multiple of relative handles (half: the halo of the Wilson operator, 96
contiguous bytes a site of t): through package qmp, and by a C program that
does what the C library does over MPI (MPI_Allreduce; persistent requests over vector
types, MPI_Startall and MPI_Waitall). They run by turns, as those of bench compare do.

A ratio is held to the bars of channels and collectives, and ten per cent.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.command(cmd, out) },
	}
	o.addFlags(cmd.Flags())
	cmd.AddCommand(newQMPPatternCommand(out, coll.Allreduce.String(), "sum", "Sums of doubles of all nodes, in place, through package qmp"),
		newQMPPatternCommand(out, patternHalo, "faces", "Faces of a lattice exchanged with both neighbours, through package qmp"))
	return cmd
}

func newQMPPatternCommand(out *outputOptions, pattern, use, short string) *cobra.Command {
	o := qmpOptions{pattern: pattern}
	cmd := &cobra.Command{
		Use:   use + " [HOST]",
		Short: short,
		Args:  out.twoRanks,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			out.allocs = o.allocs
			return asRanks(cmd.Context(), *out, given(cmd.Flags()), o.task())
		},
	}
	o.addFlags(cmd.Flags())
	return cmd
}

func (o *qmpOptions) addFlags(f *pflag.FlagSet) {
	o.timing.addFlags(f)
	o.addProvider(f, "")
	o.addMemory(f, "AllocateMemory")
	f.IntVarP(&o.ranks, "ranks", "n", defaultRanks, "nodes to start; a job has its own number")
	if o.pattern == patternHalo {
		f.StringVar(&o.axis, "axis", strings.Join(qmpAxes, ","), "axes of which the faces are exchanged, one after the other: a list; all: of x, y, z and t at once; half: of t, 96 contiguous bytes a site")
		return
	}
	f.StringVar(&o.doubles, "doubles", "1,128,16k,1M", "doubles: one by SumDouble, several by SumDoubleArray: "+listForm)
}

// check completes the options, or says which of them cannot be.
func (o *qmpOptions) check() error {
	var err error
	if err := o.checkMemory(); err != nil {
		return err
	}
	if o.pattern == patternHalo {
		if o.axes, err = parseList("axis", o.axis, qmpAxes...); err != nil {
			return err
		}
	} else {
		if o.counts, err = parseSizes(o.doubles); err != nil {
			return err
		}
		for _, n := range o.counts {
			if n < 1 || n > maxSize/doubleBytes {
				return usagef("--doubles %s: want 1 to %s", formatSize(int64(n)), formatSize(maxSize/doubleBytes))
			}
		}
	}
	least := 1
	if o.pattern == patternHalo {
		least = 2
	}
	if err := inRange("ranks", o.ranks, least, maxRanks); err != nil {
		return err
	}
	return o.timing.check()
}

// task is what the options ask for: one table for each kind of memory, and of sums for
// each way of calling.
func (o *qmpOptions) task() task {
	t := task{start: o.ranks, least: 1}
	if o.pattern == patternHalo {
		t.least = 2
	}
	var n *node
	t.join = func(ctx context.Context) (_ rankJob, err error) {
		n, o.provider, err = joinBest(ctx, o.provider)
		return n, err
	}
	t.plan = func(ctx context.Context) (plan []run, err error) {
		if n.qmp, err = qmp.New(n.Node, nil, qmp.WithContext(ctx)); err != nil {
			return nil, err
		}
		for _, memory := range o.memories {
			plan = append(plan, o.runIn(n, memory))
		}
		return plan, nil
	}
	return t
}

func (o *qmpOptions) runIn(n *node, memory string) *channelRun {
	r := &channelRun{node: n, provider: o.provider, memory: memory, rounds: rounds{count: o.rounds}}
	add := func(s spec) {
		s.suite, s.ranks = suiteQMP, n.Size()
		r.specs = append(r.specs, s)
		r.arena = max(r.arena, qmpArena(&s))
	}
	for _, count := range o.counts {
		call := qmpSumDoubleArray
		if count == 1 {
			call = qmpSumDouble
		}
		s := o.spec(o.pattern, memoryOperation(call), count*doubleBytes)
		s.each = false
		add(s)
	}
	for _, axis := range o.axes {
		bytes := 2 * len(axesOf(axis)) * faceBytes
		if axis == axisHalf {
			bytes = 2 * halfBytes
		}
		s := o.spec(o.pattern, memoryOperation(memory), bytes)
		s.axis, s.halo = axis, haloPacked
		add(s)
	}
	return r
}

// qmpContenders are the programs that measure what QMP programs call.
func (c *comparison) qmpContenders() []contender {
	if _, err := verbs.Find("shm"); err != nil {
		return nil
	}
	faces := []string{"shm qmp halo"}
	list := in(faces, c.sluice("shm qmp faces", "qmp", "faces", "--provider", "shm"))
	for _, mpi := range mpis {
		list = append(list, in(faces, c.mpi(mpi, "shm", "qmp", "-c", patternHalo, "-a", "xyztah")...)...)
	}
	for _, t := range []struct {
		ranks          int
		doubles, quick string
	}{{2, "1,128,16k,1M", "1,128,16k"}, {4, "1,128,16k", ""}, {8, "1,128,16k", "1,128"}} {
		if c.quick {
			t.doubles = t.quick
		}
		if t.doubles == "" {
			continue
		}
		ranks := strconv.Itoa(t.ranks)
		sums := []string{"shm qmp " + ranks + " ranks allreduce"}
		list = append(list, in(sums, c.sluice("shm qmp sum "+ranks, "qmp", "sum", "--provider", "shm", "--ranks", ranks, "--doubles", t.doubles))...)
		for _, mpi := range mpis {
			if t.ranks > 2 && mpi == "mpich" {
				continue // it never gives up its CPU: tens of milliseconds a sum
			}
			list = append(list, in(sums, c.mpiRanks(mpi, "shm", t.ranks, "qmp", "-c", coll.Allreduce.String(), "-s", inBytes(t.doubles))...)...)
		}
	}
	return list
}
