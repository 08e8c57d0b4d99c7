package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func newRootCommand() *cobra.Command {
	var out outputOptions
	var s summaryOptions
	root := &cobra.Command{
		Use:   "bench [HOST]",
		Short: "Measure what this library moves, how fast, and against whom",
		Long: `Without a subcommand: latency and bandwidth over every provider that is there,
between two ranks on this host, one per core.

Latency is half a round trip, as perftest and OSU define it. Bandwidth counts
until the last byte has arrived; MB/s is 10^6 bytes a second. Every size is
verified, byte by byte and both ways, before it is timed.

Started alone, bench starts its ranks itself. Started as one of two ranks of
a job ("sluice run -n 2 bench verbs lat") it is that rank, and rank 0 prints.

Between two hosts without a launcher: the same command on both, on one with
--listen ADDRESS, on the other with that host's address (HOST or HOST:PORT) behind
it. The secret of SLUICE_SECRET or SLUICE_SECRET_FILE proves each to the other;
SLUICE_INSECURE=1 does without.

    hostA$ bench verbs lat --provider ibv --listen :18516
    hostB$ bench verbs lat --provider ibv hostA.example:18516`,
		Args:          out.twoRanks,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return asRanks(cmd.Context(), out, given(cmd.Flags()), verbsTask(s.runs))
		},
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &UsageError{err.Error()} })
	root.CompletionOptions.DisableDefaultCmd = true
	p := root.PersistentFlags()
	p.BoolVar(&out.json, "json", false, "print one JSON object ("+schema+")")
	p.BoolVar(&out.csv, "csv", false, "print comma-separated values")
	p.StringVar(&out.listen, "listen", "", "be one of two ranks, and wait at this address (HOST:PORT, :PORT) for the other, that names it")
	p.StringVar(&out.html, "html", "", "write a page with plots into this file as well; see bench report")
	s.addFlags(root.Flags())
	root.AddCommand(newVerbsCommand(&out), newChannelCommand(&out), newIMPICommand(&out), newHaloCommand(&out), newRingCommand(&out), newLocalCommand(&out),
		newAddSliceCommand(&out), newQMPCommand(&out), newFanoutCommand(&out), newTuneCommand(&out), newScaleCommand(&out), newCompareCommand(&out),
		newSchemaCommand(), newReportCommand(), newSoakCommand(&out))
	root.AddCommand(newCollectiveCommands(&out)...)
	return root
}

func newVerbsCommand(out *outputOptions) *cobra.Command {
	verbs := &cobra.Command{
		Use:   "verbs",
		Short: "Measure the verbs layer",
		Args:  noArgs,
		RunE:  func(*cobra.Command, []string) error { return &UsageError{"verbs: want lat, bw, bibw or rate"} },
	}
	for _, c := range []struct{ pattern, op, short string }{
		{patternLat, "send", "Latency: half a round trip; of read and the atomics the whole operation"},
		{patternBW, "write", "Bandwidth from rank 0 to rank 1"},
		{patternBiBW, "write", "Bandwidth of both directions together"},
		{patternRate, "send", "Messages a second from rank 0 to rank 1, posted in lists"},
	} {
		o := verbsOptions{pattern: c.pattern}
		cmd := &cobra.Command{
			Use:   c.pattern + " [HOST]",
			Short: c.short,
			Args:  out.twoRanks,
			RunE: func(cmd *cobra.Command, _ []string) error {
				if err := o.check(); err != nil {
					return err
				}
				out.allocs = o.allocs
				return asRanks(cmd.Context(), *out, given(cmd.Flags()), verbsTask(o.runs))
			},
		}
		o.addFlags(cmd.Flags(), c.op)
		verbs.AddCommand(cmd)
	}
	return verbs
}

func newChannelCommand(out *outputOptions) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "channel",
		Short: "Measure channels between two ranks",
		Args:  noArgs,
		RunE:  func(*cobra.Command, []string) error { return &UsageError{"channel: want lat, bw, bibw or rate"} },
	}
	for _, c := range []struct{ pattern, short string }{
		{patternLat, "Latency: half a round trip"},
		{patternBW, "Bandwidth from rank 0 to rank 1"},
		{patternBiBW, "Bandwidth of both directions together"},
		{patternRate, "Messages a second from rank 0 to rank 1"},
	} {
		cmd.AddCommand(newPatternCommand(out, c.pattern, c.short, `Each message has memory of its own, and a handle that is declared once and
started again and again.`))
	}
	return cmd
}

func newHaloCommand(out *outputOptions) *cobra.Command {
	return newPatternCommand(out, patternHalo, "Exchange the faces of a lattice with both neighbours on a ring of ranks", `Each rank has a lattice of 16×16×16×16 sites of 192 bytes, x fastest. It sends
both faces of an axis to its neighbours, straight from where they lie, and
receives theirs: of x 4096 blocks of 192 bytes, of y 256 of 3 KiB, of z 16 of
48 KiB, of t one of 768 KiB. One exchange is one start and one wait of a multiple
of all its messages. MB/s are those that one rank sends.`)
}

func newRingCommand(out *outputOptions) *cobra.Command {
	return newPatternCommand(out, patternRing, "Pass a message round a ring of ranks: the time of a hop", `With more ranks than CPUs, those that follow on one another share one.`)
}

func newLocalCommand(out *outputOptions) *cobra.Command {
	return newPatternCommand(out, patternLocal, "Start and test a message from one thread to itself", `What the calls cost when nothing has to come from another core: start the send and
the receive, test both until they are over.`)
}

// newPatternCommand is a command that measures one pattern of channels.
func newPatternCommand(out *outputOptions, pattern, short, long string) *cobra.Command {
	o := channelOptions{pattern: pattern}
	cmd := &cobra.Command{
		Use:   pattern + " [HOST]",
		Short: short,
		Long:  short + ".\n\n" + long,
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

// newCollectiveCommands are one command for several kinds of collectives, and one for
// each.
func newCollectiveCommands(out *outputOptions) []*cobra.Command {
	list := []*cobra.Command{newCollectiveCommand(out, "collectives", "", "Measure collectives of all ranks: several kinds in one go")}
	for _, pattern := range collectivePatterns() {
		short := "Measure " + pattern + " of all ranks"
		if pattern == patternExact {
			short = "Measure an allreduce of one exact accumulator, beside that of 64 doubles"
		}
		list = append(list, newCollectiveCommand(out, pattern, pattern, short))
	}
	return list
}

func newCollectiveCommand(out *outputOptions, use, kinds, short string) *cobra.Command {
	o := collectiveOptions{kinds: kinds}
	cmd := &cobra.Command{
		Use:   use + " [HOST]",
		Short: short,
		Long: short + `.

The figure is the time of one in a loop without a clock in it, at rank 0, as IMB
takes it: all begin together, and only the collective itself keeps them together.
The root of those that have one goes round the ranks. What is added up are
doubles. Every collective, with every root, is verified before it is timed, and what
was timed is as well. With more ranks than CPUs, those that follow on one another share
one.`,
		Args: out.twoRanks,
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

// noArgs refuses arguments that are no flags.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("unknown command or argument %q; see %s --help", args[0], cmd.CommandPath())
	}
	return nil
}

// given lists the flags of the command line.
func given(flags *pflag.FlagSet) map[string]string {
	m := map[string]string{}
	flags.Visit(func(f *pflag.Flag) { m[f.Name] = f.Value.String() })
	return m
}

func usagef(format string, args ...any) error { return &UsageError{fmt.Sprintf(format, args...)} }
