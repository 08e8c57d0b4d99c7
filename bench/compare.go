package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-hpc/sluice/internal/boot"
)

// compareOptions are the flags of bench compare.
type compareOptions struct {
	quick  bool
	rounds int
	time   time.Duration
	only   string
	peers  string // root directories
	base   string // revision
}

func newCompareCommand(out *outputOptions) *cobra.Command {
	var o compareOptions
	var judge changeOptions
	cmd := &cobra.Command{
		Use:   "compare [OLD NEW]",
		Short: "Measure against the installed MPIs and the bare hardware; against another revision; or compare two reports",
		Long: `Without files, sluice and its peers' programs alternate, round by round, so that
disturbances of the machine affect all of them alike. Each runs one process per core, bound,
without a clock in its loop; with more ranks than cores they are not bound. Figures are medians
over the rounds of the medians of batches; ratios are medians of the rounds' ratios, and must
meet a bar where there is one. Rows slower than the best MPI come first.

Peers are Open MPI and MPICH, UCX, libfabric, libzmq and perftest, as far as they are installed
here and in the root directories of --peers, which bench/peers/root.sh makes; limit is the
machine itself. Every peer is run once, briefly; for each size the best MPI and the best other
peer take part in the rounds. If ranks outnumber CPUs, a peer that takes more than 20 times as
long as the best one is reported as crawling, and no ratio to it is quoted.

With --base REV the other program is bench of that revision, built in a worktree of its own. A
row is worse if the 95 % interval of its ratio lies beyond 5 % worse.

With two files that --json has written, it prints what has become better or worse: rows where
the medians of the rounds differ by the Mann-Whitney U test, as in benchstat, and by more than
--worse. Measure with --rounds 10 or so.

Exit status 3: a figure is worse; 4: there were too few rounds to tell.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 0 && len(args) != 2 {
				return usagef("compare: want two reports, or none")
			}
			return nil
		},
		RunE: caught(func(cmd *cobra.Command, args []string) {
			if len(args) == 0 {
				o.command(cmd, out)
				return
			}
			out.check()
			only := parseOnly(o.only)
			must(judge.check())
			judge.compareFiles(cmd.InOrStdin(), out, args, given(cmd.Flags()), only)
		}),
	}
	f := cmd.Flags()
	judge.addFlags(f)
	f.StringVar(&o.base, "base", "", "measure against this revision of sluice instead of peers")
	o.addFlags(f)
	return cmd
}

func (o *compareOptions) addFlags(f *pflag.FlagSet) {
	f.BoolVar(&o.quick, "quick", false, "only rows and sizes that have a bar, within five minutes")
	f.StringVar(&o.only, "only", o.only, "only rows whose name matches this regular expression, ignoring case")
	f.StringVar(&o.peers, "peers", "", "root directories with peers of other versions: a list")
	f.IntVar(&o.rounds, "rounds", 0, "rounds (default as many as an hour allows, at most 11; with --quick 3, and 10 with --base)")
	f.DurationVar(&o.time, "time", 0, "measured time of each figure in each round (default 100ms, with --quick 10ms; for ibv five times as long, with --quick twenty times)")
}

// command runs a command that compares.
func (o *compareOptions) command(cmd *cobra.Command, out *outputOptions) {
	out.check()
	o.check()
	o.run(cmd.Context(), out, given(cmd.Flags()))
}

func (o *compareOptions) check() {
	parseOnly(o.only)
	if o.base != "" && o.peers != "" {
		must(usagef("--base and --peers exclude each other"))
	}
	rounds, t := fullRounds, fullTime
	if o.quick {
		rounds, t = quickRounds, quickTime
	}
	if o.base != "" {
		rounds = enoughRounds
	}
	o.rounds, o.time = cmp.Or(o.rounds, rounds), cmp.Or(o.time, t)
	checkTime(o.time)
	inRange("rounds", o.rounds, 1, 1000)
	if os.Getenv(boot.EnvRank) != "" {
		must(usagef("compare starts its own ranks: run it without a launcher"))
	}
}

// parseOnly reads --only: a regular expression that ignores case; "" matches everything.
func parseOnly(pattern string) *regexp.Regexp {
	re, err := regexp.Compile("(?i)" + pattern)
	if err != nil {
		must(usagef("--only %q: %v", pattern, err))
	}
	return re
}

// comparison is one run of bench compare.
type comparison struct {
	compareOptions
	pace
	self   string
	places []*place
	mpis   []mpi
	rdma   *rdmaPath         // of rows over a device
	latest map[*row]*Result  // of sluice, in this round
	crawls map[*row][]string // peers
	report Report
	doubts doubtful
	failed error // rows of sluice
}

func (o *compareOptions) run(ctx context.Context, out *outputOptions, options map[string]string) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	c := comparison{compareOptions: *o, pace: newPace(o), latest: map[*row]*Result{}, crawls: map[*row][]string{}, report: Report{Schema: schema, Results: []Result{}}}
	c.report.Environment, c.self = takeEnvironment(options), must1(os.Executable())
	if out.tables() {
		printEnvironment(os.Stdout, &c.report.Environment)
	}
	if o.base != "" {
		c.againstBase(ctx, out)
		return
	}
	defer func() {
		for _, p := range c.places {
			_ = p.Close() // a temporary directory
		}
	}()
	c.findPeers(ctx, c.wanted())
	figures := c.takeAll(ctx, c.ofWanted(ctx, "screen", func(r *row) []*contender {
		return c.screen(ctx, c.contendersOf(r, c.pointsOf(r)))
	}))
	c.report.Comparisons = compareFigures(figures, c.crawls)
	c.report.Warnings = append(c.report.Warnings, doubtDistance(figures)...)
	c.end(out, figures, func() { printComparison(os.Stdout, terminal(os.Stdout), &c.report) })
}

func (c *comparison) end(out *outputOptions, figures []figure, tables func()) {
	for _, f := range figures {
		c.report.Results = append(c.report.Results, f.Result)
	}
	c.report.Warnings = append(append(c.report.Warnings, c.doubts.list()...), c.saysShort(time.Now())...)
	if out.tables() {
		tables()
	}
	out.print(os.Stdout, &c.report)
	must(c.failed)
}

// findPeers builds the peers' programs of some rows on this machine and in the root
// directories.
func (c *comparison) findPeers(ctx context.Context, wanted []*row) {
	var names []string
	for _, r := range wanted {
		for _, p := range r.peers {
			words := strings.Fields(p)
			switch words[0] {
			case "mpi":
				names = append(names, words[1])
			case "fi":
				names = append(names, peerLibfabric)
			default:
				names = append(names, words[0])
			}
		}
	}
	if names = slices.Compact(slices.Sorted(slices.Values(names))); len(names) == 0 {
		return
	}
	roots := []string{""}
	if c.compareOptions.peers != "" {
		roots = append(roots, strings.Split(c.compareOptions.peers, ",")...)
	}
	for _, root := range roots {
		p, err := buildPeers(ctx, root, names...)
		if errors.Is(err, errNotInstalled) {
			c.missing(err)
			continue
		}
		must(err)
		c.places = append(c.places, p)
		if root == "" { // a root has the peers that it was made with
			c.report.Missing = append(c.report.Missing, p.missing...)
		}
	}
	c.mpis = findMPIs(c.places)
}

// missing reports what cannot be compared, once.
func (c *comparison) missing(err error) {
	if why := err.Error(); !slices.Contains(c.report.Missing, why) {
		c.report.Missing = append(c.report.Missing, why)
	}
}

// ofWanted finds the contenders of each wanted row; a row without contenders is missing.
func (c *comparison) ofWanted(ctx context.Context, what string, find func(r *row) []*contender) (list []*contender) {
	progress := newProgress(true)
	defer progress.clear()
	wanted := c.wanted()
	for i, r := range wanted {
		progress.show(i, len(wanted), what+" "+r.String())
		if err := try(func() { list = append(list, find(r)...) }); err != nil {
			must(ctx.Err())
			c.missing(fmt.Errorf("%s: %w", r, err))
		}
	}
	return list
}

// pointsOf are the sizes or axes of a row that are measured.
func (c *comparison) pointsOf(r *row) []string {
	if c.quick {
		return r.barred()
	}
	return r.points()
}

// wanted returns the rows that --only and --quick select.
func (c *comparison) wanted() (list []*row) {
	only := parseOnly(c.only)
	var all []string
	for i := range rows {
		r := &rows[i]
		all = append(all, r.String())
		if only.MatchString(r.String()) && len(c.pointsOf(r)) > 0 {
			list = append(list, r)
		}
	}
	if len(list) == 0 {
		must(usagef("--only %q: there are %s", c.only, strings.Join(all, ", ")))
	}
	return list
}

// takeAll runs all contenders alternately. Each round begins with another one. A contender that
// fails takes part in no further round.
func (c *comparison) takeAll(ctx context.Context, list []*contender) []figure {
	progress := newProgress(true)
	defer progress.clear()
	var order []figureKey
	rounds := map[figureKey][]Result{}
	gone, spent := make([]bool, len(list)), make([]time.Duration, len(list))
	for c.another(time.Now()) {
		round, since := c.done, time.Now()
		for i := range list {
			n := (i + round) % len(list)
			k := list[n]
			if gone[n] {
				continue
			}
			progress.show(round*len(list)+i, c.pace.rounds*len(list), k.String())
			begin := time.Now()
			rs, err := k.runBounded(ctx, k.points, c.timeOf(k.row), c.contender(begin))
			spent[n] += time.Since(begin)
			isLate := errors.Is(err, errHung)
			switch {
			case ctx.Err() != nil:
				must(ctx.Err())
			case isLate && round > 0:
				gone[n] = true // it has figures of earlier rounds
			case err != nil: // the others can be compared without it
				gone[n] = true
				c.missing(err)
				if k.peer == peerSluice && !isLate {
					c.failed = errors.Join(c.failed, fmt.Errorf("%s: %w", k, err))
				}
			case spent[n] > fullContender && round+1 < c.pace.rounds:
				gone[n] = true
				c.report.Warnings = append(c.report.Warnings, fmt.Sprintf("%s: in %d of %d rounds, for they took %.0f s: its figures, and ratios to them, are of these",
					k, round+1, c.pace.rounds, spent[n].Seconds()))
			}
			for _, v := range rs {
				if v.Failed != "" {
					c.missing(fmt.Errorf("%s: %s", k, v.Failed))
					continue
				}
				if v.Peer == peerSluice {
					c.latest[k.row] = &v
				}
				name := figureKey{k.row, v.Peer, v.Pattern, v.Op, v.Axis, v.Figure, v.Bytes}
				if rounds[name] == nil {
					order = append(order, name)
				}
				rounds[name] = append(rounds[name], v)
			}
		}
		c.over(since, time.Now())
	}
	var all []figure
	for _, name := range order {
		all = append(all, figure{mergeRounds(rounds[name]), name.row})
	}
	return all
}

// timeOf is how long a figure of a row takes: of a device there is one sample a round.
func (c *comparison) timeOf(r *row) time.Duration {
	switch {
	case r.time > 0:
		return time.Duration(float64(r.time) * float64(c.time) / float64(fullTime))
	case r.provider != providerIBV:
		return c.time
	case c.quick:
		return 20 * c.time
	}
	return 5 * c.time
}

// doubtDistance looks at the figures of the bare cache line, round by round: where
// they differ much, a hypervisor has moved the CPUs nearer to each other or
// further apart, or something else used them.
func doubtDistance(figures []figure) []string {
	const much = 0.5
	for _, f := range figures {
		if f.rival() == limitLine && f.Spread > much {
			return []string{fmt.Sprintf("handing over a cache line took from %.0f to %.0f ns in different rounds: compare ratios, not figures",
				slices.Min(f.Medians), slices.Max(f.Medians))}
		}
	}
	return nil
}

// Time limits: all rows within an hour; with --quick, which gives a rough overview with errors of
// more than a tenth, the rows that have a bar within five minutes.
const (
	fullTime  = 100 * time.Millisecond // of a figure in a round
	quickTime = 10 * time.Millisecond

	fullRounds  = 11 // at most
	quickRounds = 3

	// This includes building and screening the peers. A round begins only if it would end by then;
	// the first round always runs, so that all rows have figures.
	fullBound  = 58 * time.Minute
	quickBound = 4*time.Minute + 50*time.Second

	// A program takes some seconds, with --quick half a second, and longer only if it hangs or the
	// machine is busy. When its rounds have taken so long together, it takes part in no more.
	fullContender  = 2 * time.Minute
	quickContender = 20 * time.Second
)

// errHung says that a program did not end within its bound.
var errHung = errors.New("it did not end in time")

// pace decides whether another round begins, and how long a contender may take.
type pace struct {
	rounds  int // at most
	bound   time.Duration
	each    time.Duration // that a contender may take
	began   time.Time     // the program
	longest time.Duration // of the rounds that are over
	done    int
}

func newPace(o *compareOptions) pace {
	p := pace{rounds: o.rounds, bound: fullBound, each: fullContender, began: time.Now()}
	if o.quick {
		p.bound, p.each = quickBound, quickContender
	}
	return p
}

// another reports whether another round begins at the time now.
func (p *pace) another(now time.Time) bool {
	return p.done < p.rounds && (p.done == 0 || now.Add(p.longest).Sub(p.began) <= p.bound)
}

// over counts a round that lasted from since to now.
func (p *pace) over(since, now time.Time) {
	p.done++
	p.longest = max(p.longest, now.Sub(since))
}

// contender returns how long a contender may take that is started at the time now. In the first
// round each has its full time.
func (p *pace) contender(now time.Time) time.Duration {
	if p.done == 0 {
		return p.each
	}
	return max(0, min(p.each, p.bound-now.Sub(p.began)))
}

// saysShort is the warning if there were fewer rounds than full ones.
func (c *comparison) saysShort(now time.Time) []string {
	took := now.Sub(c.began).Seconds()
	if c.quick {
		return []string{fmt.Sprintf("--quick: %s of %v a figure, by turns, in %.0f s: a ratio near its bar says nothing, without --quick it does", plural(c.done, "round"), c.time, took)}
	}
	if c.done < c.pace.rounds {
		return []string{fmt.Sprintf("%d of %d rounds were possible within %.0f s: --only measures fewer rows", c.done, c.pace.rounds, took)}
	}
	return nil
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// baseWorse is by how much the whole interval of a ratio must be worse than the base.
const baseWorse = 0.05

// peerBase is the other version of sluice, while it is measured.
const peerBase = "base"

// buildBase builds bench of a revision of the repository that this is run in, in a
// worktree of its own. remove takes that away.
func buildBase(ctx context.Context, revision string) (program string, remove func()) {
	defer during(func() string { return "--base " + revision })
	dir := must1(os.MkdirTemp("", "sluice-base-"))
	remove = func() { _ = os.RemoveAll(dir) }
	defer undo(func() { remove() })
	tree, program := filepath.Join(dir, "tree"), filepath.Join(dir, "bench")
	repository := said(ctx, "", "git", "rev-parse", "--show-toplevel")
	// A revision that begins with a hyphen must not be taken for an option.
	commit := said(ctx, repository, "git", "rev-parse", "--verify", "--end-of-options", revision+"^{commit}")
	said(ctx, repository, "git", "worktree", "add", "--detach", tree, commit)
	remove = func() {
		_ = try(func() { said(context.WithoutCancel(ctx), repository, "git", "worktree", "remove", "--force", tree) })
		_ = os.RemoveAll(dir)
	}
	said(ctx, tree, "go", "build", "-o", program, "./bench") // a package of the root's module in older revisions, in the workspace since
	return program, remove
}

// said runs a command in a directory, and returns the line that it prints.
func said(ctx context.Context, dir, name string, args ...string) string {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	out, _, err := captured(cmd)
	must(err)
	return strings.TrimSpace(out.String())
}

// againstBase measures both versions alternately. A row that one of them does not have is left
// out, and reported.
func (c *comparison) againstBase(ctx context.Context, out *outputOptions) {
	program, remove := buildBase(ctx, c.base)
	defer remove()
	figures := c.takeAll(ctx, c.ofWanted(ctx, "try", func(r *row) []*contender { return c.versions(ctx, r, program) }))
	var before, after []Result
	for i := range figures {
		r := figures[i].Result
		if r.Peer == peerBase {
			r.Peer = peerSluice
			before = append(before, r)
		} else {
			after = append(after, r)
		}
	}
	c.report.Changes = changes(before, after, paired)
	c.end(out, figures, func() {
		printChanges(os.Stdout, terminal(os.Stdout), c.report.Changes)
		fmt.Printf("~ is no difference, or one whose 95 %% interval does not lie beyond %.0f %%\n", 100*baseWorse)
		for _, m := range c.report.Missing {
			fmt.Printf("not compared: %s\n", m)
		}
	})
	must(verdictError(c.report.Changes))
}

// versions returns the contenders of both versions for a row, if the base has it: it is tried
// once, briefly.
func (c *comparison) versions(ctx context.Context, r *row, program string) []*contender {
	of := *r
	of.peers = nil
	ours := c.contendersOf(&of, c.pointsOf(r))[0]
	base := *ours
	base.peer = peerBase
	base.run = func(ctx context.Context, points []string, d time.Duration) ([]Result, error) {
		rs, err := c.runOurs(ctx, program, of.command(points, d))
		for i := range rs {
			rs[i].Peer = peerBase
		}
		return rs, err
	}
	bound := max(screenBound, r.measuredBy().alone)
	if _, err := base.runBounded(ctx, base.points[:1], time.Millisecond, bound); errors.Is(err, errHung) {
		must(fmt.Errorf("the base revision takes more than %v for this row", bound))
	} else if err != nil {
		must(fmt.Errorf("the base revision does not have this row: %w", err))
	}
	return []*contender{ours, &base}
}
