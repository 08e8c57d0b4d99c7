package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// The peers whose own programs are run: UCX's ucx_perftest, and libfabric's fi_pingpong.
const (
	peerUCX       = "ucx"
	peerLibfabric = "libfabric"
)

// toolPeers are shown for information: nobody is held to them.
var toolPeers = []string{peerUCX, peerLibfabric}

// toolTest is a test of one of these programs, of one size.
type toolTest struct {
	peer     string
	program  string
	provider string
	suite    string // of ours that does the same
	pattern  string
	op       string
	bytes    int
}

// toolTests are those that have something of ours beside them: matched messages beside
// those of impi, puts beside verbs.
func toolTests(quick bool) []toolTest {
	var list []toolTest
	sizes := func(all ...int) []int {
		if quick {
			return all[:1]
		}
		return all
	}
	for _, provider := range []string{"shm", "tcp"} {
		if quick && provider == "tcp" {
			continue
		}
		for _, n := range sizes(8, 1<<10) {
			list = append(list, toolTest{peerUCX, "ucx_perftest", provider, suiteIMPI, patternLat, "tag", n},
				toolTest{peerLibfabric, "fi_pingpong", provider, suiteIMPI, patternLat, "tagged", n})
		}
		for _, n := range sizes(1<<20, 64<<10) {
			list = append(list, toolTest{peerUCX, "ucx_perftest", provider, suiteIMPI, patternBW, "tag", n})
		}
		for _, n := range sizes(8) {
			list = append(list, toolTest{peerUCX, "ucx_perftest", provider, "", patternLat, "put", n})
		}
	}
	return list
}

// toolContenders are those of them that are installed.
func (c *comparison) toolContenders() []contender {
	var list []contender
	missing := map[string]bool{}
	for _, t := range toolTests(c.quick) {
		path, err := exec.LookPath(t.program)
		if err != nil {
			if !missing[t.program] {
				missing[t.program] = true
				c.report.Missing = append(c.report.Missing, fmt.Sprintf("%v: %s (%s)", errNotInstalled, t.peer, t.program))
			}
			continue
		}
		list = append(list, contender{name: strings.Join([]string{t.peer, t.provider, t.op, t.pattern, formatSize(int64(t.bytes))}, " "),
			what: []string{t.what()}, run: func(ctx context.Context) ([]Result, error) { return t.run(ctx, path, c.time) }})
	}
	return list
}

// what is the discipline, as --only has it.
func (t *toolTest) what() string {
	suite := t.suite
	if suite == "" {
		suite = layerVerbs
	}
	return t.provider + " " + suite + " " + t.pattern
}

// run runs the program about as long as others are measured.
func (t *toolTest) run(ctx context.Context, path string, d time.Duration) ([]Result, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	ends := twoEnds{path: path}
	// An estimate of what a message takes, which only has to be of the right order.
	each := map[string]float64{"shm": 500, "tcp": 15e3}[t.provider] + float64(t.bytes)/5
	if t.peer == peerLibfabric && t.provider == "tcp" {
		each *= 4 // it sleeps
	}
	count := strconv.Itoa(max(1000, int(float64(d.Nanoseconds())/each)))
	if t.peer == peerUCX {
		test := map[string]string{"tag lat": "tag_lat", "tag bw": "tag_bw", "put lat": "ucp_put_lat"}[t.op+" "+t.pattern]
		ends.args = []string{"-p", port}
		ends.host = []string{"-t", test, "-s", strconv.Itoa(t.bytes), "-n", count, "-w", "1000", "-f", "-v", "127.0.0.1"}
		if t.pattern == patternBW {
			ends.host = append([]string{"-O", strconv.Itoa(defaultWindow)}, ends.host...)
		}
		ends.env = []string{"UCX_TLS=" + map[string]string{"shm": "sm,self", "tcp": "tcp,self"}[t.provider], "UCX_WARN_UNUSED_ENV_VARS=n"}
	} else {
		ends.args = []string{"-p", t.provider, "-e", "rdm", "-m", t.op, "-I", count, "-S", strconv.Itoa(t.bytes)}
		ends.server = []string{"-B", port}
		ends.host = []string{"-P", port, "127.0.0.1"}
	}
	out, err := ends.run(ctx)
	if err != nil {
		return nil, err
	}
	r, err := t.parse(out)
	if err != nil {
		return nil, err
	}
	return []Result{r}, nil
}

// freePort is a port of TCP that nobody uses, for programs that have to be told one.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return "", err
	}
	return port, l.Close()
}

// parse reads the last line of figures:
//
//	ucx_perftest -f -v:  iterations,median,average,overall latency (µs),average,overall bandwidth (2^20 bytes a second), ...
//	fi_pingpong:         bytes #sent #ack total time MB/sec usec/xfer Mxfers/sec
//
// Of the first the median counts, of the last there is but the mean; neither tells more.
func (t *toolTest) parse(out io.Reader) (Result, error) {
	r := Result{Pattern: t.pattern, Layer: t.peer, Suite: t.suite, Provider: t.provider, Peer: t.peer, Op: t.op, Mode: modeEach, Bytes: int64(t.bytes), Unit: unitOf(t.pattern)}
	separator, columns := ",", 8
	if t.peer == peerLibfabric {
		separator, columns = " ", 8
	}
	var line string
	var fields []string
	s := bufio.NewScanner(out)
	for s.Scan() {
		found := strings.FieldsFunc(s.Text(), func(c rune) bool { return strings.ContainsRune(separator, c) })
		if len(found) == columns && found[0] != "" && found[0][0] >= '0' && found[0][0] <= '9' {
			line, fields = s.Text(), found
		}
	}
	if err := s.Err(); err != nil {
		return r, err
	}
	if fields == nil {
		return r, &PeerOutputError{line, "no figures of " + t.program}
	}
	number := func(i int) (float64, error) { return strconv.ParseFloat(fields[i], 64) }
	var v float64
	var err error
	const us = 1000
	switch {
	case t.peer == peerLibfabric:
		v, err = number(6)
		v *= us
		r.Mode, r.Samples = modeBatch, 1
	case t.pattern == patternLat:
		v, err = number(1)
		v *= us
	default:
		v, err = number(5)
		v *= (1 << 20) / 1e6
		r.Mode, r.Samples = modeBatch, 1
	}
	if err == nil && r.Samples == 0 {
		var n float64
		if n, err = number(0); err == nil && n >= 1 && n < 1<<53 {
			r.Samples = int64(n)
		}
	}
	if err != nil {
		return r, &PeerOutputError{line, err.Error()}
	}
	r.Min, r.P50, r.P99, r.P999, r.Max, r.Mean = v, v, v, v, v, v
	if err := r.check(); err != nil {
		return r, &PeerOutputError{line, err.Error()}
	}
	return r, nil
}
