package roce

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/roce/internal/packet"
)

// groupSize is the largest number of members in these tests.
const groupSize = 4

// loopAddr is an address of the loopback interface that only this process uses.
func loopAddr(i int) string {
	pid := os.Getpid()
	return fmt.Sprintf("127.%d.%d.%d", 16*(i+1)+pid>>16&15, pid>>8&255, pid&255)
}

// member joins the group of an address.
func member(t testing.TB, addr string, number int) *udp {
	t.Helper()
	u, err := openUDP(netip.MustParseAddr(addr), 65536, groupSize)
	require.NoError(t, err)
	require.NotNil(t, u.group)
	require.Equal(t, number, u.group.number)
	require.NotEqualValues(t, packet.Port, u.local().Port())
	return u
}

// caller sends as adapters do.
type caller struct {
	*udp
	port flow // of RoCEv2
	sent uint32
}

func newCaller(t testing.TB, from, to string) *caller {
	c := &caller{udp: openWire(t, from)}
	c.port.set(c.local(), netip.AddrPortFrom(netip.MustParseAddr(to), packet.Port))
	return c
}

// call sends a packet to a QP of a member.
func (c *caller) call(number int) []byte {
	c.sent++
	h := packet.Header{Opcode: packet.Acknowledge, Migrated: true, PKey: packet.DefaultPKey, DestQP: uint32(number)<<(24-groupBits) | c.sent&0x1ffff, PSN: c.sent}
	b := c.frame(&c.port, h.Opcode.HeaderLen())
	h.Append(b[:0])
	want := append([]byte{}, b...)
	c.flush()
	return want
}

// reaches verifies that packets to a member arrive there, and nowhere else.
func (c *caller) reaches(t testing.TB, members map[int]*udp) {
	t.Helper()
	for range 3 {
		for number := range members {
			want := c.call(number)
			require.Equal(t, [][]byte{want}, awaitPackets(t, members[number], 1), "member %d", number)
		}
	}
	var into [batch]arrival
	for number, u := range members {
		require.Zero(t, u.recv(into[:]), "member %d", number)
	}
}

// Packets to the port of RoCEv2 arrive at the member that the QP's number names, whichever members
// leave and join.
func TestGroup(t *testing.T) {
	need.Full(t)
	for _, c := range []struct{ near, far string }{{"198.18.0.2", "198.18.0.1"}, {"fd00::2", "fd00::1"}} {
		t.Run(c.near, func(t *testing.T) {
			h := hosts(t, 1500)[1]
			h.ip(t, "addr", "add", "198.18.0.1/32", "dev", "lo")
			h.ip(t, "addr", "add", "fd00::1/128", "dev", "lo", "nodad")
			require.NoError(t, h.in(func() error {
				from := newCaller(t, c.far, c.near)
				defer from.close()
				members := map[int]*udp{}
				for i := range groupSize {
					members[i] = member(t, c.near, i)
				}
				from.reaches(t, members)

				more, err := openUDP(netip.MustParseAddr(c.near), 65536, groupSize)
				require.NoError(t, err)
				require.Nil(t, more.group)
				more.close()

				for _, i := range []int{1, 0} {
					members[i].close()
					delete(members, i)
					from.call(i)
					from.reaches(t, members)
				}
				for i := range 2 {
					members[i] = member(t, c.near, i)
				}
				from.reaches(t, members)

				var own flow
				own.set(from.local(), members[2].local())
				clear(from.frame(&own, 12))
				from.flush()
				awaitPackets(t, members[2], 1)

				for _, u := range members {
					u.close()
				}
				alone, err := openUDP(netip.MustParseAddr(c.near), 65536, 0)
				require.NoError(t, err)
				require.EqualValues(t, packet.Port, alone.local().Port())
				alone.close()
				return nil
			}))
		})
	}
}

