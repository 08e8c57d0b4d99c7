package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/spf13/cobra"
)

// compareOptions are the flags of bench compare.
type compareOptions struct {
	provider string
	quick    bool
	rounds   int
	time     time.Duration
}

func newCompareCommand(out *outputOptions) *cobra.Command {
	var o compareOptions
	cmd := &cobra.Command{
		Use:   "compare",
		Short: "Measure against the MPIs that are installed, and against the bare hardware",
		Long: `Builds the peer programs and runs them and ours by turns, round by round, so
that what disturbs the machine disturbs all alike. Each runs one process per
core, bound, without a clock in its loop. Figures are medians over the rounds of the
medians of batches, ratios medians of the rounds' own ratios; a ratio is held to
a bar where there is one.

Channels are held to persistent requests over memory of their own, halo exchanges
to vector types and to faces packed by hand, whichever is faster, a ring of 8 ranks to as many of Open MPI on the same cores.

Over an RDMA device (--provider ibv) each figure is held to the perftest program
that does the same: of one median the half round trip, of the other the mean
bandwidth, both ends polling, bound, with equal depth, lists, signalling and no
inline data.

c-line is the floor: two C processes that hand cache lines to and fro, one line
for each way (JSON has the figure of one line for both ways as well).`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			if err := o.check(); err != nil {
				return err
			}
			return o.run(cmd.Context(), out, given(cmd.Flags()))
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.provider, "provider", "", "ibv: an RDMA device, beside perftest; nothing else is compared")
	f.BoolVar(&o.quick, "quick", false, "fewer rounds and sizes: about two minutes")
	f.IntVar(&o.rounds, "rounds", 0, "rounds (default 11, with --quick 5)")
	f.DurationVar(&o.time, "time", 0, "measured time of each figure in each round (default 100ms, with --quick 30ms; of ibv 500ms, 200ms)")
	return cmd
}

func (o *compareOptions) check() error {
	if o.provider != "" && o.provider != providerIBV {
		return usagef("--provider %q: want %s, or none", o.provider, providerIBV)
	}
	rounds, t := 11, 100*time.Millisecond
	if o.quick {
		rounds, t = 5, 30*time.Millisecond
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

// comparison is one go of bench compare.
type comparison struct {
	compareOptions
	self   string
	peers  *peers
	report Report
	doubts doubtful
}

func (o *compareOptions) run(ctx context.Context, out *outputOptions, options map[string]string) (err error) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	c := comparison{compareOptions: *o, report: Report{Schema: schema, Results: []Result{}}}
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
	figures, err := c.takeAll(ctx)
	if err != nil {
		return err
	}
	for _, f := range figures {
		c.report.Results = append(c.report.Results, f.Result)
	}
	c.report.Comparisons = compareFigures(figures)
	c.report.Warnings = append(c.doubts.list(), doubtDistance(figures)...)
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
				slices.Min(f.medians), slices.Max(f.medians))}
		}
	}
	return nil
}

// takeAll runs all contenders by turns. Each round begins with another one.
func (c *comparison) takeAll(ctx context.Context) ([]figure, error) {
	list, err := c.contendersOf()
	if err != nil {
		return nil, err
	}
	progress := newProgress(true)
	defer progress.clear()
	var order []string
	rounds := map[string][]Result{}
	gone := make([]bool, len(list))
	for round := range c.rounds {
		for i := range list {
			k := (i + round) % len(list)
			if gone[k] {
				continue
			}
			progress.show(round*len(list)+i, c.rounds*len(list), list[k].name)
			rs, err := list[k].runBounded(ctx)
			switch {
			case ctx.Err() != nil:
				return nil, ctx.Err()
			case err != nil && list[k].ours:
				return nil, err
			case err != nil:
				// The others can be compared without it.
				gone[k] = true
				c.report.Missing = append(c.report.Missing, err.Error())
			}
			for _, r := range rs {
				name := fmt.Sprint(r.Layer, r.Suite, r.Provider, r.Pattern, r.Axis, r.Bytes, r.Peer, r.Op, r.List)
				if rounds[name] == nil {
					order = append(order, name)
				}
				rounds[name] = append(rounds[name], r)
			}
		}
	}
	var all []figure
	for _, name := range order {
		all = append(all, newFigure(rounds[name]))
	}
	return all, nil
}

func (c *comparison) contendersOf() ([]contender, error) {
	if c.provider == providerIBV {
		return c.rdmaContenders()
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
