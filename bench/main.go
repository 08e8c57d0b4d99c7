// Bench measures what this library moves, how fast, and beside its peers.
//
//	bench                     latency and bandwidth of every provider, two ranks on this host
//	bench verbs lat|bw|...    one pattern of the verbs layer, with all its options
//	bench channel lat|bw|...  one pattern of channels
//	bench impi lat|bw|...     one pattern of impi's messages
//	bench halo                the faces of a lattice, exchanged with both neighbours
//	bench ring                a message round a ring of ranks, also more than CPUs
//	bench local               a message from a thread to itself
//	bench allreduce ...       a collective of all ranks; collectives: several kinds
//	bench exact               an exact sum of all ranks
//	bench addslice            terms added to an exact sum
//	bench qmp                 what QMP programs call, against C over MPI; qmp sum|faces: ours
//	bench tune                which settings of collectives are best here
//	bench scale               collectives on many hosts, estimated
//	bench compare             the same against the MPIs that are installed
//	bench compare OLD NEW     what has become better or worse, as benchstat tells it
//	bench report FILE...      plots of what --json has written
//	bench soak                mixed traffic on all layers, with kills, stalls and cut links
//	bench schema              the JSON Schema of --json
//	bench HOST                beside a bench --listen on another host, without a launcher
//
// Started alone it starts its ranks itself; started by a launcher it is one of
// them, and rank 0 prints.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	_ "github.com/sluice-hpc/sluice/verbs/all"
	_ "github.com/sluice-hpc/sluice/verbs/roce" // for who asks for it, or for xdp
)

// UsageError is a command line that asks for what cannot be.
type UsageError struct{ Why string }

func (e *UsageError) Error() string { return e.Why }

// Exit statuses beside 0 and those that a rank ended with.
const (
	exitFailed = 1
	exitUsage  = 2
	exitWorse  = 3 // bench compare OLD NEW, --base: a figure is worse
	exitFew    = 4 // these: there were too few rounds to tell
)

func main() {
	err := newRootCommand().ExecuteContext(context.Background())
	var told reported
	if err != nil && !errors.As(err, &told) {
		tell(err)
	}
	os.Exit(exitStatus(err))
}

func exitStatus(err error) int {
	var usage *UsageError
	var rank *RankFailedError
	var worse *RegressionError
	var few *TooFewRoundsError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &usage):
		return exitUsage
	case errors.As(err, &worse):
		return exitWorse
	case errors.As(err, &few):
		return exitFew
	case errors.As(err, &rank):
		return rank.Status
	}
	return exitFailed
}

// failure is an error on its way to the catch around it.
type failure struct{ error }

// must ends what catch surrounds, if there is an error. Setting up and carrying out a
// measurement is one call after the other, of which none makes sense without the ones before,
// and the first error ends the job at all ranks: what is to be done reads better without that.
func must(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// must1 is v, where there is no error.
func must1[T any](v T, err error) T {
	must(err)
	return v
}

// must2 is v and u, where there is no error.
func must2[T, U any](v T, u U, err error) (T, U) {
	must(err)
	return v, u
}

// try is the error that f ends with, for what has to be done all the same.
func try(f func()) (err error) {
	defer catch(&err)
	f()
	return nil
}

// during, deferred, says in an error that passes by what was being done.
func during(what func() string) {
	switch p := recover().(type) {
	case nil:
	case failure:
		panic(failure{fmt.Errorf("%s: %w", what(), p.error)})
	default:
		panic(p)
	}
}

// undo, deferred, does something where an error passes by, which is the one that counts.
func undo(f func()) {
	if p := recover(); p != nil {
		_ = try(f)
		panic(p)
	}
}

// catch, deferred, makes the error of a must that of the function.
func catch(err *error) {
	switch p := recover().(type) {
	case nil:
	case failure:
		*err = p.error
	default:
		panic(p)
	}
}

// caught is a command that must.
func caught(f func(cmd *cobra.Command, args []string)) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error { return try(func() { f(cmd, args) }) }
}

