package main

import (
	_ "embed"
	"encoding/csv"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

// Report is what --json prints: one object.
type Report struct {
	Schema      string       `json:"schema"`
	Environment Environment  `json:"environment"`
	Results     []Result     `json:"results"`
	Comparisons []Comparison `json:"comparisons,omitempty"` // of bench compare
	Changes     []Change     `json:"changes,omitempty"`     // of bench compare OLD NEW
	Missing     []string     `json:"missing,omitempty"`     // what could not be measured, and why
	Settings    []string     `json:"settings,omitempty"`    // of bench tune: NAME=value
	Model       *Model       `json:"model,omitempty"`       // of bench scale
	Estimates   []Estimate   `json:"estimates,omitempty"`   // made with the model
	Warnings    []string     `json:"warnings,omitempty"`    // reasons why the figures are doubtful
}

// Result is one measurement: the distribution of its samples, in Unit.
type Result struct {
	Pattern  string  `json:"pattern"`           // lat, bw, bibw, rate, halo, ring, local, addslice, fanout, or a collective
	Layer    string  `json:"layer"`             // software layer that is measured: verbs, channel, impi, qmp, fanout, exact, mpi, zmq, memory
	Suite    string  `json:"suite,omitempty"`   // for lat, bw, bibw and rate: channel: each message of a window has memory of its own; impi: each is a request of its own; qmp: with the calls of QMP programs
	Provider string  `json:"provider"`          // what moves the bytes: shm, tcp, …; self within a rank
	Peer     string  `json:"peer"`              // implementation: sluice, openmpi, mpich, with a version after an @, libzmq, limit
	Op       string  `json:"op,omitempty"`      // operation, kind of call, or memory: alloc, heap, or alloc>heap, heap>alloc if sender and receiver differ
	Figure   string  `json:"figure,omitempty"`  // the figure, for patterns that have several
	Load     string  `json:"load,omitempty"`    // what shares the CPUs: busy: a computing process on each core; quota: half a CPU a rank
	Count    int64   `json:"count,omitempty"`   // for handles, waiters, cq, ahead: how many of them
	Loss     float64 `json:"loss,omitempty"`    // for loss: share of lost packets, in percent
	Failed   string  `json:"failed,omitempty"`  // why there are no figures: the job has failed, or did not end in time
	Version  string  `json:"version,omitempty"` // of a peer's library
	Device   string  `json:"device,omitempty"`
	Mode     string  `json:"mode,omitempty"`   // each: a sample is one iteration; batch: the mean of Batch
	Batch    int64   `json:"batch,omitempty"`  // iterations (lat), windows or messages (others) of a sample
	Window   int64   `json:"window,omitempty"` // messages outstanding
	List     int64   `json:"list,omitempty"`   // most work requests in one call, for ibv
	Ranks    int64   `json:"ranks,omitempty"`  // for halo, ring, fanout and collectives
	Axis     string  `json:"axis,omitempty"`   // for halo: x, y, z, t, all; in suite qmp also half
	Halo     string  `json:"halo,omitempty"`   // how halo receives: packed, strided
	// Algorithm runs the collective, or in bench tune is the method of the message; Segment is that of a pipeline, if it is not the default.
	Algorithm string  `json:"algorithm,omitempty"`
	Segment   int64   `json:"segment,omitempty"`
	Bytes     int64   `json:"bytes"`             // of a message; for halo, what a rank sends in an exchange; for collectives, of the vector or each rank's block
	Block     int64   `json:"block,omitempty"`   // for channels: bytes of the blocks of a message, with gaps of the same length; 0: one piece
	Receive   string  `json:"receive,omitempty"` // for channels: packed: receive into one piece what is sent in blocks; late: start when the message has been announced
	Unit      string  `json:"unit"`              // ns, MB/s (10^6 bytes), msg/s, chunks/s, %, KiB; 1: a count, or a ratio
	Min       float64 `json:"min"`
	P50       float64 `json:"p50"`
	P99       float64 `json:"p99"`
	P999      float64 `json:"p999"`
	Max       float64 `json:"max"`
	Mean      float64 `json:"mean"`
	Samples   int64   `json:"samples"`
	Inline    bool    `json:"inline,omitempty"`   // the payload was posted inline
	Verified  bool    `json:"verified,omitempty"` // every byte was checked, in both directions, before timing; for channels, also after
	TimerNS   float64 `json:"timer_ns,omitempty"` // cost of the clock, once in each sample
	// AllocsPerMessage counts the Go allocations of both ranks.
	AllocsPerMessage *float64 `json:"allocs_per_message,omitempty"`
	// CrossingsPerMessage counts the calls from Go into C of both ranks; for ibv.
	CrossingsPerMessage *float64 `json:"crossings_per_message,omitempty"`
	Rounds              int      `json:"rounds,omitempty"`
	// Spread is the range of the rounds' medians, as a fraction of their median.
	Spread float64 `json:"spread,omitempty"`
	// Medians are the medians of the rounds, in order, for a test of significance.
	Medians []float64 `json:"medians,omitempty"`
	// Histogram has all samples, in thousandths of Unit, with three significant figures:
	// HdrHistogram's V2 encoding, compressed, in base64. With --histogram.
	Histogram string `json:"histogram,omitempty"`
}

// Patterns of results.
const (
	patternLat  = "lat"
	patternBW   = "bw"
	patternBiBW = "bibw"
	patternRate = "rate"

	patternHalo  = "halo"
	patternRing  = "ring"
	patternLocal = "local"

	patternAddSlice = "addslice"

	patternFanout = "fanout"

	patternUnexpected = "unexpected" // messages that arrive before their receives
	patternPosted     = "posted"     // many receives are there before their messages
	patternAnySource  = "anysource"  // lat, received from any rank

	patternExact = "exact" // allreduce of an accumulator; other collectives by the names of their kinds
)

// suiteChannel is the suite of the patterns of bench channel, and of the peers'
// that do the same.
const suiteChannel = "channel"

// suiteIMPI is that of bench impi: blocking calls, and requests that are made for one
// message each.
const suiteIMPI = "impi"

// suiteFanout is that of bench fanout.
const suiteFanout = "fanout"

// Units of results.
const (
	unitLatency   = "ns"
	unitBandwidth = "MB/s"
	unitRate      = "msg/s"
	unitFanout    = "chunks/s"
	unitCalls     = "calls/msg" // into C; of comparisons
)

const (
	layerVerbs   = "verbs"
	layerChannel = "channel"
	layerIMPI    = "impi"
	layerExact   = "exact"
	layerQMP     = "qmp"
	layerFanout  = "fanout"
	layerMachine = "machine" // what it can do at best
	peerSluice   = "sluice"
	modeEach     = "each"
	modeBatch    = "batch"
)

// schema names the shape of the JSON output; it changes when a field changes
// its meaning or goes. New fields may come without that.
const schema = "sluice-bench/1"

// schemaDocument describes every field of the output, as a JSON Schema.
//
//go:embed schema.json
var schemaDocument []byte

func newSchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of what --json prints",
		Args:  noArgs,
		RunE:  caught(func(cmd *cobra.Command, _ []string) { must1(cmd.OutOrStdout().Write(schemaDocument)) }),
	}
}

