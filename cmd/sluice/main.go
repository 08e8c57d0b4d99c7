// Sluice runs programs as the ranks of a job, starts IMPI jobs, shows the devices of this
// host, and passes event files through filters.
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-hpc/sluice/internal/flagtext"
)

// commands are the subcommands of sluice; each is in the file of its name.
var commands = []func() *cobra.Command{
	newRun,
	newAgent,
	newServer,
	newInfo,
	newFanout,
	newGenerate,
	newXDPHelper,
	newLaunchers,
	newVersion,
}

// singleDash has the commands whose long flags may be written with one dash.
var singleDash = map[string]bool{"fanout": true, "generate": true}

// Exit statuses of sluice itself. Those for a program that could not be
// started are the shell's (POSIX, Shell Command Language, 2.8.2).
const (
	statusFailed    = 125
	statusNotExec   = 126
	statusNotFound  = 127
	statusBadUsage  = 2
	statusJustError = 1
)

// statusError ends sluice with a status. Its message has been printed.
type statusError int

func (s statusError) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// usageError is an error in the command line.
type usageError struct {
	cmd *cobra.Command
	err error
}

func (e *usageError) Error() string {
	return fmt.Sprintf("%v\nSee '%s --help'.", e.err, e.cmd.CommandPath())
}

func (e *usageError) Unwrap() error { return e.err }

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "sluice",
		Short:         "Run programs as the ranks of a job",
		SilenceUsage:  true,
		SilenceErrors: true,

		SuggestionsMinimumDistance: 2,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				err := fmt.Errorf("unknown command %q", args[0])
				if meant := cmd.SuggestionsFor(args[0]); len(meant) > 0 {
					err = fmt.Errorf("%w; did you mean %q?", err, meant[0])
				}
				return &usageError{cmd, err}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.Flags().SetInterspersed(false) // what follows a command that there is not, is not for sluice
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if cmd == root {
			err = fmt.Errorf("%w: give flags after the command, as in 'sluice run -n 4 program'", err)
		}
		return &usageError{cmd, inWords(err)}
	})
	for _, c := range commands {
		root.AddCommand(c())
	}
	root.InitDefaultHelpCmd()
	if help, _, err := root.Find([]string{"help"}); err == nil {
		help.Args = func(_ *cobra.Command, args []string) error {
			if c, rest, err := root.Find(args); err == nil && c == root {
				return root.Args(root, rest)
			}
			return nil
		}
	}
	return root
}

// inWords says what is wrong with the value of a flag, if err is about that.
func inWords(err error) error {
	bad := (*pflag.InvalidValueError)(nil)
	if !errors.As(err, &bad) {
		return err
	}
	f := bad.GetFlag()
	return flagtext.Invalid(f.Name, f.Shorthand, bad.GetValue(), f.Value.Type(), bad.Unwrap())
}

func main() { os.Exit(run()) }

func run() int {
	root := newRoot()
	args := os.Args[1:]
	if len(args) > 0 && singleDash[args[0]] {
		if c, _, err := root.Find(args[:1]); err == nil {
			args = append(args[:1:1], oneDash(c.Flags(), args[1:])...)
		}
	}
	root.SetArgs(args)
	cmd, err := root.ExecuteC()
	if err == nil {
		return 0
	}
	var status statusError
	if errors.As(err, &status) {
		return int(status)
	}
	fmt.Fprintf(os.Stderr, "%s: %v\n", cmd.CommandPath(), err)
	var usage *usageError
	if errors.As(err, &usage) {
		return statusBadUsage
	}
	return statusJustError
}
