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
		Use:   "bench",
		Short: "Measure what this library moves, how fast, and against whom",
		Long: `Without a subcommand: latency and bandwidth over every provider that is there,
between two ranks on this host, one per core.

Latency is half a round trip, as perftest and OSU define it. Bandwidth counts
until the last byte has arrived; MB/s is 10^6 bytes a second. Every size is
verified, byte by byte and both ways, before it is timed.

Started alone, bench starts its two ranks itself. Started as one of two ranks of
a job ("sluice run -n 2 bench verbs lat") it is that rank, and rank 0 prints.`,
		Args:          noArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return asRanks(cmd.Context(), out, given(cmd.Flags()), s.runs)
		},
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &UsageError{err.Error()} })
	root.CompletionOptions.DisableDefaultCmd = true
	p := root.PersistentFlags()
	p.BoolVar(&out.json, "json", false, "print one JSON object ("+schema+")")
	p.BoolVar(&out.csv, "csv", false, "print comma-separated values")
	s.addFlags(root.Flags())
	root.AddCommand(newVerbsCommand(&out), newCompareCommand(&out))
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
			Use:   c.pattern,
			Short: c.short,
			Args:  noArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				if err := o.check(); err != nil {
					return err
				}
				out.allocs = o.allocs
				return asRanks(cmd.Context(), *out, given(cmd.Flags()), o.runs)
			},
		}
		o.addFlags(cmd.Flags(), c.op)
		verbs.AddCommand(cmd)
	}
	return verbs
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
