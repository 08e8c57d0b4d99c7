package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// compareOptions are the flags of bench compare.
type compareOptions struct {
	provider    string
	collectives bool
	impi        bool // messages of impi, alone
	qmp         bool // what QMP programs call, alone
	fanout      bool // fan-out, alone
	quick       bool
	rounds      int
	time        time.Duration
	only        string

	rows *onlyRows
}

func newCompareCommand(out *outputOptions) *cobra.Command {
	var o compareOptions
	var regress regressOptions
	cmd := &cobra.Command{
		Use:   "compare [OLD NEW]",
		Short: "Measure against the MPIs that are installed, and against the bare hardware; or compare two reports",
		Long: `With two files that --json has written it says what has become better or worse. Two
figures differ where the medians of their rounds do by the Mann-Whitney U test, as
benchstat has it, and by more than --worse: measure with --rounds 10 or so. Exit status 3: something is worse.

Without files it builds the peer programs and runs them and ours by turns, round by round, so
that what disturbs the machine disturbs all alike. Each runs one process per
core, bound, without a clock in its loop. Figures are medians over the rounds of the
medians of batches, ratios medians of the rounds' own ratios; a ratio is held to
a bar where there is one.

Channels are held to persistent requests over memory of their own, halo exchanges
to vector types and to faces packed by hand, whichever is faster, a ring of 8 ranks to as many of Open MPI on the same cores.

Collectives, blocking in MPI, are of 2 ranks, one a core, and of 4 and 8 on the same
cores; an exact sum of 8 is held to our own allreduce of 64 doubles.

Messages of impi are held to MPI_Send and MPI_Recv, and to windows of MPI_Isend and
MPI_Irecv; qmp to C that does over MPI what the C library of QMP does; chunks of fanout, of
2 and 8 workers, to programs over Open MPI and over libzmq. bench impi, qmp and fanout
compare one of these alone.

Over an RDMA device (--provider ibv) each figure is held to the perftest program
that does the same: of one median the half round trip, of the other the mean
bandwidth, both ends polling, bound, with equal depth, lists, signalling and no
inline data.

UCX's ucx_perftest and libfabric's fi_pingpong are shown where they are installed; of
the last there is only the mean. Nobody is held to them.

c-line is the floor: two C processes that hand cache lines to and fro, one line
for each way (JSON has the figure of one line for both ways as well).`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 0 && len(args) != 2 {
				return usagef("compare: want two reports, or none")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return o.command(cmd, out)
			}
			if err := out.check(); err != nil {
				return err
			}
			only, err := parseOnly(o.only)
			if err != nil {
				return err
			}
			if err := regress.check(); err != nil {
				return err
			}
			return regress.run(cmd.InOrStdin(), out, args, given(cmd.Flags()), only)
		},
	}
	f := cmd.Flags()
	f.Float64Var(&regress.alpha, "alpha", 0.05, "of OLD and NEW: probability of chance from which on two figures count as the same")
	f.Float64Var(&regress.worse, "worse", 3, "of OLD and NEW: per cent up to which a difference does not count")
	f.StringVar(&o.provider, "provider", "", "ibv: an RDMA device, beside perftest; nothing else is compared")
	f.BoolVar(&o.collectives, "collectives", false, "collectives alone")
	o.addFlags(f)
	return cmd
}

// command is what a command does that compares.
func (o *compareOptions) command(cmd *cobra.Command, out *outputOptions) error {
	if err := out.check(); err != nil {
		return err
	}
	if err := o.check(); err != nil {
		return err
	}
	return o.run(cmd.Context(), out, given(cmd.Flags()))
}

