package ibv_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs"
)

// interopEnv names the program made of testdata/interop.c; unset: it is compiled.
const interopEnv = "SLUICE_IBV_TEST_INTEROP"

// TestInterop exchanges messages with a C program that uses libibverbs itself, through its
// own headers: both ways, each checked by its receiver. The program uses each device in turn.
func TestInterop(t *testing.T) {
	dev := device(t)
	program := os.Getenv(interopEnv)
	if program == "" {
		program = compileInterop(t)
	}
	devs, err := verbs.Devices()
	require.NoError(t, err)
	for _, d := range devs {
		if d.Provider() == dev.Provider() {
			t.Run("peer on "+d.Name(), func(t *testing.T) { interoperate(t, dev, d, program) })
		}
	}
}

func compileInterop(t *testing.T) string {
	cc := need.Header(t, verbsHeader)
	program := filepath.Join(t.TempDir(), "interop")
	out, err := exec.Command(cc[0], append(cc[1:], "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o", program, "testdata/interop.c", "-libverbs")...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}

// interopSize is the size of each memory, at both ends.
const interopSize = 1 << 20

// interop is our end: memory that is sent from and received into, and memory that
// the peer reaches.
type interop struct {
	cq        *verbs.CQ
	qp        *verbs.QP
	near, far *verbs.MR
	addr      uint64 // of the peer's memory
	rkey      uint32
	program   *program
}

// program is the peer.
type program struct {
	in  io.WriteCloser
	out *bufio.Reader
}

// tell sends the peer a command, and returns a function that waits for its answer.
func (p *program) tell(t *testing.T, format string, args ...any) {
	t.Helper()
	_, err := fmt.Fprintf(p.in, format+"\n", args...)
	require.NoError(t, err)
}

func (p *program) line(t *testing.T) string {
	t.Helper()
	line, err := p.out.ReadString('\n')
	require.NoError(t, err, line)
	return strings.TrimSuffix(line, "\n")
}

func (p *program) ok(t *testing.T) {
	t.Helper()
	require.Equal(t, "ok", p.line(t))
}

func interopPattern(b []byte, seed int) {
	for i := range b {
		b[i] = byte(seed*31 + i*7 + i>>8)
	}
}

func openPair(t *testing.T, dev *verbs.Device) (*verbs.PD, *verbs.CQ, *verbs.QP) {
	ctx, err := dev.Open(verbs.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ctx.Close()) })
	pd, err := ctx.AllocPD()
	require.NoError(t, err)
	cq, err := ctx.CreateCQ(64, nil)
	require.NoError(t, err)
	qp, err := pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{
		MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 2, MaxRecvSGE: 1, MaxInlineData: 64}})
	require.NoError(t, err)
	return pd, cq, qp
}

func interoperate(t *testing.T, dev, peerDev *verbs.Device, path string) {
	pd, cq, qp := openPair(t, dev)
	x := &interop{cq: cq, qp: qp}
	var err error
	x.near, err = pd.AllocMR(interopSize, verbs.AccessLocalWrite)
	require.NoError(t, err)
	x.far, err = pd.AllocMR(interopSize, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead)
	require.NoError(t, err)

	// The peer takes the GID that we would, on its device.
	_, _, other := openPair(t, peerDev)
	attr, err := other.Query()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, peerDev.Name(), strconv.Itoa(int(attr.AHAttr.SGIDIndex)))
	var told bytes.Buffer
	cmd.Stderr = &told
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	ended := false
	defer func() {
		if !ended {
			cancel()
			cmd.Wait()
			t.Logf("%s", told.Bytes())
		}
	}()
	x.program = &program{in, bufio.NewReader(out)}
	x.join(t)
	x.exchange(t)
	require.NoError(t, in.Close())
	require.NoError(t, cmd.Wait())
	ended = true
	require.Empty(t, told.String())
}

// join exchanges endpoints, connects, and posts a receive.
func (x *interop) join(t *testing.T) {
	var num, psn, lid, mtu uint32
	var gidText string
	line := x.program.line(t)
	_, err := fmt.Sscanf(line, "endpoint %x %x %x %x %x %x %s", &num, &psn, &lid, &mtu, &x.addr, &x.rkey, &gidText)
	require.NoError(t, err, line)
	mine, err := x.qp.Endpoint()
	require.NoError(t, err)
	theirs := verbs.Endpoint{Provider: mine.Provider, LinkLayer: mine.LinkLayer, ActiveMTU: verbs.MTU(mtu), MaxRdAtomic: 1, LID: uint16(lid), QPNum: num, PSN: psn}
	_, err = hex.Decode(theirs.GID[:], []byte(gidText))
	require.NoError(t, err)
	x.program.tell(t, "peer %x %x %x %x %x %x %x", mine.QPNum, mine.PSN, mine.LID, min(uint32(mine.ActiveMTU), mtu), x.far.Addr(), x.far.RKey(), mine.GID[:])
	require.NoError(t, x.qp.Connect(theirs, verbs.ConnectAttr{Timeout: 16}))
	x.program.ok(t)
	x.postRecv(t)
}

