package filter

import (
	"errors"

	"golang.org/x/sys/unix"
)

// reap waits for the process and ends its group in between its end and its removal: then
// the number of the group is still its own.
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
