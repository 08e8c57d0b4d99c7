package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/jedib0t/go-pretty/v6/progress"
	"golang.org/x/term"

	"github.com/sluice-hpc/sluice/fanout/pipeline"
)

// fanoutSchema names the shape of the JSON output.
const fanoutSchema = "sluice-fanout/1"

// fanoutReport is the statistics of a run. Sizes are in bytes, times in seconds.
type fanoutReport struct {
	Schema      string        `json:"schema"`
	Inputs      []inputEntry  `json:"inputs"`
	Output      string        `json:"output"`
	Seconds     float64       `json:"seconds"`
	Chunks      int64         `json:"chunks"`
	ItemsIn     int64         `json:"items_in"`
	BytesIn     int64         `json:"bytes_in"`
	ItemsOut    int64         `json:"items_out"`
	BytesOut    int64         `json:"bytes_out"`
	Redelivered int64         `json:"redelivered"`
	Workers     []workerEntry `json:"workers"`
}

type inputEntry struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"` // bytes of the items that were read
}

type workerEntry struct {
	Chunks   int64   `json:"chunks"`
	Items    int64   `json:"items"`
	Failures int64   `json:"failures"`
	Busy     float64 `json:"busy_seconds"`
	Idle     float64 `json:"idle_seconds"`
	P50      float64 `json:"service_p50_seconds"`
	P99      float64 `json:"service_p99_seconds"`
	Max      float64 `json:"service_max_seconds"`
}

func (o *fanoutOptions) statistics(s pipeline.Stats, inputs inputs, out *pipeline.Output, took time.Duration) *fanoutReport {
	r := &fanoutReport{
		Schema: fanoutSchema, Output: o.out, Seconds: took.Seconds(), Chunks: s.ChunksIn, ItemsIn: s.ItemsIn,
		ItemsOut: s.ItemsOut, BytesOut: out.Bytes(), Redelivered: s.Redelivered,
	}
	for _, in := range inputs {
		r.Inputs = append(r.Inputs, inputEntry{in.name, in.file.Offset()})
		r.BytesIn += in.file.Offset()
	}
	for _, w := range s.Workers {
		r.Workers = append(r.Workers, workerEntry{
			w.Chunks, w.Items, w.Failures, w.Busy.Seconds(), w.Idle.Seconds(), w.P50.Seconds(), w.P99.Seconds(), w.Max.Seconds(),
		})
	}
	return r
}

func (r *fanoutReport) writeJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// print writes the statistics for people.
func (r *fanoutReport) print(w io.Writer) {
	fmt.Fprintf(w, "%s: %d items, %s, from %d items, %s, in %d chunks; %.2f s", r.Output, r.ItemsOut, decimal(r.BytesOut), r.ItemsIn, decimal(r.BytesIn), r.Chunks, r.Seconds)
	if r.Redelivered > 0 {
		fmt.Fprintf(w, "; %d times a chunk was passed to another filter", r.Redelivered)
	}
	fmt.Fprintln(w)
	t := newTabWriter(w)
	fmt.Fprintln(t, "worker\tchunks\titems\tfailures\tbusy\tidle\tp50\tp99\tmax")
	for i, e := range r.Workers {
		fmt.Fprintf(t, "%d\t%d\t%d\t%d\t%s\t%s\t%s\t%s\t%s\n", i, e.Chunks, e.Items, e.Failures,
			seconds(e.Busy), seconds(e.Idle), seconds(e.P50), seconds(e.P99), seconds(e.Max))
	}
	t.Flush()
}

func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(time.Microsecond).String()
}

// decimal formats a number of bytes in units of 1000.
func decimal(n int64) string { return progress.FormatBytes(n) }

// fanoutProgress is a line on a terminal that shows the progress. Log lines go above it.
type fanoutProgress struct {
	mu      sync.Mutex
	bar     progress.Writer // nil: there is no terminal, or it has ended
	tracker *progress.Tracker
	stopped chan struct{}
	over    sync.WaitGroup
}

// progressEvery is how often the line is drawn.
const progressEvery = 100 * time.Millisecond

// newFanoutProgress shows the progress on standard error, if that is a terminal.
func newFanoutProgress(active bool) *fanoutProgress {
	show := &fanoutProgress{}
	if !active || !term.IsTerminal(int(os.Stderr.Fd())) {
		return show
	}
	show.stopped = make(chan struct{})
	show.bar = newBar(os.Stderr)
	return show
}

// newBar returns a line that Render draws until Stop, or until its tracker is done: Stop has no effect before
// Render has begun.
func newBar(w io.Writer) progress.Writer {
	bar := progress.NewWriter()
	bar.SetOutputWriter(w)
	bar.SetUpdateFrequency(progressEvery)
	bar.SetTrackerLength(25)
	bar.SetAutoStop(true)
	bar.Style().Visibility.ETA = true
	return bar
}

// begin shows how much of the inputs has been read, until stop.
func (show *fanoutProgress) begin(p *pipeline.Pipeline, inputs inputs) {
	if show.bar == nil {
		return
	}
	var total int64
	for _, in := range inputs {
		if in.size == 0 { // unknown, so the total is unknown too
			total = 0
			break
		}
		total += in.size
	}
	show.tracker = &progress.Tracker{Message: "0 items written", Total: total, Units: progress.UnitsBytes, AutoStopDisabled: true}
	show.bar.AppendTracker(show.tracker)
	show.over.Go(show.bar.Render)
	show.over.Go(func() {
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				show.update(p, inputs)
			case <-show.stopped:
				show.update(p, inputs)
				show.tracker.MarkAsDone()
				show.bar.Stop()
				return
			}
		}
	})
}

func (show *fanoutProgress) update(p *pipeline.Pipeline, inputs inputs) {
	var read int64
	for _, in := range inputs {
		read += in.file.Offset()
	}
	s := p.Stats()
	text := fmt.Sprintf("%d items written", s.ItemsOut)
	if s.Redelivered > 0 {
		text += fmt.Sprintf(", %d chunks passed to another filter", s.Redelivered)
	}
	show.tracker.UpdateMessage(text)
	show.tracker.SetValue(read)
}

// stop ends the line. It may be called again.
func (show *fanoutProgress) stop() {
	show.mu.Lock()
	defer show.mu.Unlock()
	if show.bar == nil {
		return
	}
	if show.tracker != nil {
		close(show.stopped)
		show.over.Wait()
	}
	show.bar = nil
}

// Write writes a line of the log.
func (show *fanoutProgress) Write(line []byte) (int, error) {
	show.mu.Lock()
	defer show.mu.Unlock()
	if show.bar == nil || show.tracker == nil {
		return os.Stderr.Write(line)
	}
	show.bar.Log("%s", line[:len(line)-1])
	return len(line), nil
}
