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
	}
	cmd := &cobra.Command{
		Use:   "run [-n N] [flags] [--] program [argument]...",
		Short: "Run N processes of a program on this host as the ranks of a job",
		Long:  runHelp(),
		Example: `  sluice run -n 2 ./pingpong
  sluice run -n 4 --bind core --prefix -- ./solve --grid 64`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return &usageError{cmd, errors.New("no program to run")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Args = args
			r, err := launch.Run(cmd.Context(), o)
			return outcome(cmd, r, err)
		},
	}
	flags := cmd.Flags()
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		// What mpirun and mpiexec have, too.
		bad := (*pflag.InvalidValueError)(nil)
		if errors.As(err, &bad) && bad.GetFlag().Name == "ranks" && strings.TrimRight(bad.GetValue(), "=0123456789") == "p" || err.Error() == "unknown flag: --np" {
			err = errors.New("-np: the number of processes is -n N, or --ranks N")
		}
		return &usageError{cmd, err}
	})
	flags.SetInterspersed(false) // what follows the program is the program's
	flags.SortFlags = false
	flags.IntVarP(&o.Size, "ranks", "n", 1, "`number` of processes")
	flags.Var(&choice[launch.Bind]{&o.Bind, []string{"none", "core"}}, "bind", "core: bind rank i to the i-th CPU that sluice may use, one of each core before further hardware threads; with more ranks than CPUs, neighbours share one; or none")
	flags.BoolVar(&o.Prefix, "prefix", false, "put [rank] before each line of output, and write whole lines only")
	flags.Var(&choice[launch.OnFailure]{&o.OnFailure, []string{"kill", "continue"}}, "on-failure", "what happens to the others when a rank fails")
	flags.BoolVar(&o.Oversubscribe, "oversubscribe", false, "start the ranks even if this host is believed not to bear as many")
	flags.DurationVar(&o.KillGrace, "kill-grace", launch.DefaultKillGrace, "`duration` between SIGTERM and SIGKILL for ranks that are to end")
	return cmd
}

func runHelp() string {
	var b strings.Builder
	b.WriteString(`Run starts N processes of a program on this host, the ranks of a job, gives
them a rendezvous, and waits for all of them.

The exit status is that of the rank that failed first, 128 plus the number of
the signal if it was killed by one, or the code with which a rank aborted the
job; 126 or 127 if the program could not be started, 125 if sluice failed.

When a rank fails, the others get SIGTERM, and SIGKILL if they do not end;
with --on-failure=continue they go on. SIGINT, SIGTERM, SIGHUP, SIGQUIT,
SIGUSR1, SIGUSR2, SIGTSTP and SIGCONT are forwarded to the ranks. A second
SIGINT, SIGTERM, SIGHUP or SIGQUIT ends them. Standard input goes to rank 0.

SIGINT, SIGTERM, SIGHUP or SIGQUIT that comes before all ranks have been started
ends those that have been, as when a rank fails, and no more are started.

Before anything is started, N is compared with what this host bears: 128 ranks a
CPU (and 256 in any case), and what RLIMIT_NPROC, RLIMIT_NOFILE, pids.max of the
cgroup, the memory that is free, and the kernel leave. More than that is an error,
unless --oversubscribe says that it is meant.

A program that is started without any launcher is a job of one. The innermost
launcher counts; see 'sluice help launchers' for others.

Each rank finds in its environment
`)
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	set := setVariables()
	for _, v := range boot.Variables() {
		if set[v.Name] {
			fmt.Fprintf(w, "  %s\t%s\n", v.Name, v.Meaning)
		}
	}
	w.Flush()
	b.WriteString("\nand not, whatever the environment of sluice says, what is for ranks that are\nstarted by hand\n")
	for _, v := range boot.Variables() {
		if !set[v.Name] {
			fmt.Fprintf(w, "  %s\t%s\n", v.Name, v.Meaning)
		}
	}
	w.Flush()
	return strings.TrimSuffix(b.String(), "\n")
}

// setVariables are the names of those that a rank is given.
func setVariables() map[string]bool {
	set := make(map[string]bool)
	e := boot.Environment{LocalSize: 1, Launched: true}
	for _, v := range e.Environ() {
		name, _, _ := strings.Cut(v, "=")
		set[name] = true
	}
	return set
}

// outcome tells how the job ended, on standard error and as the exit status.
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
		if errors.As(err, new(*launch.LimitError)) {
			tell("--oversubscribe starts them all the same")
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

// how says in words how a rank has failed. A status above 128 may also be
// that of a shell whose own child was killed; the words fit both.
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
