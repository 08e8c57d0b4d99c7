// Bench measures how fast this library moves data, and compares it with its peers.
//
//	bench                     channels, collectives and each provider, in 30 lines; --all: every size
//	bench verbs lat|bw|...    one pattern of the verbs layer, with all its options
//	bench channel lat|bw|...  one pattern of channels
//	bench impi lat|bw|...     one pattern of impi's messages
//	bench halo                the faces of a lattice, exchanged with both neighbours
//	bench ring                a message round a ring of ranks, also more than CPUs
//	bench local               a message from a thread to itself
//	bench allreduce ...       a collective of all ranks; collectives: several kinds
//	bench exact               an exact sum of all ranks
//	bench addslice            terms added to an exact sum
//	bench qmp                 the calls of QMP programs, against C over MPI; qmp sum|faces: only sluice
//	bench tune                which settings are best here
//	bench scale               collectives on many hosts, estimated
//	bench compare             the same against the installed MPIs
//	bench compare OLD NEW     what has become better or worse, tested as by benchstat
//	bench report FILE...      plots of the reports that --json has written
//	bench soak                mixed traffic on all layers, with kills, stalls and cut links
//	bench schema              the JSON Schema of --json
//	bench HOST                the other rank of a bench --listen on another host, without a launcher
//
// Started alone, it starts its ranks itself. Started by a launcher, it is one of the ranks, and
// rank 0 prints.
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

	"github.com/sluice-hpc/sluice/internal/flagtext"
	_ "github.com/sluice-hpc/sluice/verbs/all"
	_ "github.com/sluice-hpc/sluice/verbs/roce" // used only if roce or xdp is named
)

// UsageError is an error in the command line.
type UsageError struct{ Why string }

func (e *UsageError) Error() string { return e.Why }

// Exit statuses other than 0 and those of ranks.
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

// invalidFlag says what is wrong with a flag of the command line.
func invalidFlag(err error) error {
	if bad := (*pflag.InvalidValueError)(nil); errors.As(err, &bad) {
		f := bad.GetFlag()
		err = flagtext.Invalid(f.Name, f.Shorthand, bad.GetValue(), f.Value.Type(), bad.Unwrap())
	}
	return &UsageError{err.Error()}
}

// failure wraps an error that panics up to the enclosing catch.
type failure struct{ error }

// must panics up to the enclosing catch, if there is an error. Setting up and running a
// measurement is a sequence of calls, each of which needs the ones before, and the first error
// ends the job on all ranks: the sequence reads better without error checks.
func must(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// must1 returns v if there is no error.
func must1[T any](v T, err error) T {
	must(err)
	return v
}

// must2 returns v and u if there is no error.
func must2[T, U any](v T, u U, err error) (T, U) {
	must(err)
	return v, u
}

// try returns the error that f ends with, so that the caller can go on.
func try(f func()) (err error) {
	defer catch(&err)
	f()
	return nil
}

// during, deferred, prefixes a passing error with what was being done.
func during(what func() string) {
	switch p := recover().(type) {
	case nil:
	case failure:
		panic(failure{fmt.Errorf("%s: %w", what(), p.error)})
	default:
		panic(p)
	}
}

// undo, deferred, calls f when an error passes, and keeps that error.
func undo(f func()) {
	if p := recover(); p != nil {
		_ = try(f)
		panic(p)
	}
}

// catch, deferred, returns the error of a must from the function.
func catch(err *error) {
	switch p := recover().(type) {
	case nil:
	case failure:
		*err = p.error
	default:
		panic(p)
	}
}

// caught makes a command from a function that uses must.
func caught(f func(cmd *cobra.Command, args []string)) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error { return try(func() { f(cmd, args) }) }
}

func newRootCommand() *cobra.Command {
	var out outputOptions
	var first firstOptions
	root := &cobra.Command{
		Use:   "bench [HOST]",
		Short: "Measure how fast this library moves data, and compare it with its peers",
		Long: `Without a subcommand, bench measures channels, collectives and each available provider
between two ranks on this host, one per core, and shows how far that is from the limits of
this machine.

Latency is half a round trip, as perftest and OSU define it. Bandwidth counts
until the last byte has arrived; MB/s is 10^6 bytes a second. Every size is
verified, byte by byte and in both directions, before and after it is timed.

Started alone, bench starts its ranks itself. Started as one of the ranks of
a job ("sluice run -n 2 bench verbs lat"), it is that rank, and rank 0 prints.

"bench channel lat,bw" measures several patterns of a layer in one job.

Between two hosts without a launcher, run the same command on both: on one with
--listen ADDRESS, on the other with that host's address (HOST or HOST:PORT) as the
last argument. Both must have the same secret, in SLUICE_SECRET or
SLUICE_SECRET_FILE; SLUICE_INSECURE=1 skips the check.

    hostA$ bench verbs lat --provider ibv --listen :18516
    hostB$ bench verbs lat --provider ibv hostA.example:18516`,
		Args:          out.hosts,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          caught(func(cmd *cobra.Command, _ []string) { first.run(cmd, &out) }),
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return invalidFlag(err) })
	root.CompletionOptions.DisableDefaultCmd = true
	p := root.PersistentFlags()
	p.BoolVar(&out.json, "json", false, "print one JSON object ("+schema+")")
	p.BoolVar(&out.csv, "csv", false, "print comma-separated values")
	p.StringVar(&out.listen, "listen", "", "be one of two ranks, and wait at this address (HOST:PORT, :PORT) for the other, which names it")
	p.StringVar(&out.html, "html", "", "also write a page with plots into this file; see bench report")
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
	only             string // rows of bench compare that the command runs without patterns
}

func of(name string) func(*pattern) bool { return func(p *pattern) bool { return p.layer == name } }

var layers = []layer{
	{use: layerVerbs, short: "Measure the verbs layer", has: of(layerVerbs)},
	{use: layerChannel, short: "Measure channels", has: of(layerChannel)},
	{use: layerIMPI, short: "Measure impi's messages, against the installed MPIs", has: of(layerIMPI),
		only: " impi ", long: `Measures matched messages, over shared memory and over TCP: Send and Recv in a
ping-pong, and windows of Isend and Irecv. Package impi and MPI without persistent
requests alternate, as in bench compare, which also has these rows.`},
	{use: layerQMP, short: "Measure the calls of QMP programs, against C over the installed MPIs", has: of(layerQMP),
		only: " qmp ", long: `Measures sums of one double and of several, in place, by 2, 4 and 8 nodes, and the
exchange of the faces of a lattice of 16×16×16×16 sites of 192 bytes with both
neighbours of a ring, through one multiple of relative handles (half: the halo of the
Wilson operator, 96 contiguous bytes a site of t). Package qmp alternates, as in bench
compare, with a C program that does what the C library does over MPI (MPI_Allreduce;
persistent requests over vector types, MPI_Startall and MPI_Waitall).

A ratio must meet the bars of channels and collectives, plus ten per cent.`},
	{use: layerFanout, short: "Measure fan-out of chunks to workers, against libzmq and Open MPI", has: of(layerFanout),
		only: " fanout ", long: `Measures chunks a second from a supplier to 2 and to 8 workers on this host that ask for
them. Package fanout, a master-worker program in C over Open MPI, and one over libzmq
(ROUTER and DEALER, ipc) alternate, as in bench compare, with the same window: the number
of chunks that a worker asks for ahead. No rank is bound to a core. All rows take some
three minutes, with --quick a few seconds.`},
	{use: layerMachine, short: "Measure the limits of this machine", has: of(layerMachine)},
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
