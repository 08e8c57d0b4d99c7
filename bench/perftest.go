package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-hpc/sluice/verbs"
)

// peerPerftest is linux-rdma's perftest, whose programs measure an RDMA device
// with nothing but libibverbs.
const peerPerftest = "perftest"

// discipline is what both of us do over an RDMA device: the same operation, as many
// outstanding, signalled and posted in one call, by value or not.
type discipline struct {
	pattern string
	op      string
	bytes   int
	window  int // of bandwidth and rate
	list    int
	every   int
	quick   bool // measured with --quick, too
}

var disciplines = []discipline{
	{pattern: patternLat, op: "write", bytes: 8, every: 1, quick: true},
	{pattern: patternLat, op: "send", bytes: 8, every: 1, quick: true},
	{pattern: patternBW, op: "write", bytes: 64 << 10, window: 64, list: 1, every: 1, quick: true},
	{pattern: patternBW, op: "write", bytes: 1 << 20, window: 16, list: 1, every: 1, quick: true},
	{pattern: patternBW, op: "send", bytes: 64 << 10, window: 64, list: 1, every: 1},
	{pattern: patternBW, op: "read", bytes: 64 << 10, window: 64, list: 1, every: 1},
	{pattern: patternRate, op: "write", bytes: 64, window: 64, list: 1, every: 64, quick: true},
	{pattern: patternRate, op: "write", bytes: 64, window: 64, list: 64, every: 64, quick: true},
}

func (d *discipline) String() string {
	s := fmt.Sprintf("%s %s of %s", d.pattern, d.op, formatSize(int64(d.bytes)))
	if d.list > 1 {
		s += fmt.Sprintf(" in lists of %d", d.list)
	}
	return s
}

// ours are the arguments of our program.
func (d *discipline) ours(device string) []string {
	args := []string{"verbs", d.pattern, "--device", device, "--op", d.op, "--sizes", strconv.Itoa(d.bytes), "--inline", "0",
		"--signal-every", strconv.Itoa(d.every), "--warmup", "20ms"}
	if d.pattern == patternLat {
		// perftest reads the cycle counter in each iteration, and says the median.
		// Short batches have few of the interruptions of a system in them, and of
		// the clock next to nothing.
		return append(args, "--batch=4")
	}
	return append(args, "--mean", "--window", strconv.Itoa(d.window), "--list", strconv.Itoa(d.list))
}

// program is perftest's.
func (d *discipline) program() string {
	what := "bw"
	if d.pattern == patternLat {
		what = "lat"
	}
	return "ib_" + d.op + "_" + what
}

// theirs are the arguments of perftest's program, for so many messages.
func (d *discipline) theirs(r *rdmaPath, messages int) []string {
	args := []string{"-F", "-d", r.device, "-i", strconv.Itoa(r.port), "-s", strconv.Itoa(d.bytes), "-n", strconv.Itoa(messages), "-p", strconv.Itoa(perftestPort)}
	if r.gid >= 0 {
		args = append(args, "-x", strconv.Itoa(r.gid))
	}
	if d.op != "read" {
		args = append(args, "-I", "0")
	}
	if d.pattern == patternLat {
		return args
	}
	args = append(args, "-N", "-t", strconv.Itoa(d.window), "-Q", strconv.Itoa(d.every))
	if d.list > 1 {
		args = append(args, "-l", strconv.Itoa(d.list))
	}
	return args
}

// perftestPort is a port of TCP that its two processes find each other by.
const perftestPort = 18515

// rdmaPath is where our queue pairs go: perftest's are to go there, too.
type rdmaPath struct {
	device string
	port   int
	gid    int // index; -1: packets are routed by LID
}

// findRDMA is the path of the provider's first device.
func findRDMA() (r *rdmaPath, err error) {
	dev, err := verbs.Find(providerIBV)
	if err != nil {
		return nil, err
	}
	c, err := dev.Open(verbs.Config{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	pd, err := c.AllocPD()
	if err != nil {
		return nil, err
	}
	cq, err := c.CreateCQ(1, nil)
	if err != nil {
		return nil, err
	}
	qp, err := pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}})
	if err != nil {
		return nil, err
	}
	attr, err := qp.Query()
	if err != nil {
		return nil, err
	}
	r = &rdmaPath{device: dev.Name(), port: max(int(attr.PortNum), 1), gid: int(attr.AHAttr.SGIDIndex)}
	port, err := c.QueryPort(r.port)
	if err != nil {
		return nil, err
	}
	if port.LinkLayer == verbs.LinkLayerInfiniBand {
		r.gid = -1
	}
	return r, nil
}

