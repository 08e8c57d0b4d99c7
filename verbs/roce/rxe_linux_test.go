package roce_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs"
	_ "github.com/sluice-hpc/sluice/verbs/roce"
)

// Environment of TestRXE.
const (
	// rxeInside tells the test binary that it is in the namespace of our end.
	rxeInside = "SLUICE_ROCE_TEST_INSIDE"
	// rxeInterop names the program made of verbs/ibv/testdata/interop.c; unset: it is compiled.
	rxeInterop = "SLUICE_IBV_TEST_INTEROP"
	// rxeWhat is the task of the end in the namespace: one of those below.
	rxeWhat = "SLUICE_ROCE_TEST_WHAT"
)

// What is exchanged.
const (
	rxeAll    = "all"
	rxeBrief  = "brief"  // less of it
	rxeFaults = "faults" // what must fail
	rxeShared = "shared" // as brief, by contexts that share the port
	rxeLost   = "lost"   // responses of each kind are lost
)

// TestRXE exchanges messages with rdma_rxe of the kernel, driven by a C program that uses only
// libibverbs:
//
//	initial namespace                namespace sluice-roce
//	interop — libibverbs — rxe4791 — roce0 10.9.0.1 === 10.9.0.2 roce1 — UDP — this test
//
// The two ends must be in different namespaces: rxe has port 4791 in its own.
func TestRXE(t *testing.T) {
	if os.Getenv(rxeInside) != "" {
		rxeExchange(t)
		return
	}
	need.SoftRoCE(t)
	program := os.Getenv(rxeInterop)
	if program == "" {
		program = filepath.Join(t.TempDir(), "interop")
		out, err := exec.Command("cc", "-O2", "-o", program, "../ibv/testdata/interop.c", "-libverbs").CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	run := func(line string) {
		t.Helper()
		out, err := exec.Command("sh", "-c", line).CombinedOutput()
		require.NoError(t, err, "%s: %s", line, out)
	}
	run("ip netns add sluice-roce")
	t.Cleanup(func() { run("ip netns del sluice-roce") })
	run("ip link add roce0 mtu 4500 type veth peer name roce1 mtu 4500 netns sluice-roce")
	run("ip addr add 10.9.0.1/24 dev roce0 && ip addr add fd09::1/64 dev roce0 nodad && ip link set roce0 up")
	run("ip -n sluice-roce addr add 10.9.0.2/24 dev roce1 && ip -n sluice-roce addr add fd09::2/64 dev roce1 nodad && ip -n sluice-roce link set roce1 up")
	run("rdma link add rxe4791 type rxe netdev roce0")
	t.Cleanup(func() { run("rdma link delete rxe4791") })
	for _, c := range []struct{ name, ours, what, fault string }{
		{"IPv4", "10.9.0.2", rxeAll, ""},
		{"IPv6", "fd09::2", rxeAll, ""},
		{"refusals", "10.9.0.2", rxeFaults, ""},
		{"IPv4, several contexts", "10.9.0.2", rxeShared, ""},
		{"IPv6, several contexts", "fd09::2", rxeShared, ""},
		{"lost responses", "10.9.0.2", rxeLost, ""},
		{"IPv4, loss 0.1%", "10.9.0.2", rxeBrief, "loss 0.1%"},
		{"IPv4, loss 1%", "10.9.0.2", rxeBrief, "loss 1%"},
		{"IPv4, loss 5%", "10.9.0.2", rxeBrief, "loss 5%"},
		{"IPv6, loss 1%", "fd09::2", rxeBrief, "loss 1%"},
		{"IPv4, duplicates and reordering", "10.9.0.2", rxeBrief, "delay 200us reorder 5% duplicate 2%"},
		{"IPv6, duplicates and reordering", "fd09::2", rxeBrief, "delay 200us reorder 5% duplicate 2%"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.fault != "" {
				run("tc qdisc add dev roce0 root netem " + c.fault)
				run("ip netns exec sluice-roce tc qdisc add dev roce1 root netem " + c.fault)
				defer run("tc qdisc del dev roce0 root && ip netns exec sluice-roce tc qdisc del dev roce1 root")
			}
			cmd := exec.Command("ip", "netns", "exec", "sluice-roce", os.Args[0], "-test.run", "^TestRXE$", "-test.v", "-test.timeout", "120s")
			cmd.Env = append(os.Environ(), rxeInside+"="+c.ours, rxeInterop+"="+program, rxeWhat+"="+c.what)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.Contains(t, string(out), "--- PASS: TestRXE")
		})
	}
}