func newRootCommand() *cobra.Command {
	var out outputOptions
	var first firstOptions
	root := &cobra.Command{
		Use:   "bench [HOST]",
		Short: "Measure what this library moves, how fast, and beside its peers",
		Long: `Without a subcommand: what channels, collectives and each provider that is there take
between two ranks on this host, one per core, and how far that is from what this machine can do.

Latency is half a round trip, as perftest and OSU define it. Bandwidth counts
until the last byte has arrived; MB/s is 10^6 bytes a second. Every size is
verified, byte by byte and both ways, before it is timed and after.

Started alone, bench starts its ranks itself. Started as one of the ranks of
a job ("sluice run -n 2 bench verbs lat") it is that rank, and rank 0 prints.

Several patterns of a layer are measured in one job by "bench channel lat,bw".

Between two hosts without a launcher: the same command on both, on one with
--listen ADDRESS, on the other with that host's address (HOST or HOST:PORT) behind
it. The secret of SLUICE_SECRET or SLUICE_SECRET_FILE proves each to the other;
SLUICE_INSECURE=1 does without.

    hostA$ bench verbs lat --provider ibv --listen :18516
    hostB$ bench verbs lat --provider ibv hostA.example:18516`,
		Args:          out.hosts,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          caught(func(cmd *cobra.Command, _ []string) { first.run(cmd, &out) }),
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &UsageError{err.Error()} })
	root.CompletionOptions.DisableDefaultCmd = true
	p := root.PersistentFlags()
	p.BoolVar(&out.json, "json", false, "print one JSON object ("+schema+")")
	p.BoolVar(&out.csv, "csv", false, "print comma-separated values")
	p.StringVar(&out.listen, "listen", "", "be one of two ranks, and wait at this address (HOST:PORT, :PORT) for the other, that names it")
	p.StringVar(&out.html, "html", "", "write a page with plots into this file as well; see bench report")
	first.addFlags(root.Flags())
	for _, l := range layers {
		root.AddCommand(l.command(&out))
	}
	for _, p := range patterns {
		if p.top {
			root.AddCommand(p.newCommand(&out))
		}
	}
	root.AddCommand(newTuneCommand(&out), newScaleCommand(&out), newCompareCommand(&out), newSchemaCommand(), newReportCommand(), newSoakCommand(&out), newLoadCommand(), newBurnCommand())
	return root
}

// layer is a command whose subcommands are patterns.
type layer struct {
	use, short, long string
	has              func(*pattern) bool
	only             string // rows of bench compare, which the command does without patterns
}

func of(name string) func(*pattern) bool { return func(p *pattern) bool { return p.layer == name } }

var layers = []layer{
	{use: layerVerbs, short: "Measure the verbs layer", has: of(layerVerbs)},
	{use: layerChannel, short: "Measure channels", has: of(layerChannel)},
	{use: layerIMPI, short: "Measure impi's messages, against the MPIs that are installed", has: of(layerIMPI),
		only: " impi ", long: `Messages that are matched, over shared memory and over TCP: Send and Recv to and fro,
windows of Isend and Irecv. Package impi and MPI without persistent requests run by
turns, as those of bench compare do, which has these rows as well.`},
	{use: layerQMP, short: "Measure what QMP programs call, against C over the MPIs that are installed", has: of(layerQMP),
		only: " qmp ", long: `Sums of one double and of several, in place, by 2, 4 and 8 nodes, and the faces of a
lattice of 16×16×16×16 sites of 192 bytes, exchanged with both neighbours of a ring
through one multiple of relative handles (half: the halo of the Wilson operator, 96
contiguous bytes a site of t): through package qmp, and by a C program that
does what the C library does over MPI (MPI_Allreduce; persistent requests over vector
types, MPI_Startall and MPI_Waitall). They run by turns, as those of bench compare do.

A ratio is held to the bars of channels and collectives, and ten per cent.`},
	{use: layerFanout, short: "Measure fan-out of chunks to workers, against libzmq and Open MPI", has: of(layerFanout),
		only: " fanout ", long: `Chunks a second from a supplier to 2 and to 8 workers of this host, each of which asks for
them: through package fanout, by a master–worker program in C over Open MPI, and by one over
libzmq (ROUTER and DEALER, ipc). They run by turns, as those of bench compare do, with
the same window: how many chunks a worker has asked for ahead. No rank is bound to a core. All of it
takes some three minutes, with --quick a few seconds.`},
	{use: layerMachine, short: "Measure what this machine can do at best", has: of(layerMachine)},
	{use: "collectives", short: "Measure collectives of all ranks: several kinds in one job", long: longCollective,
		has: func(p *pattern) bool { return isCollective(p.name) && p.layer == layerChannel }},
}

