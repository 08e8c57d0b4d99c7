//go:build unix && !linux

package impi

import "golang.org/x/sys/unix"

// rawSocket is a socket with its own system calls: a wake-up through the poller of the Go runtime
// costs ten times as much as reading. These systems read and write one piece at a time.
type rawSocket struct {
	guard
	num int
}

func (s *rawSocket) readv(bufs [][]byte) (int, error) {
	return s.why(ended(unix.Read(s.num, bufs[0])))
}

func (s *rawSocket) writev(bufs [][]byte) (int, error) {
	return s.why(result(unix.Write(s.num, bufs[0])))
}

// pollNow is poll(2) that does not wait.
func pollNow(fds []unix.PollFd) (int, error) { return unix.Poll(fds, 0) }
