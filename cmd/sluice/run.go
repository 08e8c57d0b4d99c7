package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/internal/launch"
)

func newRun() *cobra.Command {
	o := launch.Options{
		Stdin:   os.Stdin,
		Stdout:  os.Stdout,
		Stderr:  os.Stderr,
		Signals: launch.Signals(),
		Bind:    launch.Free,
	}
	var where placement
	cmd := &cobra.Command{
		Use:   "run [-n N] [-H host[:slots],...] [flags] [--] program [argument]... [: [-n N] program [argument]...]...",
		Short: "Run N processes of a program, on this host or others, as the ranks of a job",
		Long:  runHelp(),
		Example: `  sluice run -n 2 ./pingpong
  sluice run -n 4 --bind core --prefix -- ./solve --grid 64
  sluice run -H hostA:4,hostB:4 ./solve --grid 64
  sluice run -n 1 ./master : -n 7 ./worker`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return &usageError{cmd, errors.New("no program to run is given")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Notice = func(text string) { fmt.Fprintln(cmd.ErrOrStderr(), "sluice run:", text) }
			if err := where.apply(cmd, &o, args); err != nil {
				return &usageError{cmd, err}
			}
			r, err := launch.Run(cmd.Context(), o)
			return outcome(cmd, r, err)
		},
	}
	flags := cmd.Flags()
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		// mpirun and mpiexec accept these.
		bad := (*pflag.InvalidValueError)(nil)
		if errors.As(err, &bad) && bad.GetFlag().Name == "ranks" && strings.TrimRight(bad.GetValue(), "=0123456789") == "p" || err.Error() == "unknown flag: --np" {
			err = errors.New("-np is not a flag: set the number of processes with -n N or --ranks N")
		}
		return &usageError{cmd, inWords(err)}
	})
	flags.SetInterspersed(false) // arguments after the program belong to the program
	flags.SortFlags = false
	where.one.add(flags)
	where.add(flags)
	flags.Var(&choice[launch.Bind]{&o.Bind, []string{"none", "core", "free"}}, "bind", "free: bind each rank to a core of its own that no other sluice run of this host has claimed, or none if there are too few, if there is one rank or there are two cores for each, or if GOMAXPROCS or OMP_NUM_THREADS asks for several CPUs. core: bind rank i to the i-th CPU that sluice may use, taking one hardware thread of each core first; with more ranks than CPUs, neighbouring ranks share one. none: do not bind")
	flags.BoolVar(&o.Prefix, "prefix", false, "put [rank] before each line of output, and write only whole lines")
	flags.Var(&choice[launch.OnFailure]{&o.OnFailure, []string{"kill", "continue"}}, "on-failure", "what happens to the other ranks when a rank fails")
	flags.BoolVar(&o.Oversubscribe, "oversubscribe", false, "start the ranks even if this host probably cannot run that many")
	flags.BoolVar(&o.Same, "same", false, "end the job if its ranks do not all run the same build of the same program")
	flags.DurationVar(&o.KillGrace, "kill-grace", launch.DefaultKillGrace, "`duration` between SIGTERM and SIGKILL when ranks are ended")
	return cmd
}

