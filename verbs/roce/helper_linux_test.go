package roce

import (
	"errors"
	"net"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
	"github.com/sluice-hpc/sluice/internal/xdp"
)

// as runs f on a thread of this user and group, in a host, without privileges, which then ends.
func as(t testing.TB, h host, id int, f func() error) error {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good
		done <- h.in(func() error {
			runtime.LockOSThread()
			for _, call := range [][4]uintptr{{unix.SYS_SETGROUPS}, {unix.SYS_SETRESGID, uintptr(id), uintptr(id), uintptr(id)}, {unix.SYS_SETRESUID, uintptr(id), uintptr(id), uintptr(id)}} {
				if _, _, errno := syscall.RawSyscall(call[0], call[1], call[2], call[3]); errno != 0 {
					return errno
				}
			}
			return f()
		})
	}()
	err := <-done
	if id != 0 && err == unix.EPERM {
		return nil // the way back to the other namespace is closed to it
	}
	return err
}

// bound makes a socket.
func bound(t testing.TB, h host, domain, kind int, addr unix.Sockaddr) int {
	t.Helper()
	fd := -1
	require.NoError(t, h.in(func() (err error) {
		if fd, err = unix.Socket(domain, kind|unix.SOCK_CLOEXEC, 0); err == nil {
			err = unix.Bind(fd, addr)
		}
		return err
	}))
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func attached(t testing.TB, h host) bool {
	t.Helper()
	out, err := exec.Command("ip", "-n", string(h), "link", "show", "veth0").CombinedOutput()
	require.NoError(t, err)
	return strings.Contains(string(out), "xdp")
}

// The helper gives seats to its group, for addresses of their sockets. It attaches the program for the
// first process, and detaches it when the last is gone.
func TestXDPHelper(t *testing.T) {
	t.Parallel()
	needXDP(t)
	need.Networks(t)
	need.Full(t)
	two := hosts(t, 1500)
	near, far := two[1], two[0]
	path, log := startHelper(t, near)
	near.ip(t, "addr", "add", "198.18.0.9/24", "dev", "veth0")
	own := bound(t, near, unix.AF_INET, unix.SOCK_DGRAM, &unix.SockaddrInet4{Addr: [4]byte{198, 18, 0, 2}})

	var seat *xdp.Seat
	ask := func(h host, id int, netdev string, udp int) (err error) {
		var asked error
		require.NoError(t, as(t, h, id, func() error {
			seat, asked = xdp.Ask(path, netdev, udp)
			return nil
		}))
		return asked
	}
	refused := func(what string, err error) {
		t.Helper()
		require.ErrorIs(t, err, xdp.ErrForbidden, what)
		require.ErrorContains(t, err, what)
		require.True(t, log.Scan())
		require.Contains(t, log.Text(), what)
	}
	require.False(t, attached(t, near))
	refused("not in group 65534", ask(near, 1000, "veth0", own))
	refused("interface", ask(near, uidNobody, "lo", own))
	require.False(t, attached(t, near))
	for _, c := range []struct {
		what string
		udp  int
	}{
		{"address 198.18.0.9", bound(t, near, unix.AF_INET, unix.SOCK_DGRAM, &unix.SockaddrInet4{Addr: [4]byte{198, 18, 0, 9}})},
		{"network namespace other than the helper's", bound(t, far, unix.AF_INET, unix.SOCK_DGRAM, &unix.SockaddrInet4{Addr: [4]byte{198, 18, 0, 1}})},
		{"bound to 0.0.0.0", bound(t, near, unix.AF_INET, unix.SOCK_DGRAM, &unix.SockaddrInet4{Port: 5000})},
		{"not a UDP socket", bound(t, near, unix.AF_INET, unix.SOCK_STREAM, &unix.SockaddrInet4{Addr: [4]byte{198, 18, 0, 2}})},
		{"not a UDP socket", bound(t, near, unix.AF_UNIX, unix.SOCK_DGRAM, &unix.SockaddrUnix{})},
	} {
		err := ask(near, uidNobody, "veth0", c.udp)
		for c.what != "network namespace other than the helper's" && log.Scan() && !strings.Contains(log.Text(), "detached") {
			// Looking at the address comes after attaching.
		}
		refused(c.what, err)
		require.False(t, attached(t, near), c.what)
	}

	require.NoError(t, ask(near, uidNobody, "veth0", own))
	first := seat
	require.True(t, attached(t, near))
	require.True(t, log.Scan())
	require.Contains(t, log.Text(), "attached")
	require.True(t, log.Scan())
	require.Contains(t, log.Text(), "seat taken")
	refused("another user", ask(near, 0, "veth0", own))
	other := bound(t, near, unix.AF_INET, unix.SOCK_DGRAM, &unix.SockaddrInet4{Addr: [4]byte{198, 18, 0, 2}})
	require.NoError(t, ask(near, uidNobody, "veth0", other))
	require.True(t, log.Scan())
	require.Contains(t, log.Text(), "seat taken")
	seat.Close()
	require.True(t, log.Scan())
	require.Contains(t, log.Text(), "seat free")
	require.True(t, attached(t, near))
	first.Close()
	for !strings.Contains(log.Text(), "detached") {
		require.True(t, log.Scan())
	}
	require.False(t, attached(t, near))
}

// Unread packets of a killed seat do not take memory from the seats that stay.
func TestSeatsReclaimed(t *testing.T) {
	t.Parallel()
	needXDP(t)
	need.Networks(t)
	need.Full(t)
	two := hosts(t, 1500)
	from, stays := openExpress(t, two[0], "198.18.0.1"), openExpress(t, two[1], "198.18.0.2")
	defer from.close()
	defer stays.close()
	f := meet(t, from, stays)
	ring := stays.seat.Shape().Ring
	for range 2 * stays.seat.Shape().Seats {
		leaves := openExpress(t, two[1], "198.18.0.2")
		g := new(flow)
		g.set(from.local(), leaves.local())
		for i := range 2 * ring {
			clear(from.frame(g, 12))
			if i%32 == 31 {
				from.flush()
			}
		}
		leaves.close()
		// More arrives than could if the frames were lost. The kernel may drop some if it is
		// behind.
		var into [batch]arrival
		want := stays.stats.received.Load() + uint64(ring/2)
		for end := time.Now().Add(ranks.Limit); stays.stats.received.Load() < want; {
			require.True(t, time.Now().Before(end), "nothing arrives any more")
			for range 32 {
				clear(from.frame(f, 12))
			}
			from.flush()
			unix.Poll([]unix.PollFd{{Fd: int32(stays.seat.FD()), Events: unix.POLLIN}}, 10)
			for stays.recv(into[:]) > 0 {
			}
		}
	}
}

// A client that closes its connection but keeps the descriptors still occupies the queue. All
// requests in the meantime fail and say so, even concurrent ones; a seat is granted once it is free.
func TestHelperKeptDescriptors(t *testing.T) {
	t.Parallel()
	needXDP(t)
	need.Networks(t)
	need.Full(t)
	near := hosts(t, 1500)[1]
	path, log := startHelper(t, near)
	own := bound(t, near, unix.AF_INET, unix.SOCK_DGRAM, &unix.SockaddrInet4{Addr: [4]byte{198, 18, 0, 2}})
	var kept []int
	require.NoError(t, as(t, near, uidNobody, func() error {
		c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
		if err != nil {
			return err
		}
		defer c.Close()
		if _, _, err := c.WriteMsgUnix([]byte(`{"interface":"veth0"}`), unix.UnixRights(own), nil); err != nil {
			return err
		}
		b, oob := make([]byte, 4096), make([]byte, 256)
		_, n, _, _, err := c.ReadMsgUnix(b, oob)
		if err != nil {
			return err
		}
		messages, err := unix.ParseSocketControlMessage(oob[:n])
		for i := range messages {
			fds, _ := unix.ParseUnixRights(&messages[i])
			kept = append(kept, fds...)
		}
		return err
	}))
	closeKept := sync.OnceFunc(func() {
		for _, fd := range kept {
			unix.Close(fd)
		}
	})
	defer closeKept()
	require.Len(t, kept, 3)
	for !strings.Contains(log.Text(), "detached") {
		require.True(t, log.Scan())
	}
	go func() {
		for log.Scan() {
		}
	}()
	ask := func() (seat *xdp.Seat, err error) {
		asked := as(t, near, uidNobody, func() error {
			seat, err = xdp.Ask(path, "veth0", own)
			return nil
		})
		return seat, errors.Join(asked, err)
	}
	var all sync.WaitGroup
	errs := make([]error, 6) // more than fit into the time that one waits, were it one by one
	for i := range errs {
		all.Go(func() { _, errs[i] = ask() })
	}
	all.Wait()
	for _, err := range errs {
		require.ErrorContains(t, err, "has not closed its descriptors")
	}
	closeKept()
	var seat *xdp.Seat
	var err error
	for end := time.Now().Add(30 * time.Second); seat == nil; seat, err = ask() {
		require.True(t, time.Now().Before(end), "%v", err)
	}
	seat.Close()
}
