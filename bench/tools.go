package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-hpc/sluice/internal/launch"
	"github.com/sluice-hpc/sluice/verbs"
)

// The peers whose own programs are run: UCX's ucx_perftest, libfabric's fi_pingpong, and
// linux-rdma's perftest, which measures an RDMA device with nothing but libibverbs.
const (
	peerUCX       = "ucx"
	peerLibfabric = "libfabric"
	peerPerftest  = "perftest"
)

// ucxPut says what the floor of one-sided communication is.
const ucxPut = peerUCX + "@put"

// toolNotes say of peers what their figures are not.
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

// program is its name.
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

// ends are the arguments of its two ends, which find each other at a port of TCP, and of
// the server and the client alone.
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

// plan says how many messages it moves: perftest as many as ours have moved in a batch, of
// round trips what fits the time by their figure; others by an estimate of what one takes,
// which only has to be of the right order.
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
		// A window of UCX begins with what it has to be told of.
		t.count = max(100, int(float64(d.Nanoseconds())/each))
	}
}

// run runs both ends and parses what the client has printed.
func (t *tool) run(ctx context.Context) (_ []Result, err error) {
	defer catch(&err)
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	both, server, client, env := t.ends(port)
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
// Where a program says less than a distribution all its quantiles are the same.
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
		return r, &PeerOutputError{line, fmt.Sprintf("not of %d bytes", r.Bytes)}
	}
	if err := r.check(); err != nil {
		return r, &PeerOutputError{line, err.Error()}
	}
	return r, nil
}

// lastFigures is the last line of so many columns, of which the first is a number, with the
// values of all: NaN where one is none.
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
	return -1 // which no figure that counts may be
}

// endsStart bounds how long a server takes to listen.
const endsStart = 20 * time.Second

// twoEnds runs a program twice, as a server and as a client, bound as our ranks are, and
// returns what the client has printed.
func twoEnds(ctx context.Context, end func(ctx context.Context, bind []string, server bool) *exec.Cmd) *bytes.Buffer {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	binds := endsBinds()
	start := func(rank int) (*exec.Cmd, *bytes.Buffer) {
		cmd, out := end(ctx, binds[rank], rank == 1), &bytes.Buffer{}
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
		// A server says nothing of listening: a client that is too early tries again.
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

// tooEarly says whether a client, of perftest, UCX or libfabric, found no server.
func tooEarly(said []byte) bool {
	for _, words := range []string{"Couldn't connect", "Connection refused", "connect() failed", "connection refused"} {
		if bytes.Contains(said, []byte(words)) {
			return true
		}
	}
	return false
}

// endsBinds is what binds rank 0 and rank 1 to CPUs of their own.
func endsBinds() [2][]string {
	cpus, err := launch.Cores()
	if err != nil || len(cpus) < 2 {
		return [2][]string{}
	}
	return [2][]string{{"taskset", "-c", strconv.Itoa(cpus[0])}, {"taskset", "-c", strconv.Itoa(cpus[1])}}
}

// freePort is a port of TCP that nothing uses, for programs that have to be given one.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, errors.Join(err, l.Close())
}

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
	defer catch(&err)
	pd := must1(c.AllocPD())
	cq := must1(c.CreateCQ(1, nil))
	qp := must1(pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}))
	attr := must1(qp.Query())
	r = &rdmaPath{device: dev.Name(), port: max(int(attr.PortNum), 1), gid: int(attr.AHAttr.SGIDIndex)}
	port := must1(c.QueryPort(r.port))
	if port.LinkLayer == verbs.LinkLayerInfiniBand {
		r.gid = -1
	}
	return r, nil
}
