package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"

	"github.com/sluice-hpc/sluice/internal/boot"
)

// SizeError: the job has another number of ranks than is measured between.
type SizeError struct {
	Size        int
	Least, Most int // Most 0: no bound
}

func (e *SizeError) Error() string {
	want := fmt.Sprintf("between %d ranks", e.Least)
	switch {
	case e.Most == 1:
		want = "within one rank"
	case e.Most != e.Least:
		want = fmt.Sprintf("between at least %d ranks", e.Least)
	}
	return fmt.Sprintf("this measures %s, the job has %d", want, e.Size)
}

// work is a pattern that is to be measured.
type work struct {
	*pattern
	o       *options
	carrier string // of impi
	missing string // why it cannot be measured; empty: it can
	specs   []spec
}

// newWork is a pattern with what the command line gives.
func newWork(p *pattern, given map[string]string) work { return work{pattern: p, o: p.parse(given)} }

// job is what the ranks of a job measure, one after the other.
type job struct {
	outputOptions
	given map[string]string // flags of the command line
	works []work
	more  func(context.Context, *session) []work         // in place of works, what only ranks know; may be nil
	body  func(context.Context, *session, *job, *Report) // in place of carrying out the work; may be nil
	needs ranks                                          // of the body, beside those of works
	count int                                            // ranks that are started, if not so many as works need
}

// run measures: as one of the ranks of a job where this process is one, else by starting them.
func (j *job) run(ctx context.Context) {
	j.check()
	delete(j.given, "listen") // the other has none
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

// start is how many ranks are started where there is no job.
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

// provider is the one that is asked for; empty: what the library takes.
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

// measure carries out all work and, at rank 0, prints.
func (j *job) measure(ctx context.Context, s *session) {
	needs := []ranks{j.needs}
	for _, w := range j.works {
		needs = append(needs, w.ranks)
	}
	for _, r := range needs {
		if n := s.Size(); n < r.least || r.most > 0 && n > r.most {
			must(&SizeError{n, r.least, r.most})
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
	// On two hosts each sees only its own rank; what the other one used is not here.
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

// introduce tells all ranks where each is, and fails where one has other options.
func (j *job) introduce(ctx context.Context, s *session) []RankEnvironment {
	type hello struct {
		Options string          `json:"options"`
		Rank    RankEnvironment `json:"rank"`
	}
	measured := maps.Clone(j.given)
	for _, name := range []string{"json", "csv", "html", "file", "exports"} { // for the one that prints
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

// plan lists the work, and counts its measurements.
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

// carryOut measures all specs once in each round, so that what changes in the machine
// meanwhile is met by all of them.
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
	for _, p := range s.Stats().Peers { // what the library has found
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
