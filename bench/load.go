package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-hpc/sluice/internal/launch"
)

// Loads that share the CPUs with ranks.
const (
	loadBusy  = "busy"  // a process that computes on each core
	loadQuota = "quota" // a cgroup that grants half a CPU a rank
)

// envLoad tells ranks, and peers' programs, of the load around them: "quota", or "busy:" and
// the numbers of the processes that compute.
const envLoad = "SLUICE_BENCH_LOAD"

// load is a load around a command.
type load struct {
	burn  []*exec.Cmd
	quota *quotaGroup
}

// underLoad calls run under a load for so many ranks, describes the load to the processes that run
// starts, and ends the load afterwards. If name is empty, or this process is already under that
// load, it just calls run.
func underLoad(ctx context.Context, name string, ranks int, run func(context.Context) error) (err error) {
	defer catch(&err)
	around, _ := must2(loadAround())
	if name != "" && name != around {
		var l load
		defer func() { err = errors.Join(err, os.Unsetenv(envLoad), l.Close()) }()
		must(os.Setenv(envLoad, l.start(name, ranks)))
	}
	return run(ctx)
}

// start starts the load. This process moves into the cgroup of a quota, so that the processes that
// it starts begin there.
func (l *load) start(name string, ranks int) (text string) {
	if name == loadQuota {
		l.quota = newQuotaGroup(float64(ranks) / 2)
		return loadQuota
	}
	var pids []string
	for _, cpu := range must1(launch.Cores()) {
		cmd := exec.Command(must1(os.Executable()), "burn", strconv.Itoa(cpu), strconv.Itoa(os.Getpid()))
		cmd.Env, cmd.Stderr = append(os.Environ(), "GOMAXPROCS=1"), os.Stderr
		must(cmd.Start())
		l.burn = append(l.burn, cmd)
		pids = append(pids, strconv.Itoa(cmd.Process.Pid))
	}
	return loadBusy + ":" + strings.Join(pids, ",")
}

func (l *load) Close() error {
	for _, cmd := range l.burn {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	}
	if l.quota == nil {
		return nil
	}
	return l.quota.Close()
}

// loadAround returns the load that this process was started under, and its computing processes.
func loadAround() (name string, pids []int, err error) {
	name, list, _ := strings.Cut(os.Getenv(envLoad), ":")
	if list == "" {
		return name, nil, nil
	}
	for _, text := range strings.Split(list, ",") {
		pid, err := strconv.Atoi(text)
		if err != nil || pid <= 0 {
			return "", nil, fmt.Errorf("%s=%q: %q is not a process ID", envLoad, os.Getenv(envLoad), text)
		}
		pids = append(pids, pid)
	}
	return name, pids, nil
}

// burnedCPU returns the CPU time that the processes have used.
func burnedCPU(pids []int) (sum time.Duration) {
	for _, pid := range pids {
		sum += must1(cpuOf(pid))
	}
	return sum
}

// newLoadCommand runs any command, such as bench or a peer's launcher, under a load.
func newLoadCommand() *cobra.Command {
	all := &cobra.Command{
		Use:   "load busy|quota [-n RANKS] COMMAND [ARGUMENT...]",
		Short: "Run a command with a computing process on each core, or under a CPU quota",
		Long: `busy: a process that only computes is bound to each core. quota: the command runs in a
cgroup with half a CPU for each rank; cgroups of version 1 (cpu.cfs_quota_us) and 2 (cpu.max)
work. The load ends with the command. ` + envLoad + ` describes the load to the command.`,
		RunE: func(*cobra.Command, []string) error {
			return usagef("load: want %s or %s, and a command", loadBusy, loadQuota)
		},
	}
	for _, name := range []string{loadBusy, loadQuota} {
		ranks := 2
		cmd := &cobra.Command{
			Use:   name + " [-n RANKS] COMMAND [ARGUMENT...]",
			Short: "Run a command under this load",
			Args: func(_ *cobra.Command, args []string) error {
				if len(args) == 0 {
					return usagef("load %s: want a command", name)
				}
				return try(func() { inRange("ranks", ranks, 1, maxRanks) })
			},
			RunE: caught(func(cmd *cobra.Command, args []string) { runUnderLoad(cmd.Context(), name, ranks, args) }),
		}
		cmd.Flags().IntVarP(&ranks, "ranks", "n", ranks, "ranks that the command starts")
		cmd.Flags().SetInterspersed(false)
		all.AddCommand(cmd)
	}
	return all
}

func runUnderLoad(ctx context.Context, name string, ranks int, args []string) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := underLoad(ctx, name, ranks, func(ctx context.Context) error {
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		inOwnGroup(cmd)
		cmd.WaitDelay = 5 * time.Second
		return cmd.Run()
	})
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() > 0 {
		must(reported{&RankFailedError{-1, exit.ExitCode()}})
	}
	must(err)
}

// newBurnCommand is what [load.start] starts: it computes on a CPU as long as its parent lives.
func newBurnCommand() *cobra.Command {
	return &cobra.Command{
		Use: "burn CPU PARENT", Hidden: true, Args: cobra.ExactArgs(2),
		RunE: caught(func(_ *cobra.Command, args []string) {
			must(bindSelf(must1(strconv.Atoi(args[0]))))
			for strconv.Itoa(os.Getppid()) == args[1] {
				compute(1 << 20)
			}
		}),
	}
}
