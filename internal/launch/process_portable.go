//go:build !linux

package launch

import (
	"errors"
	"os"
	"syscall"
)

// reap waits for the child, ends its group, and returns its status. Between the first two steps the
// number of an empty group could, in theory, be given to another group.
func (c *child) reap() int {
	c.cmd.Wait() // for which an exit status other than 0 is an error
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reaped = true
	signalGroup(c.cmd.Process, os.Kill)
	return exitStatus(c.cmd.ProcessState.Sys().(syscall.WaitStatus))
}

// Cores lists the CPUs that Core binds to: none here.
func Cores() ([]int, error) { return nil, errors.ErrUnsupported }

// CoreOf names the core of which a CPU is a hardware thread: unknown here.
func CoreOf(int) string { return "" }

func bindThread(int) (undo func(), err error) { return nil, errors.ErrUnsupported }
