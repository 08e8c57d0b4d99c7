package roce

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/verbs"
)

// link is two networks that a veth pair joins. Each can drop some of what comes in, one
// packet by one: the kernel cuts what leaves before it goes to the device.
//
//	   network one                 network two
//	+--------------+            +--------------+
//	|  198.18.2.1  | -- veth -- |  198.18.2.2  |
//	+--------------+            +--------------+
type link struct{ names [2]string }

func newLink(t testing.TB) *link {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a network namespace needs root")
	}
	l := &link{[2]string{fmt.Sprintf("roceA%d", os.Getpid()), fmt.Sprintf("roceB%d", os.Getpid())}}
	for _, name := range l.names {
		command(t, "ip netns add "+name)
		t.Cleanup(func() { command(t, "ip netns del "+name) })
	}
	command(t, fmt.Sprintf("ip -n %s link add veth0 type veth peer name veth0 netns %s", l.names[0], l.names[1]))
	for i, name := range l.names {
		command(t, fmt.Sprintf("ip -n %s addr add 198.18.2.%d/24 dev veth0", name, i+1))
		command(t, fmt.Sprintf("ip -n %s link set veth0 up", name))
	}
	return l
}

func command(t testing.TB, line string) {
	t.Helper()
	words := strings.Fields(line)
	out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
	require.NoError(t, err, "%s: %s", line, out)
}

// lose has both networks drop so many of a thousand packets that come in.
func (l *link) lose(t testing.TB, perMille int) {
	for _, name := range l.names {
		command(t, fmt.Sprintf("ip -n %s link set veth0 gso_max_segs 1", name))
		if perMille > 0 {
			command(t, fmt.Sprintf("ip netns exec %s nft table inet lossy { chain in { type filter hook input priority 0; iifname veth0 numgen random mod 1000 < %d drop; }; }", name, perMille))
		}
	}
}

// inside runs something in one of the networks: sockets that it makes stay there.
func (l *link) inside(t testing.TB, i int, do func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		f, err := os.Open("/run/netns/" + l.names[i])
		if err == nil {
			err = unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
			f.Close()
		}
		if err == nil {
			err = do()
		}
		done <- err
	}()
	require.NoError(t, <-done)
}

// place is an end of a connection over a link.
type place struct {
	ctx *verbs.Context
	cq  *verbs.CQ
	qp  *verbs.QP
	mem *verbs.MR
}

// connect connects a queue pair in each network, with so many bytes of memory.
func (l *link) connect(t testing.TB, size int) [2]*place {
	return connect(t, size, func(i int) (ctx *verbs.Context) {
		l.inside(t, i, func() error {
			dev, err := verbs.Find("roce_veth0")
			if err == nil {
				ctx, err = dev.Open(verbs.Config{})
			}
			return err
		})
		return ctx
	})
}

// connect connects a queue pair of each of two contexts, with so many bytes of memory.
func connect(t testing.TB, size int, open func(i int) *verbs.Context) (ends [2]*place) {
	for i := range ends {
		ends[i] = newPlace(t, size, func() *verbs.Context { return open(i) })
	}
	for i, e := range ends {
		remote, err := ends[1-i].qp.Endpoint()
		require.NoError(t, err)
		require.NoError(t, e.qp.Connect(remote, verbs.ConnectAttr{Timeout: 16}))
	}
	return ends
}

func newPlace(t testing.TB, size int, open func() *verbs.Context) *place {
	e := &place{ctx: open()}
	t.Cleanup(func() { require.NoError(t, e.ctx.Close()) })
	pd, err := e.ctx.AllocPD()
	require.NoError(t, err)
	e.cq, err = e.ctx.CreateCQ(64, nil)
	require.NoError(t, err)
	e.qp, err = pd.CreateQP(verbs.QPInitAttr{SendCQ: e.cq, RecvCQ: e.cq, Cap: verbs.QPCap{MaxSendWR: 32, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}})
	require.NoError(t, err)
	e.mem, err = pd.AllocMR(size, verbs.AccessAll)
	require.NoError(t, err)
	return e
}

