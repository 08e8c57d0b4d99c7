package main

import (
	"context"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-hpc/sluice/verbs"
)

// fanoutOptions are the flags of bench fanout rate.
type fanoutOptions struct {
	dialect string
	sizes   string
	window  int
	ranks   int
	timing

	names []string
	bytes []int
}

// defaultFanoutRanks are a supplier and two workers.
const defaultFanoutRanks = 3

func newFanoutCommand(out *outputOptions) *cobra.Command {
	compare := compareOptions{fanout: true}
	cmd := &cobra.Command{
		Use:   "fanout",
		Short: "Measure fan-out of chunks to workers, against libzmq and Open MPI",
		Long: `Chunks a second from a supplier to 2 and to 8 workers of this host, each of which asks for
them: through package fanout, by a master–worker program in C over Open MPI, and by one over
libzmq (ROUTER and DEALER, ipc). They run by turns, as those of bench compare do, with
the same window: how many chunks a worker has asked for ahead. Nobody is bound to a core. All of it
takes some three minutes, with --quick a few seconds.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return compare.command(cmd, out) },
	}
	compare.addFlags(cmd.Flags())
	o := fanoutOptions{}
	rate := &cobra.Command{
		Use:   "rate",
		Short: "Chunks a second from rank 0 to all other ranks",
		Long: `Chunks a second from rank 0 to all other ranks, which ask for them and do nothing with
them. plain is the dialect of a request and a chunk, each a message; in numbered several
chunks are asked for at once, as far as the window allows, each chunk being a message; in
each the supplier has 64 chunks at a time, and gives those that have been asked for in one
message, up to 4 KiB. All chunks have the same memory, of Job.Alloc.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			out.allocs = o.allocs
			return asRanks(cmd.Context(), *out, given(cmd.Flags()), o.task())
		},
	}
	o.addFlags(rate.Flags())
	cmd.AddCommand(rate)
	return cmd
}

func (o *fanoutOptions) addFlags(f *pflag.FlagSet) {
	o.timing.addFlags(f)
	f.StringVar(&o.dialect, "dialect", strings.Join(dialects, ","), "dialects: a list")
	f.StringVar(&o.sizes, "sizes", "64,4k,1M", "bytes of a chunk: MIN:MAX (powers of two between) or a list; k, M, G are binary")
	f.IntVar(&o.window, "window", 1, "chunks that a worker has asked for ahead")
	f.IntVarP(&o.ranks, "ranks", "n", defaultFanoutRanks, "ranks to start; a job has its own number")
}

// check completes the options, or says which of them cannot be.
func (o *fanoutOptions) check() error {
	var err error
	if o.names, err = parseList("dialect", o.dialect, dialects...); err != nil {
		return err
	}
	if o.bytes, err = parseSizes(o.sizes); err != nil {
		return err
	}
	for _, n := range o.bytes {
		if err := inRange("sizes", n, 1, maxSize); err != nil {
			return err
		}
	}
	if err := inRange("window", o.window, 1, maxWindow); err != nil {
		return err
	}
	if err := inRange("ranks", o.ranks, 2, maxRanks); err != nil {
		return err
	}
	return o.timing.check()
}

// task is what the options ask for: one table for each dialect.
func (o *fanoutOptions) task() task {
	var n *node
	return task{
		start: o.ranks, least: 2, unbound: true,
		join: func(ctx context.Context) (_ rankJob, err error) {
			n, err = joinNode(ctx, "shm")
			return n, err
		},
		plan: func(context.Context) ([]run, error) {
			var plan []run
			for _, name := range o.names {
				r := &fanoutRun{node: n, rounds: rounds{count: o.rounds}}
				for _, bytes := range o.bytes {
					s := o.spec(patternFanout, memoryOperation(name), bytes)
					s.window, s.ranks, s.each = o.window, n.Size(), false
					r.specs = append(r.specs, s)
				}
				plan = append(plan, r)
			}
			return plan, nil
		},
	}
}

// fanoutContenders are the programs that hand chunks to workers.
func (c *comparison) fanoutContenders() []contender {
	if _, err := verbs.Find("shm"); err != nil {
		c.report.Missing = append(c.report.Missing, "shm: "+err.Error())
		return nil
	}
	var list []contender
	jobs, windows := []int{3, 9}, []string{"1", "8"}
	if c.quick {
		jobs, windows = jobs[:1], windows[1:]
	}
	for _, ranks := range jobs {
		for _, window := range windows {
			n, sizes := strconv.Itoa(ranks), "64,4k,1M"
			list = append(list, c.sluice("fanout "+n+" window "+window, "fanout", "rate", "--ranks", n, "--window", window, "--sizes", sizes))
			if !c.quick { // it spins: of more ranks than CPUs it takes up to a minute
				list = append(list, c.mpiRanks("openmpi", "shm", ranks, "fanout", "-s", sizes, "-w", window)...)
			}
			if c.peers != nil {
				list = append(list, c.peer(peerZMQ+" "+n+" window "+window, "zmq", "-s", sizes, "-w", window, "-r", n, "-t", seconds(c.time)))
			}
		}
	}
	return list
}
