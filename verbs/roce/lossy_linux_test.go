package roce

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs"
)

// link is two networks connected by a third one, which forwards packets and can drop some. It gets them
// one by one: the kernel segments data before it goes to the device.
//
//	   network one              between                network two
//	+--------------+     +-------------------+     +--------------+
//	|  198.18.2.1  | --- | .2.254     .3.254 | --- |  198.18.3.1  |
//	+--------------+     +-------------------+     +--------------+
type link struct{ ends [2]host }

// newLink makes a link that loses so many of a thousand packets, each way.
func newLink(t testing.TB, perMille int) *link {
	t.Helper()
	need.Networks(t)
	if perMille > 0 {
		need.Program(t, "nft")
	}
	l := &link{[2]host{newHost(t), newHost(t)}}
	between := newHost(t)
	for i, h := range l.ends {
		side := fmt.Sprintf("veth%d", i+1)
		command(t, fmt.Sprintf("ip -n %s link add veth0 type veth peer name %s netns %s", h, side, between))
		h.ip(t, "addr", "add", fmt.Sprintf("%s/24", l.addr(i)), "dev", "veth0")
		between.ip(t, "addr", "add", fmt.Sprintf("198.18.%d.254/24", i+2), "dev", side)
		h.ip(t, "link", "set", "veth0", "gso_max_segs", "1", "up")
		between.ip(t, "link", "set", side, "up")
		h.ip(t, "route", "add", "default", "via", fmt.Sprintf("198.18.%d.254", i+2))
	}
	require.NoError(t, between.in(func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0) }))
	if perMille > 0 {
		command(t, fmt.Sprintf("ip netns exec %s nft table ip lossy { chain on { type filter hook forward priority 0; numgen random mod 1000 < %d drop; }; }", between, perMille))
	}
	return l
}

func (l *link) addr(i int) string { return fmt.Sprintf("198.18.%d.1", i+2) }

func command(t testing.TB, line string) {
	t.Helper()
	words := strings.Fields(line)
	out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
	require.NoError(t, err, "%s: %s", line, out)
}

// place is an end of a connection over a link.
type place struct {
	ctx *verbs.Context
	cq  *verbs.CQ
	qp  *verbs.QP
	mem *verbs.MR
}

// connect connects a queue pair of a provider in each network, with so many bytes of memory.
func (l *link) connect(t testing.TB, provider string, size int) [2]*place {
	return connect(t, size, func(i int) *verbs.Context { return l.ends[i].open(t, provider+"_veth0", verbs.Config{}) })
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

// TestLossyPath: every byte arrives although one packet in a hundred does not, each way, for writes
// and reads.
func TestLossyPath(t *testing.T) {
	need.Full(t)
	for _, provider := range []string{providerName, xdpName} {
		t.Run(provider, func(t *testing.T) {
			if provider == xdpName {
				needXDP(t)
				need.Networks(t)
			}
			messages := need.InLong(16, 64) // a thousand packets
			ends := newLink(t, 10).connect(t, provider, messages*lossySize)
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
		})
	}
}

// The rate of a stream of 64 KiB messages between two networks, without loss and with one packet in a
// hundred lost, beside Linux TCP on the same path.
//
//	go test -run '^$' -bench '^BenchmarkLossyPath$' -cpu 2 ./verbs/roce
func BenchmarkLossyPath(b *testing.B) {
	for _, provider := range []string{providerName, xdpName, "tcp"} {
		for _, perMille := range []int{0, 10} {
			b.Run(fmt.Sprintf("%s/loss=%d‰", provider, perMille), func(b *testing.B) {
				if provider == xdpName {
					needXDP(b)
				}
				l := newLink(b, perMille)
				b.SetBytes(lossySize)
				if provider == "tcp" {
					l.tcp(b, b.N)
					return
				}
				ends := l.connect(b, provider, 16*lossySize)
				b.ResetTimer()
				streamed(b, ends, b.N)
				b.StopTimer()
			})
		}
	}
}

// tcp streams messages over a connection of the kernel's.
func (l *link) tcp(b *testing.B, messages int) {
	var ln net.Listener
	var out net.Conn
	require.NoError(b, l.ends[0].in(func() (err error) { ln, err = net.Listen("tcp", l.addr(0)+":0"); return err }))
	defer ln.Close()
	require.NoError(b, l.ends[1].in(func() (err error) {
		out, err = net.DialTimeout("tcp", ln.Addr().String(), 10*time.Second)
		return err
	}))
	defer out.Close()
	in, err := ln.Accept()
	require.NoError(b, err)
	defer in.Close()
	read := make(chan error, 1)
	b.ResetTimer()
	go func() {
		buf := make([]byte, lossySize)
		for range messages {
			if _, err := io.ReadFull(in, buf); err != nil {
				read <- err
				return
			}
		}
		read <- nil
	}()
	buf := make([]byte, lossySize)
	for range messages {
		if _, err := out.Write(buf); err != nil {
			b.Fatal(err)
		}
	}
	require.NoError(b, <-read)
	b.StopTimer()
}
