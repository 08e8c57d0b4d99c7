//go:build unix

package launch

import (
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
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
func exitStatus(s syscall.WaitStatus) int {
	if s.Signaled() {
		return 128 + int(s.Signal())
	}
	return s.ExitStatus()
}

// readNow reads what is in a pipe. It does not wait: an empty one is at its end.
func readNow(f *os.File, b []byte) (n int, err error) {
	if err := f.SetReadDeadline(time.Time{}); err != nil {
		return 0, err
	}
	conn, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	failed := conn.Read(func(fd uintptr) bool {
		for n, err = unix.Read(int(fd), b); err == unix.EINTR; n, err = unix.Read(int(fd), b) {
		}
		return true
	})
	switch {
	case failed != nil:
		return 0, failed
	case err == nil && n > 0:
		return n, nil
	}
	return 0, io.EOF
}

// foreground reads a terminal while this process is in its foreground, until ended: a process in the
// background is stopped for it (SIGTTIN).
type foreground struct {
	file  *os.File
	ended <-chan struct{}
}

// turnover is how often the foreground is looked at: shells wake what they bring there (SIGCONT), others
// may not.
const turnover = time.Second

func (f *foreground) Read(b []byte) (int, error) {
	woken := make(chan os.Signal, 1)
	signal.Notify(woken, syscall.SIGCONT)
	defer signal.Stop(woken)
	fd := int(f.file.Fd())
	front := func() bool {
		group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
		return err != nil || group == unix.Getpgrp() // an error: another session's, where nothing is stopped
	}
	for {
		if front() {
			p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			n, err := unix.Poll(p, int(turnover.Milliseconds()))
			if (n > 0 || err != nil && err != unix.EINTR) && front() {
				return f.file.Read(b)
			}
			select {
			case <-f.ended:
				return 0, io.EOF
			default:
			}
			continue
		}
		select {
		case <-woken:
		case <-time.After(turnover):
		case <-f.ended:
			return 0, io.EOF
		}
	}
}