// writeCSV writes what a report has as tables: results, comparisons, changes, estimates.
// Where there are several an empty line is between them.
func writeCSV(w io.Writer, r *Report) (err error) {
	defer catch(&err)
	between := ""
	for _, list := range []any{r.Results, r.Comparisons, r.Changes, r.Estimates} {
		if reflect.ValueOf(list).Len() > 0 {
			must1(io.WriteString(w, between))
			recordsCSV(w, list)
			between = "\n"
		}
	}
	if between == "" {
		recordsCSV(w, r.Results)
	}
	return nil
}

// recordsCSV writes structs whose fields are text, numbers, truths, or pointers to these,
// with their names of JSON as columns; lists and histograms are in JSON alone. What is
// absent there is empty here.
func recordsCSV(w io.Writer, list any) {
	c := csv.NewWriter(w)
	records := reflect.ValueOf(list)
	typ := records.Type().Elem()
	var names []string
	var fields []int
	for i := range typ.NumField() {
		name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
		if name != "" && name != "histogram" && typ.Field(i).Type.Kind() != reflect.Slice {
			names, fields = append(names, name), append(fields, i)
		}
	}
	must(c.Write(names))
	for k := range records.Len() {
		v := records.Index(k)
		row := make([]string, len(fields))
		for i, field := range fields {
			switch f := v.Field(field); f.Kind() {
			case reflect.Pointer:
				if !f.IsNil() {
					row[i] = fmt.Sprint(f.Elem().Interface())
				}
			case reflect.Float64:
				row[i] = strconv.FormatFloat(f.Float(), 'f', -1, 64)
			default:
				row[i] = fmt.Sprint(f.Interface())
			}
		}
		must(c.Write(row))
	}
	c.Flush()
	must(c.Error())
}
