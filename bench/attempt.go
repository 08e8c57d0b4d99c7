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
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-hpc/sluice/internal/launch"
)

// attempt is a job for one measurement alone. It ends within a bound: one that fails, or hangs,
// is a row that has failed, and no more.
type attempt struct {
	work
	spec     spec
	number   int // of the specs of its work
	provider string
}

// envAttempt tells the ranks of such a job which of the measurements of their command line it
// is for.
const envAttempt = "SLUICE_BENCH_ATTEMPT"

// attempted are the specs that a job is for.
func attempted(list []spec) []spec {
	if i, err := strconv.Atoi(os.Getenv(envAttempt)); err == nil && i >= 0 && i < len(list) {
		return list[i : i+1]
	}
	return list
}

// attemptLimit is the bound of an attempt at a pattern that has none.
const attemptLimit = 2 * time.Minute

// AttemptError says why a job that was started has given no figures.
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
// A signal ends it with all that it has started.
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

// add adds what another report says.
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

// run runs the job. An error that is an [*AttemptError] is a failure of the job; others say why
// it cannot be started here.
func (a *attempt) run(ctx context.Context, given map[string]string) (_ *Report, err error) {
	o := launchOptions(a.spec.ranks, a.ranks.unbound, a.layer, a.command(), "--json", "--provider="+a.provider)
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if !slices.Contains([]string{"json", "csv", "html", "provider"}, name) {
			o.Args = append(o.Args, "--"+name+"="+given[name])
		}
	}
	o.Env = append(o.Env, envAttempt+"="+strconv.Itoa(a.number))
	if a.hosts {
		star, err := newStar(&o)
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
		return nil, &AttemptError{fmt.Sprintf("not over within %v", limit)}
	case err != nil:
		return nil, err
	case r.ExitStatus() != 0:
		return nil, &AttemptError{complaint(told.String(), fmt.Sprintf("status %d", r.ExitStatus()))}
	}
	report := new(Report)
	if err := json.Unmarshal(said.Bytes(), report); err != nil {
		return nil, &AttemptError{fmt.Sprintf("printed no report: %v", err)}
	}
	return report, nil
}

// complaint is what a bench has told first, else what its first line is, as a panic begins;
// empty: instead.
func complaint(told, instead string) string {
	lines := strings.Split(strings.TrimSpace(told), "\n")
	for _, line := range lines {
		if why, ok := strings.CutPrefix(line, "bench: "); ok {
			return why
		}
	}
	return cmp.Or(lines[0], instead)
}
