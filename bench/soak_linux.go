package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/csv"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/internal/netns"
)

// Faults of a job of a soak, one of these.
const (
	faultNone  = "none"
	faultKill  = "kill"
	faultStall = "stall"
	faultLoss  = "loss"
	faultCut   = "cut"
)

// Bounds of a soak. A stall or a cut is shorter than the peer timeout: no rank may give
// another one up.
const (
	soakJobTime  = 4 * time.Second
	soakLongest  = 1500 * time.Millisecond // of a stall or a cut
	soakPatience = 90 * time.Second        // a rank that runs so long after the end of its time hangs
)

func (o *soakOptions) run(ctx context.Context, out *outputOptions) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	t := soakTotals{Seed: o.seed, Operations: map[string]int64{}, Faults: map[string]int64{}}
	rng := mathrand.New(mathrand.NewPCG(o.seed, 0))
	faults := []string{faultNone, faultKill, faultStall, faultKill}
	var link *netns.Star
	if o.network && os.Geteuid() == 0 {
		// Trying it shows whether the kernel has the required features.
		if err := try(func() { link = newSoakLink() }); err != nil {
			t.Said = append(t.Said, "no network that could be cut: "+err.Error())
		} else {
			defer func() { _ = link.Close() }() // the namespaces last as long as the ranks
			faults = append(faults, faultLoss, faultCut)
		}
	}
	progress := newProgress(true)
	defer progress.clear()
	begin := time.Now()
	for time.Since(begin) < o.time && ctx.Err() == nil {
		left := o.time - time.Since(begin)
		j := soakJob{soakOptions: *o, fault: faults[int(t.Jobs)%len(faults)], seed: rng.Uint64(), rng: mathrand.New(mathrand.NewPCG(rng.Uint64(), 0)),
			length: max(min(soakJobTime, left), 500*time.Millisecond), link: link}
		// If there is a link, every job goes over it, except those over plain shared memory or tcp.
		switch int(t.Jobs) / len(faults) % 3 {
		case 1:
			j.transport = "shm"
		case 2:
			j.transport = "tcp"
		}
		if j.fault != faultLoss && j.fault != faultCut && (j.transport != "" || link == nil) {
			j.link = nil
		} else {
			j.transport = ""
		}
		progress.show(int(time.Since(begin)/time.Second), int(o.time/time.Second)+1, fmt.Sprintf("s: job %d, %s", t.Jobs, j.fault))
		j.run(ctx, &t)
		t.Jobs++
	}
	t.Seconds = time.Since(begin).Seconds()
	progress.clear()
	t.write(out)
	must(t.verdict())
}

// newSoakLink is two hosts, with a router between that can lose packets.
func newSoakLink() *netns.Star {
	link, ln := must2(newStar(2))
	defer undo(func() { _ = link.Close() })
	must(ln.Close()) // each job has its own
	must(link.Router.Lose(10))
	must(link.Router.Lose(0))
	return link
}

// soakJob is one job of a soak.
type soakJob struct {
	soakOptions
	fault     string
	transport string // SLUICE_TRANSPORT; empty: whatever works
	seed      uint64
	rng       *mathrand.Rand
	length    time.Duration
	link      *netns.Star // between the two halves of the ranks; nil: they share a network
}

// soakProcess is a rank that was started.
type soakProcess struct {
	cmd  *exec.Cmd
	out  soakOutput
	told bytes.Buffer
	end  chan struct{} // closed when it has ended
}

// soakOutput is what a rank writes; up is closed when it begins to.
type soakOutput struct {
	bytes.Buffer
	up   chan struct{}
	once sync.Once
}

func (o *soakOutput) Write(b []byte) (int, error) {
	o.once.Do(func() { close(o.up) })
	return o.Buffer.Write(b)
}

func newSoakProcess(cmd *exec.Cmd) *soakProcess {
	p := &soakProcess{cmd: cmd, end: make(chan struct{})}
	p.out.up = make(chan struct{})
	cmd.Stdout = &p.out
	return p
}

