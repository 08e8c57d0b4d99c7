package boot

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"strconv"
	"strings"
	"syscall"

	"github.com/sluice-hpc/sluice/internal/reach"
)

// Slurm without PMI: srun sets the numbers (src/common/env.c), and rank 0 is on the first node of
// its list. Its port is one of a few derived from the numbers of job and step, unless Slurm has
// reserved ports.

const (
	// maxSlurmStep is the largest number of a step of srun; larger numbers stand for the script of
	// sbatch, the shell of salloc and the like (SLURM_MAX_NORMAL_STEP_ID, slurm/slurm.h).
	maxSlurmStep = 0xfffffff0
	// The ports lie below those that Linux and other systems assign to clients.
	firstSlurmPort = 16384
	lastSlurmPort  = 32767
	slurmPorts     = 8
)

// inSlurmStep says that srun has started this process; in the shell of sbatch
// SLURM_PROCID is set as well.
func inSlurmStep(v *values) bool {
	step, err := strconv.ParseUint(v.get(envSlurmStep), 10, 32)
	return err == nil && step <= maxSlurmStep && v.set(envSlurmRank)
}

// slurmStep returns Slurm's name of the step.
func (v *values) slurmStep() string { return v.get(envSlurmJob) + "." + v.get(envSlurmStep) }

// joinSlurm joins a step of srun.
func joinSlurm(ctx context.Context, v *values) (*Job, error) {
	e := v.place(envSlurmRank, envSlurmSize)
	v.slurmLocalPlace(&e)
	step := v.slurmStep()
	e.Job = jobNamed("slurm-" + step)
	e.Server = v.server(false)
	e.Secret, e.Insecure = v.secret(e.Size > 1)
	if v.err != nil {
		return nil, v.err
	}
	if e.Size == 1 || e.Server != "" {
		return e.join(ctx)
	}
	reserved := envSlurmPorts
	if v.set(reach.EnvPorts) {
		reserved = reach.EnvPorts
	}
	ports, err := slurmPortsOf(step, v.get(reserved))
	if err != nil {
		return nil, &EnvError{Name: reserved, Value: v.get(reserved), Err: err}
	}
	nodes, err := parseHostlist(v.get(envSlurmNodes))
	if err != nil {
		return nil, &EnvError{Name: envSlurmNodes, Value: shorten(v.get(envSlurmNodes), 200), Err: err}
	}
	first, here := nodes[0], v.get(envSlurmNode)
	if e.Rank == 0 && here != "" && here != first {
		return nil, &LauncherError{
			Launcher: "srun",
			Err:      fmt.Errorf("rank 0 is on node %s instead of the first node, %s", here, first),
			Advice:   "use --mpi=pmi2, or set " + EnvServer + "=host:port, a free port on rank 0's node",
		}
	}
	hosts, bind := []string{first}, []string{""}
	if e.oneHost() {
		hosts = []string{"127.0.0.1", "::1"} // there may be one of the two
		bind = hosts
	}
	var addresses []string
	for _, port := range ports {
		for _, host := range hosts {
			addresses = append(addresses, net.JoinHostPort(host, strconv.Itoa(port)))
		}
	}
	m := meeting{Environment: e, hosted: true, find: at(addresses...)}
	m.listen = func(ctx context.Context) (net.Listener, error) { return listenAtFree(ctx, bind, ports) }
	return m.join(ctx)
}

// listenAtFree listens at the first free port, of the first host that is an address of this one.
func listenAtFree(ctx context.Context, hosts []string, ports []int) (net.Listener, error) {
	var err error
	for _, host := range hosts {
		for _, port := range ports {
			var ln net.Listener
			ln, err = reach.Listen(ctx, net.ListenConfig{}, net.JoinHostPort(host, strconv.Itoa(port)))
			if err == nil {
				return ln, nil
			}
			if !errors.Is(err, syscall.EADDRINUSE) {
				break
			}
		}
		if !errors.Is(err, syscall.EADDRNOTAVAIL) {
			break
		}
	}
	return nil, fmt.Errorf("no port of %v is usable: %w; set %s=host:port to use another", ports, err, EnvServer)
}

// slurmPortsOf returns the possible ports of rank 0 of a step: those that Slurm has reserved, or
// some derived from its name.
func slurmPortsOf(step, reserved string) ([]int, error) {
	if reserved == "" {
		h := fnv.New32a()
		h.Write([]byte(step))
		const n = lastSlurmPort - firstSlurmPort + 1
		ports := make([]int, slurmPorts)
		for i := range ports {
			ports[i] = firstSlurmPort + (int(h.Sum32()%n)+i)%n
		}
		return ports, nil
	}
	var ports []int
	for part := range strings.SplitSeq(reserved, ",") {
		from, to, ranged := strings.Cut(part, "-")
		if !ranged {
			to = from
		}
		first, err := strconv.ParseUint(from, 10, 16)
		last, err2 := strconv.ParseUint(to, 10, 16)
		if err != nil || err2 != nil || first == 0 || last < first {
			return nil, fmt.Errorf("%q is not a range of ports", part)
		}
		for p := first; p <= last && len(ports) < slurmPorts; p++ {
			ports = append(ports, int(p))
		}
	}
	return ports, nil
}

// slurmLocalPlace reads the place among the ranks of this node.
func (v *values) slurmLocalPlace(e *Environment) {
	counts, node := v.get(envSlurmTasksPerNode), v.get(envSlurmNodeNumber)
	if counts == "" || node == "" || !v.set(envSlurmLocalRank) {
		return
	}
	n := v.integer(envSlurmNodeNumber, 0, maxHosts-1)
	size, err := tasksOfNode(counts, n)
	switch {
	case err != nil:
		v.fail(envSlurmTasksPerNode, shorten(counts, 200), err)
		return
	case size > e.Size:
		v.fail(envSlurmTasksPerNode, shorten(counts, 200), fmt.Errorf("%d ranks on node %d in a step of %d", size, n, e.Size))
		return
	}
	e.LocalSize = size
	e.LocalRank = v.integer(envSlurmLocalRank, 0, size-1)
}

// tasksOfNode returns the number of tasks of the n-th node in a list of the
// form 2(x3),1: three nodes with two and one with one.
func tasksOfNode(list string, n int) (int, error) {
	for part := range strings.SplitSeq(list, ",") {
		text, times, repeated := strings.Cut(part, "(x")
		repeat := uint64(1)
		var err error
		if repeated {
			var ok bool
			if times, ok = strings.CutSuffix(times, ")"); !ok {
				return 0, fmt.Errorf("%.40q is no number of tasks", part)
			}
			repeat, err = strconv.ParseUint(times, 10, 20)
		}
		tasks, err2 := strconv.ParseUint(text, 10, 20)
		if err != nil || err2 != nil || tasks == 0 || repeat == 0 {
			return 0, fmt.Errorf("%.40q is no number of tasks", part)
		}
		if n < int(repeat) {
			return int(tasks), nil
		}
		n -= int(repeat)
	}
	return 0, errors.New("the list has fewer nodes than the step")
}
