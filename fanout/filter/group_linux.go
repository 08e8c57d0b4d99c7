package filter

import (
	"errors"

	"golang.org/x/sys/unix"
)

// reap waits for the process, and ends its group after it has ended but before it is removed:
// until then the process ID, and so the group's, cannot be reused.
func (p *child) reap() {
	for errors.Is(unix.Waitid(unix.P_PID, p.cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
	}
	p.mu.Lock()
	killGroup(p.cmd.Process)
	p.reaped = true
	p.mu.Unlock()
	p.cmd.Wait() // for which an exit status other than 0 is an error
	close(p.done)
}
