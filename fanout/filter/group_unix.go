//go:build unix

package filter

import (
	"os"
	"syscall"
)

func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// killGroup ends a process and the processes that it has started. It is no error if none is
// left.
func killGroup(p *os.Process) { syscall.Kill(-p.Pid, syscall.SIGKILL) }
