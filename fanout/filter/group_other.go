//go:build !unix

package filter

import (
	"os"
	"syscall"
)

func attributes() *syscall.SysProcAttr { return nil }

// killGroup ends a process: there are no process groups here.
func killGroup(p *os.Process) { p.Kill() }
