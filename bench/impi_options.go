package main

import (
	"cmp"
	"context"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-hpc/sluice/verbs"
)

// impiOptions are the flags of bench impi.
type impiOptions struct {
	pattern string
	carrier string
	sizeFlags
	window int
	timing

	operation operation
	carriers  []string
}

// impiCarriers are what carries messages of impi between processes of this library.
var impiCarriers = []string{"shm", providerIBV, carrierTCP}

// Operations of impi's results: the calls that messages are made of.
const (
	callsBlocking    = "send/recv"
	callsNonblocking = "isend/irecv"
)

func newIMPICommand(out *outputOptions) *cobra.Command {
	compare := compareOptions{impi: true}
	cmd := &cobra.Command{
		Use:   "impi",
		Short: "Measure impi's messages between two ranks, against the MPIs that are installed",
		Long: `Messages that are matched, over shared memory and over TCP: Send and Recv to and fro,
windows of Isend and Irecv. Package impi and MPI without persistent requests run by
turns, as those of bench compare do, which has these rows as well.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return compare.command(cmd, out) },
	}
	compare.addFlags(cmd.Flags())
	for _, c := range []struct{ pattern, calls, short string }{
		{patternLat, callsBlocking, "Latency of Send and Recv: half a round trip"},
		{patternBW, callsNonblocking, "Bandwidth of Isend and Irecv from rank 0 to rank 1"},
		{patternBiBW, callsNonblocking, "Bandwidth of Isend and Irecv, both directions together"},
		{patternRate, callsNonblocking, "Messages a second from rank 0 to rank 1, by Isend and Irecv"},
	} {
		o := impiOptions{pattern: c.pattern, operation: operation{name: c.calls, recv: true}}
		sub := &cobra.Command{
			Use:   c.pattern + " [HOST]",
			Short: c.short,
			Long: c.short + `.

Every message is a request of its own, as it is in MPI programs without persistent
ones. All messages of a window use one buffer on either side, as those of OSU's
programs do. Whether a buffer is of Go's heap makes no difference here.`,
			Args: out.twoRanks,
			RunE: func(cmd *cobra.Command, _ []string) error {
				if err := o.check(); err != nil {
					return err
				}
				out.allocs = o.allocs
				return asRanks(cmd.Context(), *out, given(cmd.Flags()), o.task())
			},
		}
		o.addFlags(sub.Flags())
		cmd.AddCommand(sub)
	}
	return cmd
}

func (o *impiOptions) addFlags(f *pflag.FlagSet) {
	o.timing.addFlags(f)
	f.StringVar(&o.carrier, "carrier", "", "what carries packets: "+strings.Join(impiCarriers, ", ")+", or several in a list (default all that are there)")
	o.addSizes(f, "bytes", patternSizes)
	if o.pattern == patternLat {
		o.addBatch(f)
		return
	}
	f.IntVar(&o.window, "window", defaultWindow, "requests started at once (fewer where they exceed 64 MiB together)")
}

// check completes the options, or says which of them cannot be.
func (o *impiOptions) check() error {
	var err error
	if o.carriers = impiCarriers; o.carrier != "" {
		if o.carriers, err = parseList("carrier", o.carrier, impiCarriers...); err != nil {
			return err
		}
	}
	if err := o.checkSizes(o.operation, o.pattern); err != nil {
		return err
	}
	if o.pattern != patternLat {
		if err := inRange("window", o.window, 1, maxWindow); err != nil {
			return err
		}
	}
	return o.timing.check()
}

// task is what the options ask for: one table for each carrier. One that was not
// asked for, and is not there at either rank, is a run that says why.
func (o *impiOptions) task() task {
	var n *node
	t := task{start: 2, least: 2, most: 2}
	t.join = func(ctx context.Context) (_ rankJob, err error) {
		if n, err = joinNode(ctx, ""); err == nil {
			n.aside = true
		}
		return n, err
	}
	t.plan = func(ctx context.Context) ([]run, error) {
		var plan []run
		for _, carrier := range o.carriers {
			r := &impiRun{node: n, carrier: carrier, rounds: rounds{count: o.rounds}}
			for _, bytes := range o.bytes {
				s := o.spec(o.pattern, o.operation, bytes)
				s.window = o.window
				r.specs = append(r.specs, s)
			}
			var lacks error
			if carrier != carrierTCP {
				_, lacks = verbs.Find(carrier)
			}
			var why string
			if o.carrier == "" && lacks != nil {
				why, lacks = carrier+": "+lacks.Error(), nil
			}
			all, err := share(ctx, n, why, lacks)
			if err != nil {
				return nil, err
			}
			r.missing = cmp.Or(all...)
			plan = append(plan, r)
		}
		return plan, nil
	}
	return t
}
