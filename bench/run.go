package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/sluice-hpc/sluice/channel"
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

// MismatchError: the ranks were started with different options.
type MismatchError struct{ Options []string }

func (e *MismatchError) Error() string {
	return fmt.Sprintf("the ranks have different options: %q", e.Options)
}

// rankJob is a job that this process is a rank of.
type rankJob interface {
	exchanger
	// Abort ends the job, with an exit status.
	Abort(code int, why string)
	// Done returns a channel that is closed when the job is over.
	Done() <-chan struct{}
	Close() error
}

// run is one table of results.
type run interface {
	// steps is the number of measurements, for the progress line.
	steps() int
	// unavailable says why the run is not possible; empty: it is.
	unavailable() string
	// measure carries out the rounds and gives the results to w.
	measure(ctx context.Context, job exchanger, w *writer, timer float64, progress func(string)) error
}

// task is what the ranks of a job measure.
type task struct {
	start       int  // ranks, where there is no job
	unbound     bool // these are left to the system, not each bound to a core
	least, most int  // ranks of a job that can do it; most 0: no bound
	join        func(context.Context) (rankJob, error)
	plan        func(context.Context) ([]run, error)
}

// verbsTask is a task of two ranks that connect for themselves.
func verbsTask(runs func(context.Context, exchanger) ([]verbsRun, error)) task {
	var job *boot.Job
	return task{
		start: 2, least: 2, most: 2,
		join: func(ctx context.Context) (_ rankJob, err error) {
			job, err = boot.Join(ctx)
			return job, err
		},
		plan: func(ctx context.Context) ([]run, error) {
			list, err := runs(ctx, job)
			var plan []run
			for i := range list {
				list[i].secret, list[i].job = job.Secret(), job.ID()
				plan = append(plan, &list[i])
			}
			return plan, err
		},
	}
}

// asRanks measures what the task says: as one of the ranks of a job where this
// process is one, else by starting them.
func asRanks(ctx context.Context, out outputOptions, options map[string]string, t task) (err error) {
	if err := out.check(); err != nil {
		return err
	}
	delete(options, "listen") // the other has none
	ctx, stop, err := out.meet(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	job, err := t.join(ctx)
	if err != nil {
		return err
	}
	_, launched := os.LookupEnv(boot.EnvRank)
	if job.Size() == 1 && !launched {
		if err := job.Close(); err != nil {
			return err
		}
		return launchSelf(ctx, t.start, t.unbound)
	}
	if err = measureAll(ctx, job, out, options, t); err != nil {
		err = fail(job, err)
	}
	return errors.Join(err, job.Close())
}

// reported is an error that its user has been told of.
type reported struct{ error }

func (r reported) Unwrap() error { return r.error }

// fail ends the job with an error, which one rank tells: the one who met it.
// It does so before it aborts the job, after which the launcher may end all.
func fail(job rankJob, err error) error {
	var other *PeerError
	if errors.Is(err, channel.ErrAborted) { // by the one who met it
		return reported{err}
	}
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
func measureAll(ctx context.Context, job rankJob, out outputOptions, options map[string]string, t task) error {
	if n := job.Size(); n < t.least || t.most > 0 && n > t.most {
		return &SizeError{n, t.least, t.most}
	}
	type hello struct {
		Options string          `json:"options"`
		Rank    RankEnvironment `json:"rank"`
	}
	measured := maps.Clone(options)
	for _, name := range []string{"json", "csv", "html"} { // for the one who prints
		delete(measured, name)
	}
	all, err := share(ctx, job, hello{fmt.Sprint(measured), takeRankEnvironment(job.Rank())}, nil)
	if err != nil {
		return err
	}
	for _, h := range all {
		if h.Options != all[0].Options {
			return &MismatchError{[]string{all[0].Options, h.Options}}
		}
	}
	plan, err := t.plan(ctx)
	if err != nil {
		return err
	}
	w := newWriter(out, job.Rank() == 0)
	w.report.Environment = takeEnvironment(options)
	for _, h := range all {
		w.report.Environment.Ranks = append(w.report.Environment.Ranks, h.Rank)
	}
	if n, ok := job.(*node); ok && w.active && !n.aside {
		for _, d := range n.devices() {
			w.device(d)
		}
	}
	w.begin()
	timer := timerCost()
	before, own := takeMachineState(), ownCPU()
	steps, done := 0, 0
	for _, r := range plan {
		steps += r.steps()
	}
	for _, r := range plan {
		if why := r.unavailable(); why != "" {
			w.missing(why)
			continue
		}
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
		mine = 0
		for _, u := range used {
			mine += u
		}
	}
	w.report.Warnings = append(list, doubts(before, takeMachineState(), mine)...)
	return w.end()
}

func (r *verbsRun) unavailable() string { return r.missing }

// measure connects the pair, carries out the rounds, and gives the results.
func (r *verbsRun) measure(ctx context.Context, job exchanger, w *writer, timer float64, progress func(string)) (err error) {
	p, err := connect(ctx, job, r.pairOptions)
	if err != nil {
		return fmt.Errorf("%s: %w", r.device, err)
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	w.device(p.entry)
	ms, err := r.measureBy(func(m *measurement) error {
		progress(fmt.Sprintf("%s %s %s %s", p.entry.Device, m.pattern, m.op.name, formatSize(int64(m.bytes))))
		if err := p.round(ctx, m); err != nil {
			return fmt.Errorf("%s: %s %s of %d bytes: %w", p.entry.Device, m.pattern, m.op.name, m.bytes, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	results := make([]Result, len(ms))
	for i, m := range ms {
		results[i] = m.result(layerVerbs, p.entry.Provider, timer)
		results[i].Device, results[i].Inline = p.entry.Device, m.bytes <= p.inline && !m.op.fetch
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
