//go:build unix

package launch

import (
	"os"
	"syscall"
)

// Signals returns the signals that are worth forwarding on this system.
func Signals() []os.Signal {
	return []os.Signal{
		syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT,
		syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGTSTP, syscall.SIGCONT,
	}
}

var (
	terminate       os.Signal = syscall.SIGTERM
	endSignals                = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}
	stopSignals               = []os.Signal{syscall.SIGTSTP}
	continueSignals           = []os.Signal{syscall.SIGCONT}
)

// signalGroup sends s to the group that p leads. The only possible error is that the group is
// empty, which does not matter.
func signalGroup(p *os.Process, s os.Signal) {
	if s, ok := s.(syscall.Signal); ok {
		syscall.Kill(-p.Pid, s)
	}
}

// stopSelf stops this process until SIGCONT comes. It cannot use SIGTSTP: once asked for that
// signal, the Go runtime does not restore its default.
func stopSelf() { syscall.Kill(os.Getpid(), syscall.SIGSTOP) }

// exitStatus returns the status as a shell reports it.
func exitStatus(p *os.ProcessState) int {
	if s, ok := p.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		return 128 + int(s.Signal())
	}
	return p.ExitCode()
}
