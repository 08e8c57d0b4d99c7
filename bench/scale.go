package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/reduce"
)

// scaleOptions are the flags of bench scale.
type scaleOptions struct {
	provider string
	kinds    string
	sizes    string
	hosts    string
	time     time.Duration
	model    Model // from flags; measured if the latency is negative

	patterns []string
	bytes    []int
	members  []int
	settings coll.Settings
}

// Model is LogGP: a network and its machines.
type Model struct {
	Latency  float64 `json:"latency_ns"`         // L: latency of a message, without the costs below
	Overhead float64 `json:"overhead_ns"`        // o: processor time to send or to receive a message
	Gap      float64 `json:"gap_ns"`             // g: least time between two messages of one member
	PerByte  float64 `json:"per_byte_ns"`        // G: time of a byte on the network
	Combine  float64 `json:"combine_byte_ns"`    // time of adding a byte of doubles to another
	Copy     float64 `json:"copy_byte_ns"`       // time of copying a byte
	Measured bool    `json:"measured,omitempty"` // the network was measured here
}

// Estimate is the time of a collective in the model.
type Estimate struct {
	Kind      string  `json:"kind"`
	Bytes     int64   `json:"bytes"`
	Hosts     int     `json:"hosts"`
	Algorithm string  `json:"algorithm"`
	NS        float64 `json:"ns"`
	Chosen    bool    `json:"chosen,omitempty"` // the settings of the environment choose it
}

func (m *Model) logGP() coll.LogGP {
	return coll.LogGP{Latency: time.Duration(m.Latency), Overhead: time.Duration(m.Overhead), Gap: time.Duration(m.Gap),
		PerByte: m.PerByte, Combine: m.Combine, Copy: m.Copy}
}

// maxHosts is the largest number of hosts to estimate, maxEstimated the largest number of
// messages of a collective: each takes 50 bytes, and a million half a second.
const (
	maxHosts     = 4096
	maxEstimated = 1 << 22
)

func newScaleCommand(out *outputOptions) *cobra.Command {
	var o scaleOptions
	cmd := &cobra.Command{
		Use:   "scale",
		Short: "Estimate collectives on many hosts with a model whose parameters are measured here",
		Long: `The model is LogGP: L is the latency of a message, o the processor time for one, g the
least time between two, G the time for a byte. They are measured between two ranks over a
provider: o is the time to start a short message, at most a quarter of the round trip; L is
half the round trip without o at both ends; g is the inverse of the rate of short messages,
G that of the bandwidth at 1 MiB. Flags can set them instead, all four together.

The model runs the schedules of all members, for each algorithm. An asterisk marks what the
settings of the environment choose; a dash marks an algorithm that is not possible, or has
more than four million messages.`,
		Args: noArgs,
		RunE: caught(func(cmd *cobra.Command, _ []string) {
			o.check()
			if o.model.Latency < 0 {
				j := job{outputOptions: *out, given: given(cmd.Flags()), works: o.works(), body: o.measure}
				j.run(cmd.Context())
				return
			}
			out.check()
			r := Report{Schema: schema, Environment: takeEnvironment(given(cmd.Flags())), Results: []Result{}}
			o.model.Combine, o.model.Copy = cmp.Or(o.model.Combine, combineCost()), cmp.Or(o.model.Copy, copyCost())
			o.estimate(&r, o.model)
			out.print(os.Stdout, &r)
		}),
	}
	f := cmd.Flags()
	f.StringVar(&o.provider, "provider", "tcp", "provider over which the network is measured")
	f.StringVar(&o.kinds, "kinds", "barrier,bcast,allreduce", "kinds of collectives: a list")
	f.StringVar(&o.sizes, "sizes", "8,8k,1M", "bytes of the vector, or of each rank's block")
	f.StringVar(&o.hosts, "hosts", "2:4096", "hosts: MIN:MAX (powers of two between) or a list")
	f.DurationVar(&o.time, "time", 200*time.Millisecond, "measured time of each parameter")
	f.Float64Var(&o.model.Latency, "latency", -1, "L, in ns, instead of measuring; needs the next three as well")
	f.Float64Var(&o.model.Overhead, "overhead", -1, "o, in ns")
	f.Float64Var(&o.model.Gap, "gap", -1, "g, in ns")
	f.Float64Var(&o.model.PerByte, "per-byte", -1, "G, in ns")
	f.Float64Var(&o.model.Combine, "combine", 0, "ns of adding a byte of doubles to another (default measured)")
	f.Float64Var(&o.model.Copy, "copy", 0, "ns of copying a byte (default measured)")
	return cmd
}

func (o *scaleOptions) check() {
	o.patterns = parseList("kinds", o.kinds, collectiveNames()...)
	o.bytes = sizesOf("sizes", o.sizes)
	must(inDoubles(o.bytes))
	o.members = sizesOf("hosts", o.hosts)
	for _, n := range o.members {
		inRange("hosts", n, 1, maxHosts)
	}
	var err error
	if o.settings, err = coll.ParseSettings(os.Getenv); err != nil {
		must(&UsageError{err.Error()})
	}
	network := []float64{o.model.Latency, o.model.Overhead, o.model.Gap, o.model.PerByte}
	isSet := func(v float64) bool { return v >= 0 }
	switch {
	case slices.ContainsFunc(network, isSet) && slices.ContainsFunc(network, func(v float64) bool { return !isSet(v) }):
		must(usagef("--latency, --overhead, --gap and --per-byte: want all of them, at least 0, or none"))
	case !(min(o.model.Combine, o.model.Copy) >= 0):
		must(usagef("--combine %g, --copy %g: want at least 0", o.model.Combine, o.model.Copy))
	}
	checkTime(o.time)
}

