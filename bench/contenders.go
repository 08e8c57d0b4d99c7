package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-hpc/sluice/internal/launch"
	"github.com/sluice-hpc/sluice/verbs"
)

// contender is a program that measures some points of a row in each round.
type contender struct {
	row    *row
	peer   string // as results name it: sluice, or a peer with its version
	picked bool   // it is one of several of which the best are taken
	points []string
	run    func(ctx context.Context, points []string, d time.Duration) ([]Result, error)
}

func (k *contender) String() string { return k.row.String() + ": " + k.peer }

// contendersOf are ours and the peers' of a row.
func (c *comparison) contendersOf(r *row, points []string) []*contender {
	ours := &contender{row: r, peer: peerSluice, points: points}
	var more []string
	switch r.provider {
	case providerSelf:
	case providerIBV:
		c.rdma = must1(findRDMA())
		more = []string{"--device", c.rdma.device}
	default:
		must1(verbs.Find(r.provider))
	}
	ours.run = func(ctx context.Context, points []string, d time.Duration) ([]Result, error) {
		return c.runOurs(ctx, c.self, append(r.command(points, d), more...))
	}
	list := []*contender{ours}
	for _, p := range r.peers {
		list = append(list, c.peersOf(r, points, strings.Fields(p))...)
	}
	return list
}

// peersOf are the contenders of one program of a row, in all places that have it.
func (c *comparison) peersOf(r *row, points, words []string) (list []*contender) {
	add := func(peer string, picked bool, run func(ctx context.Context, points []string, d time.Duration) ([]Result, error)) {
		list = append(list, &contender{row: r, peer: peer, picked: picked, points: points, run: run})
	}
	kind := words[0]
	switch kind {
	case "mpi":
		for _, m := range c.mpis {
			add(m.label, true, func(ctx context.Context, points []string, d time.Duration) ([]Result, error) {
				return m.place.run(ctx, c.setting(r), slices.Concat([]string{m.name, r.provider}, words[1:], r.options(points, d))...)
			})
		}
	case peerLimit:
		if p := c.newest(peerLimit); p != nil {
			add(peerLimit, false, func(ctx context.Context, points []string, d time.Duration) ([]Result, error) {
				return p.run(ctx, c.setting(r), slices.Concat([]string{peerLimit, "-d", r.pattern}, limitCPUs(), r.options(points, d))...)
			})
		}
	case "zmq":
		if p := c.newest(peerZMQ); p != nil {
			add(peerZMQ, false, func(ctx context.Context, points []string, d time.Duration) ([]Result, error) {
				return p.run(ctx, c.setting(r), slices.Concat(words, []string{"-r", strconv.Itoa(r.ranks)}, r.options(points, d))...)
			})
		}
	default:
		t := tool{row: r, name: kind, peer: kind, op: r.op, path: c.rdma}
		switch kind {
		case peerUCX:
			t.op, t.peer = words[1], peerUCX+"@"+words[1]
		case "fi":
			t.name, t.peer, t.op = peerLibfabric, "fi@"+r.provider, "tagged"
		}
		if t.place = c.newest(t.name); t.place == nil || t.op == "am" && compareVersions(t.place.versions[peerUCX], ucxCopies) < 0 {
			break
		}
		add(t.peer, t.peer != ucxPut && kind != peerPerftest, func(ctx context.Context, points []string, d time.Duration) (rs []Result, err error) {
			defer catch(&err)
			for _, p := range points {
				one := t
				one.bytes = must1(parseSize(p))
				one.plan(d, c.latest[r])
				r := must1(one.run(ctx))
				rs = append(rs, r...)
			}
			return rs, nil
		})
	}
	return list
}

// ucxCopies is the version from which ucx_perftest's active messages can be copied out.
const ucxCopies = "1.18"

