//go:build unix

package ranks

import (
	"os"
	"os/signal"
	"syscall"
)

// StopSelf stops this process, and returns when it goes on: the thread may run on for a while.
func StopSelf() error {
	goesOn := make(chan os.Signal, 1)
	signal.Notify(goesOn, syscall.SIGCONT)
	defer signal.Stop(goesOn)
	err := syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	<-goesOn
	return err
}
