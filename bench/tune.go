package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/verbs"
)

// tuneOptions are the flags of bench tune.
type tuneOptions struct {
	provider string
	ranks    int
	kinds    string
	sizes    string
	time     time.Duration
	rounds   int
	exports  bool
	file     string
	what     string

	parts    []string
	patterns []string
	bytes    []int
}

// What is tuned.
const (
	tuneCollectives = "collectives"
	tuneEager       = "eager"
	tunePack        = "pack"
	tuneRead        = "read"
	tuneCopy        = "copy"
	tuneProvider    = "provider"
)

var tunedParts = []string{tuneCollectives, tuneEager, tunePack, tuneRead, tuneCopy, tuneProvider}

// tunedKinds are those whose algorithms are measured by default: scatter is chosen
// as gather is, exscan as scan.
const tunedKinds = "barrier,bcast,reduce,allreduce,reduce-scatter,scan,gather,allgather,alltoall"

func newTuneCommand(out *outputOptions) *cobra.Command {
	var o tuneOptions
	cmd := &cobra.Command{
		Use:   "tune [HOST]",
		Short: "Measure ways of messages and algorithms of collectives, and print the settings to export",
		Long: `Every algorithm, and every way of a message, is measured with every size, and the
crossovers are set so that those are chosen that were the fastest. What is no faster than
without is left as it is: nothing is printed that does not matter.

    collectives  algorithms, by members and bytes
    eager        messages that are copied at both ends, against asking the receiver first
    pack         blocks that are packed into one piece, against chains of scatter and gather
    read         messages in blocks whose receiver comes second: written by the sender, who
                 gathers several blocks at once, against fetching them, block by block
    copy         within this host, memory of the heap through a pipe of shared memory,
                 against reading it out of the other process (no setting: it is shown)
    provider     roce, and xdp between hosts, each against tcp, where all ranks have it

Messages are measured between rank 0 and the first rank on another host, memory within a
host between rank 0 and the first rank beside it; where all are on one host, each rank
counts as a host: what is tuned is between hosts. A provider that was faster than tcp is put
before it, the fastest first, behind shm and ibv; one that was not stays unused, as it is
without a setting. xdp attaches a program to the network interface while it is measured.

Started alone it starts its ranks, on this host; in a job of any launcher ("srun -n 16
bench tune") it tunes for that number, over the provider given; with --listen on one host, and that
host's address on another, for two. Each rank then starts a process for each set of
algorithms; they meet at rank 0.

    eval "$(bench tune --exports)"

or, for all jobs of a cluster, a file that every process reads when it joins:

    bench tune --file tuning && export SLUICE_TUNING_FILE=$PWD/tuning

Rank 0 writes it: of two hosts that is the one that does not listen.

    hostA$ bench tune --what provider --listen :18516
    hostB$ bench tune --what provider --file tuning hostA.example`,
		Args: out.twoRanks,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			if err := o.check(out); err != nil {
				return err
			}
			return o.run(cmd.Context(), out, given(cmd.Flags()))
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.what, "what", strings.Join(tunedParts, ","), "what to measure: a list")
	f.StringVar(&o.provider, "provider", "tcp", "provider between the ranks: tcp, ibv")
	f.IntVarP(&o.ranks, "ranks", "n", 4, "ranks to start; a job has its own number")
	f.StringVar(&o.kinds, "kinds", tunedKinds, "kinds of collectives: a list")
	f.StringVar(&o.sizes, "sizes", "8,256,1k,4k,16k,64k,256k,1M", "bytes of the vector, or of each rank's block, as of bench collectives")
	f.DurationVar(&o.time, "time", 10*time.Millisecond, "measured time of each size and round")
	f.IntVar(&o.rounds, "rounds", 3, "rounds, of which the median counts")
	f.StringVar(&o.file, "file", "", "write the settings into this file, for SLUICE_TUNING_FILE")
	f.BoolVar(&o.exports, "exports", false, "print the settings alone")
	return cmd
}

