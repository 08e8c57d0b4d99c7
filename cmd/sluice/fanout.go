package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-hpc/sluice/fanout/filter"
	"github.com/sluice-hpc/sluice/fanout/pipeline"
	"github.com/sluice-hpc/sluice/fanout/ring"
)

// statusDamaged is the exit status when an input is cut off or damaged; everything before the
// damage has been written.
const statusDamaged = 3

// stdio is the file name that stands for standard input or output.
const stdio = "-"

// fanoutOptions are the flags of sluice fanout.
type fanoutOptions struct {
	in        []string
	out       string
	workers   int
	clump     int
	chunk     int
	window    int
	attempts  int
	itemLimit int64
	filter    pipeline.FilterOptions
	order     fanoutOrder
	json      bool
	quiet     bool
}

type fanoutOrder int

const (
	orderTime fanoutOrder = iota
	orderSource
)

func newFanout() *cobra.Command {
	o := fanoutOptions{
		workers: 2, clump: pipeline.DefaultClump, chunk: pipeline.DefaultChunkBytes,
		attempts: pipeline.DefaultAttempts, itemLimit: ring.DefaultLimit,
	}
	cmd := &cobra.Command{
		Use:   "fanout --in FILE [--in FILE]... --out FILE [flags] [--] command [argument]...",
		Short: "Filter an event file of ring items with several processes of a program",
		Long:  fanoutHelp,
		Example: `  sluice generate --events 100000 --out run.evt
  sluice fanout --workers 4 --in run.evt --out same.evt --per-chunk -- cat
  sluice fanout --workers 8 --in run.evt --out out.evt -- ./classify --threshold 5`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return &usageError{cmd, errors.New("no command to run is given")}
			}
			return o.check(cmd)
		},
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd, args) },
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // arguments after the command belong to the command
	flags.SortFlags = false
	flags.StringArrayVar(&o.in, "in", nil, "event `file` to read, or - for standard input; several are merged")
	flags.StringVar(&o.out, "out", "", "event `file` to write, or - for standard output")
	flags.IntVar(&o.workers, "workers", o.workers, "`number` of processes at a time")
	flags.BoolVar(&o.filter.PerChunk, "per-chunk", false, "start the command for each chunk, which is its whole standard input; default: exchange frames")
	flags.BoolVar(&o.filter.Stamped, "stamped", false, "put a 64-bit timestamp before each item, in both directions")
	flags.IntVar(&o.clump, "clump", o.clump, "maximum `number` of items in a chunk")
	flags.IntVar(&o.chunk, "chunk-bytes", o.chunk, "`size` in bytes from which on a chunk is full, whatever --clump is")
	flags.IntVar(&o.window, "window", 0, "`number` of chunks of each input that may be in flight; 0: 4 for each worker")
	flags.IntVar(&o.attempts, "attempts", o.attempts, "`number` of processes that may fail with a chunk")
	flags.DurationVar(&o.filter.Timeout, "timeout", 0, "`duration` that a process may take for a chunk; 0: no limit")
	flags.Int64Var(&o.itemLimit, "item-limit", o.itemLimit, "`size` in bytes of the largest item; a larger one counts as damage")
	flags.Var(&choice[fanoutOrder]{&o.order, []string{"time", "source"}}, "order", "how several inputs are merged: by timestamp, or one after the other")
	flags.BoolVar(&o.json, "json", false, "print the statistics as one JSON object on standard output")
	flags.BoolVar(&o.quiet, "quiet", false, "show no progress and no statistics on standard error")
	return cmd
}

const fanoutHelp = `Fanout reads ring items (NSCLDAQ 11 and 12), passes them in chunks to processes of
a command, called filters, and writes their results: complete, in the order of the
input, and without duplicates, even if processes die. A filter that ends, is
killed, takes longer than --timeout or answers something other than ring items is
replaced, and its chunk goes to the next free filter.

A filter reads frames on standard input: a length of 4 bytes, little-endian, then
that many bytes of ring items. It answers each with one frame on standard output; a
length of 0 says that nothing is kept. It must end at the end of file. With
--per-chunk the command is started for each chunk, and reads and writes only the
ring items of that chunk: any program that reads to the end of file will do, and
must end with status 0. Its standard error is that of sluice.

Several inputs are merged by the timestamps in the items' body headers. An item
without one follows the item before it. Filters see only these timestamps, unless
--stamped puts one of 64 bits before each item, in both directions.

The output gets its name when it is complete; until then the name ends in ` + pipeline.Part + `.
On SIGINT or SIGTERM sluice stops reading: items already read are processed and
written, and the output is complete up to there. A second signal gives up: there is
no output then.

Exit status: 0 if everything was read and written; 3 if an input is cut off or
damaged (the message names the byte; everything before it was written); 1 if an
input is of NSCLDAQ 10 or big-endian, and must be converted first; 128 plus the
number of the signal; 126 or 127 if the command could not be started; 1 if
filters have answered everything, but ended with a status other than 0; 1 also
after any other error, and then there is no output.

Flags may also be written with one dash.`