// command measures several of the layer's patterns in one job, or one by a subcommand.
func (l layer) command(out *outputOptions) *cobra.Command {
	var all []*pattern
	var names []string
	for _, p := range patterns {
		if l.has(p) {
			all = append(all, p)
			names = append(names, p.command())
		}
	}
	cmd := &cobra.Command{Use: l.use + " PATTERN,... [HOST]", Short: l.short, Long: l.long, Args: cobra.ArbitraryArgs}
	f := cmd.Flags()
	compare, alone := compareOptions{only: l.only}, pflag.NewFlagSet("", pflag.ContinueOnError)
	if l.only != "" {
		compare.addFlags(alone)
	}
	f.AddFlagSet(alone)
	var o options
	for _, p := range all {
		p.addFlags(f, &o)
		if l.use != "collectives" {
			cmd.AddCommand(p.newCommand(out))
		}
	}
	kinds := strings.Join(names, ",")
	if l.use == "collectives" {
		f.StringVar(&kinds, "kinds", kinds, "kinds: a list")
	}
	cmd.RunE = caught(func(cmd *cobra.Command, args []string) {
		switch {
		case l.use == "collectives":
			parseList("kinds", kinds, names...)
			args = append([]string{kinds}, args...)
		case len(args) == 0 && l.only != "":
			for name := range given(f) {
				if alone.Lookup(name) == nil && cmd.InheritedFlags().Lookup(name) == nil {
					must(usagef("--%s: want %s, or several of them", name, strings.Join(names, ", ")))
				}
			}
			compare.command(cmd, out)
			return
		case len(args) == 0:
			must(usagef("%s: want %s, or several of them", l.use, strings.Join(names, ", ")))
		}
		list := parsePatterns(cmd, args[0], all)
		must(out.hosts(cmd, args[1:]))
		measure(cmd, out, list)
	})
	return cmd
}

// parsePatterns reads a list of names of commands.
func parsePatterns(cmd *cobra.Command, text string, all []*pattern) []*pattern {
	var list []*pattern
	for name := range strings.SplitSeq(text, ",") {
		i := slices.IndexFunc(all, func(p *pattern) bool { return p.command() == name })
		if i < 0 {
			must(usagef("unknown command or argument %q; see %s --help", name, cmd.CommandPath()))
		}
		list = append(list, all[i])
	}
	return list
}

func (p *pattern) newCommand(out *outputOptions) *cobra.Command {
	cmd := &cobra.Command{
		Use:   p.command() + " [HOST]",
		Short: p.short,
		Long:  strings.TrimSpace(p.short + ".\n\n" + p.long),
		Args:  out.hosts,
		RunE:  caught(func(cmd *cobra.Command, _ []string) { measure(cmd, out, []*pattern{p}) }),
	}
	p.addFlags(cmd.Flags(), &options{})
	return cmd
}

func measure(cmd *cobra.Command, out *outputOptions, list []*pattern) {
	j := job{outputOptions: *out, given: given(cmd.Flags())}
	for _, p := range list {
		w := newWork(p, j.given)
		j.allocs = w.o.allocs
		j.works = append(j.works, w)
	}
	j.run(cmd.Context())
}

// noArgs refuses arguments that are no flags.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("unknown command or argument %q; see %s --help", args[0], cmd.CommandPath())
	}
	return nil
}

func given(flags *pflag.FlagSet) map[string]string {
	m := map[string]string{}
	flags.Visit(func(f *pflag.Flag) { m[f.Name] = f.Value.String() })
	return m
}

func usagef(format string, args ...any) error { return &UsageError{fmt.Sprintf(format, args...)} }
