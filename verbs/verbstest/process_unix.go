//go:build unix

package verbstest

import (
	"os"
	"syscall"
)

// canPause: a process can be stopped and continued.
const canPause = true

func pause(p *os.Process) error  { return p.Signal(syscall.SIGSTOP) }
func resume(p *os.Process) error { return p.Signal(syscall.SIGCONT) }

// askForStacks ends a hung child with the stacks of its goroutines on standard error.
func askForStacks(p *os.Process) {
	p.Signal(syscall.SIGQUIT) // an error means that it is gone already
}