// works are the figures from which the parameters of the network follow.
func (o *scaleOptions) works() (list []work) {
	for _, p := range []struct{ pattern, bytes string }{{patternLat, "8"}, {patternRate, "8"}, {patternBW, "1M"}} {
		list = append(list, newWork(findPattern(layerChannel, p.pattern), map[string]string{"provider": o.provider, "sizes": p.bytes, "time": o.time.String()}))
	}
	return list
}

// measure derives the parameters from figures, and estimates with them.
func (o *scaleOptions) measure(ctx context.Context, s *session, j *job, r *Report) {
	j.carryOut(ctx, s, j, r)
	overhead := o.overhead(ctx, s)
	half, rate, bandwidth := r.Results[0].P50, r.Results[1].P50, r.Results[2].P50
	p := Model{Overhead: min(overhead, half/2), Gap: 1e9 / rate, PerByte: 1e3 / bandwidth, Measured: true,
		Combine: cmp.Or(o.model.Combine, combineCost()), Copy: cmp.Or(o.model.Copy, copyCost())}
	p.Latency = max(half-2*p.Overhead-doubleBytes*p.PerByte, 0)
	barrier(ctx, s, try(func() {
		if s.Rank() == 0 {
			o.estimate(r, p)
		}
	}))
}

// overhead returns the median time of starting a short message on rank 0.
func (o *scaleOptions) overhead(ctx context.Context, s *session) float64 {
	const messages = 4096
	w := newWork(findPattern(layerChannel, patternLat), map[string]string{"sizes": "8"})
	b := &bed{session: s, o: w.o}
	t := declareToken(b, newMeasurement(w.pattern.specs(w.o, s.Size())[0]))
	barrier(ctx, s, nil)
	var times []float64
	if s.Rank() != 0 {
		t.run(messages, nil)
	}
	for s.Rank() == 0 && len(times) < messages {
		begin := nanos()
		must(t.out.Start())
		times = append(times, max(float64(nanos()-begin)-s.timer, 0))
		must(errors.Join(t.in.Start(), t.out.Wait(), t.in.Wait()))
	}
	t.close()
	b.close(ctx)
	return median(times)
}

// combineCost and copyCost return the cost of a byte in the cache, in ns: the best of several.
func combineCost() float64 {
	add, _ := reduce.Lookup(reduce.Sum, reduce.Float64)
	return byteCost(func(dst, src []byte) { add(dst, dst, src) })
}

func copyCost() float64 { return byteCost(func(dst, src []byte) { copy(dst, src) }) }

func byteCost(do func(dst, src []byte)) float64 {
	const (
		bytes = 64 << 10
		times = 100
	)
	dst, src := make([]byte, bytes), make([]byte, bytes)
	var means []float64
	for range 20 {
		t := nanos()
		for range times {
			do(dst, src)
		}
		means = append(means, float64(nanos()-t)/times/bytes)
	}
	return slices.Min(means)
}

// estimate adds the estimates to the report, and prints them if tables are requested.
func (o *scaleOptions) estimate(r *Report, p Model) {
	r.Model = &p
	network := p.logGP()
	for _, name := range o.patterns {
		kind, _ := collectiveKind(name)
		sizes := o.bytes
		if kind == coll.Barrier {
			sizes = []int{0}
		}
		for _, bytes := range sizes {
			for _, hosts := range o.members {
				shape := shapeOf(kind, hosts, bytes)
				shape.Segment = o.settings.Segment
				chosen := o.settings.Choose(&shape)
				for _, a := range coll.Algorithms(kind) {
					cost, err := coll.Cost(a, &shape)
					if errors.Is(err, coll.ErrAlgorithm) || cost.Messages > maxEstimated {
						continue
					}
					must(err)
					t := must1(network.Estimate(a, &shape))
					r.Estimates = append(r.Estimates, Estimate{name, int64(bytes), hosts, a.String(), float64(t), a == chosen})
				}
			}
		}
	}
}

// printScale prints the parameters, and a table for each kind and size: a row for each number of
// hosts, a column for each algorithm.
func printScale(w io.Writer, r *Report) {
	from := "given"
	if r.Model.Measured {
		from = "measured over " + r.Results[0].Provider
	}
	m := r.Model
	fmt.Fprintf(w, "\nLogGP, %s: L %s ns, o %s ns, g %s ns, G %s ns/byte; adding %s ns/byte, copying %s ns/byte\n", from,
		formatValue(m.Latency), formatValue(m.Overhead), formatValue(m.Gap), formatValue(m.PerByte), formatValue(m.Combine), formatValue(m.Copy))
	type group struct {
		kind  string
		bytes int64
	}
	for list := range runs(r.Estimates, func(e *Estimate) group { return group{e.Kind, e.Bytes} }) {
		printEstimates(w, list)
	}
}

func printEstimates(w io.Writer, list []Estimate) {
	kind, _ := collectiveKind(list[0].Kind)
	what := list[0].Kind
	if kind != coll.Barrier {
		what += " of " + formatSize(list[0].Bytes) + " bytes"
	}
	fmt.Fprintf(w, "\n%s, estimated\n", what)
	header := []any{"hosts"}
	column := map[string]int{}
	for _, a := range coll.Algorithms(kind) {
		column[a.String()] = len(header)
		header = append(header, a.String())
	}
	t := newTable(w, false, header...)
	for of := range runs(list, func(e *Estimate) int { return e.Hosts }) {
		row := slices.Repeat([]any{"-"}, len(header))
		row[0] = of[0].Hosts
		for _, e := range of {
			cell := readable(e.NS, unitLatency)
			if e.Chosen {
				cell = "*" + cell
			}
			row[column[e.Algorithm]] = cell
		}
		t.AppendRow(row)
	}
	t.Render()
}
