package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// baseWorse is how much worse than a base the whole interval of a ratio has to be.
const baseWorse = 0.05

// peerBase is the other version of ours, while it is measured.
const peerBase = "base"

// RevisionError: bench of a revision cannot be had.
type RevisionError struct {
	Revision string
	Err      error
}

func (e *RevisionError) Error() string { return fmt.Sprintf("--base %s: %v", e.Revision, e.Err) }
func (e *RevisionError) Unwrap() error { return e.Err }

// buildBase builds bench of a revision of the repository that this is run in, in a
// worktree of its own. remove takes that away.
func buildBase(ctx context.Context, revision string) (program string, remove func() error, err error) {
	dir, err := os.MkdirTemp("", "sluice-base-")
	if err != nil {
		return "", nil, err
	}
	tree, program := filepath.Join(dir, "tree"), filepath.Join(dir, "bench")
	repository, added := "", false
	remove = func() error {
		var err error
		if added {
			_, err = said(context.WithoutCancel(ctx), repository, "git", "worktree", "remove", "--force", tree)
		}
		return errors.Join(err, os.RemoveAll(dir))
	}
	repository, err = said(ctx, "", "git", "rev-parse", "--show-toplevel")
	commit := ""
	if err == nil { // what begins with a hyphen is no option
		commit, err = said(ctx, repository, "git", "rev-parse", "--verify", "--end-of-options", revision+"^{commit}")
	}
	if err == nil {
		_, err = said(ctx, repository, "git", "worktree", "add", "--detach", tree, commit)
		added = err == nil
	}
	if err == nil { // a package of the root's module in older revisions, in the workspace since
		_, err = said(ctx, tree, "go", "build", "-o", program, "./bench")
	}
	if err != nil {
		return "", nil, &RevisionError{revision, errors.Join(err, remove())}
	}
	return program, remove, nil
}

// said is the line that a command prints, run in a directory.
func said(ctx context.Context, dir, name string, args ...string) (string, error) {
	var told bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stderr = dir, &told
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, told.Bytes())
	}
	return strings.TrimSpace(string(out)), nil
}

// againstBase measures both versions by turns. A row that one of them does not have is
// left out, and said.
func (c *comparison) againstBase(ctx context.Context, out *outputOptions) {
	program, remove := must2(buildBase(ctx, c.base))
	defer remove()
	figures := c.takeAll(ctx, c.versions(ctx, program))
	var before, after []Result
	for i := range figures {
		r := figures[i].Result
		if r.Peer == peerBase {
			r.Peer = peerSluice
			before = append(before, r)
		} else {
			after = append(after, r)
		}
	}
	c.report.Changes = changes(before, after, paired)
	c.end(out, figures, func() {
		printChanges(os.Stdout, terminal(os.Stdout), c.report.Changes)
		fmt.Printf("~ is no difference, or one whose 95 %% interval does not lie beyond %.0f %%\n", 100*baseWorse)
		for _, m := range c.report.Missing {
			fmt.Printf("not compared: %s\n", m)
		}
	})
	must(verdictError(c.report.Changes))
}

// versions are ours and the base's contenders of the rows that both have: each is tried once,
// briefly.
func (c *comparison) versions(ctx context.Context, program string) (list []*contender) {
	wanted := c.wanted()
	progress := newProgress(true)
	defer progress.clear()
	for i, r := range wanted {
		progress.show(i, len(wanted), "try "+r.String())
		of := *r
		of.peers = nil
		var own []*contender
		if err := try(func() { own = c.contendersOf(&of, c.pointsOf(r)) }); err != nil {
			c.missing(fmt.Errorf("%s: %w", r, err))
			continue
		}
		ours := own[0]
		base := *ours
		base.peer = peerBase
		base.run = func(ctx context.Context, points []string, d time.Duration) ([]Result, error) {
			rs, err := c.runOurs(ctx, program, of.command(points, d))
			for i := range rs {
				rs[i].Peer = peerBase
			}
			return rs, err
		}
		if _, err := base.runBounded(ctx, base.points[:1], time.Millisecond, screenBound); err != nil {
			if ctx.Err() != nil {
				must(ctx.Err())
			}
			c.missing(fmt.Errorf("the base does not have %w", err))
			continue
		}
		list = append(list, ours, &base)
	}
	return list
}
