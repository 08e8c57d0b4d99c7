package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/internal/coll"
)

// trialBound is when a job of processes that we start counts as hung: it takes some
// seconds. Where one of them fails before it has joined, the others wait for it.
const trialBound = 5 * time.Minute

// tuneJob is a job whose ranks start other jobs, one process each.
type tuneJob struct {
	*boot.Job
	place    string // where rank 0 listens for those that it starts
	rounds   int
	progress *progress
}

// trialJob is a job that is started.
type trialJob struct {
	ranks    int      // of the first; the others wait
	settings []string // NAME=value
	args     []string
}

// measure runs all jobs by turns, round by round, and returns at rank 0 the results of
// each, the rounds merged. All ranks call it.
func (j *tuneJob) measure(ctx context.Context, jobs []trialJob) ([][]Result, error) {
	rounds := make([][][]Result, len(jobs))
	for round := range j.rounds {
		for i := range jobs {
			j.progress.show(round*len(jobs)+i, j.rounds*len(jobs), strings.Join(jobs[i].settings, " "))
			rs, err := j.try(ctx, &jobs[i])
			if _, err := share(ctx, j, struct{}{}, err); err != nil {
				return nil, err
			}
			rounds[i] = append(rounds[i], rs)
		}
	}
	merged := make([][]Result, len(jobs))
	for i := range jobs {
		for k := range rounds[i][0] {
			var same []Result
			for _, rs := range rounds[i] {
				same = append(same, rs[k])
			}
			merged[i] = append(merged[i], mergeRounds(same))
		}
	}
	return merged, nil
}

// try runs a job of new processes, one started by each rank, and returns its results
// at rank 0.
func (j *tuneJob) try(ctx context.Context, t *trialJob) ([]Result, error) {
	server := ""
	if j.Rank() == 0 {
		l, err := net.Listen("tcp", net.JoinHostPort(j.place, "0"))
		if err == nil {
			server = l.Addr().String()
			err = l.Close() // the process that we start listens there
		}
		if err != nil {
			return nil, err
		}
		_, port, _ := net.SplitHostPort(server)
		server = net.JoinHostPort(j.place, port)
	}
	server, err := agree(ctx, j, server)
	if err != nil || j.Rank() >= t.ranks {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, trialBound)
	defer cancel()
	cmd := exec.CommandContext(ctx, self, append(slices.Clone(t.args), "--json")...)
	cmd.Env = append(withoutJob(os.Environ()), t.settings...)
	e := boot.Environment{Rank: j.Rank(), Size: t.ranks, LocalRank: -1, Server: server, Job: j.ID() + "-tune", Secret: j.Secret(), Insecure: j.Secret() == nil}
	cmd.Env = append(cmd.Env, e.Environ()...)
	var out, told bytes.Buffer
	inOwnGroup(cmd)
	cmd.WaitDelay = 5 * time.Second
	cmd.Stdout, cmd.Stderr = &out, &told
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s %s: %w\n%s", strings.Join(t.settings, " "), strings.Join(t.args, " "), err, told.Bytes())
	}
	if j.Rank() != 0 {
		return nil, nil
	}
	var r Report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		return nil, err
	}
	return r.Results, nil
}

// withoutJob is an environment without what says which rank of which job a process
// is, and without settings or a file of them.
func withoutJob(env []string) []string {
	var names []string
	for _, v := range boot.Variables() {
		names = append(names, v.Name)
	}
	names = append(names, coll.Variables()...)
	names = append(names, channel.EnvTuningFile, channel.EnvTransport)
	names = append(names, messageVariables...)
	return slices.DeleteFunc(env, func(s string) bool {
		name, _, _ := strings.Cut(s, "=")
		return slices.Contains(names, name)
	})
}
