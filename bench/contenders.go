package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
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
	picked bool   // it is one of several, of which only the best take part
	points []string
	run    func(ctx context.Context, points []string, d time.Duration) ([]Result, error)
}

func (k *contender) String() string { return k.row.String() + ": " + k.peer }

// contendersOf returns the contenders of a row: sluice and the peers.
func (c *comparison) contendersOf(r *row, points []string) []*contender {
	ours := &contender{row: r, peer: peerSluice, points: points}
	var more []string
	switch r.provider {
	case providerSelf:
	case providerIBV:
		if c.rdma = findRDMA(); r.layer == layerVerbs {
			more = []string{"--device", c.rdma.device}
		}
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
	ours := func(peer string, picked bool, p *place, args ...string) {
		if p != nil {
			add(peer, picked, func(ctx context.Context, points []string, d time.Duration) ([]Result, error) {
				return p.run(ctx, c.setting(r), slices.Concat(args, r.options(points, d))...)
			})
		}
	}
	kind := words[0]
	switch kind {
	case "mpi":
		for _, m := range c.mpis {
			ours(m.label, true, m.place, append([]string{m.name, r.provider}, words[1:]...)...)
		}
	case peerLimit:
		args := []string{peerLimit, "-d", r.pattern}
		if cpus := twoCPUs(); cpus != nil {
			args = append(args, "-c", strings.Join(cpus, ","))
		}
		ours(peerLimit, false, c.newest(peerLimit), args...)
	case "zmq":
		ours(peerZMQ, false, c.newest(peerZMQ), append(words, "-r", strconv.Itoa(r.ranks))...)
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
				rs = append(rs, must1(one.run(ctx))...)
			}
			return rs, nil
		})
	}
	return list
}

// ucxCopies is the first version in which ucx_perftest can copy active messages out.
const ucxCopies = "1.18"

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

// options returns the options of the peer programs for some points of a row.
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

// twoCPUs returns the CPUs that the ranks of sluice are bound to; none if they are not bound.
func twoCPUs() []string {
	cpus, err := launch.Cores()
	if err != nil || len(cpus) < 2 {
		return nil
	}
	return []string{strconv.Itoa(cpus[0]), strconv.Itoa(cpus[1])}
}

// runOurs runs a bench, and takes over devices, ranks and warnings from its report.
func (c *comparison) runOurs(ctx context.Context, program string, args []string) ([]Result, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	inOwnGroup(cmd)
	cmd.WaitDelay = 5 * time.Second
	out, _, err := captured(cmd)
	if err != nil {
		return nil, err
	}
	var r Report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		return nil, err
	}
	e := &c.report.Environment
	e.Ranks = r.Environment.Ranks
	for _, d := range r.Environment.Devices {
		e.addDevice(d)
	}
	c.doubts.add(r.Warnings)
	return r.Results, nil
}

// mpi is an installed MPI.
type mpi struct {
	name  string // openmpi, mpich
	label string // with its version
	place *place
}

// findMPIs returns the MPIs of all places; of equal versions the first one.
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

// Of the peers of a row that do the same, only the best take part: for each point the best MPI and
// the best other peer. All of them are run once, briefly, to find these.
const (
	screenTime  = 5 * time.Millisecond
	screenBound = 15 * time.Second
)

// crawlsFrom is how many times the best peer's time a peer may take if ranks outnumber CPUs. A
// peer that spins without yielding its CPU takes a scheduler's time slice for each message, and a
// ratio to it is meaningless.
const crawlsFrom = 20

// screen runs the contenders of a row of which only the best take part, and gives each the points
// in which it does. Crawling ones are named; others that fail are missing.
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
	took := map[*contender]map[string]float64{} // for each point: the time, or an equivalent
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
			if at := k.row.point(&rs[i]); took[k][at] == 0 && k.row.screens(&rs[i]) {
				took[k][at] = timeLike(&rs[i])
			}
		}
	}
	return c.pick(list, took, hung, crowded)
}

// screens reports whether that figure selects the contenders: the figure of the first bar, or the
// first of several.
func (r *row) screens(v *Result) bool {
	return len(r.bars) == 0 || r.bars[0].figure == "" || r.bars[0].figure == v.Figure
}

