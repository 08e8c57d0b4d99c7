package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/internal/launch"
)

// work is a pattern to measure.
type work struct {
	*pattern
	o       *options
	carrier string // of impi
	missing string // why it cannot be measured; empty: it can
	specs   []spec
}

// newWork makes the work of a pattern with the options of the command line.
func newWork(p *pattern, given map[string]string) work { return work{pattern: p, o: p.parse(given)} }

// job is the list of measurements of a job, one after the other.
type job struct {
	outputOptions
	given map[string]string // flags of the command line
	works []work
	more  func(context.Context, *session) []work         // instead of works, if only ranks know them; may be nil
	body  func(context.Context, *session, *job, *Report) // instead of carrying out the work; may be nil
	needs ranks                                          // of the body, in addition to those of works
	count int                                            // ranks to start, if not as many as works need
}

// run measures: as a rank of a job if this process is one, otherwise by starting the ranks.
func (j *job) run(ctx context.Context) {
	j.check()
	delete(j.given, "listen") // the other rank has none
	ctx, stop := j.meet(ctx)
	defer stop()
	s := join(ctx, j.provider())
	if _, launched := os.LookupEnv(boot.EnvRank); s.Size() == 1 && !launched {
		must(s.Close())
		j.launch(ctx)
		return
	}
	err := try(func() {
		for _, w := range j.works {
			if w.early != nil {
				w.early(ctx, s)
			}
		}
		j.measure(ctx, s)
	})
	if err != nil {
		err = s.fail(err)
	}
	must(errors.Join(err, s.Close()))
}

// start returns how many ranks to start if there is no job.
func (j *job) start() (n int, unbound bool) {
	n = max(j.count, 1)
	for _, w := range j.works {
		unbound = unbound || w.ranks.unbound
		n = max(n, w.ranks.least)
		if _, chosen := w.option("ranks"); chosen {
			n = max(n, w.o.ranks)
		}
	}
	return n, unbound
}

// provider returns the named provider; empty: the library chooses.
func (j *job) provider() string {
	alone := len(j.works) > 0
	for _, w := range j.works {
		if w.layer != layerVerbs && w.o.provider != "" {
			return w.o.provider
		}
		alone = alone && w.ranks.most == 1
	}
	if alone {
		return providerSelf
	}
	return ""
}

// measure carries out all work; rank 0 prints.
func (j *job) measure(ctx context.Context, s *session) {
	needs := []ranks{j.needs}
	for _, w := range j.works {
		needs = append(needs, w.ranks)
	}
	for _, r := range needs {
		if n := s.Size(); n < r.least || r.most > 0 && n > r.most {
			must(fmt.Errorf("this measurement runs %s, but the job has %d", r, n))
		}
	}
	ranks := j.introduce(ctx, s)
	report := Report{Schema: schema, Environment: takeEnvironment(j.given), Results: []Result{}}
	report.Environment.Ranks = ranks
	before, own := takeMachineState(), ownCPU()
	body := j.carryOut
	if j.body != nil {
		body = j.body
	}
	body(ctx, s, j, &report)
	used := share(ctx, s, ownCPU()-own, nil)
	// On two hosts each sees only its own rank, and not the CPU time of the other one.
	mine := used[s.Rank()]
	if together(ranks) {
		mine = 0
		for _, u := range used {
			mine += u
		}
	}
	report.Warnings = append(standingDoubts(&report.Environment), doubts(before, takeMachineState(), mine)...)
	if s.Rank() == 0 {
		j.print(os.Stdout, &report)
	}
}

// introduce tells all ranks where each one is, and fails if their options differ.
func (j *job) introduce(ctx context.Context, s *session) []RankEnvironment {
	type hello struct {
		Options string          `json:"options"`
		Rank    RankEnvironment `json:"rank"`
	}
	measured := maps.Clone(j.given)
	for _, name := range []string{"json", "csv", "html", "file", "exports"} { // only for the rank that prints
		delete(measured, name)
	}
	all := share(ctx, s, hello{fmt.Sprint(measured), takeRankEnvironment(s.Rank())}, nil)
	var ranks []RankEnvironment
	for _, h := range all {
		if h.Options != all[0].Options {
			must(fmt.Errorf("the ranks have different options: %q", []string{all[0].Options, h.Options}))
		}
		ranks = append(ranks, h.Rank)
	}
	return ranks
}