func (j *soakJob) run(ctx context.Context, t *soakTotals) {
	var ln net.Listener
	if j.link != nil {
		must(j.link.Hosts[0].In(func() (err error) {
			ln, err = net.Listen("tcp4", netns.Address(0).String()+":0")
			return err
		}))
	} else {
		ln = must1(net.Listen("tcp", "127.0.0.1:0"))
	}
	e := boot.Environment{Size: j.ranks, LocalRank: -1, Server: ln.Addr().String(), Secret: make([]byte, 32), Launched: true}
	rand.Read(e.Secret)
	e.Job = hex.EncodeToString(e.Secret[:4])
	server := serve(ln, e)
	defer server.Close()
	var ranks []*soakProcess
	defer undo(func() { j.kill(ranks) })
	for rank := range j.ranks {
		e.Rank = rank
		p := newSoakProcess(exec.CommandContext(context.Background(), must1(os.Executable()), "soak", "rank", "--time", j.length.String(), "--seed", strconv.FormatUint(j.seed, 10)))
		p.cmd.Env = append(withoutJob(os.Environ()), e.Environ()...)
		if j.transport != "" {
			p.cmd.Env = append(p.cmd.Env, channel.EnvTransport+"="+j.transport)
		}
		p.cmd.Stderr, p.cmd.WaitDelay = &p.told, 5*time.Second
		inOwnGroup(p.cmd)
		if j.link != nil {
			must(j.link.Hosts[rank%2].In(p.cmd.Start))
		} else {
			must(p.cmd.Start())
		}
		go func() {
			_ = p.cmd.Wait() // its report counts
			server.Ended(rank)
			close(p.end)
		}()
		ranks = append(ranks, p)
	}
	victim := j.spoil(ctx, ranks)
	t.Faults[j.fault]++
	j.judge(ctx, t, ranks, victim)
}

// spoil injects the fault, at a random moment; it returns the rank that it killed, or -1.
func (j *soakJob) spoil(ctx context.Context, ranks []*soakProcess) (victim int) {
	pause := func(d time.Duration) {
		select {
		case <-time.After(d):
		case <-ctx.Done():
		}
	}
	within := func(most time.Duration) time.Duration { return time.Duration(j.rng.Int64N(int64(most))) }
	if j.fault != faultNone && j.fault != faultKill {
		for _, p := range ranks {
			select {
			case <-p.out.up:
			case <-p.end: // judge handles its report
			case <-time.After(soakPatience):
			case <-ctx.Done():
			}
		}
	}
	pause(within(j.length * 3 / 4))
	k := j.rng.IntN(len(ranks))
	p := ranks[k].cmd.Process
	switch j.fault {
	case faultKill:
		_ = p.Kill() // it may have ended
		return k
	case faultStall:
		_ = p.Signal(syscall.SIGSTOP)
		pause(within(soakLongest))
		_ = p.Signal(syscall.SIGCONT)
	case faultLoss, faultCut:
		percent := 100
		if j.fault == faultLoss {
			percent = 2 + j.rng.IntN(10)
		}
		must(j.link.Router.Lose(10 * percent))
		pause(within(soakLongest))
		must(j.link.Router.Lose(0))
	}
	return -1
}

// judge waits for all ranks, and counts what they report.
func (j *soakJob) judge(ctx context.Context, t *soakTotals, ranks []*soakProcess, victim int) {
	deadline := time.NewTimer(j.length + soakPatience)
	defer deadline.Stop()
	name := fmt.Sprintf("job %d (%s, transport %q, two networks %v)", t.Jobs, j.fault, j.transport, j.link != nil)
	say := func(rank int, what string) {
		told := ranks[rank].told.Bytes()
		t.Said = append(t.Said, fmt.Sprintf("%s: rank %d: %s\n%s", name, rank, what, told[max(0, len(told)-4000):]))
	}
	for rank, p := range ranks {
		select {
		case <-p.end:
			continue
		case <-ctx.Done():
			must(ctx.Err())
		case <-deadline.C:
		}
		for rank := range ranks[rank:] {
			_ = ranks[rank].cmd.Process.Signal(syscall.SIGUSR1) // it prints what it waits for
		}
		time.Sleep(time.Second)
		j.kill(ranks)
		t.Hangs++
		say(rank, "has not ended")
		return
	}
	for rank, p := range ranks {
		if rank == victim && p.cmd.ProcessState.ExitCode() != 0 {
			continue // it has left no report
		}
		r, err := parseSoakRecord(p.out.Bytes())
		if err != nil {
			t.Unasked++
			say(rank, err.Error())
			continue
		}
		for layer, n := range r.Operations {
			t.Operations[layer] += n
		}
		t.Bytes += r.Bytes
		switch {
		case r.Corrupt:
			t.Corrupt++
			say(rank, r.Error)
		case r.Error != "" && victim >= 0 && r.Mourned:
			t.Errors++
		case r.Error != "":
			t.Unasked++
			say(rank, r.Error)
		case r.Late > 0 && victim < 0 && j.fault != faultStall: // a rank may be stopped, or killed, before it rings
			t.Unasked++
			say(rank, fmt.Sprintf("%d sleeps have ended without the ring that they were for", r.Late))
		}
		if r.Leaks != "" {
			t.Leaks++
			say(rank, r.Leaks)
		}
	}
}

