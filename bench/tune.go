package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

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
host's address on another, for two.

    eval "$(bench tune --exports)"

or, for all jobs of a cluster, a file that every process reads when it joins:

    bench tune --file tuning && export SLUICE_TUNING_FILE=$PWD/tuning

Rank 0 writes it: of two hosts that is the one that does not listen.

    hostA$ bench tune --what provider --listen :18516
    hostB$ bench tune --what provider --file tuning hostA.example`,
		Args: out.hosts,
		RunE: caught(func(cmd *cobra.Command, _ []string) {
			o.check(out)
			j := job{outputOptions: *out, given: given(cmd.Flags()), needs: ranks{least: 2}, count: o.ranks, body: o.tune}
			j.run(cmd.Context())
		}),
	}
	f := cmd.Flags()
	f.StringVar(&o.what, "what", strings.Join(tunedParts, ","), "what to measure: a list")
	f.StringVar(&o.provider, "provider", providerTCP, "provider between the ranks: tcp, ibv")
	f.IntVarP(&o.ranks, "ranks", "n", 4, "ranks to start; a job has its own number")
	f.StringVar(&o.kinds, "kinds", tunedKinds, "kinds of collectives: a list")
	f.StringVar(&o.sizes, "sizes", "8,256,1k,4k,16k,64k,256k,1M", "bytes of the vector, or of each rank's block, as of bench collectives")
	f.DurationVar(&o.time, "time", 10*time.Millisecond, "measured time of each size and round")
	f.IntVar(&o.rounds, "rounds", 3, "rounds, of which the median counts")
	f.StringVar(&o.file, "file", "", "write the settings into this file, for SLUICE_TUNING_FILE")
	f.BoolVar(&o.exports, "exports", false, "print the settings alone")
	return cmd
}

func (o *tuneOptions) check(out *outputOptions) {
	o.parts = parseList("what", o.what, tunedParts...)
	o.patterns = parseList("kinds", o.kinds, collectiveNames()...)
	o.bytes = must1(parseSizes(o.sizes))
	switch {
	case o.provider == providerSHM:
		must(usagef("--provider shm: within a host there are no algorithms to choose from"))
	case o.exports && !out.tables():
		must(usagef("--csv, --json and --exports: want one of them"))
	}
	checkTime(o.time)
	must(inDoubles(o.bytes))
	checkFolder("file", o.file)
	inRange("rounds", o.rounds, 1, 1000)
	inRange("ranks", o.ranks, 2, maxRanks)
}

// tune measures all sets of settings, and at rank 0 chooses.
func (o *tuneOptions) tune(ctx context.Context, s *session, j *job, r *Report) {
	_, err := verbs.Find(o.provider)
	barrier(ctx, s, err)
	t := tuner{session: s, o: o, progress: newProgress(s.Rank() == 0), hosts: s.Hosts()}
	defer t.progress.clear()
	t.meet = findMeetingPlace(ctx, s, s.apart())
	times, best := timings(nil), coll.DefaultSettings()
	if slices.Contains(o.parts, tuneCollectives) {
		times = t.collectives(ctx, r)
		best = times.fit(s.Size())
		r.Settings = best.Environ()
	}
	ways := t.messages(ctx, r)
	if s.Rank() != 0 {
		return
	}
	if o.file != "" {
		must(writeTuning(o.file, r, o.provider, s.Size()))
	}
	j.show = func(w io.Writer, r *Report) { o.print(w, r, times, best, ways, s.Size()) }
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
func (o *tuneOptions) print(w io.Writer, r *Report, t timings, best coll.Settings, ways []way, ranks int) {
	if !o.exports {
		printEnvironment(w, &r.Environment)
		printWarnings(w, r)
		if t != nil {
			t.print(w, o.provider, best, ranks)
		}
		for i := range ways {
			ways[i].print(w)
		}
		for _, m := range r.Missing {
			fmt.Fprintf(w, "\nnot available: %s\n", m)
		}
		fmt.Fprintln(w)
		if len(r.Settings) == 0 {
			fmt.Fprintln(w, "# nothing to export: the defaults choose as well")
		}
	}
	for _, s := range r.Settings {
		fmt.Fprintln(w, "export "+s)
	}
}
