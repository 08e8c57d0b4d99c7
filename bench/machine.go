package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/klauspost/cpuid/v2"

	"github.com/sluice-hpc/sluice/internal/launch"
	"github.com/sluice-hpc/sluice/internal/wait"
	"github.com/sluice-hpc/sluice/verbs"
)

// Environment is where and how the figures were measured.
type Environment struct {
	Time       string            `json:"time"` // RFC 3339
	Bench      string            `json:"bench"`
	CPU        string            `json:"cpu"`
	Cores      int               `json:"cores,omitempty"` // physical, as the CPU reports; 0: unknown
	CPUs       int               `json:"cpus"`            // logical, that this process may use
	Governor   string            `json:"governor,omitempty"`
	Virtual    bool              `json:"virtual,omitempty"` // under a hypervisor
	OS         string            `json:"os"`
	Arch       string            `json:"arch"`
	Kernel     string            `json:"kernel,omitempty"`
	Go         string            `json:"go"`
	GOMAXPROCS int               `json:"gomaxprocs"`
	Ranks      []RankEnvironment `json:"ranks,omitempty"`
	Devices    []DeviceEntry     `json:"devices,omitempty"`
	Options    map[string]string `json:"options,omitempty"` // of the command line
}

// RankEnvironment is what differs between the ranks.
type RankEnvironment struct {
	Rank       int    `json:"rank"`
	Host       string `json:"host"`
	CPUs       []int  `json:"cpus,omitempty"` // that it is bound to; empty: unknown
	Core       string `json:"core,omitempty"` // of a single CPU: all hardware threads of its core
	GOMAXPROCS int    `json:"gomaxprocs"`
}

// DeviceEntry is a device that was measured, as rank 0 sees it.
type DeviceEntry struct {
	Provider      string `json:"provider"`
	Device        string `json:"device"`
	Netdev        string `json:"netdev,omitempty"`
	Link          string `json:"link,omitempty"`
	MTU           int    `json:"mtu"` // bytes of the active path MTU
	GID           string `json:"gid,omitempty"`
	MaxInlineData int    `json:"max_inline_data"`
	MaxSGE        int    `json:"max_sge"`
	LoadStore     bool   `json:"load_store,omitempty"`
	Portable      bool   `json:"portable,omitempty"`
}

// addDevice adds a device, unless it is there or nothing is known of it.
func (e *Environment) addDevice(d DeviceEntry) {
	if d != (DeviceEntry{}) && !slices.Contains(e.Devices, d) {
		e.Devices = append(e.Devices, d)
	}
}

func takeEnvironment(options map[string]string) Environment {
	return Environment{
		Time:       time.Now().Format(time.RFC3339),
		Bench:      buildVersion(),
		CPU:        cpuModel(),
		Cores:      cpuid.CPU.PhysicalCores,
		CPUs:       runtime.NumCPU(),
		Governor:   governor(),
		Virtual:    cpuid.CPU.VM(),
		OS:         runtime.GOOS,
		Arch:       runtime.GOARCH,
		Kernel:     kernel(),
		Go:         runtime.Version(),
		GOMAXPROCS: runtime.GOMAXPROCS(0),
		Options:    options,
	}
}

func takeRankEnvironment(rank int) RankEnvironment {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	e := RankEnvironment{Rank: rank, Host: host, CPUs: boundCPUs(), GOMAXPROCS: runtime.GOMAXPROCS(0)}
	if len(e.CPUs) == 1 {
		e.Core = launch.CoreOf(e.CPUs[0])
	}
	return e
}

// describeDevice reads what the environment block says of an open device.
func describeDevice(c *verbs.Context, portable bool) DeviceEntry {
	d := c.Device()
	e := DeviceEntry{Provider: d.Provider(), Device: d.Name(), Netdev: d.Netdev(), Portable: portable}
	attr := must1(c.QueryDevice())
	e.MaxInlineData, e.MaxSGE, e.LoadStore = attr.MaxInlineData, attr.MaxSGE, attr.LoadStore
	port := must1(c.QueryPort(1))
	e.MTU = port.ActiveMTU.Bytes()
	if port.LinkLayer != verbs.LinkLayerUnspecified {
		e.Link = port.LinkLayer.String()
	}
	if port.GIDTblLen > 0 && !e.LoadStore { // within a host it is of this process alone
		gid := must1(c.QueryGID(1, 0))
		if gid != (verbs.GID{}) {
			e.GID = gid.String()
		}
	}
	return e
}