// carryOut does all work, and adds its results to the report.
func (j *job) carryOut(ctx context.Context, s *session, _ *job, r *Report) {
	works, steps := j.plan(ctx, s)
	progress := newProgress(s.Rank() == 0)
	defer progress.clear()
	done := 0
	for i := range works {
		w := &works[i]
		if w.missing != "" {
			r.Missing = append(r.Missing, w.missing)
			continue
		}
		w.carryOut(ctx, s, r, func(what string) {
			progress.show(done, steps, what)
			done++
		})
	}
}

func (j *job) plan(ctx context.Context, s *session) (works []work, steps int) {
	list := j.works
	if j.more != nil {
		list = j.more(ctx, s)
	}
	for _, w := range list {
		parts := []work{w}
		if w.split != nil {
			parts = w.split(ctx, s, w)
		}
		for _, w := range parts {
			w.specs = attempted(w.pattern.specs(w.o, s.Size()))
			if w.missing == "" {
				steps += len(w.specs) * w.o.rounds
			}
			works = append(works, w)
		}
	}
	return works, steps
}

// carryOut measures all specs once in each round, so that changes of the machine affect all of
// them.
func (w *work) carryOut(ctx context.Context, s *session, r *Report, progress func(string)) {
	b := &bed{session: s, o: w.o, carrier: w.carrier, provider: cmp.Or(w.carrier, s.provider)}
	if w.open != nil {
		w.open(ctx, b)
	}
	ms := make([]*measurement, len(w.specs))
	for i, s := range w.specs {
		ms[i] = newMeasurement(s)
	}
	for range w.o.rounds {
		for _, m := range ms {
			what := strings.Join(strings.Fields(fmt.Sprint(b.provider, " ", m.layer, " ", m.name, " ", m.op, " ", m.axis, " ", formatSize(int64(m.bytes)))), " ")
			progress(what)
			m.once(ctx, b, what)
		}
	}
	for _, d := range append([]DeviceEntry{b.entry, b.over}, b.devices()...) {
		r.Environment.addDevice(d)
	}
	for _, p := range s.Stats().Peers { // the choice of the library
		if b.provider == "" && p.Rank != s.Rank() {
			b.provider = p.Provider
		}
	}
	b.provider = cmp.Or(b.provider, providerSelf)
	for _, m := range ms {
		r.Results = append(r.Results, m.results(b)...)
	}
	b.close(ctx)
}

// RankFailedError says that a rank that bench started has failed.
type RankFailedError struct {
	Rank   int // -1: a rank that aborted the job, and has printed why
	Status int
}

func (e *RankFailedError) Error() string {
	if e.Rank < 0 {
		return fmt.Sprintf("the job was aborted with status %d", e.Status)
	}
	return fmt.Sprintf("rank %d ended with status %d", e.Rank, e.Status)
}

// launchOptions start so many ranks, each on a core of its own where there are as many, bound
// where the system can, unless they are to be unbound.
func launchOptions(size int, unbound bool, args ...string) launch.Options {
	o := launch.Options{Size: size, Args: append([]string{must1(os.Executable())}, args...), Bind: launch.Core, Env: os.Environ()}
	if unbound {
		o.Bind = launch.None
		if size > runtime.NumCPU() && os.Getenv("GOMAXPROCS") == "" {
			// As with bound ranks: with more, the threads of a runtime take CPUs from other ranks.
			o.Env = append(o.Env, "GOMAXPROCS=1")
		}
	}
	return o
}

// launchSelf runs this command again as ranks, which print; signals go to them.
func launchSelf(ctx context.Context, size int, unbound bool) error {
	o := launchOptions(size, unbound, os.Args[1:]...)
	o.Stdout, o.Stderr, o.Signals = os.Stdout, os.Stderr, launch.Signals()
	r, err := launch.Run(ctx, o)
	if errors.Is(err, launch.ErrBind) {
		o.Bind = launch.None
		r, err = launch.Run(ctx, o)
	}
	switch status := r.ExitStatus(); {
	case err != nil:
		return err
	case r.Abort != nil:
		return reported{&RankFailedError{-1, status}}
	case status != 0:
		return &RankFailedError{r.First, status}
	}
	return nil
}

// attempt is a job for a single measurement. It ends within a bound: if it fails, or hangs, only
// its row has failed.
type attempt struct {
	work
	spec     spec
	number   int // of the specs of its work
	provider string
}

// envAttempt tells the ranks of such a job which of the measurements of their command line it
// is for.
const envAttempt = "SLUICE_BENCH_ATTEMPT"

// attempted returns the specs of a job.
func attempted(list []spec) []spec {
	if i, err := strconv.Atoi(os.Getenv(envAttempt)); err == nil && i >= 0 && i < len(list) {
		return list[i : i+1]
	}
	return list
}

