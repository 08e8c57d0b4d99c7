package main

import (
	"cmp"
	"context"
	"errors"
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
	model    Model // by flags; measured where the latency is negative

	patterns []string
	bytes    []int
	members  []int
	settings coll.Settings
}

// Model is LogGP: a network, and the machines at it.
type Model struct {
	Latency  float64 `json:"latency_ns"`         // L: of a message, without what follows
	Overhead float64 `json:"overhead_ns"`        // o: of a processor, to send or to receive a message
	Gap      float64 `json:"gap_ns"`             // g: between two messages of one member
	PerByte  float64 `json:"per_byte_ns"`        // G: of a byte on the way
	Combine  float64 `json:"combine_byte_ns"`    // of adding a byte of doubles to another
	Copy     float64 `json:"copy_byte_ns"`       // of copying a byte
	Measured bool    `json:"measured,omitempty"` // the network, here
}

// Estimate is the time of a collective by the model.
type Estimate struct {
	Kind      string  `json:"kind"`
	Bytes     int64   `json:"bytes"`
	Hosts     int     `json:"hosts"`
	Algorithm string  `json:"algorithm"`
	NS        float64 `json:"ns"`
	Chosen    bool    `json:"chosen,omitempty"` // by the settings of the environment
}

func (m *Model) logGP() coll.LogGP {
	return coll.LogGP{Latency: time.Duration(m.Latency), Overhead: time.Duration(m.Overhead), Gap: time.Duration(m.Gap),
		PerByte: m.PerByte, Combine: m.Combine, Copy: m.Copy}
}

// maxHosts is how many hosts are estimated; maxEstimated the messages of a collective
// that is, which take 50 bytes each and half a second for a million.
const (
	maxHosts     = 4096
	maxEstimated = 1 << 22
)