// timeLike is a figure of which less is better.
func timeLike(r *Result) float64 {
	if lowerIsBetter(r.Figure, r.Unit) {
		return r.P50
	}
	return 1 / r.P50
}

// pick gives each contender its points according to the times of all, and drops contenders
// without points.
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

// isMPI reports whether a peer, with or without a version, is an MPI.
func isMPI(peer string) bool { return slices.Contains(mpis, peerName(peer)) }

// peerName returns the name of a peer without its version.
func peerName(peer string) string {
	name, _, _ := strings.Cut(peer, "@")
	return name
}

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

// The peers whose own programs are run: UCX's ucx_perftest, libfabric's fi_pingpong, and
// linux-rdma's perftest, which measures an RDMA device with libibverbs alone.
const (
	peerUCX       = "ucx"
	peerLibfabric = "libfabric"
	peerPerftest  = "perftest"
)

// ucxPut explains the lower bound of one-sided communication.
const ucxPut = peerUCX + "@put"

// toolNotes explain what the figures of peers do not include.
var toolNotes = map[string]string{
	ucxPut: "one-sided, without matching or consent; ucx_perftest puts a sequence number into the last byte and polls that byte: " +
		"of what has been put nothing else is loaded, so that of messages of several lines only one reaches the receiver's core",
	peerUCX + "@am": "with -y: its handler copies the payload out, which without it is never loaded",
	"fi@shm":        "the mean: fi_pingpong says no median",
	"fi@tcp":        "the mean: fi_pingpong says no median",
}

// tool is a test by one of these programs, of one size.
type tool struct {
	place *place
	peer  string // of the result
	name  string // of the three
	op    string // of UCX: tag, am, put; of perftest our operation
	row   *row
	bytes int
	count int // messages
	path  *rdmaPath
}

func (t *tool) program() string {
	switch t.name {
	case peerUCX:
		return "ucx_perftest"
	case peerLibfabric:
		return "fi_pingpong"
	}
	what := "bw"
	if t.row.pattern == patternLat {
		what = "lat"
	}
	return "ib_" + t.op + "_" + what
}

// ends returns the arguments of both ends, which find each other at a TCP port, and those of only
// the server and only the client.
func (t *tool) ends(port string) (both, server, client, env []string) {
	size, count, window := strconv.Itoa(t.bytes), strconv.Itoa(t.count), strconv.Itoa(max(t.row.window, 1))
	const host = "127.0.0.1"
	switch t.name {
	case peerUCX:
		test := map[string]string{"tag": "tag_lat", "put": "ucp_put_lat", "am": "ucp_am_lat"}[t.op]
		if t.row.pattern == patternBW {
			test = "tag_bw"
			client = []string{"-O", window}
		}
		if t.op == "am" {
			client = append(client, "-y")
		}
		transports := map[string]string{"shm": "sm,self", "tcp": "tcp,self"}[t.row.provider]
		return []string{"-p", port}, nil, append(client, "-t", test, "-s", size, "-n", count, "-w", "1000", "-f", "-v", host),
			[]string{"UCX_TLS=" + transports, "UCX_WARN_UNUSED_ENV_VARS=n"}
	case peerLibfabric:
		return []string{"-p", t.row.provider, "-e", "rdm", "-m", "tagged", "-I", count, "-S", size}, []string{"-B", port}, []string{"-P", port, host}, nil
	}
	both = []string{"-F", "-d", t.path.device, "-i", strconv.Itoa(t.path.port), "-s", size, "-n", count, "-p", port}
	if t.path.gid >= 0 {
		both = append(both, "-x", strconv.Itoa(t.path.gid))
	}
	if t.op != "read" {
		both = append(both, "-I", "0")
	}
	if t.row.pattern != patternLat {
		every := t.row.args[slices.Index(t.row.args, "--signal-every")+1]
		both = append(both, "-N", "-t", window, "-Q", every)
		if n := t.row.list(); n > 1 {
			both = append(both, "-l", strconv.Itoa(n))
		}
	}
	return both, nil, []string{host}, nil
}

