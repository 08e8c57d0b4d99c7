package reap

import (
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// Wait waits for the end of a process and of the copying of its output, and returns its status. It
// calls ended between the end of the process and its removal, while its number, and that of the group
// that it leads, still belongs to it; a moment later if the system refuses both waitid(2) and pidfds.
// If it refuses waitid(2), cmd.ProcessState stays nil: package os waits with it.
func Wait(cmd *exec.Cmd, ended func()) (status syscall.WaitStatus) {
	pid := cmd.Process.Pid
	there := poll(pid)
	for err := error(unix.EINTR); !there && err == unix.EINTR; {
		err = unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		there = err == nil
	}
	if !there {
		status = remove(pid)
	}
	ended()
	cmd.Wait() // for which an exit status other than 0 is an error
	if p := cmd.ProcessState; p != nil {
		return p.Sys().(syscall.WaitStatus)
	}
	if there {
		status = remove(pid)
	}
	return status
}

// remove waits for the end of a child with wait4(2).
func remove(pid int) (s syscall.WaitStatus) {
	for {
		switch _, err := syscall.Wait4(pid, &s, 0, nil); err {
		case nil:
			return s
		case syscall.EINTR:
		default:
			return unknown
		}
	}
}

// poll returns when the child has ended, or earlier, with false, if its end cannot be polled for, as
// before Linux 5.10. Unlike waitid(2) it takes no OS thread, of which a program can have at most 10,000.
func poll(pid int) (ended bool) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return false
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	defer f.Close()
	conn, err := f.SyscallConn()
	if err != nil {
		return false
	}
	err = conn.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		ended = n == 1
		return ended || err != nil && err != unix.EINTR
	})
	return ended && err == nil
}