func (o *fanoutOptions) check(cmd *cobra.Command) error {
	stdin := 0
	for _, name := range o.in {
		if name == stdio {
			stdin++
		}
	}
	var err error
	switch {
	case len(o.in) == 0:
		err = errors.New("no --in is given")
	case o.out == "":
		err = errors.New("no --out is given")
	case stdin > 1:
		err = errors.New("only one --in can be standard input")
	case o.workers < 1 || o.clump < 1 || o.chunk < 1 || o.attempts < 1 || o.itemLimit < 1:
		err = errors.New("--workers, --clump, --chunk-bytes, --attempts and --item-limit must be at least 1")
	case o.window < 0 || o.filter.Timeout < 0:
		err = errors.New("--window and --timeout must not be negative")
	case o.json && o.out == stdio:
		err = errors.New("--json and --out - both write to standard output")
	}
	if err != nil {
		return &usageError{cmd, err}
	}
	return nil
}

func (o *fanoutOptions) run(cmd *cobra.Command, args []string) (err error) {
	o.filter.ItemLimit = o.itemLimit
	show := newFanoutProgress(!o.quiet)
	defer show.stop()
	log := slog.New(slog.NewTextHandler(show, nil))
	inputs, err := openInputs(o)
	if err != nil {
		return err
	}
	defer inputs.close()
	out, err := createOutput(o.out)
	if err != nil {
		return err
	}
	c := pipeline.Config{
		Workers: o.workers, Window: o.window, Attempts: o.attempts, ItemLimit: o.itemLimit, Log: log,
		NewWorker: pipeline.Filter(filter.Command{Args: args, Stderr: os.Stderr}, o.filter),
		Sink:      out.Sink,
	}
	if o.order == orderSource {
		c.Order = pipeline.BySource
	}
	for _, in := range inputs {
		c.Sources = append(c.Sources, in.next)
	}
	p, err := pipeline.New(c)
	if err != nil {
		return errors.Join(err, out.Discard())
	}
	started := time.Now()
	show.begin(p, inputs)
	sig, err := runUntilSignal(cmd.Context(), p, log)
	show.stop()
	return o.conclude(cmd, p, inputs, out, time.Since(started), sig, err)
}

func createOutput(name string) (*pipeline.Output, error) {
	if name == stdio {
		return pipeline.To(os.Stdout), nil
	}
	return pipeline.Create(name)
}

// oneDash gives two dashes to the long flags that are written with one, as far as they are
// flags of sluice and not of the program that it starts.
func oneDash(flags *pflag.FlagSet, args []string) []string {
	args = slices.Clone(args)
	for i := 0; i < len(args) && len(args[i]) > 1 && args[i][0] == '-' && args[i] != "--"; i++ {
		name, _, valued := strings.Cut(strings.TrimLeft(args[i], "-"), "=")
		f := flags.Lookup(name)
		if f == nil {
			continue
		}
		if args[i][1] != '-' {
			args[i] = "-" + args[i]
		}
		if !valued && f.NoOptDefVal == "" {
			i++ // its value
		}
	}
	return args
}

// errSignal is why a pipeline was given up.
var errSignal = errors.New("ended by a second signal")

// runUntilSignal runs the pipeline; the first signal drains it, a second one ends it. It
// returns the first signal.
func runUntilSignal(ctx context.Context, p *pipeline.Pipeline, log *slog.Logger) (sig syscall.Signal, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	for {
		select {
		case err := <-ended:
			return sig, err
		case s := <-signals:
			if sig != 0 {
				cancel(errSignal)
				continue
			}
			sig, _ = s.(syscall.Signal)
			log.Warn("reading has stopped; items already read are still processed and written", "signal", s)
			p.Drain()
		}
	}
}

// conclude completes the output, or removes it, and reports the outcome.
func (o *fanoutOptions) conclude(cmd *cobra.Command, p *pipeline.Pipeline, inputs inputs, out *pipeline.Output, took time.Duration, sig syscall.Signal, err error) error {
	usable, damaged := judge(err)
	if !usable {
		if d := out.Discard(); d != nil {
			fmt.Fprintf(cmd.ErrOrStderr(), "sluice fanout: %v\n", d)
		}
		return failure(cmd, sig, err)
	}
	if err := out.Commit(); err != nil {
		return err
	}
	s := o.statistics(p.Stats(), inputs, out, took)
	if o.json {
		err = errors.Join(err, s.writeJSON(cmd.OutOrStdout()))
	}
	if !o.quiet {
		s.print(cmd.ErrOrStderr())
	}
	if err != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "sluice fanout: %v\n%s", err, limitHint(err))
	}
	switch {
	case damaged:
		return statusError(statusDamaged)
	case err != nil:
		return statusError(statusJustError)
	case sig != 0:
		for _, in := range inputs {
			fmt.Fprintf(cmd.ErrOrStderr(), "sluice fanout: %s was read up to byte %d\n", in.name, in.file.Offset())
		}
		return statusError(128 + int(sig))
	}
	return nil
}

