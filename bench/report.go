package main

// schema names the shape of the JSON output; it changes when a field changes
// its meaning or goes. New fields may come without that.
const schema = "sluice-bench/1"

// Report is what --json prints: one object.
type Report struct {
	Schema      string       `json:"schema"`
	Environment Environment  `json:"environment"`
	Results     []Result     `json:"results"`
	Comparisons []Comparison `json:"comparisons,omitempty"` // of bench compare
	Missing     []string     `json:"missing,omitempty"`     // what could not be measured, and why
	Warnings    []string     `json:"warnings,omitempty"`    // what makes the figures doubtful
}

// Result is one measurement: the distribution of its samples, in Unit.
type Result struct {
	Pattern  string  `json:"pattern"`           // lat, bw, bibw, rate, halo, ring, local
	Layer    string  `json:"layer"`             // of the software that is measured: verbs, channel, mpi, memory
	Suite    string  `json:"suite,omitempty"`   // of lat, bw, bibw and rate: channel where each message of a window has memory of its own
	Provider string  `json:"provider"`          // what moves the bytes: shm, tcp, …; self within a rank
	Peer     string  `json:"peer"`              // whose implementation: sluice, openmpi, mpich, c-line
	Op       string  `json:"op,omitempty"`      // operation, or way of calling
	Version  string  `json:"version,omitempty"` // of a peer's library
	Device   string  `json:"device,omitempty"`
	Mode     string  `json:"mode,omitempty"`   // each: a sample is one iteration; batch: the mean of Batch
	Batch    int64   `json:"batch,omitempty"`  // iterations (lat), windows or messages (others) of a sample
	Window   int64   `json:"window,omitempty"` // messages outstanding
	List     int64   `json:"list,omitempty"`   // most work requests in one call, of ibv
	Ranks    int64   `json:"ranks,omitempty"`  // of halo and ring
	Axis     string  `json:"axis,omitempty"`   // of halo: x, y, z, t, all
	Halo     string  `json:"halo,omitempty"`   // how halo receives: packed, strided
	Bytes    int64   `json:"bytes"`            // of a message; of halo, what a rank sends in an exchange
	Unit     string  `json:"unit"`             // ns, MB/s (10^6 bytes), msg/s
	Min      float64 `json:"min"`
	P50      float64 `json:"p50"`
	P99      float64 `json:"p99"`
	P999     float64 `json:"p999"`
	Max      float64 `json:"max"`
	Mean     float64 `json:"mean"`
	Samples  int64   `json:"samples"`
	Inline   bool    `json:"inline,omitempty"`   // the payload was given inline
	Verified bool    `json:"verified,omitempty"` // every byte was checked, both ways, before; of channels, after as well
	TimerNS  float64 `json:"timer_ns,omitempty"` // cost of the clock, once in each sample
	// AllocsPerMessage counts the Go allocations of both ranks.
	AllocsPerMessage *float64 `json:"allocs_per_message,omitempty"`
	// CrossingsPerMessage counts the calls from Go into C of both ranks; of ibv.
	CrossingsPerMessage *float64 `json:"crossings_per_message,omitempty"`
	Rounds              int      `json:"rounds,omitempty"`
	// Spread is the range of the rounds' medians, as a fraction of their median.
	Spread float64 `json:"spread,omitempty"`
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
)

// suiteChannel is the suite of the patterns of bench channel, and of the peers'
// that do the same.
const suiteChannel = "channel"

// Units of results.
const (
	unitLatency   = "ns"
	unitBandwidth = "MB/s"
	unitRate      = "msg/s"
	unitCalls     = "calls/msg" // into C; of comparisons
)

const (
	layerVerbs   = "verbs"
	layerChannel = "channel"
	peerSluice   = "sluice"
	modeEach     = "each"
	modeBatch    = "batch"
)

// unitOf is the unit that results of a pattern have.
func unitOf(pattern string) string {
	switch pattern {
	case patternLat, patternRing, patternLocal:
		return unitLatency
	case patternRate:
		return unitRate
	}
	return unitBandwidth
}