// beMember joins the group of an address, and prints its number and the PSNs of arriving packets,
// until standard input ends.
func beMember(addr string) error {
	u, err := openUDP(netip.MustParseAddr(addr), 65536, groupSize)
	if err != nil {
		return err
	}
	defer u.close()
	if u.group == nil {
		return errors.New("no place")
	}
	fmt.Println(u.group.number)
	var watch []unix.PollFd
	for _, fd := range append(u.fds(), 0) {
		watch = append(watch, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	var into [batch]arrival
	var h packet.Header
	for watch[len(watch)-1].Revents == 0 {
		if _, err := unix.Poll(watch, -1); err != nil && err != unix.EINTR {
			return err
		}
		for _, a := range into[:u.recv(into[:])] {
			if _, err := h.Parse(a.pkt); err != nil {
				return err
			}
			fmt.Println(h.PSN)
		}
	}
	return nil
}

// joined is a process that is a member, without privileges.
type joined struct {
	cmd *exec.Cmd
	in  io.Closer
	out *bufio.Scanner
}

func join(t testing.TB, addr string, number uint32) *joined {
	t.Helper()
	j := &joined{cmd: ranks.Command(context.Background(), "member", addr)}
	if os.Geteuid() == 0 {
		j.cmd.Env = append(j.cmd.Env, fmt.Sprintf("%s=%d", envUser, uidNobody))
	}
	j.cmd.Stderr = os.Stderr
	in, err := j.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := j.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, j.cmd.Start())
	t.Cleanup(func() { j.kill() })
	j.in, j.out = in, bufio.NewScanner(out)
	j.says(t, number)
	return j
}

// says verifies the next number that the process prints.
func (j *joined) says(t testing.TB, want uint32) {
	t.Helper()
	late := time.AfterFunc(time.Minute, func() { j.cmd.Process.Kill() })
	defer late.Stop()
	require.True(t, j.out.Scan(), "waiting for %d", want)
	require.Equal(t, fmt.Sprint(want), j.out.Text())
}

func (j *joined) kill() {
	j.cmd.Process.Kill()
	j.cmd.Wait()
}

// A member that is killed or stopped does not affect the others; none needs privileges.
func TestGroupKilled(t *testing.T) {
	t.Parallel()
	need.Full(t)
	addr := loopAddr(0)
	from := newCaller(t, loopAddr(1), addr)
	defer from.close()
	members := map[int]*joined{}
	reached := func() {
		t.Helper()
		for range 2 {
			for i, j := range members {
				from.call(i)
				j.says(t, from.sent)
			}
		}
	}
	for i := range groupSize - 1 {
		members[i] = join(t, addr, uint32(i))
	}
	reached()

	members[0].kill() // it created the sockets
	delete(members, 0)
	from.call(0)
	reached()
	members[0] = join(t, addr, 0)
	reached()

	require.NoError(t, members[0].cmd.Process.Signal(syscall.SIGSTOP))
	members[3] = join(t, addr, 3)
	from.call(0)
	late := from.sent
	require.NoError(t, members[0].cmd.Process.Signal(syscall.SIGCONT))
	members[0].says(t, late)
	reached()

	for _, j := range members {
		require.NoError(t, j.in.Close())
		require.NoError(t, j.cmd.Wait())
	}
	again := join(t, addr, 0)
	members = map[int]*joined{0: again}
	reached()
}

// Queue pairs of several contexts of an address exchange messages with peers that send to
// the port of RoCEv2 only.
func TestGroupAdapters(t *testing.T) {
	t.Setenv(envShare, fmt.Sprint(groupSize))
	const size = 1 << 16
	type end struct {
		*place
		ep verbs.Endpoint
	}
	var ends [3][2]end
	for i := range ends {
		for k := range ends[i] {
			e := &ends[i][k]
			e.place = newPlace(t, size, func() *verbs.Context {
				dev, err := verbs.Find(loop(t))
				require.NoError(t, err)
				ctx, err := dev.Open(verbs.Config{Address: loopAddr(2 + k)})
				require.NoError(t, err)
				return ctx
			})
			var err error
			e.ep, err = e.qp.Endpoint()
			require.NoError(t, err)
			require.EqualValues(t, i, e.ep.QPNum>>(24-groupBits))
			e.ep.LID = 0
			b := e.mem.Bytes()
			for j := range b {
				b[j] = byte(j>>8 + j + 16*i + k)
			}
		}
	}
	for i := range ends {
		for k := range ends[i] {
			require.NoError(t, ends[i][k].qp.Connect(ends[i][1-k].ep, verbs.ConnectAttr{Timeout: 16}))
		}
	}
	var wg sync.WaitGroup
	for i := range ends {
		a, b := ends[i][0], ends[i][1]
		want := string(a.mem.Bytes())
		wg.Go(func() {
			a.writes(t, b.place, verbs.OpRDMAWrite, 20)
			b.writes(t, a.place, verbs.OpRDMARead, 20)
		})
		defer func() { require.True(t, want == string(b.mem.Bytes()), "member %d", i) }()
	}
	wg.Wait()
}