// buildVersion is the module's version, or the commit that was built.
func buildVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	version := info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && version == "(devel)" {
			version = s.Value[:min(12, len(s.Value))]
		}
	}
	return version
}

func cpuModel() string {
	if name := strings.TrimSpace(cpuid.CPU.BrandName); name != "" {
		return name
	}
	// On arm64 the CPU itself does not tell a name.
	if name := systemCPUModel(); name != "" {
		return name
	}
	return runtime.GOARCH
}

// together reports whether all ranks run on one host.
func together(ranks []RankEnvironment) bool {
	return !slices.ContainsFunc(ranks, func(r RankEnvironment) bool { return r.Host != ranks[0].Host })
}

// Thresholds of the warnings that figures are doubtful.
const (
	doubtSteal = 0.01 // of the CPUs' time: taken by the hypervisor for other guests
	doubtOther = 0.05 // CPUs: used by other processes
	doubtSpeed = 0.10 // change of the speed of computing between begin and end
)

// machineState shows whether the machine was quiet and steady.
type machineState struct {
	at    time.Time
	cpu   cpuTimes
	known bool    // cpu is
	speed float64 // steps per ns, see computeSpeed
}

// cpuTimes are sums over all CPUs since the system came up.
type cpuTimes struct {
	busy, steal, total time.Duration
}

func takeMachineState() machineState {
	m := machineState{speed: computeSpeed()}
	m.cpu, m.known = readCPUTimes()
	m.at = time.Now()
	return m
}

// doubts compares the machine before and after. own is the CPU time that the
// ranks themselves used meanwhile.
func doubts(before, after machineState, own time.Duration) []string {
	var list []string
	if before.known && after.known {
		total := after.cpu.total - before.cpu.total
		steal := after.cpu.steal - before.cpu.steal
		if share := float64(steal) / float64(total); total > 0 && share > doubtSteal {
			list = append(list, fmt.Sprintf("%.1f %% of the CPU time was stolen by the hypervisor", 100*share))
		}
		other := after.cpu.busy - before.cpu.busy - own
		// The kernel counts in ticks of 10 ms, too coarse for a short run.
		wall := after.at.Sub(before.at)
		if cpus := other.Seconds() / wall.Seconds(); wall > time.Second && cpus > doubtOther {
			list = append(list, fmt.Sprintf("other processes used %.2f CPUs meanwhile", cpus))
		}
	}
	if change := after.speed/before.speed - 1; math.Abs(change) > doubtSpeed {
		than := "faster"
		if change < 0 {
			than = "slower"
		}
		list = append(list, fmt.Sprintf("the CPU was %.0f %% %s at the end than at the beginning", 100*math.Abs(change), than))
	}
	return list
}

// standingDoubts returns the doubts that follow from the environment alone.
func standingDoubts(e *Environment) []string {
	var list []string
	if e.Governor != "" && e.Governor != "performance" {
		list = append(list, fmt.Sprintf("the CPU frequency governor is %q, not \"performance\"", e.Governor))
	}
	if len(e.Ranks) > 1 && together(e.Ranks) && len(e.Ranks[0].CPUs) == 1 && !slices.ContainsFunc(e.Ranks, func(r RankEnvironment) bool { return !slices.Equal(r.CPUs, e.Ranks[0].CPUs) }) {
		list = append(list, "all ranks share one CPU: latencies are those of the scheduler")
	}
	for i, r := range e.Ranks {
		if j := sharesCore(&r, e.Ranks[:i]); j >= 0 && !crowded(e.Ranks) {
			list = append(list, fmt.Sprintf("ranks %d and %d are on hardware threads of one core: each has half of it, and cache lines never leave it", j, r.Rank))
		}
		if len(r.CPUs) > 1 && !crowded(e.Ranks) {
			list = append(list, fmt.Sprintf("rank %d is not bound to a CPU", r.Rank))
		}
	}
	return list
}

// sharesCore returns the first of others that is bound to another hardware thread
// of the core that r is bound to; -1 if there is none.
func sharesCore(r *RankEnvironment, others []RankEnvironment) int {
	for _, o := range others {
		if r.Core != "" && o.Core == r.Core && o.Host == r.Host && !slices.Equal(o.CPUs, r.CPUs) {
			return o.Rank
		}
	}
	return -1
}

// crowded reports whether there are more ranks than CPUs, so that binding does not help.
func crowded(ranks []RankEnvironment) bool {
	cpus := map[int]bool{}
	for _, r := range ranks {
		for _, c := range r.CPUs {
			cpus[c] = true
		}
	}
	return len(cpus) > 0 && len(ranks) > len(cpus)
}