// setting is what a peer program of a row runs in.
func (c *comparison) setting(r *row) (s setting) {
	s.env = []string{"RANKS=" + strconv.Itoa(max(r.ranks, 2))}
	if r.unbound {
		s.env = append(s.env, "UNBOUND=1")
	}
	if r.load != "" {
		s.within = []string{c.self, "load", r.load, "-n", strconv.Itoa(max(r.ranks, 2))}
	}
	return s
}

// options are those of the peer programs, for some points of a row.
func (r *row) options(points []string, d time.Duration) []string {
	args := []string{"-t", strconv.FormatFloat(d.Seconds(), 'f', -1, 64)}
	switch {
	case r.axes != "":
		letters := ""
		for _, p := range points {
			letters += p[:1]
		}
		args = append(args, "-a", letters)
	case r.sizes != "":
		args = append(args, "-s", strings.Join(points, ","))
	}
	if r.window > 0 {
		args = append(args, "-w", strconv.Itoa(r.window))
	}
	return args
}

// limitCPUs has limit run on the two CPUs that our ranks are bound to. Where we do not
// bind, it takes what it finds.
func limitCPUs() []string {
	cpus, err := launch.Cores()
	if err != nil || len(cpus) < 2 {
		return nil
	}
	return []string{"-c", fmt.Sprintf("%d,%d", cpus[0], cpus[1])}
}

// runOurs runs a bench, and takes what its report says of devices, ranks and doubts.
func (c *comparison) runOurs(ctx context.Context, program string, args []string) ([]Result, error) {
	var out, told bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	inOwnGroup(cmd)
	cmd.WaitDelay = 5 * time.Second
	cmd.Stdout, cmd.Stderr = &out, &told
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, told.Bytes())
	}
	var r Report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		return nil, err
	}
	e := &c.report.Environment
	e.Ranks = r.Environment.Ranks
	for _, d := range r.Environment.Devices {
		if !slices.Contains(e.Devices, d) {
			e.Devices = append(e.Devices, d)
		}
	}
	c.doubts.add(r.Warnings)
	return r.Results, nil
}

// mpi is an MPI that is installed somewhere.
type mpi struct {
	name  string // openmpi, mpich
	label string // with its version
	place *place
}

// findMPIs are those of all places; of equal versions the one that comes first.
func findMPIs(places []*place) (list []mpi) {
	for _, p := range places {
		for _, name := range mpis {
			label := name + "@" + shortVersion(p.versions[name])
			if p.versions[name] != "" && !slices.ContainsFunc(list, func(m mpi) bool { return m.label == label }) {
				list = append(list, mpi{name, label, p})
			}
		}
	}
	return list
}

// shortVersion is a version's first two numbers, of which the second is left out if it is 0.
func shortVersion(version string) string {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) > 1 && parts[1] != "0" {
		return parts[0] + "." + parts[1]
	}
	return parts[0]
}

// newest is the place with the latest version of a peer; nil: it is nowhere.
func (c *comparison) newest(name string) (best *place) {
	for _, p := range c.places {
		v := p.versions[name]
		if v != "" && (best == nil || compareVersions(v, best.versions[name]) > 0) {
			best = p
		}
	}
	return best
}

// compareVersions compares numbers with points between them.
func compareVersions(a, b string) int {
	return slices.CompareFunc(strings.Split(a, "."), strings.Split(b, "."), func(a, b string) int {
		x, _ := strconv.Atoi(a)
		y, _ := strconv.Atoi(b)
		return cmp.Compare(x, y)
	})
}

// Of the peers of a row that do the same the best are taken: of each point the best MPI and
// the best of the others. They are found by running all of them once, briefly.
const (
	screenTime  = 5 * time.Millisecond
	screenBound = 15 * time.Second
)

// crawlsFrom is how many times the best peer's time a peer may take where ranks outnumber
// CPUs: one that spins without giving up its CPU takes as long for a message as the
// scheduler lets others run, and a ratio to it says nothing.
const crawlsFrom = 20