// rdmaContenders are ours and perftest's programs, each pair one after the other.
func (c *comparison) rdmaContenders() ([]contender, error) {
	r, err := findRDMA()
	if err != nil {
		return nil, err
	}
	var list []contender
	for _, d := range disciplines {
		if c.quick && !d.quick {
			continue
		}
		count := perftestLeast // ours come first
		ours := c.sluice(d.String(), d.ours(r.device)...)
		measure := ours.run
		ours.run = func(ctx context.Context) ([]Result, error) {
			rs, err := measure(ctx)
			if err == nil {
				count = perftestCount(&rs[0], c.time)
			}
			return rs, err
		}
		what := []string{"ibv verbs " + d.pattern}
		list = append(list, in(what, ours)...)
		list = append(list, contender{name: peerPerftest + " " + d.String(), what: what, run: func(ctx context.Context) ([]Result, error) {
			return d.perftest(ctx, r, count)
		}})
	}
	return list, nil
}

// perftestLeast is how many round trips perftest makes at least.
const perftestLeast = 100

// perftestCount is how many messages perftest moves: as many as we have, of round trips what
// fits the time, going by our figure.
func perftestCount(r *Result, t time.Duration) int {
	if r.Pattern == patternLat {
		return max(perftestLeast, min(int(float64(t)/(2*r.P50)), 1<<24))
	}
	return int(r.Batch * r.Window)
}

// perftest runs both ends, bound as ours are.
func (d *discipline) perftest(ctx context.Context, r *rdmaPath, messages int) ([]Result, error) {
	path, err := exec.LookPath(d.program())
	if err != nil {
		return nil, fmt.Errorf("%w: %s (%s of the package perftest)", errNotInstalled, peerPerftest, d.program())
	}
	t := twoEnds{path: path, args: d.theirs(r, messages), host: []string{"127.0.0.1"}}
	out, err := t.run(ctx)
	if err != nil {
		return nil, err
	}
	res, err := d.parsePerftest(out)
	return []Result{res}, err
}

// parsePerftest reads the last line of figures.
func (d *discipline) parsePerftest(out io.Reader) (Result, error) {
	r := Result{Pattern: d.pattern, Layer: "libibverbs", Provider: providerIBV, Peer: peerPerftest, Op: d.op, Mode: modeBatch,
		Window: int64(d.window), List: int64(d.list), Bytes: int64(d.bytes), Unit: unitOf(d.pattern)}
	var line string
	var vs []float64
	for s := bufio.NewScanner(out); s.Scan(); {
		var found []float64
		for _, f := range strings.Fields(s.Text()) {
			v, err := strconv.ParseFloat(strings.TrimPrefix(f, "-"), 64) // its deviation may be -nan
			if err != nil {
				found = nil
				break
			}
			found = append(found, v)
		}
		if len(found) > 0 {
			line, vs = s.Text(), found
		}
	}
	switch {
	case d.pattern == patternLat && len(vs) == 9: // bytes, iterations, min, max, typical, average, deviation, 99 %, 99.9 %
		const us = 1000
		r.Mode, r.Samples = modeEach, int64(vs[1])
		r.Min, r.Max, r.P50, r.Mean, r.P99, r.P999 = vs[2]*us, vs[3]*us, vs[4]*us, vs[5]*us, vs[7]*us, vs[8]*us
	case d.pattern != patternLat && len(vs) == 5: // bytes, iterations, peak, average (2^20 bytes a second), 10^6 messages a second
		v := vs[3] * (1 << 20) / 1e6
		if d.pattern == patternRate {
			v = vs[4] * 1e6
		}
		r.Batch, r.Samples = int64(vs[1]), 1
		r.Min, r.Max, r.P50, r.Mean, r.P99, r.P999 = v, v, v, v, v, v
	default:
		return r, &PeerOutputError{line, "no figures of " + d.program()}
	}
	if int64(vs[0]) != r.Bytes {
		return r, &PeerOutputError{line, fmt.Sprintf("not of %d bytes", r.Bytes)}
	}
	if err := r.check(); err != nil {
		return r, &PeerOutputError{line, err.Error()}
	}
	return r, nil
}
