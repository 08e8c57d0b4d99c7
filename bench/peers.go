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
	"strings"
	"time"
)

// peerSources are the peer programs and their scripts, so that a bench that was
// installed without the repository can build them.
//
//go:embed peers/*.c peers/*.h peers/*.sh
var peerSources embed.FS

// place is where peers are installed, with their programs built: this machine, or a root
// directory that peers/root.sh has made.
type place struct {
	root     string // empty: this machine
	dir      string // of the sources, the scripts and the built programs
	versions map[string]string
	missing  []string // what is missing to build some of them
}

// errNotInstalled says that a peer, or a tool that builds or runs it, is not installed.
var errNotInstalled = errors.New("not installed")

// notInstalledStatus is the exit status of run.sh that says so.
const notInstalledStatus = 3

// buildPeers writes the sources into a new temporary directory, builds the named programs (all if
// none is named) as far as the software installed below root allows, and records what is missing.
// The caller closes it.
func buildPeers(ctx context.Context, root string, wanted ...string) (p *place, err error) {
	if _, err := exec.LookPath("sh"); err != nil {
		return nil, fmt.Errorf("%w: sh, which builds and runs the peer programs", errNotInstalled)
	}
	defer catch(&err)
	dir := must1(os.MkdirTemp("", "sluice-bench-"))
	defer undo(func() { _ = os.RemoveAll(dir) })
	must(os.CopyFS(dir, must1(fs.Sub(peerSources, "peers"))))
	p = &place{root: root, dir: dir, versions: map[string]string{}}
	found, told, err := captured(p.script(ctx, setting{}, "build.sh", wanted...))
	if err != nil {
		must(fmt.Errorf("build the peer programs%s: %w", p, err))
	}
	for line := range strings.Lines(found.String()) {
		name, version, _ := strings.Cut(strings.TrimSpace(line), " ")
		p.versions[name] = version
	}
	for line := range strings.Lines(told) {
		if strings.HasPrefix(line, errNotInstalled.Error()) {
			p.missing = append(p.missing, strings.TrimSpace(line)+p.String())
		}
	}
	return p, nil
}

// String returns " in ROOT" to append to a name; empty for this machine.
func (p *place) String() string {
	if p.root == "" {
		return ""
	}
	return " in " + p.root
}

func (p *place) Close() error { return os.RemoveAll(p.dir) }

// command returns a command in the place; when ctx ends, it and its children are ended.
func (p *place) command(ctx context.Context, in setting, args ...string) *exec.Cmd {
	if p.root != "" {
		args = append([]string{"sh", filepath.Join(p.dir, "enter.sh"), p.root, p.dir}, args...)
	}
	args = append(slices.Clone(in.within), args...)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	inOwnGroup(cmd)
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// script returns a command that runs one of the scripts. It goes through sh, as an embedded file
// has no mode.
func (p *place) script(ctx context.Context, in setting, name string, args ...string) *exec.Cmd {
	dir := p.dir
	if p.root != "" {
		dir = "/mnt" // by enter.sh
	}
	return p.command(ctx, in, append([]string{"sh", filepath.Join(dir, name)}, args...)...)
}

// setting is the environment that a peer program runs in.
type setting struct {
	env    []string
	within []string // a command that runs another
}

// run runs a peer program and returns its results. An error that is errNotInstalled says
// what is missing.
func (p *place) run(ctx context.Context, in setting, args ...string) ([]Result, error) {
	cmd := p.script(ctx, in, "run.sh", args...)
	cmd.Env = append(os.Environ(), in.env...)
	out, told, err := captured(cmd)
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.As(err, &exit) && exit.ExitCode() == notInstalledStatus:
		return nil, fmt.Errorf("%w: %s", errNotInstalled, strings.TrimPrefix(strings.TrimSpace(told), "not installed: "))
	}
	var rs []Result
	if err == nil {
		if rs, err = parseResults(out); err != nil {
			err = fmt.Errorf("%w\n%s", err, told)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("peer %s%s: %w", strings.Join(args, " "), p, err)
	}
	return rs, nil
}

// captured runs a command, and returns its standard output and standard error; an error contains
// its arguments and its standard error.
func captured(cmd *exec.Cmd) (out *bytes.Buffer, told string, err error) {
	var b bytes.Buffer
	out = new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = out, &b
	if err = cmd.Run(); err != nil {
		err = fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, b.Bytes())
	}
	return out, b.String(), err
}

// PeerOutputError says that a peer program printed no valid result.
type PeerOutputError struct {
	Line string
	Why  string
}

func (e *PeerOutputError) Error() string { return fmt.Sprintf("output %.200q: %s", e.Line, e.Why) }

// parseResults reads lines of JSON, one result each. Other lines, such as a launcher's warnings,
// are skipped; no result at all is an error.
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

// check returns what makes a result unusable.
func (r *Result) check() error {
	switch {
	case firstPattern(func(p *pattern) bool { return p.name == r.Pattern }) == nil:
		return fmt.Errorf("unknown pattern %q", r.Pattern)
	case r.Unit == "" || r.Unit != unitOfFigure(r.Pattern, r.Figure):
		return fmt.Errorf("unit %q does not fit %s", r.Unit, strings.TrimSpace(r.Pattern+" "+r.Figure))
	case r.Peer == "" || r.Provider == "" || r.Layer == "":
		return errors.New("peer, provider or layer is missing")
	case r.Bytes < 0 || r.Bytes > maxSize:
		return fmt.Errorf("%d bytes", r.Bytes)
	case r.Samples < 1 && r.Failed == "":
		return fmt.Errorf("%d samples", r.Samples)
	}
	for _, v := range []float64{r.Min, r.P50, r.P99, r.P999, r.Max, r.Mean} {
		if v < 0 || math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Errorf("figure %v", v)
		}
	}
	if r.Min > r.P50 || r.P50 > r.P99 || r.P99 > r.P999 || r.P999 > r.Max {
		return errors.New("the figures are not in ascending order")
	}
	return nil
}