func (x *interop) postRecv(t *testing.T) {
	t.Helper()
	n, err := x.qp.PostRecv([]verbs.RecvWR{{SGList: []verbs.SGE{x.near.SGE(0, interopSize)}}})
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

// give posts a request and waits for its completion.
func (x *interop) give(t *testing.T, wr verbs.SendWR) {
	t.Helper()
	wr.Flags |= verbs.SendSignaled
	n, err := x.qp.PostSend([]verbs.SendWR{wr})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	wc := x.take(t)
	require.Equal(t, wr.Opcode.WCOpcode(), wc.Opcode)
}

// take waits for a completion.
func (x *interop) take(t *testing.T) verbs.WC {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var wcs [1]verbs.WC
	n, err := x.cq.Wait(ctx, wcs[:])
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.NoError(t, wcs[0].Err())
	return wcs[0]
}

// receive takes a message of the peer.
func (x *interop) receive(t *testing.T, opcode verbs.WCOpcode, length int, imm uint32) {
	t.Helper()
	wc := x.take(t)
	require.Equal(t, opcode, wc.Opcode)
	require.EqualValues(t, length, wc.ByteLen)
	require.Equal(t, imm != 0, wc.Flags&verbs.WCWithImm != 0)
	if imm != 0 {
		require.Equal(t, imm, wc.Imm, "%#x", wc.Imm)
	}
	x.postRecv(t)
}

func requirePattern(t *testing.T, b []byte, seed int) {
	t.Helper()
	want := make([]byte, len(b))
	interopPattern(want, seed)
	require.True(t, bytes.Equal(want, b), "%d bytes of pattern %d", len(b), seed)
}

// exchange moves messages of several packets and of less than one, at odd addresses
// and in two pieces.
func (x *interop) exchange(t *testing.T) {
	p, seed := x.program, 0
	for _, n := range []int{1, 8, 1000, 4097, 300001} {
		const offset = 4099
		for _, imm := range []uint32{0, 0x01020304} {
			seed++
			interopPattern(x.near.Bytes()[:n], seed)
			wr := verbs.SendWR{Opcode: verbs.OpSend, Imm: imm, SGList: []verbs.SGE{x.near.SGE(0, n)}}
			if n > 1 {
				wr.SGList = []verbs.SGE{x.near.SGE(0, n/3), x.near.SGE(n/3, n-n/3)}
			}
			if imm != 0 {
				wr.Opcode = verbs.OpSendWithImm
			}
			x.give(t, wr)
			p.tell(t, "recv %x %x %x", n, seed, imm)
			p.ok(t)

			seed++
			clear(x.near.Bytes())
			p.tell(t, "send %x %x %x", n, seed, imm)
			x.receive(t, verbs.WCRecv, n, imm)
			p.ok(t)
			requirePattern(t, x.near.Bytes()[:n], seed)
		}

		seed++
		const imm = 0xfedcba98
		interopPattern(x.near.Bytes()[:n], seed)
		write := verbs.SendWR{Opcode: verbs.OpRDMAWriteWithImm, Imm: imm, SGList: []verbs.SGE{x.near.SGE(0, n)}, RemoteAddr: x.addr + offset, RKey: x.rkey}
		if n <= 64 {
			write.SGList, write.Inline, write.Flags = nil, x.near.Bytes()[:n], verbs.SendInline
		}
		x.give(t, write)
		p.tell(t, "recv-write %x %x", n, uint32(imm))
		p.ok(t)
		p.tell(t, "check %x %x %x", offset, n, seed)
		p.ok(t)

		seed++
		p.tell(t, "write %x %x %x %x", offset, n, seed, uint32(imm))
		x.receive(t, verbs.WCRecvRDMAWithImm, n, imm)
		p.ok(t)
		requirePattern(t, x.far.Bytes()[offset:][:n], seed)

		seed++
		p.tell(t, "fill %x %x %x", offset, n, seed)
		p.ok(t)
		clear(x.near.Bytes())
		x.give(t, verbs.SendWR{Opcode: verbs.OpRDMARead, SGList: []verbs.SGE{x.near.SGE(0, n)}, RemoteAddr: x.addr + offset, RKey: x.rkey})
		requirePattern(t, x.near.Bytes()[:n], seed)

		seed++
		interopPattern(x.far.Bytes()[offset:][:n], seed)
		p.tell(t, "read %x %x %x", offset, n, seed)
		p.ok(t)
	}
}