// sink keeps the loop of compute from being optimised away.
var sink atomic.Uint64

// compute keeps the CPU busy for so many steps, each of which waits for the one before, and
// uses no memory.
func compute(steps int) {
	x := sink.Load() | 1
	for range steps {
		x = x*6364136223846793005 + 1442695040888963407 // Knuth, MMIX
	}
	sink.Store(x)
}

// computeSpeed times a chain of dependent multiplications, whose speed is that
// of the clock alone; the best of several, so that interruptions do not count.
func computeSpeed() float64 {
	const steps = 50_000
	best := math.Inf(1)
	for range 10 {
		t := nanos()
		compute(steps)
		best = math.Min(best, float64(nanos()-t))
	}
	return steps / best
}

// doubtful collects the warnings of many runs, which differ in their figures.
type doubtful struct {
	runs  int
	first []string // of each kind, as first met
	count map[string]int
}

func (d *doubtful) add(warnings []string) {
	d.runs++
	if d.count == nil {
		d.count = map[string]int{}
	}
	for _, w := range warnings {
		kind := doubtKind(w)
		if d.count[kind] == 0 {
			d.first = append(d.first, w)
		}
		d.count[kind]++
	}
}

// doubtKind is a warning without its figures.
func doubtKind(w string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune("0123456789.+-", r) {
			return -1
		}
		return r
	}, w)
}

func (d *doubtful) list() []string {
	var l []string
	for _, w := range d.first {
		l = append(l, fmt.Sprintf("%s (or similar, in %d of %d runs)", w, d.count[doubtKind(w)], d.runs))
	}
	return l
}

// The limits of this machine, with which the other figures are compared.
const (
	patternLine = "line" // a cache line moved to another core
	patternCopy = "copy" // by one core
	patternPeek = "peek" // one copy out of another process, by the kernel
)

// needsSHM: ranks must share memory.
func needsSHM(ctx context.Context, s *session, w work) []work {
	w.missing = s.cannot(ctx, providerSHM)
	return []work{w}
}

// line is a cache line for each direction, which two ranks pass back and forth with no library
// between them: one maps memory of the other. The wait for the line verifies it.
type line struct {
	*pair
	ours, theirs *uint64
	number       uint64 // of the message
}

func declareLine(ctx context.Context, b *bed, m *measurement) series {
	b.device = providerSHM
	p := connect(ctx, b, m, 1, 1)
	mapped := must1(p.qp.Map(p.remote.RecvRKey, p.remote.RecvAddr, lineBytes))
	clear(p.recv.Bytes())
	word := func(b []byte) *uint64 { return (*uint64)(unsafe.Pointer(unsafe.SliceData(b))) }
	barrier(ctx, b, nil)
	return &line{pair: p, ours: word(p.recv.Bytes()), theirs: word(mapped)}
}

func (l *line) run(n int, samples []int64) { pingpong(l, l.rank == 0, n, samples) }
func (l *line) prepare()                   {}
func (l *line) check()                     {}

func (l *line) send() {
	if l.rank == 0 {
		l.number++
	}
	atomic.StoreUint64(l.theirs, l.number)
}

func (l *line) receive() {
	if l.rank != 0 {
		l.number++
	}
	for looks := 1; atomic.LoadUint64(l.ours) != l.number; looks++ {
		if looks%spinLooks == 0 {
			wait.Yield()
		}
	}
}

// copying copies memory on rank 0, from the source of read; other ranks wait.
type copying struct {
	plain
	from, into []byte
	seed       uint64
	works      bool // this rank copies
	read       func(into []byte)
}

func newCopying(b *bed, m *measurement) *copying {
	from, into := b.memory(&m.spec, m.bytes, m.bytes+guard)
	return &copying{from: from, into: into, works: b.Rank() == 0, seed: seedFor(0, m.bytes, m.name)}
}

func declareCopy(_ context.Context, b *bed, m *measurement) series {
	s := newCopying(b, m)
	s.read = func(into []byte) { copy(into, s.from) }
	return s
}

func (s *copying) run(n int, samples []int64) {
	if s.works {
		repeat(n, samples, func() { s.read(s.into[:len(s.from)]) })
	}
}

func (s *copying) prepare() {
	fillPattern(s.from, s.seed)
	fillGuard(s.into)
}

func (s *copying) check() {
	if s.works {
		must(checkPattern("copy", s.into, len(s.from), s.seed))
	}
}