// withoutJob returns an environment without the variables that say which rank of which job a
// process is, and without settings or a file of them.
func withoutJob(env []string) []string {
	return slices.DeleteFunc(boot.WithoutLauncher(env), func(s string) bool {
		name, _, _ := strings.Cut(s, "=")
		return slices.Contains(tunedVariables(), name)
	})
}

// kill ends all ranks that have not ended, and waits for them.
func (j *soakJob) kill(ranks []*soakProcess) {
	for _, p := range ranks {
		_ = p.cmd.Process.Kill()
		<-p.end
	}
}

// parseSoakRecord reads the line of a rank that has ended.
func parseSoakRecord(out []byte) (*soakRecord, error) {
	var r soakRecord
	d := json.NewDecoder(bytes.NewReader(bytes.TrimPrefix(out, []byte(soakUp))))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return nil, fmt.Errorf("a rank ended without a report: %w", err)
	}
	return &r, nil
}

// soakTotals are the totals of a soak.
type soakTotals struct {
	Seed       uint64           `json:"seed"`
	Seconds    float64          `json:"seconds"`
	Jobs       int64            `json:"jobs"`
	Operations map[string]int64 `json:"operations"` // by layer
	Bytes      int64            `json:"bytes"`
	Faults     map[string]int64 `json:"faults"`  // injected, by kind
	Errors     int64            `json:"errors"`  // expected errors: a rank has reported a killed peer
	Unasked    int64            `json:"unasked"` // other errors; must be 0
	Hangs      int64            `json:"hangs"`   // must be 0
	Corrupt    int64            `json:"corrupt"` // must be 0
	Leaks      int64            `json:"leaks"`   // must be 0
	Said       []string         `json:"said,omitempty"`
}

func (t *soakTotals) verdict() error {
	if t.Unasked+t.Hangs+t.Corrupt+t.Leaks == 0 {
		return nil
	}
	return &SoakError{t.Unasked, t.Hangs, t.Corrupt, t.Leaks}
}

func (t *soakTotals) write(out *outputOptions) {
	switch {
	case out.json:
		printJSON(os.Stdout, t)
		return
	case out.csv:
		must(t.writeCSV(os.Stdout))
	default:
		t.print(os.Stdout)
	}
	for _, s := range t.Said { // unexpected output
		fmt.Fprintf(os.Stderr, "\n%s\n", s)
	}
}

// soakFigure is one of the totals, by kind if there are several.
type soakFigure struct {
	name, title string
	count       int64
	kinds       map[string]int64
}

func (t *soakTotals) figures() []soakFigure {
	return []soakFigure{
		{"jobs", "jobs", t.Jobs, nil},
		{"operations", "operations done and checked", 0, t.Operations},
		{"bytes", "bytes received", t.Bytes, nil},
		{"faults", "faults injected", 0, t.Faults},
		{"errors", "errors reported of those killed", t.Errors, nil},
		{"unasked", "unexplained errors", t.Unasked, nil},
		{"hangs", "hangs", t.Hangs, nil},
		{"corrupt", "corruptions", t.Corrupt, nil},
		{"leaks", "leaks", t.Leaks, nil},
	}
}

func (t *soakTotals) print(w io.Writer) {
	fmt.Fprintf(w, "%-34s%.0f s, seed %d\n", "soak", t.Seconds, t.Seed)
	for _, f := range t.figures() {
		text := strconv.FormatInt(f.count, 10)
		if f.kinds != nil {
			var parts []string
			for _, kind := range slices.Sorted(maps.Keys(f.kinds)) {
				parts = append(parts, fmt.Sprintf("%s %d", kind, f.kinds[kind]))
			}
			text = strings.Join(parts, ", ")
		}
		fmt.Fprintf(w, "%-34s%s\n", f.title, text)
	}
}

// writeCSV writes a line for each figure: its name as in JSON, its kind if there are several, and
// its value.
func (t *soakTotals) writeCSV(w io.Writer) error {
	lines := [][]string{{"figure", "kind", "value"}, {"seed", "", strconv.FormatUint(t.Seed, 10)}, {"seconds", "", fmt.Sprint(t.Seconds)}}
	for _, f := range t.figures() {
		if f.kinds == nil {
			lines = append(lines, []string{f.name, "", strconv.FormatInt(f.count, 10)})
		}
		for _, kind := range slices.Sorted(maps.Keys(f.kinds)) {
			lines = append(lines, []string{f.name, kind, strconv.FormatInt(f.kinds[kind], 10)})
		}
	}
	return csv.NewWriter(w).WriteAll(lines)
}
