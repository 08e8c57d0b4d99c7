package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/verbs"
)

// compareOptions are the flags of bench compare.
type compareOptions struct {
	quick  bool
	rounds int
	time   time.Duration
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
to vector types, a ring of 8 ranks to as many of Open MPI on the same cores.

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
	f.BoolVar(&o.quick, "quick", false, "fewer rounds and sizes: a minute and a half")
	f.IntVar(&o.rounds, "rounds", 0, "rounds (default 11, with --quick 5)")
	f.DurationVar(&o.time, "time", 0, "measured time of each figure in each round (default 100ms, with --quick 30ms)")
	return cmd
}

func (o *compareOptions) check() error {
	rounds, t := 11, 100*time.Millisecond
	if o.quick {
		rounds, t = 5, 30*time.Millisecond
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

// contender is one program that is run in each round.
type contender struct {
	name string
	ours bool
	run  func(context.Context) ([]Result, error)
}

// contenderBound is when a contender counts as hung: they take a second or two.
const contenderBound = 2 * time.Minute

// errHung: a contender did not end within its bound.
var errHung = fmt.Errorf("did not end within %v", contenderBound)

func (c *contender) runBounded(ctx context.Context) ([]Result, error) {
	within, cancel := context.WithTimeoutCause(ctx, contenderBound, errHung)
	defer cancel()
	rs, err := c.run(within)
	if err != nil && within.Err() != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("%s: %w", c.name, errHung)
	}
	return rs, err
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
	c.peers, err = buildPeers(ctx)
	if errors.Is(err, errNotInstalled) {
		c.report.Missing = append(c.report.Missing, err.Error())
	} else if err != nil {
		return err
	} else {
		defer func() { err = errors.Join(err, c.peers.Close()) }()
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
	list := c.contenders()
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
				name := fmt.Sprint(r.Layer, r.Suite, r.Provider, r.Pattern, r.Axis, r.Bytes, r.Peer, r.Op)
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

// contenders are all programs of a round.
func (c *comparison) contenders() []contender {
	var list []contender
	if c.peers != nil {
		list = append(list, c.peer(peerLine, "line", "-t", seconds(c.time)))
	}
	// Channels are held to the cache line as well: as soon after it as can be.
	list = append(list, c.channelContenders()...)
	latSizes, bwSizes := "8,1k,64k,1M", "64k,256k,1M,4M"
	if c.quick {
		latSizes, bwSizes = "8", "64k,1M,4M"
	}
	for _, provider := range []string{"shm", "tcp"} {
		if _, err := verbs.Find(provider); err != nil {
			c.report.Missing = append(c.report.Missing, provider+": "+err.Error())
			continue
		}
		for _, t := range []struct {
			pattern, program, sizes string
			ops                     []string
		}{
			{patternLat, "pingpong", latSizes, []string{"send", "write-imm"}},
			{patternBW, "bw", bwSizes, []string{"write", "send"}},
		} {
			for _, op := range t.ops {
				args := []string{"verbs", t.pattern, "--provider", provider, "--op", op, "--sizes", t.sizes}
				if t.pattern == patternLat {
					args = append(args, "--batch")
				}
				list = append(list, c.sluice(strings.Join([]string{provider, t.pattern, op}, " "), args...))
			}
			for _, mpi := range mpis {
				args := []string{"-s", t.sizes}
				if t.pattern == patternBW {
					args = append(args, "-w", strconv.Itoa(defaultWindow))
				}
				list = append(list, c.mpi(mpi, provider, t.program, args...)...)
			}
		}
	}
	return list
}

// channelContenders are the programs that measure channels, and what is
// held against them.
func (c *comparison) channelContenders() []contender {
	var list []contender
	window := strconv.Itoa(defaultChannelWindow)
	for _, t := range []struct {
		provider, memory, lat, bw, quickLat, quickBW string
		mpis                                         []string // that it is held to
	}{
		{"shm", "alloc,heap", "8,64,1k,4k,64k", "64k,256k,1M,4M", "8,4k", "256k,1M", mpis},
		{"tcp", "alloc", "8", "64k,1M", "8", "1M", []string{"openmpi"}},
	} {
		if c.quick {
			t.lat, t.bw = t.quickLat, t.quickBW
		}
		if _, err := verbs.Find(t.provider); err != nil {
			continue // said for the verbs
		}
		ours := func(pattern string, args ...string) contender {
			args = append([]string{"channel", pattern, "--provider", t.provider, "--memory", t.memory}, args...)
			return c.sluice(t.provider+" channel "+pattern, args...)
		}
		list = append(list, ours(patternLat, "--sizes", t.lat, "--batch"))
		for _, mpi := range t.mpis {
			list = append(list, c.mpi(mpi, t.provider, "channel", "-l", t.lat, "-s", t.bw, "-w", window)...)
		}
		list = append(list, ours(patternBW, "--sizes", t.bw, "--window", window))
		if t.provider != "shm" {
			continue
		}
		list = append(list, c.sluice("shm halo", "halo", "--provider", "shm", "--memory", t.memory))
		for _, mpi := range t.mpis {
			list = append(list, c.mpi(mpi, "shm", "halo")...)
		}
		// MPICH, which never gives up its CPU, takes some milliseconds a hop.
		list = append(list, c.sluice("shm ring", "ring", "--provider", "shm", "--ranks", strconv.Itoa(defaultRingRanks), "--batch"))
		list = append(list, c.mpi("openmpi", "shm", "ring")...)
	}
	return append(list, c.sluice("local", "local", "--batch"))
}

func seconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) }

func (c *comparison) peer(name string, args ...string) contender {
	return contender{name: name, run: func(ctx context.Context) ([]Result, error) { return c.peers.run(ctx, args...) }}
}

// mpi is a program of one MPI as a contender; none where no peers can be built.
func (c *comparison) mpi(mpi, provider, program string, args ...string) []contender {
	if c.peers == nil {
		return nil
	}
	all := append([]string{mpi, provider, program, "-t", seconds(c.time)}, args...)
	return []contender{c.peer(strings.Join(all[:3], " "), all...)}
}

// sluice is this very program as a contender.
func (c *comparison) sluice(name string, args ...string) contender {
	args = append(args, "--time", c.time.String(), "--json")
	return contender{name: peerSluice + " " + name, ours: true, run: func(ctx context.Context) ([]Result, error) {
		var out, told bytes.Buffer
		cmd := exec.CommandContext(ctx, c.self, args...)
		inOwnGroup(cmd)
		cmd.WaitDelay = 5 * time.Second
		cmd.Stdout, cmd.Stderr = &out, &told
		if err := cmd.Run(); err != nil {
			return nil, fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, told.Bytes())
		}
		var r Report
		if err := json.Unmarshal(out.Bytes(), &r); err != nil {
			return nil, err
		}
		c.take(&r)
		return r.Results, nil
	}}
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

// doubtful collects the warnings of many runs, which differ in their figures.
type doubtful struct {
	runs  int
	first []string // of each kind, as first met
	count map[string]int
}

func (d *doubtful) add(warnings []string) {
	d.runs++
	if d.count == nil {
		d.count = map[string]int{}
	}
	for _, w := range warnings {
		kind := doubtKind(w)
		if d.count[kind] == 0 {
			d.first = append(d.first, w)
		}
		d.count[kind]++
	}
}

// doubtKind is a warning without its figures.
func doubtKind(w string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune("0123456789.+-", r) {
			return -1
		}
		return r
	}, w)
}

