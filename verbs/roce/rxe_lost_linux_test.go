package roce_test

import (
	"encoding/binary"
	"net"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/roce/internal/packet"
)

// sieve drops RoCEv2 packets over IPv4 that arrive at an interface: of each opcode as many as drop
// sets.
type sieve struct{ left *ebpf.Map }

// newSieve attaches a sieve, in the network namespace of the calling thread.
func newSieve(t *testing.T, netdev string) sieve {
	left, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 256})
	require.NoError(t, err)
	t.Cleanup(func() { left.Close() })
	be16 := func(v uint16) int32 {
		var b [2]byte
		binary.BigEndian.PutUint16(b[:], v)
		return int32(binary.NativeEndian.Uint16(b[:]))
	}
	const (
		ether, v4, udp   = 14, 20, 8
		xdpDrop, xdpPass = 1, 2
		stack            = -4
	)
	program := asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, 0, asm.Word),
		asm.LoadMem(asm.R3, asm.R1, 4, asm.Word),
		asm.Mov.Reg(asm.R4, asm.R2),
		asm.Add.Imm(asm.R4, ether+v4+udp+1),
		asm.JGT.Reg(asm.R4, asm.R3, "pass"),
		asm.LoadMem(asm.R5, asm.R2, ether-2, asm.Half),
		asm.JNE.Imm(asm.R5, be16(unix.ETH_P_IP), "pass"),
		asm.LoadMem(asm.R5, asm.R2, ether+9, asm.Byte), // protocol
		asm.JNE.Imm(asm.R5, unix.IPPROTO_UDP, "pass"),
		asm.LoadMem(asm.R5, asm.R2, ether+v4+2, asm.Half), // destination port
		asm.JNE.Imm(asm.R5, be16(packet.Port), "pass"),
		asm.LoadMem(asm.R5, asm.R2, ether+v4+udp, asm.Byte), // opcode
		asm.StoreMem(asm.RFP, stack, asm.R5, asm.Word),
		asm.LoadMapPtr(asm.R1, left.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, stack),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "pass"),
		asm.LoadMem(asm.R1, asm.R0, 0, asm.Word),
		asm.JEq.Imm(asm.R1, 0, "pass"),
		asm.Sub.Imm(asm.R1, 1),
		asm.StoreMem(asm.R0, 0, asm.R1, asm.Word),
		asm.Mov.Imm(asm.R0, xdpDrop),
		asm.Return(),
		asm.Mov.Imm(asm.R0, xdpPass).WithSymbol("pass"),
		asm.Return(),
	}
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, Instructions: program, License: "Apache-2.0"})
	require.NoError(t, err)
	t.Cleanup(func() { prog.Close() })
	i, err := net.InterfaceByName(netdev)
	require.NoError(t, err)
	l, err := link.AttachXDP(link.XDPOptions{Program: prog, Interface: i.Index, Flags: link.XDPGenericMode})
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return sieve{left}
}

// drop makes the sieve drop the next n packets of an opcode.
func (s sieve) drop(t *testing.T, op packet.Opcode, n uint32) {
	t.Helper()
	require.NoError(t, s.left.Put(uint32(op), n))
}

// dropped checks that they have been.
func (s sieve) dropped(t *testing.T, op packet.Opcode) {
	t.Helper()
	var left uint32
	require.NoError(t, s.left.Lookup(uint32(op), &left))
	require.Zero(t, left, "opcode %#x", uint8(op))
}

// rxeLosses makes the network lose the first responses of each kind, and mostly also the response to
// the repeated request, in both directions. The data read arrives, and atomics are executed once.
func rxeLosses(t *testing.T) {
	// Otherwise the sieve sees our bursts as one packet.
	out, err := exec.Command("ip", "link", "set", "roce1", "gso_max_segs", "1").CombinedOutput()
	require.NoError(t, err, "%s", out)
	ours := newSieve(t, "roce1")
	var theirs sieve
	runtime.LockOSThread()
	own, err := os.Open("/proc/thread-self/ns/net")
	require.NoError(t, err)
	defer own.Close()
	initial, err := os.Open("/proc/1/ns/net")
	require.NoError(t, err)
	defer initial.Close()
	require.NoError(t, unix.Setns(int(initial.Fd()), unix.CLONE_NEWNET))
	theirs = newSieve(t, "roce0")
	require.NoError(t, unix.Setns(int(own.Fd()), unix.CLONE_NEWNET))
	runtime.UnlockOSThread()

	x := rxeOpen(t)
	defer x.close()
	x.start(verbs.MTU1024, rxeLimits{})
	x.recv()
	for _, c := range []struct {
		op packet.Opcode
		n  uint32
		do func()
	}{
		{packet.ReadOnly, 2, func() { x.exchange(1) }},
		{packet.ReadFirst, 2, func() { x.exchange(5 * 1024) }},
		{packet.ReadMiddle, 2, func() { x.exchange(5 * 1024) }},
		{packet.ReadLast, 1, func() { x.exchange(5 * 1024) }}, // in its place comes an only one
		{packet.Acknowledge, 2, func() { x.exchange(5*1024 + 1) }},
		{packet.AtomicAcknowledge, 2, x.atomics},
	} {
		for _, s := range []sieve{ours, theirs} {
			s.drop(t, c.op, c.n)
			c.do()
			s.dropped(t, c.op)
		}
	}
	x.end()
}