// addFlags adds the flags of all that compares.
func (o *compareOptions) addFlags(f *pflag.FlagSet) {
	f.BoolVar(&o.quick, "quick", false, "all rows within a minute: fewer sizes and peers, a shorter time, as many rounds as that leaves room for")
	f.StringVar(&o.only, "only", "", "only disciplines in which this regular expression is found: provider, suite and pattern, as \"shm channel lat\" or \"tcp impi\"; of OLD and NEW also axis, operation, bytes and peer")
	f.IntVar(&o.rounds, "rounds", 0, "rounds (default 11; with --quick 3, or as many as end within a minute)")
	f.DurationVar(&o.time, "time", 0, "measured time of each figure in each round (default 100ms, with --quick 10ms; of ibv 500ms, 200ms)")
}

func (o *compareOptions) check() error {
	if o.provider != "" && o.provider != providerIBV {
		return usagef("--provider %q: want %s, or none", o.provider, providerIBV)
	}
	if o.provider != "" && o.collectives {
		return usagef("--provider and --collectives: want one of them")
	}
	var err error
	if o.rows, err = parseOnly(o.only); err != nil {
		return err
	}
	rounds, t := fullRounds, fullTime
	if o.quick {
		rounds, t = quickRounds, quickTime
	}
	if o.provider == providerIBV { // one sample a round: it has to be longer
		t = 500 * time.Millisecond
		if o.quick {
			t = 200 * time.Millisecond
		}
	}
	if o.rounds == 0 {
		o.rounds = rounds
	}
	if o.time == 0 {
		o.time = t
	}
	if o.time < 0 || o.time > maxTime {
		return usagef("--time %v: want more than 0, at most %v", o.time, maxTime)
	}
	if os.Getenv(boot.EnvRank) != "" {
		return usagef("compare starts its own ranks: run it without a launcher")
	}
	return inRange("rounds", o.rounds, 1, 1000)
}

// How long is compared where nothing else is asked for.
const (
	fullRounds = 11
	fullTime   = 100 * time.Millisecond
)

// comparison is one go of bench compare.
type comparison struct {
	compareOptions
	pace
	self   string
	peers  *peers
	report Report
	doubts doubtful
}

func (o *compareOptions) run(ctx context.Context, out *outputOptions, options map[string]string) (err error) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	c := comparison{compareOptions: *o, pace: pace{rounds: o.rounds, share: contenderBound, began: time.Now()}, report: Report{Schema: schema, Results: []Result{}}}
	if o.quick && o.provider == "" { // of a device the few rows have to be there, in a slow guest as well
		c.bound = quickBound
	}
	c.report.Environment = takeEnvironment(options)
	if c.self, err = os.Executable(); err != nil {
		return err
	}
	if o.provider == "" {
		c.peers, err = buildPeers(ctx)
		if errors.Is(err, errNotInstalled) {
			c.report.Missing = append(c.report.Missing, err.Error())
		} else if err != nil {
			return err
		} else {
			defer func() { err = errors.Join(err, c.peers.Close()) }()
		}
	}
	if out.tables() {
		printEnvironment(os.Stdout, &c.report.Environment)
	}
	list, err := c.contendersOf()
	if err != nil {
		return err
	}
	if list, err = c.picked(list); err != nil {
		return err
	}
	figures, err := c.takeAll(ctx, list)
	if err != nil {
		return err
	}
	for _, f := range figures {
		c.report.Results = append(c.report.Results, f.Result)
	}
	c.report.Comparisons = compareFigures(figures)
	c.report.Warnings = slices.Concat(c.report.Warnings, c.doubts.list(), doubtDistance(figures))
	if quick := o.saysQuick(c.done, time.Since(c.began)); quick != "" {
		c.report.Warnings = append(c.report.Warnings, quick)
	}
	if out.tables() {
		printComparison(os.Stdout, terminal(os.Stdout), &c.report)
	}
	return out.print(os.Stdout, &c.report)
}

