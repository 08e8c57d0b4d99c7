//go:build unix

package filter

import (
	"os"
	"syscall"
)

func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// killGroup ends a process and what it has started. That there is nobody left is no
// error.
func killGroup(p *os.Process) { syscall.Kill(-p.Pid, syscall.SIGKILL) }
