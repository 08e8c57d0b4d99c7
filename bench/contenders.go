package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
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
	what []string // disciplines, for --only: provider, suite, pattern
	ours bool
	run  func(context.Context) ([]Result, error)
}

// contenderBound is when a contender counts as hung: they take some seconds. One whose
// rounds have taken longer together is in no more of them: a peer that spins and has more
// ranks than CPUs may take as long for each message as the scheduler lets others run.
const contenderBound = 2 * time.Minute

// in says which disciplines contenders are of.
func in(what []string, list ...contender) []contender {
	for i := range list {
		list[i].what = what
	}
	return list
}

// errHung: a contender did not end within its bound.
var errHung = errors.New("did not end in time")

// runBounded runs it for at most so long; late is what it says then.
func (c *contender) runBounded(ctx context.Context, bound time.Duration, late error) ([]Result, error) {
	within, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	rs, err := c.run(within)
	if err != nil && within.Err() != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("%s: %w", c.name, late)
	}
	return rs, err
}

// saysSlow names one that is in fewer rounds than others.
func (c *contender) saysSlow(rounds, of int, took time.Duration) string {
	return fmt.Sprintf("%s: in %d of %d rounds, for they took %.0f s: its figures, and ratios to them, are of these", c.name, rounds, of, took.Seconds())
}

// contenders are all programs of a round.
func (c *comparison) contenders() []contender {
	var list []contender
	if c.peers != nil {
		list = append(list, in([]string{"shm verbs lat", "shm channel lat"}, c.peer(peerLine, append([]string{"line", "-t", seconds(c.time)}, lineCPUs()...)...))...)
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
				list = append(list, in([]string{provider + " verbs " + t.pattern}, c.sluice(strings.Join([]string{provider, t.pattern, op}, " "), args...))...)
			}
			for _, mpi := range mpis {
				if c.quick && provider == "tcp" && mpi == "mpich" {
					continue // nobody is held to it, and it takes as long as twenty others
				}
				args := []string{"-s", t.sizes}
				if t.pattern == patternBW {
					args = append(args, "-w", strconv.Itoa(defaultWindow))
				}
				list = append(list, in([]string{provider + " verbs " + t.pattern}, c.mpi(mpi, provider, t.program, args...)...)...)
			}
		}
	}
	list = append(list, c.qmpContenders()...)
	return append(list, in([]string{"shm fanout"}, c.fanoutContenders()...)...)
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
		lat, bw := t.provider+" channel lat", t.provider+" channel bw"
		list = append(list, in([]string{lat}, ours(patternLat, "--sizes", t.lat, "--batch"))...)
		for _, mpi := range t.mpis {
			list = append(list, in([]string{lat, bw}, c.mpi(mpi, t.provider, "channel", "-l", t.lat, "-s", t.bw, "-w", window)...)...)
		}
		list = append(list, in([]string{bw}, ours(patternBW, "--sizes", t.bw, "--window", window))...)
		if t.provider != "shm" {
			continue
		}
		halo := []string{"shm channel halo"}
		list = append(list, in(halo, c.sluice("shm halo", "halo", "--provider", "shm", "--memory", t.memory))...)
		for _, mpi := range t.mpis {
			list = append(list, in(halo, c.mpi(mpi, "shm", "halo")...)...)
			list = append(list, in(halo, c.mpi(mpi, "shm", "halo", "-k", "-a", "xyza")...)...) // of t there is nothing to pack
		}
		// MPICH, which never gives up its CPU, takes some milliseconds a hop.
		ring := []string{"shm channel ring"}
		list = append(list, in(ring, c.sluice("shm ring", "ring", "--provider", "shm", "--ranks", strconv.Itoa(defaultRingRanks), "--batch"))...)
		list = append(list, in(ring, c.mpi("openmpi", "shm", "ring")...)...)
	}
	list = append(list, c.impiContenders()...)
	list = append(list, c.toolContenders()...)
	list = append(list, c.collectiveContenders()...)
	return append(list, in([]string{"self channel local"}, c.sluice("local", "local", "--batch"))...)
}

// collectiveContenders are the programs that measure collectives over shared memory:
// of 2 ranks, and of more than there are CPUs in many a machine.
func (c *comparison) collectiveContenders() []contender {
	if _, err := verbs.Find("shm"); err != nil {
		return nil
	}
	var list []contender
	for _, t := range []struct {
		ranks                  int
		kinds, doubles, memory string
	}{
		{2, "barrier,allreduce", "1,128,16k,1M", "alloc,heap"},
		{4, "barrier,allreduce", "1,128,16k", "alloc"},
		{8, "barrier,allreduce", "1,128,16k", "alloc"},
		{2, "bcast,reduce,reduce-scatter,scan,exscan,gather,scatter,allgather,alltoall", "1,128,16k", "alloc"},
	} {
		informs := t.kinds != "barrier,allreduce"
		if c.quick && informs {
			continue
		}
		ranks := strconv.Itoa(t.ranks)
		var what []string
		for kind := range strings.SplitSeq(t.kinds, ",") {
			what = append(what, "shm "+ranks+" ranks "+kind)
		}
		list = append(list, in(what, c.sluice(strings.Join([]string{"shm", ranks, t.kinds}, " "), "collectives", "--provider", "shm", "--ranks", ranks,
			"--kinds", t.kinds, "--doubles", t.doubles, "--memory", t.memory))...)
		for _, mpi := range mpis {
			if c.quick && t.ranks > 2 && mpi == "mpich" {
				continue // it never gives up its CPU: tens of milliseconds a barrier
			}
			list = append(list, in(what, c.mpiRanks(mpi, "shm", t.ranks, "coll", "-c", t.kinds, "-s", inBytes(t.doubles))...)...)
		}
	}
	list = append(list, in([]string{"shm 8 ranks exact"}, c.sluice("shm 8 exact", "exact", "--provider", "shm", "--ranks", "8"))...)
	return append(list, in([]string{"self addslice"}, c.sluice("addslice", "addslice"))...)
}

// inBytes are the bytes of counts of doubles.
func inBytes(doubles string) string {
	counts, err := parseSizes(doubles)
	if err != nil {
		panic(err) // it is one of ours
	}
	var sizes []string
	for _, n := range counts {
		sizes = append(sizes, formatSize(int64(n)*doubleBytes))
	}
	return strings.Join(sizes, ",")
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
	return c.mpiRanks(mpi, provider, 0, program, args...)
}

// mpiRanks is mpi with so many ranks; 0: as many as the program has by default.
func (c *comparison) mpiRanks(mpi, provider string, ranks int, program string, args ...string) []contender {
	if c.peers == nil {
		return nil
	}
	all := append([]string{mpi, provider, program, "-t", seconds(c.time)}, args...)
	name := strings.Join(all[:3], " ")
	if ranks > 0 {
		name += " " + strconv.Itoa(ranks)
	}
	return []contender{{name: name, run: func(ctx context.Context) ([]Result, error) { return c.peers.runRanks(ctx, ranks, all...) }}}
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