// judge reports whether the output is complete as far as the inputs could be read, and whether
// an input is damaged. A filter that has answered everything and then ends with a status other
// than 0 costs nothing; one that has written more than its answers may have answered the wrong
// chunks.
func judge(err error) (usable, damaged bool) {
	for _, e := range each(err) {
		var stage *pipeline.Error
		var d *ring.DamageError
		switch {
		case !errors.As(e, &stage):
			return false, false
		case stage.Op == "source" && errors.As(e, &d):
			damaged = true
		case stage.Op != "close" || errors.Is(e, filter.ErrUnasked):
			return false, false
		}
	}
	return true, damaged
}

// each lists the errors that were joined.
func each(err error) []error {
	switch e := err.(type) {
	case nil:
		return nil
	case interface{ Unwrap() []error }:
		var list []error
		for _, err := range e.Unwrap() {
			list = append(list, each(err)...)
		}
		return list
	}
	return []error{err}
}

// limitHint names the option that limits the length of an item or an answer.
func limitHint(err error) string {
	switch {
	case errors.Is(err, filter.ErrFrame):
		return "sluice fanout: --item-limit sets how large an item may be; a filter that prints text to standard output: print to standard error\n"
	case errors.Is(err, ring.ErrTooLarge):
		return "sluice fanout: --item-limit sets how large an item may be\n"
	}
	return ""
}

// failure reports on standard error, and as the exit status, why there is no output.
func failure(cmd *cobra.Command, sig syscall.Signal, err error) error {
	fmt.Fprintf(cmd.ErrOrStderr(), "sluice fanout: %v\n%ssluice fanout: there is no output\n", err, limitHint(err))
	var stage *pipeline.Error
	switch {
	case errors.Is(err, errSignal):
		return statusError(128 + int(sig))
	case !errors.As(err, &stage) || stage.Op != "start":
		return statusError(statusJustError)
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return statusError(statusNotFound)
	}
	return statusError(statusNotExec)
}

// input is an event file that is read.
type input struct {
	name string
	f    *os.File
	size int64 // 0: unknown
	wait *waiting
	file *pipeline.EventFile
}

type inputs []*input

func openInputs(o *fanoutOptions) (list inputs, err error) {
	for _, name := range o.in {
		in := &input{name: name, f: os.Stdin}
		if name != stdio {
			if in.f, err = os.Open(name); err != nil {
				list.close()
				return nil, err
			}
		}
		list = append(list, in)
		info, err := in.f.Stat()
		if err != nil {
			list.close()
			return nil, err
		}
		var r io.Reader = in.f
		if info.Mode().IsRegular() {
			at, err := in.f.Seek(0, io.SeekCurrent) // standard input may have been read from
			if err == nil {
				in.size = max(info.Size()-at, 0)
				err = checkFormat(in.f, at, o.itemLimit) // before anything is written
			}
			if err != nil {
				list.close()
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		} else {
			in.wait = &waiting{r: in.f, done: make(chan struct{}, 1)}
			r = in.wait
		}
		in.file = pipeline.File(r, pipeline.FileOptions{Name: name, Clump: o.clump, ChunkBytes: o.chunk, ItemLimit: o.itemLimit})
	}
	return list, nil
}

// checkFormat checks a file from byte at on, as far as a [ring.Reader] will.
func checkFormat(f *os.File, at, itemLimit int64) error {
	begin := make([]byte, 256<<10)
	n, err := f.ReadAt(begin, at)
	if err != nil && err != io.EOF {
		return err
	}
	return ring.CheckFormat(begin[:n], itemLimit)
}

func (in *input) next(ctx context.Context, chunk []byte) ([]byte, error) {
	if in.wait != nil {
		in.wait.ctx = ctx
	}
	return in.file.Next(ctx, chunk)
}

func (list inputs) close() {
	for _, in := range list {
		in.f.Close()
	}
}

// waiting reads from a file that may have no data for a long time, until its context ends. A
// Read that still waits then is left behind, and ends with the process.
type waiting struct {
	r    io.Reader
	ctx  context.Context // of the call of next
	buf  []byte
	n    int
	err  error
	done chan struct{}
}

func (w *waiting) Read(p []byte) (int, error) {
	if len(w.buf) < len(p) {
		w.buf = make([]byte, len(p))
	}
	go func() {
		w.n, w.err = w.r.Read(w.buf[:len(p)])
		w.done <- struct{}{}
	}()
	select {
	case <-w.done:
		return copy(p, w.buf[:w.n]), w.err
	case <-w.ctx.Done():
		return 0, w.ctx.Err()
	}
}
