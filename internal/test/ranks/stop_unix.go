//go:build unix

package ranks

import (
	"bytes"
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// Stop stops a process, and returns when all its threads have stopped, as far as the system says: they may run
// on for a while, and answer.
func Stop(ctx context.Context, pid int) error {
	err := syscall.Kill(pid, syscall.SIGSTOP)
	for err == nil && !stopped(pid) {
		time.Sleep(100 * time.Microsecond)
		err = ctx.Err()
	}
	return err
}

// stopped says whether no thread of a process runs: see proc_pid_stat(5).
func stopped(pid int) bool {
	files, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/stat") // the pattern is sound
	for _, file := range files {
		b, err := os.ReadFile(file)
		if _, state, _ := bytes.Cut(b, []byte(") ")); err == nil && !bytes.ContainsAny(state[:min(len(state), 1)], "TZX") {
			return false
		}
	}
	return true
}

// StopSelf stops this process, and returns when it goes on: the thread may run on for a while.
func StopSelf() error {
	goesOn := make(chan os.Signal, 1)
	signal.Notify(goesOn, syscall.SIGCONT)
	defer signal.Stop(goesOn)
	err := syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	<-goesOn
	return err
}

// Forever waits for a signal that ends the process.
func Forever() {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGWINCH) // the runtime sees no deadlock
	<-c
}
