package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/verbs"
)

// trialBound is when a job of processes that we start counts as hung: it takes some
// seconds.
const trialBound = 5 * time.Minute

// tuneJob is a job whose ranks start other jobs, one process each.
type tuneJob struct {
	*boot.Job
	ranks    []tuneRank
	meet     meetingPlace
	rounds   int
	progress *progress
}

// tuneRank is what each rank tells the others before anything is measured.
type tuneRank struct {
	Options     string            `json:"options"`
	Environment RankEnvironment   `json:"environment"`
	Host        string            `json:"host"`  // those of one share memory
	Lacks       map[string]string `json:"lacks"` // provider: why it is not there
}

// tunedProviders are those whose order is set.
var tunedProviders = []string{providerSHM, providerIBV, providerRoCE, providerXDP, carrierTCP}

// takeTuneRank is what this process tells of itself. What is printed, and where to, may differ.
func takeTuneRank(rank int, options map[string]string) tuneRank {
	measured := maps.Clone(options)
	for _, name := range []string{"json", "csv", "html", "file", "exports", "listen"} {
		delete(measured, name)
	}
	r := tuneRank{Options: fmt.Sprint(measured), Environment: takeRankEnvironment(rank), Host: memoryHost(), Lacks: map[string]string{}}
	for _, name := range tunedProviders {
		if _, err := verbs.Find(name); err != nil {
			r.Lacks[name] = err.Error()
		}
	}
	return r
}

// partner is the first rank that is on the host of rank 0, or on another one; -1: none is.
func (j *tuneJob) partner(here bool) int {
	for rank := 1; rank < len(j.ranks); rank++ {
		if (j.ranks[rank].Host == j.ranks[0].Host) == here {
			return rank
		}
	}
	return -1
}

// lacks says why not all ranks have a provider; empty: they do.
func (j *tuneJob) lacks(provider string) string {
	for rank, r := range j.ranks {
		if why := r.Lacks[provider]; why != "" {
			return fmt.Sprintf("%s: rank %d: %s", provider, rank, why)
		}
	}
	return ""
}

// trialJob is a job that is started.
type trialJob struct {
	members  []int    // ranks that start a process of it, first of all rank 0; the others wait
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

// try runs a job of new processes, one started by each member, and returns its results
// at rank 0, which serves their rendezvous.
func (j *tuneJob) try(ctx context.Context, t *trialJob) ([]Result, error) {
	var ln net.Listener
	port, err := "", error(nil)
	if j.Rank() == 0 {
		if ln, err = net.Listen("tcp", j.meet.listen); err == nil {
			_, port, err = net.SplitHostPort(ln.Addr().String())
		}
	}
	ports, err := share(ctx, j, port, err)
	me := slices.Index(t.members, j.Rank())
	if err != nil || me < 0 {
		if ln != nil {
			err = errors.Join(err, ln.Close())
		}
		return nil, err
	}
	e := boot.Environment{Rank: me, Size: len(t.members), LocalRank: -1, Server: net.JoinHostPort(j.meet.at, ports[0]), Job: j.meet.name, Secret: j.Secret(), Insecure: j.Secret() == nil, Launched: true}
	var server *boot.Server
	if ln != nil {
		if server, err = boot.Serve(context.Background(), ln, boot.ServerOptions{Size: e.Size, Job: e.Job, Secret: e.Secret, Insecure: e.Insecure}); err != nil {
			return nil, err
		}
	}
	out, err := runMember(ctx, &e, t)
	switch {
	case server != nil:
		server.Ended(me)
		err = errors.Join(err, endServer(server))
	case err != nil:
		standDown(&e)
	}
	if err != nil || server == nil {
		return nil, err
	}
	var r Report
	if err := json.Unmarshal(out, &r); err != nil {
		return nil, err
	}
	return r.Results, nil
}

// runMember runs this rank's process of a job, and returns what it has printed.
func runMember(ctx context.Context, e *boot.Environment, t *trialJob) ([]byte, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, trialBound)
	defer cancel()
	cmd := exec.CommandContext(ctx, self, append(slices.Clone(t.args), "--json")...)
	cmd.Env = slices.Concat(withoutJob(os.Environ()), t.settings, e.Environ())
	var out, told bytes.Buffer
	inOwnGroup(cmd)
	cmd.WaitDelay = 5 * time.Second
	cmd.Stdout, cmd.Stderr = &out, &told
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s %s: %w\n%s", strings.Join(t.settings, " "), strings.Join(t.args, " "), err, told.Bytes())
	}
	return out.Bytes(), nil
}

// standDown takes the place of a process that has failed before it joined, and leaves it:
// the others would wait for it. If it had joined nobody is admitted in its place.
func standDown(e *boot.Environment) {
	ctx, cancel := context.WithTimeout(context.Background(), goodbye)
	defer cancel()
	if job, err := e.Join(ctx); err == nil {
		_ = job.Close() // the failure that counts is that of the process
	}
}

// withoutJob is an environment without what says which rank of which job a process
// is, and without settings or a file of them.
func withoutJob(env []string) []string {
	names := slices.Concat(coll.Variables(), messageVariables, []string{channel.EnvTuningFile, channel.EnvTransport})
	return slices.DeleteFunc(boot.WithoutLauncher(env), func(s string) bool {
		name, _, _ := strings.Cut(s, "=")
		return slices.Contains(names, name)
	})
}