// perftestLeast is how many round trips perftest makes at least.
const perftestLeast = 100

// plan says how many messages a tool moves: perftest as many as sluice has moved in a batch, for
// round trips as many as fit into the time by sluice's figure; other tools by an estimate of the
// time of one, which needs only the right order of magnitude.
func (t *tool) plan(d time.Duration, ours *Result) {
	switch {
	case t.name == peerPerftest && ours == nil:
		t.count = perftestLeast
	case t.name == peerPerftest && t.row.pattern == patternLat:
		t.count = max(perftestLeast, min(int(float64(d)/(2*ours.P50)), 1<<24))
	case t.name == peerPerftest:
		t.count = int(ours.Batch * ours.Window)
	default:
		each := map[string]float64{"shm": 500, "tcp": 15e3}[t.row.provider] + float64(t.bytes)/5
		if t.name == peerLibfabric && t.row.provider == "tcp" {
			each *= 4 // it sleeps
		}
		// A window of UCX begins with a size that it must be given.
		t.count = max(100, int(float64(d.Nanoseconds())/each))
	}
}

// run runs both ends and parses what the client has printed.
func (t *tool) run(ctx context.Context) (_ []Result, err error) {
	defer catch(&err)
	both, server, client, env := t.ends(freePort())
	both = append([]string{t.program()}, both...)
	out := twoEnds(ctx, func(ctx context.Context, bind []string, isServer bool) *exec.Cmd {
		more := client
		if isServer {
			more = server
		}
		cmd := t.place.command(ctx, setting{}, slices.Concat(bind, both, more)...)
		cmd.Env = append(os.Environ(), env...)
		return cmd
	})
	r, err := t.parse(out)
	return []Result{r}, err
}

// parse reads the last line of figures:
//
//	ucx_perftest -f -v:  iterations,median,average,overall latency (µs),average,overall bandwidth (2^20 bytes a second), ...
//	fi_pingpong:         bytes #sent #ack total time MB/sec usec/xfer Mxfers/sec
//	perftest, latency:   bytes iterations min max typical average deviation 99 % 99.9 % (µs)
//	others of perftest:  bytes iterations peak average (2^20 bytes a second) 10^6 messages a second
//
// If a program prints less than a distribution, all its quantiles are the same.
func (t *tool) parse(out io.Reader) (_ Result, err error) {
	defer catch(&err)
	const us, mib = 1000., (1 << 20) / 1e6
	r := Result{Pattern: t.row.pattern, Layer: t.name, Provider: t.row.provider, Peer: t.peer, Op: t.op, Mode: modeBatch, Bytes: int64(t.bytes),
		Unit: unitOf(t.row.pattern), Samples: 1, Version: t.place.versions[t.name]}
	lat := t.row.pattern == patternLat
	columns := 8
	if t.name == peerPerftest {
		r.Window, r.List = int64(t.row.window), int64(t.row.list())
		if columns = 5; lat {
			columns = 9
		}
	}
	line, vs := lastFigures(out, columns)
	if vs == nil {
		return r, &PeerOutputError{line, "no figures of " + t.program()}
	}
	all := func(v float64) { r.Min, r.P50, r.P99, r.P999, r.Max, r.Mean = v, v, v, v, v, v }
	switch {
	case t.name == peerUCX && lat:
		all(vs[1] * us)
		r.Mode, r.Samples = modeEach, int64(vs[0])
	case t.name == peerUCX:
		all(vs[5] * mib)
	case t.name == peerLibfabric:
		all(vs[6] * us)
	case lat:
		r.Mode, r.Samples = modeEach, int64(vs[1])
		r.Min, r.Max, r.P50, r.Mean, r.P99, r.P999 = vs[2]*us, vs[3]*us, vs[4]*us, vs[5]*us, vs[7]*us, vs[8]*us
	case t.row.pattern == patternRate:
		all(vs[4] * 1e6)
		r.Batch = int64(vs[1])
	default:
		all(vs[3] * mib)
		r.Batch = int64(vs[1])
	}
	if t.name != peerUCX && int64(vs[0]) != r.Bytes {
		return r, &PeerOutputError{line, fmt.Sprintf("it is not for %d bytes", r.Bytes)}
	}
	if err := r.check(); err != nil {
		return r, &PeerOutputError{line, err.Error()}
	}
	return r, nil
}

