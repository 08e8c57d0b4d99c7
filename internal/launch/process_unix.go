//go:build unix

package launch

import (
	"os"
	"syscall"
)

// Signals returns those that are worth forwarding on this system.
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

// signalGroup sends s to the group that p leads. That there is nobody left in
// it is no error, and there is no other.
func signalGroup(p *os.Process, s os.Signal) {
	if s, ok := s.(syscall.Signal); ok {
		syscall.Kill(-p.Pid, s)
	}
}

// stopSelf stops this process until SIGCONT comes. It cannot be by SIGTSTP: the
// Go runtime, once asked for that signal, does not give it back its default.
func stopSelf() { syscall.Kill(os.Getpid(), syscall.SIGSTOP) }

// exitStatus is the status as a shell would say it.
func exitStatus(p *os.ProcessState) int {
	if s, ok := p.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		return 128 + int(s.Signal())
	}
	return p.ExitCode()
}