func runHelp() string {
	var b strings.Builder
	b.WriteString(`Run starts N processes of a program, on this host or others, as the ranks of a job,
provides their rendezvous, and waits for all of them.

The exit status is that of the rank that failed first, 128 plus the number of
the signal if a signal killed it, or the code with which a rank aborted the
job; 126 or 127 if the program could not be started, 125 if sluice failed.

When a rank fails, the others get SIGTERM, and SIGKILL if they do not end;
with --on-failure=continue they go on. SIGINT, SIGTERM, SIGHUP, SIGQUIT,
SIGUSR1, SIGUSR2, SIGTSTP and SIGCONT are forwarded to the ranks. A second
SIGINT, SIGTERM, SIGHUP or SIGQUIT ends them, and so does the first SIGTERM after
--kill-grace. Standard input goes to rank 0.

If SIGINT, SIGTERM, SIGHUP or SIGQUIT arrives before all ranks have been started, no
more are started, and those that run are ended as after a failure.

Run refuses to start more ranks than this host can probably take: 128 for each CPU
(at least 256), and as many as RLIMIT_NPROC, RLIMIT_NOFILE, pids.max of the cgroup,
the free memory, that of the cgroup, and the kernel allow. --oversubscribe starts them
anyway; where a limit of the system would stop it, run says which to raise.

Each rank has a core of its own if there are enough that no other sluice run of this
host has claimed, and is bound to it (--bind free), unless there are two for each: such
a rank may run on several. Otherwise none is bound, and run says so. Ranks with several threads that compute need --bind none.

A program that is started without any launcher is a job of one. The innermost
launcher counts; see 'sluice help launchers' for others.

With -H or --hostfile the ranks run on those hosts. On each of them ssh, without a
question, starts this sluice again, by the same path; on this host, no ssh is needed.
The ranks have the environment of ssh's shell there, and variables given with -x. The
ranks must reach this host by TCP. The secret goes through standard input of ssh. A
host that does not answer, or whose ssh ends, is lost, and its ranks have failed.
When sluice ends, however that happens, so do the ranks.

In the shell of a Slurm allocation the hosts are its nodes, and srun starts the agents;
in a PBS job they are those of PBS_NODEFILE. --copy sends sluice and the program to
hosts that do not have them.

A colon separates several programs of one job, as in mpirun. Each has -n, -x and --wdir
of its own; its ranks follow those of the program before.

Run sets in the environment of each rank
`)
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	set := setVariables()
	for _, v := range boot.Variables() {
		if set[v.Name] {
			fmt.Fprintf(w, "  %s\t%s\n", v.Name, v.Meaning)
		}
	}
	w.Flush()
	b.WriteString("\nand removes the variables for ranks that are started by hand, even if they are\nset for sluice\n")
	for _, v := range boot.Variables() {
		if !set[v.Name] {
			fmt.Fprintf(w, "  %s\t%s\n", v.Name, v.Meaning)
		}
	}
	w.Flush()
	return strings.TrimSuffix(b.String(), "\n")
}

// setVariables returns the names of the variables that run sets for a rank.
func setVariables() map[string]bool {
	set := make(map[string]bool)
	e := boot.Environment{LocalSize: 1, Launched: true}
	for _, v := range e.Environ() {
		name, _, _ := strings.Cut(v, "=")
		set[name] = true
	}
	return set
}

// outcome reports how the job ended, on standard error and as the exit status.
func outcome(cmd *cobra.Command, r launch.Result, err error) error {
	tell := func(format string, a ...any) {
		fmt.Fprintf(cmd.ErrOrStderr(), "sluice run: "+format+"\n", a...)
	}
	if err != nil {
		if errors.Is(err, launch.ErrOptions) {
			return &usageError{cmd, err}
		}
		tell("%v", err)
		var start *launch.StartError
		var limit *launch.LimitError
		switch {
		case !errors.As(err, &limit):
		case limit.Raise != "":
			tell("--oversubscribe cannot help: raise %s", limit.Raise)
		case limit.Refused != nil:
			tell("--oversubscribe cannot help beyond %d ranks: %s: raise %s", limit.Refused.Most, limit.Refused.What, limit.Refused.Raise)
		default:
			tell("--oversubscribe starts them anyway")
		}
		switch {
		case !errors.As(err, &start):
			return statusError(statusFailed)
		case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
			return statusError(statusNotFound)
		}
		return statusError(statusNotExec)
	}
	switch {
	case r.Abort != nil:
		tell("%v", r.Abort)
	case r.Interrupted != nil:
		tell("ended by a signal before all ranks were started: %v", r.Interrupted)
	case r.First >= 0:
		tell("rank %d %s", r.First, how(r.Status[r.First]))
	}
	if s := r.ExitStatus(); s != 0 {
		return statusError(s)
	}
	return nil
}

// how describes how a rank has failed. A status above 128 may also be that of a shell whose
// own child was killed; the text fits both.
func how(status int) string {
	if status > 128 {
		return fmt.Sprintf("failed with status %d (signal: %v)", status, syscall.Signal(status-128))
	}
	return fmt.Sprintf("failed with status %d", status)
}

// choice is a flag that takes one of the names; the value is its index.
type choice[T ~int] struct {
	value *T
	names []string
}

func (c *choice[T]) String() string { return c.names[*c.value] }

func (c *choice[T]) Type() string { return strings.Join(c.names, "|") }

func (c *choice[T]) Set(s string) error {
	for i, name := range c.names {
		if s == name {
			*c.value = T(i)
			return nil
		}
	}
	return fmt.Errorf("want %s", strings.Join(c.names, " or "))
}
