package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
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
)

// What goes wrong in a job of a soak, one of these.
const (
	faultNone  = "none"
	faultKill  = "kill"
	faultStall = "stall"
	faultLoss  = "loss"
	faultCut   = "cut"
)

// Bounds of a soak. A stall or a cut is shorter than the peer timeout: nobody may give
// anybody up.
const (
	soakJobTime  = 4 * time.Second
	soakLongest  = 1500 * time.Millisecond // of a stall or a cut
	soakPatience = 90 * time.Second        // with a rank after the end of its time: then it hangs
)

func (o *soakOptions) run(ctx context.Context, out *outputOptions) (err error) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	t := soakTotals{Seed: o.seed, Operations: map[string]int64{}, Faults: map[string]int64{}}
	rng := mathrand.New(mathrand.NewPCG(o.seed, 0))
	faults := []string{faultNone, faultKill, faultStall, faultKill}
	var link *soakLink
	if o.network && os.Geteuid() == 0 {
		if link, err = newSoakLink(); err != nil {
			t.Said = append(t.Said, "no network that could be cut: "+err.Error())
			link = nil
		} else {
			defer func() { err = errors.Join(err, link.Close()) }()
			defer catch(&err)
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
		// With a link every job but those of plain shared memory or tcp goes over it.
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
		must(j.run(ctx, &t))
		t.Jobs++
	}
	t.Seconds = time.Since(begin).Seconds()
	progress.clear()
	t.write(out)
	return t.verdict()
}

// soakJob is one job of a soak.
type soakJob struct {
	soakOptions
	fault     string
	transport string // SLUICE_TRANSPORT; empty: what works
	seed      uint64
	rng       *mathrand.Rand
	length    time.Duration
	link      *soakLink // that ranks are on both sides of; nil: they share a network
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

func (j *soakJob) run(ctx context.Context, t *soakTotals) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	var ln net.Listener
	if j.link != nil {
		ln, err = j.link.listen()
	} else {
		ln, err = net.Listen("tcp", "127.0.0.1:0")
	}
	if err != nil {
		return err
	}
	e := boot.Environment{Size: j.ranks, LocalRank: -1, Server: ln.Addr().String(), Secret: make([]byte, 32), Launched: true}
	rand.Read(e.Secret)
	e.Job = hex.EncodeToString(e.Secret[:4])
	server, err := boot.Serve(context.Background(), ln, boot.ServerOptions{Size: e.Size, Job: e.Job, Secret: e.Secret})
	if err != nil {
		return err
	}
	defer server.Close()
	ranks := make([]*soakProcess, j.ranks)
	for rank := range ranks {
		e.Rank = rank
		args := []string{self, "soak", "rank", "--time", j.length.String(), "--seed", strconv.FormatUint(j.seed, 10)}
		if j.link != nil {
			args = append([]string{"ip", "netns", "exec", j.link.names[rank%2]}, args...)
		}
		p := newSoakProcess(exec.CommandContext(context.Background(), args[0], args[1:]...))
		p.cmd.Env = append(withoutJob(os.Environ()), e.Environ()...)
		if j.transport != "" {
			p.cmd.Env = append(p.cmd.Env, channel.EnvTransport+"="+j.transport)
		}
		p.cmd.Stderr, p.cmd.WaitDelay = &p.told, 5*time.Second
		inOwnGroup(p.cmd)
		if err := p.cmd.Start(); err != nil {
			j.kill(ranks[:rank])
			return err
		}
		go func() {
			_ = p.cmd.Wait() // what it says counts
			server.Ended(rank)
			close(p.end)
		}()
		ranks[rank] = p
	}
	victim, err := j.spoil(ctx, ranks)
	if err != nil {
		j.kill(ranks)
		return err
	}
	t.Faults[j.fault]++
	return j.judge(ctx, t, ranks, victim)
}

// spoil does what goes wrong, at a random moment; it returns the rank that it killed, or
// -1.
func (j *soakJob) spoil(ctx context.Context, ranks []*soakProcess) (victim int, err error) {
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
			case <-p.end: // what it says is told by judge
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
		return k, nil
	case faultStall:
		_ = p.Signal(syscall.SIGSTOP)
		pause(within(soakLongest))
		_ = p.Signal(syscall.SIGCONT)
	case faultLoss, faultCut:
		percent := 100
		if j.fault == faultLoss {
			percent = 2 + j.rng.IntN(10)
		}
		if err := j.link.lose(percent); err != nil {
			return -1, err
		}
		pause(within(soakLongest))
		return -1, j.link.heal()
	}
	return -1, nil
}

// judge waits for all ranks, and counts what they say.
func (j *soakJob) judge(ctx context.Context, t *soakTotals, ranks []*soakProcess, victim int) error {
	deadline := time.NewTimer(j.length + soakPatience)
	defer deadline.Stop()
	name := fmt.Sprintf("job %d (%s, transport %q, two networks %v)", t.Jobs, j.fault, j.transport, j.link != nil)
	say := func(rank int, what string) {
		t.Said = append(t.Said, fmt.Sprintf("%s: rank %d: %s\n%s", name, rank, what, lastBytes(ranks[rank].told.Bytes(), 4000)))
	}
	for rank, p := range ranks {
		select {
		case <-p.end:
			continue
		case <-ctx.Done():
			j.kill(ranks)
			return ctx.Err()
		case <-deadline.C:
		}
		for rank := range ranks[rank:] {
			_ = ranks[rank].cmd.Process.Signal(syscall.SIGUSR1) // it says what it waits for
		}
		time.Sleep(time.Second)
		j.kill(ranks)
		t.Hangs++
		say(rank, "has not ended")
		return nil
	}
	for rank, p := range ranks {
		if rank == victim && p.cmd.ProcessState.ExitCode() != 0 {
			continue // what it has done nobody knows
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
		}
		if r.Leaks != "" {
			t.Leaks++
			say(rank, r.Leaks)
		}
	}
	return nil
}

// withoutJob is an environment without what says which rank of which job a process is, and
// without settings or a file of them.
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

// lastBytes is the end of what a rank has told.
func lastBytes(b []byte, n int) []byte { return b[max(0, len(b)-n):] }

// parseSoakRecord reads the line of a rank that has ended.
func parseSoakRecord(out []byte) (*soakRecord, error) {
	var r soakRecord
	d := json.NewDecoder(bytes.NewReader(bytes.TrimPrefix(out, []byte(soakUp))))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return nil, fmt.Errorf("a rank ended without telling what it has done: %w", err)
	}
	return &r, nil
}
