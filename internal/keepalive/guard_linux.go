package keepalive

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Watch has silent called when the other host has acknowledged nothing for d, neither data nor probes
// of a zero window, and then again and again until the socket is closed. It is called within
// [Socket.Control]. A process that is stopped is not silent, nor is an idle connection: that is for
// the keep-alive probes. Not for connections within this host.
func Watch(s Socket, d time.Duration, silent func(error)) {
	w := &watch{socket: s, d: d, silent: silent, pause: min(max(d/4, minPause), maxPause), last: time.Now()}
	time.AfterFunc(w.pause, w.look)
}

// Watchable says whether [Watch] sees anything of a connected socket: a sandbox may refuse TCP_INFO, or
// fill in little of it.
func Watchable(s Socket) (yes bool) {
	err := s.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		yes = err == nil && info.Snd_mss > 0 // gVisor fills in neither this nor what see needs
	})
	return yes && err == nil
}

// Bounds of the pause between looks.
const (
	minPause = 50 * time.Millisecond
	maxPause = 5 * time.Second
)

// unanswered is how many transmissions without an answer are silence: retransmissions and probes may be
// two minutes apart, and a network may lose one.
const unanswered = 2

type watch struct {
	socket Socket
	d      time.Duration
	silent func(error)
	pause  time.Duration

	last        time.Time // of the look before
	looks       int       // that have found no answer, without a break
	retransmits uint8     // before these
}

func (w *watch) look() {
	err := w.socket.Control(func(fd uintptr) {
		now := time.Now()
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err == nil && w.see(info, time.Since(w.last)) {
			w.silent(os.NewSyscallError(fmt.Sprintf("no acknowledgement for %v", w.d), unix.ETIMEDOUT))
		}
		w.last = now
	})
	if err == nil {
		time.AfterFunc(w.pause, w.look)
	}
}

// see says whether the other host is silent, after a time since the look before. A look that comes
// late, because this process was stopped, counts as one.
func (w *watch) see(info *unix.TCPInfo, since time.Duration) bool {
	waits := info.Unacked > 0 || info.Probes > 0 // the next acknowledgement sets Probes to 0
	if !waits || time.Duration(info.Last_ack_recv)*time.Millisecond < since {
		w.looks, w.retransmits = 0, info.Retransmits
		return false
	}
	w.looks++ // the first may have come right after the data
	// The other kernel may also answer retransmissions with a zero window: these continue the count.
	sent := int(info.Retransmits-w.retransmits) + int(info.Probes)
	return time.Duration(w.looks-1)*w.pause >= w.d && sent >= unanswered
}
