package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/sluice-hpc/sluice/internal/boot"
)

// SizeError: the job has another number of ranks than a pair has.
type SizeError struct{ Size int }

func (e *SizeError) Error() string {
	return fmt.Sprintf("this measures between 2 ranks, the job has %d", e.Size)
}

// MismatchError: the ranks were started with different options.
type MismatchError struct{ Options []string }

func (e *MismatchError) Error() string {
	return fmt.Sprintf("the ranks have different options: %q", e.Options)
}

// asRanks measures what runs says: as one of the two ranks of a job where this
// process is one, else by starting two.
func asRanks(ctx context.Context, out outputOptions, options map[string]string, runs func(context.Context, exchanger) ([]verbsRun, error)) error {
	if err := out.check(); err != nil {
		return err
	}
	job, err := boot.Join(ctx)
	if err != nil {
		return err
	}
	_, launched := os.LookupEnv(boot.EnvRank)
	if job.Size() == 1 && !launched {
		if err := job.Close(); err != nil {
			return err
		}
		return launchSelf(ctx)
	}
	if err = measureAll(ctx, job, out, options, runs); err != nil {
		err = fail(job, err)
	}
	return errors.Join(err, job.Close())
}

// reported is an error that its user has been told of.
type reported struct{ error }

func (r reported) Unwrap() error { return r.error }

// fail ends the job with an error, which one rank tells: the one who met it.
// It does so before it aborts the job, after which the launcher may end all.
func fail(job *boot.Job, err error) error {
	var other *PeerError
	if errors.As(err, &other) {
		select {
		case <-job.Done():
		case <-time.After(5 * time.Second):
		}
		return reported{err}
	}
	tell(err)
	// The other rank may be inside a loop that waits for us.
	job.Abort(exitStatus(err), err.Error())
	return reported{err}
}

func tell(err error) { fmt.Fprintln(os.Stderr, "bench:", err) }

// measureAll carries out all runs and, at rank 0, prints.
func measureAll(ctx context.Context, job *boot.Job, out outputOptions, options map[string]string, runs func(context.Context, exchanger) ([]verbsRun, error)) error {
	if job.Size() != 2 {
		return &SizeError{job.Size()}
	}
	type hello struct {
		Options string          `json:"options"`
		Rank    RankEnvironment `json:"rank"`
	}
	all, err := share(ctx, job, hello{fmt.Sprint(options), takeRankEnvironment(job.Rank())}, nil)
	if err != nil {
		return err
	}
	if all[0].Options != all[1].Options {
		return &MismatchError{[]string{all[0].Options, all[1].Options}}
	}
	plan, err := runs(ctx, job)
	if err != nil {
		return err
	}
	w := newWriter(out, job.Rank() == 0)
	w.report.Environment = takeEnvironment(options)
	for _, h := range all {
		w.report.Environment.Ranks = append(w.report.Environment.Ranks, h.Rank)
	}
	w.begin()
	timer := timerCost()
	before, own := takeMachineState(), ownCPU()
	steps, done := 0, 0
	for _, r := range plan {
		steps += len(r.specs) * r.rounds
	}
	for i := range plan {
		r := &plan[i]
		if r.missing != "" {
			w.missing(r.missing)
			continue
		}
		r.secret, r.job = job.Secret(), job.ID()
		err := r.measure(ctx, job, w, timer, func(what string) {
			w.progress.show(done, steps, what)
			done++
		})
		if err != nil {
			return err
		}
	}
	used, err := share(ctx, job, ownCPU()-own, nil)
	if err != nil {
		return err
	}
	list := standingDoubts(&w.report.Environment)
	// On two hosts each sees only its own rank; what the other one used is not here.
	mine := used[job.Rank()]
	if together(w.report.Environment.Ranks) {
		mine = used[0] + used[1]
	}
	w.report.Warnings = append(list, doubts(before, takeMachineState(), mine)...)
	return w.end()
}

// measure connects the pair, carries out the rounds, and gives the results.
func (r *verbsRun) measure(ctx context.Context, job exchanger, w *writer, timer float64, progress func(string)) (err error) {
	p, err := connect(ctx, job, r.pairOptions)
	if err != nil {
		return fmt.Errorf("%s: %w", r.device, err)
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	w.device(p.entry)
	ms := make([]*measurement, len(r.specs))
	for i, s := range r.specs {
		ms[i] = newMeasurement(s)
	}
	for range r.rounds {
		for _, m := range ms {
			progress(fmt.Sprintf("%s %s %s %s", p.entry.Device, m.pattern, m.op.name, formatSize(int64(m.bytes))))
			if err := p.round(ctx, m); err != nil {
				return fmt.Errorf("%s: %s %s of %d bytes: %w", p.entry.Device, m.pattern, m.op.name, m.bytes, err)
			}
		}
	}
	results := make([]Result, len(ms))
	for i, m := range ms {
		results[i] = m.result(p, timer)
	}
	w.results(results)
	// Nobody takes the connection down while the other still uses it.
	_, err = share(ctx, job, struct{}{}, nil)
	return err
}

// writer prints what rank 0 has measured, as it comes where the form allows.
type writer struct {
	outputOptions
	active   bool // this is the rank that prints
	report   Report
	progress *progress
}

func newWriter(out outputOptions, active bool) *writer {
	w := &writer{outputOptions: out, active: active, report: Report{Schema: schema, Results: []Result{}}}
	w.progress = newProgress(active)
	return w
}

func (w *writer) begin() {
	if w.active && w.tables() {
		printEnvironment(os.Stdout, &w.report.Environment)
	}
}

func (w *writer) missing(why string) {
	w.report.Missing = append(w.report.Missing, why)
	if w.active && w.tables() {
		w.progress.clear()
		fmt.Fprintf(os.Stdout, "\nnot available: %s\n", why)
	}
}

func (w *writer) device(d DeviceEntry) {
	if !slices.Contains(w.report.Environment.Devices, d) {
		w.report.Environment.Devices = append(w.report.Environment.Devices, d)
	}
}

func (w *writer) results(rs []Result) {
	w.report.Results = append(w.report.Results, rs...)
	if w.active && w.tables() {
		w.progress.clear()
		printResults(os.Stdout, terminal(os.Stdout), rs, w.findDevice(rs[0].Device), w.allocs)
	}
}

func (w *writer) findDevice(name string) *DeviceEntry {
	i := slices.IndexFunc(w.report.Environment.Devices, func(d DeviceEntry) bool { return d.Device == name })
	if i < 0 {
		return nil
	}
	return &w.report.Environment.Devices[i]
}

func (w *writer) end() error {
	w.progress.clear()
	if !w.active {
		return nil
	}
	return w.print(os.Stdout, &w.report)
}