// screen runs the contenders of a row of which only the best are taken, and gives each the
// points in which it is. Crawling ones are named, others that fail are missing.
func (c *comparison) screen(ctx context.Context, list []*contender) []*contender {
	candidates := 0
	for _, k := range list {
		if k.picked {
			candidates++
		}
	}
	crowded := list[0].row.ranks > runtime.NumCPU()
	if candidates <= 2 && (!crowded || candidates < 2) {
		return list
	}
	took := map[*contender]map[string]float64{} // of each point: the time, or its like
	hung := map[*contender]bool{}
	for _, k := range list {
		if !k.picked {
			continue
		}
		rs, err := k.runBounded(ctx, k.points, screenTime, screenBound)
		switch {
		case ctx.Err() != nil:
			must(ctx.Err())
		case errors.Is(err, errHung) && crowded:
			hung[k] = true
		case err != nil:
			c.missing(err)
		}
		took[k] = map[string]float64{}
		for i := range rs {
			if at := k.row.point(&rs[i]); took[k][at] == 0 { // the first of several figures
				took[k][at] = timeLike(&rs[i])
			}
		}
	}
	return c.pick(list, took, hung, crowded)
}

// timeLike is a figure of which less is better.
func timeLike(r *Result) float64 {
	if lowerIsBetter(r.Figure, r.Unit) {
		return r.P50
	}
	return 1 / r.P50
}

// pick gives each contender its points by what all took, and leaves out those that have
// none.
func (c *comparison) pick(list []*contender, took map[*contender]map[string]float64, hung map[*contender]bool, crowded bool) []*contender {
	chosen := map[*contender][]string{}
	for _, point := range list[0].points {
		var order []*contender
		for _, k := range list {
			if _, ok := took[k][point]; ok {
				order = append(order, k)
			}
		}
		if len(order) == 0 {
			continue
		}
		slices.SortStableFunc(order, func(a, b *contender) int { return cmp.Compare(took[a][point], took[b][point]) })
		best := took[order[0]][point]
		order = slices.DeleteFunc(order, func(k *contender) bool {
			crawls := crowded && took[k][point] > crawlsFrom*best
			if crawls {
				hung[k] = true
			}
			return crawls
		})
		// The best MPI, and the best of all others.
		first := max(0, slices.IndexFunc(order, func(k *contender) bool { return isMPI(k.peer) }))
		for i, k := range order {
			if i == first || i == 0 || i == 1 && first == 0 {
				chosen[k] = append(chosen[k], point)
			}
		}
	}
	for k := range hung {
		peers := append(c.crawls[k.row], k.peer)
		slices.Sort(peers)
		c.crawls[k.row] = slices.Compact(peers) // an MPI may have two programs
	}
	return slices.DeleteFunc(list, func(k *contender) bool {
		if k.picked {
			k.points = chosen[k]
		}
		return len(k.points) == 0
	})
}

// isMPI says whether a peer, with or without a version, is an MPI.
func isMPI(peer string) bool { return slices.Contains(mpis, peerName(peer)) }

// peerName is a peer without its version.
func peerName(peer string) string {
	name, _, _ := strings.Cut(peer, "@")
	return name
}

// runBounded runs it for at most so long.
func (k *contender) runBounded(ctx context.Context, points []string, d, bound time.Duration) ([]Result, error) {
	within, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	rs, err := k.run(within, points, d)
	if err != nil && within.Err() != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("%s: %w", k, errHung)
	}
	for i := range rs {
		if peerName(k.peer) == rs[i].Peer {
			rs[i].Peer = k.peer
		}
	}
	return rs, err
}

// saysSlow names one that is in fewer rounds than others.
func (k *contender) saysSlow(rounds, of int, took time.Duration) string {
	return fmt.Sprintf("%s: in %d of %d rounds, for they took %.0f s: its figures, and ratios to them, are of these", k, rounds, of, took.Seconds())
}