const rxeSize = 1 << 20 // of each memory, at both ends

// rxeEnd is our end.
type rxeEnd struct {
	t         *testing.T
	ctx       *verbs.Context
	cq        *verbs.CQ
	qp        *verbs.QP
	near, far *verbs.MR
	addr      uint64 // of the peer's memory
	rkey      uint32
	cmd       *exec.Cmd
	told      bytes.Buffer
	in        io.WriteCloser
	out       *bufio.Reader
	seed      int
}

// rxeLimits are the non-default parameters of a connection.
type rxeLimits struct {
	attr          verbs.ConnectAttr
	theirs        string // of the program; see interop.c
	astray, stray uint32 // bits that the QP's number differs in that we are told, that rxe is
}

func rxeExchange(t *testing.T) {
	switch os.Getenv(rxeWhat) {
	case rxeFaults:
		rxeRefusals(t)
	case rxeLost:
		rxeLosses(t)
	case rxeShared:
		t.Setenv("SLUICE_ROCE_SHARE", "3")
		var ends []*rxeEnd
		for i := range 3 {
			x := rxeOpen(t)
			defer x.close()
			require.EqualValues(t, i, x.qp.QPNum()>>17)
			x.start(verbs.MTU1024, rxeLimits{})
			x.recv()
			ends = append(ends, x)
		}
		for _, n := range rxeSizes(1024) {
			for _, x := range ends {
				x.exchange(n)
			}
		}
		for _, x := range ends {
			x.atomics()
			x.end()
		}
	default:
		mtus := []verbs.MTU{verbs.MTU256, verbs.MTU1024, verbs.MTU4096}
		if os.Getenv(rxeWhat) == rxeBrief {
			mtus = mtus[1:2]
			if strings.Contains(os.Getenv(rxeInside), ":") {
				mtus[0] = verbs.MTU4096
			}
		}
		for _, mtu := range mtus {
			x := rxeOpen(t)
			x.start(mtu, rxeLimits{})
			x.recv()
			for _, n := range rxeSizes(mtu.Bytes()) {
				x.exchange(n)
			}
			x.atomics()
			x.end()
			x.close()
		}
	}
}

// rxeOpen opens our end.
func rxeOpen(t *testing.T) *rxeEnd {
	x := &rxeEnd{t: t}
	dev, err := verbs.Find("roce_roce1")
	require.NoError(t, err)
	x.ctx, err = dev.Open(verbs.Config{Address: os.Getenv(rxeInside)})
	require.NoError(t, err)
	pd, err := x.ctx.AllocPD()
	require.NoError(t, err)
	x.cq, err = x.ctx.CreateCQ(64, nil)
	require.NoError(t, err)
	x.qp, err = pd.CreateQP(verbs.QPInitAttr{SendCQ: x.cq, RecvCQ: x.cq, Cap: verbs.QPCap{
		MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 2, MaxRecvSGE: 1, MaxInlineData: 64}})
	require.NoError(t, err)
	x.near, err = pd.AllocMR(rxeSize, verbs.AccessLocalWrite)
	require.NoError(t, err)
	x.far, err = pd.AllocMR(rxeSize, verbs.AccessAll)
	require.NoError(t, err)
	return x
}

func (x *rxeEnd) close() { require.NoError(x.t, x.ctx.Close()) }

