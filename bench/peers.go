package main

import (
	"bufio"
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// peerSources are the peer programs and their scripts, so that a bench that was
// installed without the repository can build them.
//
//go:embed peers/*.c peers/*.h peers/*.sh
var peerSources embed.FS

// peers is a directory with the peer programs built.
type peers struct {
	dir     string
	missing []string // what could not be built for want of it
}

// errNotInstalled: a peer, or what builds or runs it, is not there.
var errNotInstalled = errors.New("not installed")

// notInstalledStatus is the exit status of run.sh that says so.
const notInstalledStatus = 3

// buildPeers writes the sources into a new temporary directory and builds what
// can be built. The caller closes it.
func buildPeers(ctx context.Context) (p *peers, err error) {
	if _, err := exec.LookPath("sh"); err != nil {
		return nil, fmt.Errorf("%w: sh, which builds and runs the peer programs", errNotInstalled)
	}
	dir, err := os.MkdirTemp("", "sluice-bench-")
	if err != nil {
		return nil, err
	}
	p = &peers{dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	sources, err := fs.Sub(peerSources, "peers")
	if err != nil {
		return nil, err
	}
	if err := os.CopyFS(p.dir, sources); err != nil {
		return nil, err
	}
	var told bytes.Buffer
	// Through sh: an embedded file has no mode.
	cmd := p.command(ctx, "build.sh")
	cmd.Stdout, cmd.Stderr = &told, &told
	err = cmd.Run()
	if err != nil {
		return nil, fmt.Errorf("build the peer programs: %w\n%s", err, told.Bytes())
	}
	for line := range strings.Lines(told.String()) {
		if strings.HasPrefix(line, "not installed: ") {
			p.missing = append(p.missing, strings.TrimSpace(line))
		}
	}
	return p, nil
}

// Close removes the directory.
func (p *peers) Close() error { return os.RemoveAll(p.dir) }

// command is one of the scripts, ended with all that it has started when ctx ends.
func (p *peers) command(ctx context.Context, script string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "sh", append([]string{filepath.Join(p.dir, script)}, args...)...)
	inOwnGroup(cmd)
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// run runs a peer and returns its results. An error that is errNotInstalled
// says what is missing.
func (p *peers) run(ctx context.Context, args ...string) ([]Result, error) {
	return p.runRanks(ctx, 0, args...)
}

// runRanks is run with so many ranks; 0: as many as the program has by default.
func (p *peers) runRanks(ctx context.Context, ranks int, args ...string) ([]Result, error) {
	var out, told bytes.Buffer
	cmd := p.command(ctx, "run.sh", args...)
	if ranks > 0 {
		cmd.Env = append(os.Environ(), "RANKS="+strconv.Itoa(ranks))
	}
	cmd.Stdout, cmd.Stderr = &out, &told
	err := cmd.Run()
	name := strings.Join(args, " ")
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.As(err, &exit) && exit.ExitCode() == notInstalledStatus:
		return nil, fmt.Errorf("%w: %s", errNotInstalled, strings.TrimPrefix(strings.TrimSpace(told.String()), "not installed: "))
	case err != nil:
		return nil, fmt.Errorf("peer %s: %w\n%s", name, err, told.Bytes())
	}
	rs, err := parseResults(&out)
	if err != nil {
		return nil, fmt.Errorf("peer %s: %w\n%s", name, err, told.Bytes())
	}
	return rs, nil
}

// PeerOutputError: a peer program printed what is no result.
type PeerOutputError struct {
	Line string
	Why  string
}

func (e *PeerOutputError) Error() string { return fmt.Sprintf("output %.200q: %s", e.Line, e.Why) }

// parseResults reads lines of JSON, one result each. Lines that are none, such
// as a launcher's warnings, are passed over; no result at all is an error.
func parseResults(r io.Reader) ([]Result, error) {
	var rs []Result
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<20)
	last := ""
	for s.Scan() {
		last = s.Text()
		if !strings.HasPrefix(last, "{") {
			continue
		}
		var r Result
		if err := json.Unmarshal(s.Bytes(), &r); err != nil {
			return nil, &PeerOutputError{last, err.Error()}
		}
		if err := r.check(); err != nil {
			return nil, &PeerOutputError{last, err.Error()}
		}
		rs = append(rs, r)
	}
	if err := s.Err(); err != nil {
		return nil, err
	}
	if len(rs) == 0 {
		return nil, &PeerOutputError{last, "no results"}
	}
	return rs, nil
}

// check says what makes a result unusable.
func (r *Result) check() error {
	switch {
	case !slices.Contains([]string{patternLat, patternBW, patternBiBW, patternRate, patternHalo, patternRing, patternLocal, patternAddSlice, patternFanout}, r.Pattern) && !isCollective(r.Pattern):
		return fmt.Errorf("pattern %q", r.Pattern)
	case r.Unit != unitOf(r.Pattern):
		return fmt.Errorf("unit %q of %s", r.Unit, r.Pattern)
	case r.Peer == "" || r.Provider == "" || r.Layer == "":
		return errors.New("no peer, provider or layer")
	case r.Bytes < 0 || r.Bytes > maxSize:
		return fmt.Errorf("%d bytes", r.Bytes)
	case r.Samples < 1:
		return fmt.Errorf("%d samples", r.Samples)
	}
	for _, v := range []float64{r.Min, r.P50, r.P99, r.P999, r.Max, r.Mean} {
		if v < 0 || math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Errorf("figure %v", v)
		}
	}
	if r.Min > r.P50 || r.P50 > r.P99 || r.P99 > r.P999 || r.P999 > r.Max {
		return errors.New("figures are not in order")
	}
	return nil
}