const lossySize = 64 << 10

// writes writes so many messages from an end to the other, eight at a time, each to a
// place of its own.
func (e *place) writes(t testing.TB, to *place, op verbs.Opcode, messages int) {
	room := len(e.mem.Bytes()) / lossySize
	var wcs [8]verbs.WC
	for posted, done := 0, 0; done < messages; {
		for posted < messages && posted-done < 8 {
			at := posted % room * lossySize
			_, err := e.qp.PostSend([]verbs.SendWR{{Opcode: op, Flags: verbs.SendSignaled, SGList: []verbs.SGE{e.mem.SGE(at, lossySize)},
				RemoteAddr: to.mem.Addr() + uint64(at), RKey: to.mem.RKey()}})
			require.NoError(t, err)
			posted++
		}
		n, err := e.cq.Poll(wcs[:])
		require.NoError(t, err)
		for i := range wcs[:n] {
			require.NoError(t, wcs[i].Err())
		}
		done += n
	}
}

// TestLossyPath: every byte arrives where one packet in a hundred does not, each way, of
// what is written and of what is read.
func TestLossyPath(t *testing.T) {
	l := newLink(t)
	l.lose(t, 10)
	const messages = 64
	ends := l.connect(t, messages*lossySize)
	for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead} {
		for i, e := range ends {
			b := e.mem.Bytes()
			for k := range b {
				b[k] = byte(k>>8) + byte(k) + byte(100*i)
			}
		}
		want := append([]byte{}, ends[0].mem.Bytes()...)
		into := ends[1]
		if op == verbs.OpRDMARead {
			want, into = append([]byte{}, ends[1].mem.Bytes()...), ends[0]
		}
		ends[0].writes(t, ends[1], op, messages)
		require.True(t, string(want) == string(into.mem.Bytes()), "%v", op)
	}
}

// What a stream of 64 KiB messages between two networks carries, where nothing is lost and
// where one packet in a hundred is, beside Linux TCP on the same path.
func BenchmarkLossyPath(b *testing.B) {
	for _, perMille := range []int{0, 10} {
		b.Run(fmt.Sprintf("roce/loss=%d‰", perMille), func(b *testing.B) {
			l := newLink(b)
			l.lose(b, perMille)
			ends := l.connect(b, 16*lossySize)
			var stop atomic.Bool
			done := make(chan struct{})
			go func() {
				defer close(done)
				var wcs [1]verbs.WC
				for !stop.Load() {
					ends[1].cq.Poll(wcs[:])
				}
			}()
			b.SetBytes(lossySize)
			b.ResetTimer()
			ends[0].writes(b, ends[1], verbs.OpRDMAWrite, b.N)
			b.StopTimer()
			stop.Store(true)
			<-done
		})
		b.Run(fmt.Sprintf("tcp/loss=%d‰", perMille), func(b *testing.B) {
			l := newLink(b)
			l.lose(b, perMille)
			var ln net.Listener
			var out net.Conn
			l.inside(b, 0, func() (err error) { ln, err = net.Listen("tcp", "198.18.2.1:0"); return err })
			defer ln.Close()
			l.inside(b, 1, func() (err error) {
				out, err = net.DialTimeout("tcp", ln.Addr().String(), 10*time.Second)
				return err
			})
			defer out.Close()
			in, err := ln.Accept()
			require.NoError(b, err)
			defer in.Close()
			read := make(chan error)
			b.SetBytes(lossySize)
			b.ResetTimer()
			go func() {
				buf := make([]byte, lossySize)
				for range b.N {
					if _, err := io.ReadFull(in, buf); err != nil {
						read <- err
						return
					}
				}
				read <- nil
			}()
			buf := make([]byte, lossySize)
			for range b.N {
				if _, err := out.Write(buf); err != nil {
					b.Fatal(err)
				}
			}
			require.NoError(b, <-read)
		})
	}
}