// start starts the program in the initial namespace, and connects to it.
func (x *rxeEnd) start(mtu verbs.MTU, limits rxeLimits) {
	t := x.t
	gid := "1" // ::ffff:10.9.0.1
	if strings.Contains(os.Getenv(rxeInside), ":") {
		gid = "2" // fd09::1
	}
	x.cmd = exec.CommandContext(t.Context(), "nsenter", "--net=/proc/1/ns/net", os.Getenv(rxeInterop), "rxe4791", gid)
	x.cmd.Stderr = &x.told
	var err error
	x.in, err = x.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := x.cmd.StdoutPipe()
	require.NoError(t, err)
	x.out = bufio.NewReader(out)
	require.NoError(t, x.cmd.Start())
	t.Cleanup(func() {
		if x.cmd.ProcessState == nil {
			x.cmd.Process.Kill()
			x.cmd.Wait()
			t.Logf("%s", x.told.Bytes())
		}
	})

	var num, psn, lid, theirs uint32
	var gidText string
	line := x.line()
	_, err = fmt.Sscanf(line, "endpoint %x %x %x %x %x %x %s", &num, &psn, &lid, &theirs, &x.addr, &x.rkey, &gidText)
	require.NoError(t, err, line)
	mine, err := x.qp.Endpoint()
	require.NoError(t, err)
	require.GreaterOrEqual(t, verbs.MTU(theirs), mtu)
	require.GreaterOrEqual(t, mine.ActiveMTU, mtu)
	remote := verbs.Endpoint{Provider: mine.Provider, LinkLayer: mine.LinkLayer, ActiveMTU: mtu, MaxRdAtomic: 1, LID: uint16(lid), QPNum: num ^ limits.astray, PSN: psn}
	require.Zero(t, lid, "an adapter on Ethernet has no LID")
	_, err = hex.Decode(remote.GID[:], []byte(gidText))
	require.NoError(t, err)
	t.Logf("%v at MTU %d", remote.GID.Addr(), mtu.Bytes())
	if limits.theirs != "" {
		x.order("limits %s", limits.theirs)
	}
	x.tell("peer %x %x %x %x %x %x %x", mine.QPNum^limits.stray, mine.PSN, 0, uint32(mtu), x.far.Addr(), x.far.RKey(), mine.GID[:])
	if limits.attr.Timeout == 0 {
		limits.attr.Timeout = 16
	}
	require.NoError(t, x.qp.Connect(remote, limits.attr))
	x.ok()
}

// end ends the program.
func (x *rxeEnd) end() {
	require.NoError(x.t, x.in.Close())
	require.NoError(x.t, x.cmd.Wait())
	require.Empty(x.t, x.told.String())
}

// rxeSizes are around multiples of the MTU.
func rxeSizes(mtu int) []int {
	switch os.Getenv(rxeWhat) {
	case rxeShared:
		return []int{1, mtu + 1, 20*mtu + 3}
	case rxeBrief:
		return []int{1, mtu - 1, mtu, mtu + 1, 2*mtu + 1, 20*mtu + 3}
	}
	const most = rxeSize - 5000
	return slices.Compact([]int{1, 2, 3, 4, 8, mtu - 1, mtu, mtu + 1, 2*mtu - 1, 2 * mtu, 2*mtu + 1, 16*mtu + 1, 17 * mtu, 67*mtu + 5, min(most, 300*mtu-1), most})
}

func (x *rxeEnd) tell(format string, args ...any) {
	x.t.Helper()
	_, err := fmt.Fprintf(x.in, format+"\n", args...)
	require.NoError(x.t, err)
}

func (x *rxeEnd) line() string {
	x.t.Helper()
	line, err := x.out.ReadString('\n')
	require.NoError(x.t, err, line)
	return strings.TrimSuffix(line, "\n")
}

func (x *rxeEnd) ok() {
	x.t.Helper()
	require.Equal(x.t, "ok", x.line())
}

func (x *rxeEnd) order(format string, args ...any) {
	x.t.Helper()
	x.tell(format, args...)
	x.ok()
}

func (x *rxeEnd) recv() {
	x.t.Helper()
	n, err := x.qp.PostRecv([]verbs.RecvWR{{SGList: []verbs.SGE{x.near.SGE(0, rxeSize)}}})
	require.NoError(x.t, err)
	require.Equal(x.t, 1, n)
}

func (x *rxeEnd) take() verbs.WC {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(x.t.Context(), time.Minute)
	defer cancel()
	var wcs [1]verbs.WC
	n, err := x.cq.Wait(ctx, wcs[:])
	require.NoError(x.t, err)
	require.Equal(x.t, 1, n)
	return wcs[0]
}

// give posts a request and waits for its completion.
func (x *rxeEnd) give(wr verbs.SendWR) {
	x.t.Helper()
	x.post(wr)
	wc := x.take()
	require.NoError(x.t, wc.Err())
	require.Equal(x.t, wr.Opcode.WCOpcode(), wc.Opcode)
}

func (x *rxeEnd) post(wr verbs.SendWR) {
	x.t.Helper()
	wr.Flags |= verbs.SendSignaled
	n, err := x.qp.PostSend([]verbs.SendWR{wr})
	require.NoError(x.t, err)
	require.Equal(x.t, 1, n)
}