// lastFigures returns the values of the last line with so many columns that begins with a number;
// NaN for a column that is not a number.
func lastFigures(out io.Reader, columns int) (line string, vs []float64) {
	s := bufio.NewScanner(out)
	for s.Scan() {
		found := strings.FieldsFunc(s.Text(), func(c rune) bool { return c == ',' || c == ' ' || c == '\t' })
		if len(found) != columns || found[0][0] < '0' || found[0][0] > '9' {
			continue
		}
		line, vs = s.Text(), nil
		for _, f := range found {
			vs = append(vs, parseFigure(f))
		}
	}
	must(s.Err())
	return line, vs
}

// parseFigure reads a figure, which may be a size as 4k, or followed by a unit.
func parseFigure(text string) float64 {
	if v, err := strconv.ParseFloat(text, 64); err == nil && v < 1<<53 {
		return v
	}
	if n, err := parseSize(text); err == nil {
		return float64(n)
	}
	return -1 // no valid figure is negative
}

// endsStart bounds how long a server takes to listen.
const endsStart = 20 * time.Second

// twoEnds runs a program twice, as a server and as a client, bound like the ranks of sluice, and
// returns the output of the client.
func twoEnds(ctx context.Context, end func(ctx context.Context, bind []string, server bool) *exec.Cmd) *bytes.Buffer {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cpus := twoCPUs()
	start := func(rank int) (*exec.Cmd, *bytes.Buffer) {
		var bind []string
		if cpus != nil {
			bind = []string{"taskset", "-c", cpus[rank]}
		}
		cmd, out := end(ctx, bind, rank == 1), &bytes.Buffer{}
		cmd.Stdout, cmd.Stderr = out, out
		return cmd, out
	}
	server, told := start(1)
	must(server.Start())
	served := make(chan error, 1)
	go func() { served <- server.Wait() }()
	for until := time.Now().Add(endsStart); ; {
		client, out := start(0)
		err := client.Run()
		if err == nil {
			cancelled := ctx.Err()
			must(errors.Join(cancelled, <-served))
			return out
		}
		// A server does not announce that it listens: a client that is too early tries again.
		if !tooEarly(out.Bytes()) || time.Now().After(until) {
			cancel()
			<-served
			must(fmt.Errorf("%s: %w\n%s%s", strings.Join(client.Args, " "), err, out.Bytes(), told.Bytes()))
		}
		select {
		case err := <-served:
			must(fmt.Errorf("%s: %w\n%s", strings.Join(server.Args, " "), err, told.Bytes()))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// tooEarly reports whether a client of perftest, UCX or libfabric found no server.
func tooEarly(said []byte) bool {
	for _, words := range []string{"Couldn't connect", "Connection refused", "connect() failed", "connection refused"} {
		if bytes.Contains(said, []byte(words)) {
			return true
		}
	}
	return false
}

// freePort returns an unused TCP port, for programs that must be given one.
func freePort() string {
	l := must1(net.Listen("tcp", "127.0.0.1:0"))
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// rdmaPath is the path of sluice's queue pairs, which perftest's must use as well.
type rdmaPath struct {
	device string
	port   int
	gid    int // index; -1: packets are routed by LID
}

// findRDMA returns the path of the provider's first device.
func findRDMA() *rdmaPath {
	dev := must1(verbs.Find(providerIBV))
	c := must1(dev.Open(verbs.Config{}))
	cq := must1(c.CreateCQ(1, nil))
	qp := must1(must1(c.AllocPD()).CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}))
	attr := must1(qp.Query())
	r := &rdmaPath{device: dev.Name(), port: max(int(attr.PortNum), 1), gid: int(attr.AHAttr.SGIDIndex)}
	if must1(c.QueryPort(r.port)).LinkLayer == verbs.LinkLayerInfiniBand {
		r.gid = -1
	}
	must(c.Close())
	return r
}
