//go:build !linux

package reap

import (
	"os/exec"
	"syscall"
)

// Wait waits for the end of a process and of the copying of its output, calls ended, and returns the
// status of the process. Before the call of ended the number of an empty group could, in theory, be
// given to another group.
func Wait(cmd *exec.Cmd, ended func()) syscall.WaitStatus {
	cmd.Wait() // for which an exit status other than 0 is an error
	ended()
	if p := cmd.ProcessState; p != nil {
		return p.Sys().(syscall.WaitStatus)
	}
	return unknown
}
