//go:build unix

package main

import (
	"os/exec"
	"syscall"
)

// inOwnGroup makes cancelling cmd end what it has started as well: SIGTERM to
// the group, which MPI's launchers clean up after.
func inOwnGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
}
