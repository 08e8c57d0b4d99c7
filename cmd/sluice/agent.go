package main

import (
	"os"
	"os/signal"

	"github.com/spf13/cobra"

	"github.com/sluice-hpc/sluice/internal/launch"
)

// newAgent is what 'sluice run' starts on other hosts.
func newAgent() *cobra.Command {
	folder := ""
	cmd := &cobra.Command{
		Use:    launch.AgentCommand,
		Short:  "Start the ranks that 'sluice run' on another host asks for",
		Hidden: true,
		Args:   noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// A launcher that is gone is an error of writing, not a signal. Ignored, it would be so for the
			// ranks, too.
			signal.Notify(make(chan os.Signal, 1), brokenPipe...)
			return launch.Agent(cmd.Context(), os.Stdin, os.Stdout, cmd.ErrOrStderr(), folder)
		},
	}
	cmd.Flags().StringVar(&folder, "folder", "", "`folder` for programs that are sent along")
	return cmd
}