// attemptLimit bounds an attempt at a pattern without a bound of its own.
const attemptLimit = 2 * time.Minute

// AttemptError says why a started job has no figures.
type AttemptError struct{ Why string }

func (e *AttemptError) Error() string { return e.Why }

// launch starts the ranks of a job, or of one for each measurement.
func (j *job) launch(ctx context.Context) {
	if slices.ContainsFunc(j.works, func(w work) bool { return w.alone > 0 }) {
		j.attempts(ctx)
		return
	}
	start, unbound := j.start()
	name := ""
	for _, w := range j.works {
		name = cmp.Or(name, w.o.load)
	}
	must(underLoad(ctx, name, start, func(ctx context.Context) error { return launchSelf(ctx, start, unbound) }))
}

// attempts starts a job for each measurement, one after the other, and prints what they report.
// A signal ends it, and everything that it has started.
func (j *job) attempts(ctx context.Context) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	provider := j.provider()
	report := Report{Schema: schema, Environment: takeEnvironment(j.given), Results: []Result{}}
	progress := newProgress(true)
	defer progress.clear()
	for _, w := range j.works {
		ranks := w.ranks.least
		if _, chosen := w.option("ranks"); chosen {
			ranks = w.o.ranks
		}
		specs := w.pattern.specs(w.o, ranks)
		for i, s := range specs {
			a := attempt{w, s, i, provider}
			m := newMeasurement(s)
			r := m.result(&bed{session: &session{}, provider: provider})
			progress.show(i, len(specs), w.name+" "+describeMeasured(&r))
			got, err := a.run(ctx, j.given)
			var failed *AttemptError
			switch {
			case ctx.Err() != nil:
				must(ctx.Err())
			case errors.As(err, &failed):
				r.Failed = failed.Why
				report.Results = append(report.Results, r)
			case err != nil:
				report.Missing = append(report.Missing, fmt.Sprintf("%s %s: %v", w.name, describeMeasured(&r), err))
			default:
				report.add(got)
			}
		}
	}
	progress.clear()
	j.print(os.Stdout, &report)
}

func (r *Report) add(other *Report) {
	r.Results = append(r.Results, other.Results...)
	r.Missing = append(r.Missing, other.Missing...)
	r.Environment.Ranks = other.Environment.Ranks
	for _, d := range other.Environment.Devices {
		r.Environment.addDevice(d)
	}
	for _, w := range other.Warnings {
		if !slices.Contains(r.Warnings, w) {
			r.Warnings = append(r.Warnings, w)
		}
	}
}

// run runs the job. An [*AttemptError] is a failure of the job; other errors say why it cannot be
// started here.
func (a *attempt) run(ctx context.Context, given map[string]string) (_ *Report, err error) {
	o := launchOptions(a.spec.ranks, a.ranks.unbound, a.layer, a.command(), "--json", "--provider="+a.provider)
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if !slices.Contains([]string{"json", "csv", "html", "provider"}, name) {
			o.Args = append(o.Args, "--"+name+"="+given[name])
		}
	}
	o.Env = append(o.Env, envAttempt+"="+strconv.Itoa(a.number))
	if a.hosts {
		star, err := onHosts(&o)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, star.Close()) }()
	}
	var said, told bytes.Buffer
	var r launch.Result
	limit := cmp.Or(a.alone, attemptLimit)
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	o.Stdout, o.Stderr = &said, &told
	err = underLoad(within, a.o.load, a.spec.ranks, func(ctx context.Context) (err error) {
		r, err = launch.Run(ctx, o)
		return err
	})
	switch {
	case within.Err() != nil:
		return nil, &AttemptError{fmt.Sprintf("it did not end within %v", limit)}
	case err != nil:
		return nil, err
	case r.ExitStatus() != 0:
		return nil, &AttemptError{complaint(told.String(), fmt.Sprintf("status %d", r.ExitStatus()))}
	}
	report := new(Report)
	if err := json.Unmarshal(said.Bytes(), report); err != nil {
		return nil, &AttemptError{fmt.Sprintf("it printed no valid report: %v", err)}
	}
	return report, nil
}

// complaint returns the first error that a bench has printed, or else its first line, as of a
// panic; instead if it printed nothing.
func complaint(told, instead string) string {
	lines := strings.Split(strings.TrimSpace(told), "\n")
	for _, line := range lines {
		if why, ok := strings.CutPrefix(line, "bench: "); ok {
			return why
		}
	}
	return cmp.Or(lines[0], instead)
}