func (x *rxeEnd) received(opcode verbs.WCOpcode, n int, imm uint32) {
	x.t.Helper()
	wc := x.take()
	require.NoError(x.t, wc.Err())
	require.Equal(x.t, opcode, wc.Opcode)
	require.EqualValues(x.t, n, wc.ByteLen)
	require.Equal(x.t, imm != 0, wc.Flags&verbs.WCWithImm != 0)
	require.Equal(x.t, imm, wc.Imm)
	x.recv()
}

// rxePattern is the pattern of interop.c.
func rxePattern(b []byte, seed int) {
	for i := range b {
		b[i] = byte(seed*31 + i*7 + i>>8)
	}
}

func (x *rxeEnd) check(b []byte) {
	x.t.Helper()
	want := make([]byte, len(b))
	rxePattern(want, x.seed)
	require.True(x.t, bytes.Equal(want, b), "%d bytes of pattern %d", len(b), x.seed)
}

// exchange does every operation with n bytes, both ways.
func (x *rxeEnd) exchange(n int) {
	x.t.Helper()
	const offset = 4099
	near, far := x.near.Bytes(), x.far.Bytes()[offset:][:n]
	for _, imm := range []uint32{0, 0x01020304} {
		x.seed++
		rxePattern(near[:n], x.seed)
		send := verbs.SendWR{Opcode: verbs.OpSend, Imm: imm, SGList: []verbs.SGE{x.near.SGE(0, n/3), x.near.SGE(n/3, n-n/3)}}
		write := verbs.SendWR{Opcode: verbs.OpRDMAWrite, Imm: imm, SGList: send.SGList, RemoteAddr: x.addr + offset, RKey: x.rkey}
		if imm != 0 {
			send.Opcode, write.Opcode = verbs.OpSendWithImm, verbs.OpRDMAWriteWithImm
		}
		x.give(send)
		x.order("recv %x %x %x", n, x.seed, imm)
		x.give(write)
		if imm != 0 {
			x.order("recv-write %x %x", n, imm)
		}
		x.order("check %x %x %x", offset, n, x.seed)

		x.seed++
		clear(near)
		x.tell("send %x %x %x", n, x.seed, imm)
		x.received(verbs.WCRecv, n, imm)
		x.ok()
		x.check(near[:n])
		clear(far)
		x.tell("write %x %x %x %x", offset, n, x.seed, imm)
		if imm != 0 {
			x.received(verbs.WCRecvRDMAWithImm, n, imm)
		}
		x.ok()
		x.check(far)
	}
	x.seed++
	x.order("fill %x %x %x", offset, n, x.seed)
	clear(near)
	x.give(verbs.SendWR{Opcode: verbs.OpRDMARead, SGList: []verbs.SGE{x.near.SGE(0, n)}, RemoteAddr: x.addr + offset, RKey: x.rkey})
	x.check(near[:n])
	rxePattern(far, x.seed)
	x.order("read %x %x %x", offset, n, x.seed)
}

// atomics does both, both ways: each exactly once, whatever the network does.
func (x *rxeEnd) atomics() {
	x.t.Helper()
	x.give(verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGList: []verbs.SGE{x.far.SGE(0, 8)}, RemoteAddr: x.addr, RKey: x.rkey})
	clear(x.far.Bytes()[:8])
	x.give(verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGList: []verbs.SGE{x.far.SGE(0, 8)}, RemoteAddr: x.addr, RKey: x.rkey})
	ours, theirs := uint64(0), uint64(0)
	for i := range uint64(20) {
		add := 1<<40 + i
		atomic := verbs.SendWR{Opcode: verbs.OpAtomicFetchAndAdd, SGList: []verbs.SGE{x.near.SGE(0, 8)}, RemoteAddr: x.addr, RKey: x.rkey, CompareAdd: add}
		x.give(atomic)
		require.Equal(x.t, theirs, binary.NativeEndian.Uint64(x.near.Bytes()))
		theirs += add
		atomic.Opcode, atomic.CompareAdd, atomic.Swap = verbs.OpAtomicCmpAndSwp, theirs+i%2, theirs*3
		x.give(atomic)
		require.Equal(x.t, theirs, binary.NativeEndian.Uint64(x.near.Bytes()))
		if i%2 == 0 {
			theirs *= 3
		}
		x.order("add 0 %x %x", add, ours)
		ours += add
		x.order("swap 0 %x %x %x", ours+i%2, ours*5, ours)
		if i%2 == 0 {
			ours *= 5
		}
	}
	require.Equal(x.t, ours, binary.NativeEndian.Uint64(x.far.Bytes()))
}
