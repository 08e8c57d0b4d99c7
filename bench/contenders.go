package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-hpc/sluice/internal/launch"
	"github.com/sluice-hpc/sluice/verbs"
)

// contender is one program that is run in each round.
type contender struct {
	name string
	ours bool
	run  func(context.Context) ([]Result, error)
}

// contenderBound is when a contender counts as hung: they take a second or two.
const contenderBound = 2 * time.Minute

// errHung: a contender did not end within its bound.
var errHung = fmt.Errorf("did not end within %v", contenderBound)

func (c *contender) runBounded(ctx context.Context) ([]Result, error) {
	within, cancel := context.WithTimeoutCause(ctx, contenderBound, errHung)
	defer cancel()
	rs, err := c.run(within)
	if err != nil && within.Err() != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("%s: %w", c.name, errHung)
	}
	return rs, err
}

// contenders are all programs of a round.
func (c *comparison) contenders() []contender {
	var list []contender
	if c.peers != nil {
		list = append(list, c.peer(peerLine, append([]string{"line", "-t", seconds(c.time)}, lineCPUs()...)...))
	}
	// Channels are held to the cache line as well: as soon after it as can be.
	list = append(list, c.channelContenders()...)
	latSizes, bwSizes := "8,1k,64k,1M", "64k,256k,1M,4M"
	if c.quick {
		latSizes, bwSizes = "8", "64k,1M,4M"
	}
	for _, provider := range []string{"shm", "tcp"} {
		if _, err := verbs.Find(provider); err != nil {
			c.report.Missing = append(c.report.Missing, provider+": "+err.Error())
			continue
		}
		for _, t := range []struct {
			pattern, program, sizes string
			ops                     []string
		}{
			{patternLat, "pingpong", latSizes, []string{"send", "write-imm"}},
			{patternBW, "bw", bwSizes, []string{"write", "send"}},
		} {
			for _, op := range t.ops {
				args := []string{"verbs", t.pattern, "--provider", provider, "--op", op, "--sizes", t.sizes}
				if t.pattern == patternLat {
					args = append(args, "--batch")
				}
				list = append(list, c.sluice(strings.Join([]string{provider, t.pattern, op}, " "), args...))
			}
			for _, mpi := range mpis {
				args := []string{"-s", t.sizes}
				if t.pattern == patternBW {
					args = append(args, "-w", strconv.Itoa(defaultWindow))
				}
				list = append(list, c.mpi(mpi, provider, t.program, args...)...)
			}
		}
	}
	return list
}

// channelContenders are the programs that measure channels, and what is
// held against them.
func (c *comparison) channelContenders() []contender {
	var list []contender
	window := strconv.Itoa(defaultChannelWindow)
	for _, t := range []struct {
		provider, memory, lat, bw, quickLat, quickBW string
		mpis                                         []string // that it is held to
	}{
		{"shm", "alloc,heap", "8,64,1k,4k,64k", "64k,256k,1M,4M", "8,4k", "256k,1M", mpis},
		{"tcp", "alloc", "8", "64k,1M", "8", "1M", []string{"openmpi"}},
	} {
		if c.quick {
			t.lat, t.bw = t.quickLat, t.quickBW
		}
		if _, err := verbs.Find(t.provider); err != nil {
			continue // said for the verbs
		}
		ours := func(pattern string, args ...string) contender {
			args = append([]string{"channel", pattern, "--provider", t.provider, "--memory", t.memory}, args...)
			return c.sluice(t.provider+" channel "+pattern, args...)
		}
		list = append(list, ours(patternLat, "--sizes", t.lat, "--batch"))
		for _, mpi := range t.mpis {
			list = append(list, c.mpi(mpi, t.provider, "channel", "-l", t.lat, "-s", t.bw, "-w", window)...)
		}
		list = append(list, ours(patternBW, "--sizes", t.bw, "--window", window))
		if t.provider != "shm" {
			continue
		}
		list = append(list, c.sluice("shm halo", "halo", "--provider", "shm", "--memory", t.memory))
		for _, mpi := range t.mpis {
			list = append(list, c.mpi(mpi, "shm", "halo")...)
			list = append(list, c.mpi(mpi, "shm", "halo", "-k", "-a", "xyza")...) // of t there is nothing to pack
		}
		// MPICH, which never gives up its CPU, takes some milliseconds a hop.
		list = append(list, c.sluice("shm ring", "ring", "--provider", "shm", "--ranks", strconv.Itoa(defaultRingRanks), "--batch"))
		list = append(list, c.mpi("openmpi", "shm", "ring")...)
	}
	return append(list, c.sluice("local", "local", "--batch"))
}

// lineCPUs has line run on the two CPUs that our ranks are bound to. Where we do not
// bind, it takes what it finds.
func lineCPUs() []string {
	cpus, err := launch.Cores()
	if err != nil || len(cpus) < 2 {
		return nil
	}
	return []string{"-c", fmt.Sprintf("%d,%d", cpus[0], cpus[1])}
}

func seconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) }

func (c *comparison) peer(name string, args ...string) contender {
	return contender{name: name, run: func(ctx context.Context) ([]Result, error) { return c.peers.run(ctx, args...) }}
}

// mpi is a program of one MPI as a contender; none where no peers can be built.
func (c *comparison) mpi(mpi, provider, program string, args ...string) []contender {
	if c.peers == nil {
		return nil
	}
	all := append([]string{mpi, provider, program, "-t", seconds(c.time)}, args...)
	return []contender{c.peer(strings.Join(all[:3], " "), all...)}
}

// sluice is this very program as a contender.
func (c *comparison) sluice(name string, args ...string) contender {
	args = append(args, "--time", c.time.String(), "--json")
	return contender{name: peerSluice + " " + name, ours: true, run: func(ctx context.Context) ([]Result, error) {
		var out, told bytes.Buffer
		cmd := exec.CommandContext(ctx, c.self, args...)
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
		c.take(&r)
		return r.Results, nil
	}}
}