func (d *doubtful) list() []string {
	var l []string
	for _, w := range d.first {
		l = append(l, fmt.Sprintf("%s (so or similarly in %d of %d runs)", w, d.count[doubtKind(w)], d.runs))
	}
	return l
}

// printComparison prints all figures side by side, with ratio, bar and verdict.
func printComparison(w io.Writer, lines bool, r *Report) {
	fmt.Fprintln(w)
	t := newTable(w, lines, "", "bytes", "op", peerSluice, "spread", "openmpi", "mpich", peerLine, "ratio", "to", "bar", "")
	section := ""
	for _, ours := range r.Results {
		if ours.Peer != peerSluice {
			continue
		}
		what := strings.Join(strings.Fields(strings.Join([]string{ours.Provider, ours.Suite, ours.Pattern, ours.Unit}, " ")), " ")
		if what != section && section != "" && lines {
			t.AppendSeparator()
		}
		op := strings.TrimSpace(ours.Axis + " " + ours.Op)
		row := table.Row{"", formatSize(ours.Bytes), op, formatValue(ours.P50), fmt.Sprintf("%.0f %%", 100*ours.Spread)}
		if what != section {
			row[0] = what
		}
		section = what
		for _, peer := range mpis {
			row = append(row, cellOf(r.Results, &ours, peer))
		}
		row = append(row, cellOf(r.Results, &ours, peerLine))
		compared := false
		for i := range r.Comparisons {
			c := &r.Comparisons[i]
			if !c.of(&ours) {
				continue
			}
			if compared { // with another peer: a row that adds only that
				row = table.Row{"", "", "", "", "", "", "", ""}
			}
			t.AppendRow(append(row, verdict(c, lines)...))
			compared = true
		}
		if !compared {
			t.AppendRow(row)
		}
	}
	t.Render()
	for _, m := range r.Missing {
		fmt.Fprintf(w, "not compared: %s\n", m)
	}
}

// The peer program that hands a cache line to and fro, and its usual form.
const (
	peerLine    = "c-line"
	lineEachWay = "each way"
)

// cellOf is the best figure of a peer that corresponds to ours.
func cellOf(rs []Result, ours *Result, peer string) string {
	var found []Result
	for _, r := range rs {
		same := r.sameDiscipline(ours)
		if peer == peerLine {
			same = ours.isFloor(&r)
		}
		if r.Peer == peer && same {
			found = append(found, r)
		}
	}
	if len(found) == 0 {
		return ""
	}
	p50 := func(a, b Result) int { return cmp.Compare(a.P50, b.P50) }
	if ours.Unit == unitLatency {
		return formatValue(slices.MinFunc(found, p50).P50)
	}
	return formatValue(slices.MaxFunc(found, p50).P50)
}

// verdict is the ratio, to whom, the bar, and whether it is met.
func verdict(c *Comparison, color bool) []any {
	cells := []any{fmt.Sprintf("%.2f×", c.Ratio), c.Peer, "", ""}
	if c.Bar == nil {
		return cells
	}
	sign := "≥"
	if c.Better == betterLower {
		sign = "≤"
	}
	limit := fmt.Sprintf("%s %g×", sign, *c.Bar)
	if c.Aim != nil {
		limit += fmt.Sprintf(" (aim %g×)", *c.Aim)
	}
	said, paint := "met", text.FgGreen
	if !*c.Met {
		said, paint = "missed", text.FgRed
	}
	if color {
		said = paint.Sprint(said)
	}
	cells[2], cells[3] = limit, said
	return cells
}