func newScaleCommand(out *outputOptions) *cobra.Command {
	var o scaleOptions
	cmd := &cobra.Command{
		Use:   "scale",
		Short: "Estimate collectives on many hosts by a model with parameters measured here",
		Long: `The model is LogGP: L is the latency of a message, o the time that a processor has to
do with one, g the least time between two, G that of a byte. Measured between two ranks
over a provider: o is the time of starting a short message, at most a quarter of the round
trip; L half the round trip without o at both ends, g the inverse of the rate of short messages, G of the bandwidth
at 1 MiB. Or given, all four.

The schedules of all members are carried out by the model, of each algorithm. An
asterisk is at what the settings of the environment choose; a dash where an algorithm is
not possible, or has more than four million messages.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(out); err != nil {
				return err
			}
			if o.model.Latency < 0 {
				return asRanks(cmd.Context(), *out, given(cmd.Flags()), o.task())
			}
			if err := out.check(); err != nil {
				return err
			}
			w := newWriter(*out, true)
			w.report.Environment = takeEnvironment(given(cmd.Flags()))
			w.begin()
			o.model.Combine, o.model.Copy = cmp.Or(o.model.Combine, combineCost()), cmp.Or(o.model.Copy, copyCost())
			if err := o.estimate(w, o.model); err != nil {
				return err
			}
			return w.end()
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.provider, "provider", "tcp", "provider over which the network is measured")
	f.StringVar(&o.kinds, "kinds", "barrier,bcast,allreduce", "kinds of collectives: a list")
	f.StringVar(&o.sizes, "sizes", "8,8k,1M", "bytes of the vector, or of each rank's block")
	f.StringVar(&o.hosts, "hosts", "2:4096", "hosts: MIN:MAX (powers of two between) or a list")
	f.DurationVar(&o.time, "time", 200*time.Millisecond, "measured time of each parameter")
	f.Float64Var(&o.model.Latency, "latency", -1, "L, in ns, in place of measuring; then the next three as well")
	f.Float64Var(&o.model.Overhead, "overhead", -1, "o, in ns")
	f.Float64Var(&o.model.Gap, "gap", -1, "g, in ns")
	f.Float64Var(&o.model.PerByte, "per-byte", -1, "G, in ns")
	f.Float64Var(&o.model.Combine, "combine", 0, "ns of adding a byte of doubles to another (default measured)")
	f.Float64Var(&o.model.Copy, "copy", 0, "ns of copying a byte (default measured)")
	return cmd
}

func (o *scaleOptions) check(out *outputOptions) error {
	var err error
	names := slices.DeleteFunc(collectivePatterns(), func(s string) bool { return s == patternExact })
	if o.patterns, err = parseList("kinds", o.kinds, names...); err != nil {
		return err
	}
	if o.bytes, err = parseSizes(o.sizes); err != nil {
		return err
	}
	if err := inDoubles(o.bytes); err != nil {
		return err
	}
	if o.members, err = parseSizes(o.hosts); err != nil {
		return err
	}
	for _, n := range o.members {
		if err := inRange("hosts", n, 1, maxHosts); err != nil {
			return err
		}
	}
	if o.settings, err = coll.ParseSettings(os.Getenv); err != nil {
		return &UsageError{err.Error()}
	}
	network := []float64{o.model.Latency, o.model.Overhead, o.model.Gap, o.model.PerByte}
	isSet := func(v float64) bool { return v >= 0 }
	switch {
	case slices.ContainsFunc(network, isSet) && slices.ContainsFunc(network, func(v float64) bool { return !isSet(v) }):
		return usagef("--latency, --overhead, --gap and --per-byte: want all, at least 0, or none")
	case !(min(o.model.Combine, o.model.Copy) >= 0):
		return usagef("--combine %g, --copy %g: want at least 0", o.model.Combine, o.model.Copy)
	case o.time <= 0 || o.time > maxTime:
		return usagef("--time %v: want more than 0, at most %v", o.time, maxTime)
	}
	return nil
}

// task measures the network between two ranks.
func (o *scaleOptions) task() task {
	var n *node
	return task{
		start: 2, least: 2, most: 2,
		join: func(ctx context.Context) (_ rankJob, err error) {
			n, err = joinNode(ctx, o.provider)
			return n, err
		},
		plan: func(context.Context) ([]run, error) { return []run{&scaleRun{o, n}}, nil },
	}
}

// scaleRun measures the parameters, and estimates by them.
type scaleRun struct {
	*scaleOptions
	node *node
}

func (r *scaleRun) unavailable() string { return "" }
func (r *scaleRun) steps() int          { return len(r.specs()) }

// specs are the figures from which the parameters follow.
func (r *scaleRun) specs() []spec {
	t := timing{time: r.time, warmup: defaultWarmup, verify: true}
	lat := t.spec(patternLat, memoryOperation(memoryAlloc), doubleBytes)
	rate := t.spec(patternRate, memoryOperation(memoryAlloc), doubleBytes)
	bw := t.spec(patternBW, memoryOperation(memoryAlloc), 1<<20)
	rate.window, bw.window = defaultWindow, defaultChannelWindow
	return []spec{lat, rate, bw}
}

func (r *scaleRun) measure(ctx context.Context, job exchanger, w *writer, timer float64, progress func(string)) error {
	arena := 0
	for _, s := range r.specs() {
		arena = max(arena, arenaSize(&s))
	}
	memory, err := r.node.Alloc(arena)
	if err != nil {
		return err
	}
	var figures []float64
	for _, s := range r.specs() {
		progress(r.provider + " " + s.pattern)
		m := newMeasurement(s)
		if err := (&channelRun{node: r.node}).round(ctx, job, m, memory.Bytes()); err != nil {
			return err
		}
		result := m.result(layerChannel, r.provider, timer)
		result.Suite = suiteChannel
		w.report.Results = append(w.report.Results, result)
		figures = append(figures, result.P50)
	}
	overhead, err := r.overhead(ctx, job, memory.Bytes(), timer)
	if err != nil {
		return err
	}
	half, rate, bandwidth := figures[0], figures[1], figures[2]
	p := Model{Overhead: min(overhead, half/2), Gap: 1e9 / rate, PerByte: 1e3 / bandwidth, Measured: true,
		Combine: cmp.Or(r.model.Combine, combineCost()), Copy: cmp.Or(r.model.Copy, copyCost())}
	p.Latency = max(half-2*p.Overhead-doubleBytes*p.PerByte, 0)
	if w.active {
		err = r.estimate(w, p)
	}
	_, err = share(ctx, job, struct{}{}, err)
	return err
}

// overhead is the median time of starting a short message, at rank 0.
func (r *scaleRun) overhead(ctx context.Context, job exchanger, arena []byte, timer float64) (float64, error) {
	const messages = 4096
	m := newMeasurement(r.specs()[0])
	s, err := declareToken(r.node, m, arena)
	if err != nil {
		return 0, err
	}
	if _, err := share(ctx, job, struct{}{}, nil); err != nil {
		return 0, err
	}
	times := make([]float64, 0, messages)
	if r.node.Rank() != 0 {
		err = s.pass(messages, nil)
	} else {
		for len(times) < messages && err == nil {
			t := nanos()
			err = s.out.Start()
			times = append(times, max(float64(nanos()-t)-timer, 0))
			if err == nil {
				err = errors.Join(s.in.Start(), s.out.Wait(), s.in.Wait())
			}
		}
	}
	if err != nil {
		return 0, err
	}
	return median(times), s.close()
}

// combineCost and copyCost are of a byte that is in the cache, in ns: the best of
// several.
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

// estimate adds the estimates to the report, and prints them where tables are wanted.
func (o *scaleOptions) estimate(w *writer, p Model) error {
	w.report.Model = &p
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
					if err != nil {
						return err
					}
					t, err := network.Estimate(a, &shape)
					if err != nil {
						return err
					}
					w.report.Estimates = append(w.report.Estimates, Estimate{name, int64(bytes), hosts, a.String(), float64(t), a == chosen})
				}
			}
		}
	}
	if w.tables() {
		w.progress.clear()
		printScale(os.Stdout, terminal(os.Stdout), o.provider, &w.report)
	}
	return nil
}