func (o *tuneOptions) check(out *outputOptions) error {
	var err error
	if o.parts, err = parseList("what", o.what, tunedParts...); err != nil {
		return err
	}
	names := slices.DeleteFunc(collectivePatterns(), func(s string) bool { return s == patternExact })
	if o.patterns, err = parseList("kinds", o.kinds, names...); err != nil {
		return err
	}
	if o.bytes, err = parseSizes(o.sizes); err != nil {
		return err
	}
	if err := inDoubles(o.bytes); err != nil {
		return err
	}
	switch {
	case o.provider == "shm":
		return usagef("--provider shm: within a host there are no algorithms to choose from")
	case o.time <= 0 || o.time > maxTime:
		return usagef("--time %v: want more than 0, at most %v", o.time, maxTime)
	case o.exports && (out.csv || out.json):
		return usagef("--csv, --json and --exports: want one of them")
	}
	if err := checkFolder("file", o.file); err != nil {
		return err
	}
	if err := inRange("rounds", o.rounds, 1, 1000); err != nil {
		return err
	}
	return inRange("ranks", o.ranks, 2, maxRanks)
}

// run is one rank of a job, or starts one.
func (o *tuneOptions) run(ctx context.Context, out *outputOptions, options map[string]string) (err error) {
	ctx, stop, err := out.meet(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	job, err := boot.Join(ctx)
	if err != nil {
		return err
	}
	if _, launched := os.LookupEnv(boot.EnvRank); job.Size() == 1 && !launched {
		if err := job.Close(); err != nil {
			return err
		}
		if _, err := verbs.Find(o.provider); err != nil {
			return err
		}
		return launchSelf(ctx, o.ranks, false)
	}
	// Who is told to end takes along what it has started.
	ctx, release := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer release()
	if err = o.tune(ctx, job, out, options); err != nil {
		err = fail(job, err)
	}
	return errors.Join(err, job.Close())
}

// tune measures all sets of settings, and at rank 0 chooses and prints.
func (o *tuneOptions) tune(ctx context.Context, job *boot.Job, out *outputOptions, options map[string]string) error {
	if job.Size() < 2 {
		return &SizeError{Size: job.Size(), Least: 2}
	}
	_, err := verbs.Find(o.provider)
	ranks, err := share(ctx, job, takeTuneRank(job.Rank(), options), err)
	if err != nil {
		return err
	}
	report := Report{Schema: schema, Environment: takeEnvironment(options), Results: []Result{}}
	for _, r := range ranks {
		if r.Options != ranks[0].Options {
			return &MismatchError{[]string{ranks[0].Options, r.Options}}
		}
		report.Environment.Ranks = append(report.Environment.Ranks, r.Environment)
	}
	progress := newProgress(job.Rank() == 0)
	defer progress.clear()
	j := tuneJob{Job: job, ranks: ranks, rounds: o.rounds, progress: progress}
	if j.meet, err = findMeetingPlace(ctx, job, j.partner(false) > 0); err != nil {
		return err
	}
	var t timings
	best := coll.DefaultSettings()
	if slices.Contains(o.parts, tuneCollectives) {
		if t, err = o.tuneCollectives(ctx, &j, &report); err != nil {
			return err
		}
		if job.Rank() == 0 {
			best = t.fit(job.Size())
			report.Settings = best.Environ()
		}
	}
	ways, err := o.tuneMessages(ctx, &j, &report)
	if err != nil || job.Rank() != 0 {
		return err
	}
	progress.clear()
	if o.file != "" {
		if err := writeTuning(o.file, &report, o.provider, job.Size()); err != nil {
			return err
		}
	}
	return o.print(out, &report, t, best, ways, job.Size())
}

// tuneCollectives measures all sets of settings; what it returns is of rank 0.
func (o *tuneOptions) tuneCollectives(ctx context.Context, j *tuneJob, report *Report) (timings, error) {
	plan := o.trials(j.Size())
	var jobs []trialJob
	for i := range plan {
		jobs = append(jobs, o.jobOf(&plan[i], j.Size()))
	}
	merged, err := j.measure(ctx, jobs)
	if err != nil || j.Rank() != 0 {
		return nil, err
	}
	t := timings{}
	for i := range plan {
		for _, r := range merged[i] {
			kind, _ := collectiveKind(r.Pattern)
			key := measured{kind, int(r.Bytes), plan[i].settings.Force[kind], plan[i].settings.Segment}
			t[key] = r.P50
			r.Algorithm, r.Segment = key.algorithm.String(), int64(plan[i].segment)
			report.Results = append(report.Results, r)
		}
	}
	return t, nil
}

// jobOf is the job of a trial of so many ranks.
func (o *tuneOptions) jobOf(t *trial, ranks int) trialJob {
	var sizes []string
	for _, n := range t.sizes {
		sizes = append(sizes, strconv.Itoa(n))
	}
	members := make([]int, ranks)
	for i := range members {
		members[i] = i
	}
	return trialJob{members: members, settings: t.settings.Environ(), args: []string{"collectives", "--provider", o.provider, "--kinds", strings.Join(t.kinds, ","),
		"--sizes", strings.Join(sizes, ","), "--call", callDeclared, "--time", o.time.String()}}
}

// trial is a job with one algorithm of each kind.
type trial struct {
	settings coll.Settings
	kinds    []string
	sizes    []int
	segment  int // that is tried; 0: that of the defaults
}

// tunedSegments are tried beside that of the defaults.
var tunedSegments = []int{8 << 10, 128 << 10}

// trials are the jobs that measure all algorithms of all kinds.
func (o *tuneOptions) trials(ranks int) []trial {
	var list []trial
	for i := 0; ; i++ {
		t := trial{settings: coll.DefaultSettings(), sizes: o.bytes}
		more := false
		for _, name := range o.patterns {
			kind, _ := collectiveKind(name)
			algorithms := coll.Algorithms(kind)
			if i >= len(algorithms) {
				continue
			}
			more = true
			if possible(algorithms[i], kind, ranks) {
				t.settings.Force[kind] = algorithms[i]
				t.kinds = append(t.kinds, name)
			}
		}
		if !more {
			break
		}
		if t.kinds != nil {
			list = append(list, t)
		}
	}
	long := slices.DeleteFunc(slices.Clone(o.bytes), func(n int) bool { return n < 2*slices.Max(tunedSegments) })
	for _, segment := range tunedSegments {
		t := trial{settings: coll.DefaultSettings(), sizes: long, segment: segment}
		t.settings.Segment = segment
		for _, name := range o.patterns {
			if kind, _ := collectiveKind(name); slices.Contains(coll.Algorithms(kind), coll.Pipeline) {
				t.settings.Force[kind] = coll.Pipeline
				t.kinds = append(t.kinds, name)
			}
		}
		if t.kinds != nil && long != nil {
			list = append(list, t)
		}
	}
	return list
}

// shapeOf is a collective of doubles.
func shapeOf(kind coll.Kind, ranks, bytes int) coll.Shape {
	return coll.Shape{Kind: kind, Size: ranks, Elem: doubleBytes, Count: bytes / doubleBytes}
}

// possible says whether an algorithm can carry out a collective of so many ranks.
func possible(a coll.Algorithm, kind coll.Kind, ranks int) bool {
	s := shapeOf(kind, ranks, doubleBytes)
	_, err := coll.Cost(a, &s)
	return err == nil
}

// writeTuning writes the settings as [channel.EnvTuningFile] takes them, with where they
// were measured.
func writeTuning(path string, r *Report, provider string, ranks int) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# bench tune, %s, %d ranks over %s, %s\n", r.Environment.Time, ranks, provider, r.Environment.CPU)
	if len(r.Settings) == 0 {
		fmt.Fprintln(&b, "# the defaults choose as well as any settings")
	}
	for _, s := range r.Settings {
		fmt.Fprintln(&b, s)
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}

// print shows what has been measured, and the settings.
func (o *tuneOptions) print(out *outputOptions, r *Report, t timings, best coll.Settings, ways []way, ranks int) error {
	if !out.tables() {
		return out.print(os.Stdout, r)
	}
	if !o.exports {
		printEnvironment(os.Stdout, &r.Environment)
		if t != nil {
			t.print(os.Stdout, terminal(os.Stdout), o.provider, best, ranks)
		}
		for i := range ways {
			ways[i].print(os.Stdout, terminal(os.Stdout))
		}
		for _, m := range r.Missing {
			fmt.Printf("\nnot available: %s\n", m)
		}
		fmt.Println()
		if len(r.Settings) == 0 {
			fmt.Println("# nothing to export: the defaults choose as well")
		}
	}
	for _, s := range r.Settings {
		fmt.Println("export " + s)
	}
	return nil
}

// compareTimings orders by kind, bytes and time.
func compareTimings(t timings) func(a, b measured) int {
	return func(a, b measured) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.bytes, b.bytes), cmp.Compare(t[a], t[b]))
	}
}
