package keepalive

import (
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/netns"
	"github.com/sluice-hpc/sluice/internal/test/need"
)

// TestSee: what counts as silence for a second, looked at each quarter.
func TestSee(t *testing.T) {
	const d, pause = time.Second, time.Second / 4
	for name, c := range map[string]struct {
		info   unix.TCPInfo
		since  time.Duration // the look before; pause if 0
		silent bool
	}{
		"idle":                     {info: unix.TCPInfo{Last_ack_recv: 5000}},
		"retransmissions":          {info: unix.TCPInfo{Last_ack_recv: 5000, Unacked: 1, Retransmits: 2}, silent: true},
		"probes":                   {info: unix.TCPInfo{Last_ack_recv: 5000, Probes: 2}, silent: true},
		"one lost retransmission":  {info: unix.TCPInfo{Last_ack_recv: 5000, Unacked: 1, Retransmits: 1}},
		"one lost probe":           {info: unix.TCPInfo{Last_ack_recv: 5000, Probes: 1}},
		"answered":                 {info: unix.TCPInfo{Last_ack_recv: 200, Unacked: 1, Retransmits: 2}},
		"answered, this one stood": {info: unix.TCPInfo{Last_ack_recv: 5000, Unacked: 1, Retransmits: 2}, since: 6 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			w := &watch{d: d, pause: pause}
			since := c.since
			if since == 0 {
				since = pause
			}
			for range d / pause {
				require.False(t, w.see(&c.info, since))
			}
			require.Equal(t, c.silent, w.see(&c.info, since))
			answer := c.info
			answer.Last_ack_recv, answer.Probes = 0, 0
			require.False(t, w.see(&answer, since))
			for range 2 * d / pause { // retransmissions that were answered do not count
				again := c.info
				again.Probes = min(again.Probes, 1)
				require.False(t, w.see(&again, since))
			}
		})
	}
}

// TestGuard: a host that falls silent, and one whose process does not read.
func TestGuard(t *testing.T) {
	need.Networks(t)
	need.Full(t)
	const d = time.Second
	for name, c := range map[string]struct{ full, down bool }{
		"data to a silent host":       {down: true},
		"zero window of a silent one": {full: true, down: true},
		"zero window of a stopped":    {full: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // they wait
			star, err := netns.NewStar(2)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, star.Close()) })
			conn, l, err := star.Connect()
			require.NoError(t, err)
			defer l.Close()
			far, err := l.Accept()
			require.NoError(t, err)
			defer far.Close()
			conn = Guard(conn, d)
			defer conn.Close()
			require.IsType(t, &Guarded{}, conn)
			const size = 32 << 20 // more than sockets hold
			written := make(chan error, 1)
			if c.full {
				go func() {
					_, err := conn.Write(make([]byte, size))
					written <- err
				}()
				awaitZeroWindow(t, conn.(*Guarded))
			}
			if !c.down {
				time.Sleep(5 * d)
				_, err := io.ReadFull(far, make([]byte, size))
				require.NoError(t, err)
				require.NoError(t, <-written)
				return
			}
			require.NoError(t, star.Hosts[1].Vanish())
			if c.full {
				require.ErrorIs(t, <-written, syscall.ETIMEDOUT)
			} else {
				_, err := conn.Write([]byte("unacknowledged"))
				require.NoError(t, err)
			}
			_, err = conn.Read(make([]byte, 1))
			require.ErrorIs(t, err, syscall.ETIMEDOUT)
			require.ErrorContains(t, err, "no acknowledgement for 1s")
			silent, ok := err.(net.Error)
			require.True(t, ok && silent.Timeout())
		})
	}
}

// awaitZeroWindow waits until the other kernel has answered probes of its zero window.
func awaitZeroWindow(t *testing.T, g *Guarded) {
	raw, err := g.Conn.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	for backoff := uint8(0); backoff < 2; time.Sleep(time.Millisecond) {
		require.NoError(t, raw.Control(func(fd uintptr) {
			info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
			require.NoError(t, err)
			if backoff = 0; info.Unacked == 0 && info.Notsent_bytes > 0 {
				backoff = info.Backoff
			}
		}))
	}
}