// doubtDistance looks at the figures of the bare cache line, round by round: where
// they differ much, a hypervisor has moved the CPUs nearer to each other or
// further apart, or something else used them.
func doubtDistance(figures []figure) []string {
	const much = 0.5
	for _, f := range figures {
		if f.Peer == peerLine && f.Op == lineEachWay && f.Spread > much {
			return []string{fmt.Sprintf("handing over a cache line took from %.0f to %.0f ns in different rounds: compare ratios, not figures",
				slices.Min(f.Medians), slices.Max(f.Medians))}
		}
	}
	return nil
}

// takeAll runs all contenders by turns. Each round begins with another one.
func (c *comparison) takeAll(ctx context.Context, list []contender) ([]figure, error) {
	progress := newProgress(true)
	defer progress.clear()
	var order []string
	rounds := map[string][]Result{}
	gone, spent := make([]bool, len(list)), make([]time.Duration, len(list))
	for c.another(time.Now()) {
		round, since := c.done, time.Now()
		for i := range list {
			k := (i + round) % len(list)
			if gone[k] {
				continue
			}
			progress.show(round*len(list)+i, c.compareOptions.rounds*len(list), list[k].name)
			start := time.Now()
			bound, hung := c.contender(start)
			rs, err := list[k].runBounded(ctx, bound, hung)
			spent[k] += time.Since(start)
			late := c.bound > 0 && errors.Is(err, hung)
			switch {
			case ctx.Err() != nil:
				return nil, ctx.Err()
			case late && round > 0:
				gone[k] = true // there are figures of the rounds before
			case err != nil && list[k].ours && !late:
				return nil, err
			case err != nil:
				// The others can be compared without it.
				gone[k] = true
				if why := err.Error(); !slices.Contains(c.report.Missing, why) {
					c.report.Missing = append(c.report.Missing, why)
				}
			case spent[k] > c.share && round+1 < c.compareOptions.rounds:
				gone[k] = true
				c.report.Warnings = append(c.report.Warnings, list[k].saysSlow(round+1, c.compareOptions.rounds, spent[k]))
			}
			for _, r := range rs {
				name := fmt.Sprint(r.Layer, r.Suite, r.Provider, r.Pattern, r.Axis, r.Bytes, r.Peer, r.Op, r.List, r.Ranks, patternWindow(&r))
				if rounds[name] == nil {
					order = append(order, name)
				}
				rounds[name] = append(rounds[name], r)
			}
		}
		c.over(since, time.Now())
	}
	var all []figure
	for _, name := range order {
		all = append(all, newFigure(rounds[name]))
	}
	return all, nil
}

// picked are the contenders of the disciplines that --only names.
func (c *comparison) picked(list []contender) ([]contender, error) {
	if c.only == "" {
		return list, nil
	}
	var all []string
	kept := slices.DeleteFunc(slices.Clone(list), func(k contender) bool {
		for _, w := range k.what {
			if !slices.Contains(all, w) {
				all = append(all, w)
			}
		}
		return !slices.ContainsFunc(k.what, c.rows.match)
	})
	if len(kept) == 0 && len(list) > 0 {
		return nil, usagef("--only %q: there are %s", c.only, strings.Join(all, ", "))
	}
	return kept, nil
}

func (c *comparison) contendersOf() ([]contender, error) {
	if c.provider == providerIBV {
		return c.rdmaContenders()
	}
	switch {
	case c.collectives:
		return c.collectiveContenders(), nil
	case c.impi:
		return c.impiContenders(), nil
	case c.qmp:
		return c.qmpContenders(), nil
	case c.fanout:
		return c.fanoutContenders(), nil
	}
	return c.contenders(), nil
}

// take adds what a report of ours says of devices and ranks, and its doubts.
func (c *comparison) take(r *Report) {
	e := &c.report.Environment
	e.Ranks = r.Environment.Ranks
	for _, d := range r.Environment.Devices {
		if !slices.Contains(e.Devices, d) {
			e.Devices = append(e.Devices, d)
		}
	}
	c.doubts.add(r.Warnings)
}
