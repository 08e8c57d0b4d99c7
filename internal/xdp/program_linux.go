package xdp

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// keyLen is the length of the program's lookup key: the destination address in 16 bytes, of
// which IPv4 uses the first 4, and the port, big-endian, in 4.
const keyLen = 20

func key(a netip.AddrPort) []byte {
	b := make([]byte, keyLen)
	copy(b, a.Addr().AsSlice())
	binary.BigEndian.PutUint16(b[16:], a.Port())
	return b
}

// maps holds the program's maps.
type maps struct {
	steer *ebpf.Map // key to number of the seat
	seats *ebpf.Map // XSKMAP: number of the seat to socket
}

func newMaps(seats int) (maps, error) {
	steer, err := ebpf.NewMap(&ebpf.MapSpec{Name: "sluice_steer", Type: ebpf.Hash, KeySize: keyLen, ValueSize: 4, MaxEntries: uint32(seats)})
	if err != nil {
		return maps{}, fmt.Errorf("create BPF map: %w", err)
	}
	xsks, err := ebpf.NewMap(&ebpf.MapSpec{Name: "sluice_seats", Type: ebpf.XSKMap, KeySize: 4, ValueSize: 4, MaxEntries: uint32(seats)})
	if err != nil {
		steer.Close()
		return maps{}, fmt.Errorf("create BPF map: %w", err)
	}
	return maps{steer, xsks}, nil
}

func (m maps) close() {
	m.steer.Close()
	m.seats.Close()
}

// Offsets of the fields that the program reads: Ethernet, then IPv4 without options
// or IPv6 without extension headers, then UDP.
const (
	ethLen    = 14
	offEther  = 12
	v4Len     = 20
	offV4     = ethLen
	offV4Frag = offV4 + 6
	offV4Next = offV4 + 9
	offV4Dst  = offV4 + 16
	v6Len     = 40
	offV6     = ethLen
	offV6Next = offV6 + 6
	offV6Dst  = offV6 + 24
	udpLen    = 8
	offPort   = 2 // of the destination port in the UDP header
	offLength = 4 // of the length

	protoUDP = 17
	xdpPass  = 2 // enum xdp_action
)

// Offsets of struct xdp_md.
const (
	mdData    = 0
	mdDataEnd = 4
	mdQueue   = 16
)

// program redirects UDP packets of the queue that match a key of steer to the socket of the
// seat, and passes everything else to the network stack, including packets longer than mtu
// bytes: generic XDP sees unsegmented messages that a virtual interface has accepted.
func program(m maps, queue, mtu int) asm.Instructions {
	// Network order, as the program loads it.
	be16 := func(v uint16) int32 {
		var b [2]byte
		binary.BigEndian.PutUint16(b[:], v)
		return int32(binary.NativeEndian.Uint16(b[:]))
	}
	const stack = -24 // of the key
	return asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R2, asm.R6, mdQueue, asm.Word),
		asm.JNE.Imm(asm.R2, int32(queue), "pass"),
		asm.LoadMem(asm.R2, asm.R6, mdData, asm.Word),
		asm.LoadMem(asm.R3, asm.R6, mdDataEnd, asm.Word),
		asm.Mov.Reg(asm.R4, asm.R2),
		asm.Add.Imm(asm.R4, ethLen+v4Len+udpLen),
		asm.JGT.Reg(asm.R4, asm.R3, "pass"),
		asm.Mov.Imm(asm.R1, 0),
		asm.StoreMem(asm.RFP, stack+4, asm.R1, asm.Word),
		asm.StoreMem(asm.RFP, stack+8, asm.R1, asm.DWord),
		asm.StoreMem(asm.RFP, stack+16, asm.R1, asm.Word),
		asm.LoadMem(asm.R5, asm.R2, offEther, asm.Half),
		asm.JEq.Imm(asm.R5, be16(unix.ETH_P_IPV6), "v6"),
		asm.JNE.Imm(asm.R5, be16(unix.ETH_P_IP), "pass"),

		asm.LoadMem(asm.R5, asm.R2, offV4, asm.Byte),
		asm.JNE.Imm(asm.R5, 0x45, "pass"),
		asm.LoadMem(asm.R5, asm.R2, offV4Next, asm.Byte),
		asm.JNE.Imm(asm.R5, protoUDP, "pass"),
		asm.LoadMem(asm.R5, asm.R2, offV4Frag, asm.Half),
		asm.And.Imm(asm.R5, be16(0x3fff)), // "more fragments", and the fragment offset
		asm.JNE.Imm(asm.R5, 0, "pass"),
		asm.LoadMem(asm.R5, asm.R2, offV4Dst, asm.Word),
		asm.StoreMem(asm.RFP, stack, asm.R5, asm.Word),
		asm.LoadMem(asm.R5, asm.R2, offV4+v4Len+offPort, asm.Half),
		asm.StoreMem(asm.RFP, stack+16, asm.R5, asm.Half),
		asm.LoadMem(asm.R5, asm.R2, offV4+v4Len+offLength, asm.Half),
		asm.HostTo(asm.BE, asm.R5, asm.Half),
		asm.JGT.Imm(asm.R5, int32(mtu-v4Len), "pass"),
		asm.Ja.Label("lookup"),

		asm.Mov.Reg(asm.R4, asm.R2).WithSymbol("v6"),
		asm.Add.Imm(asm.R4, ethLen+v6Len+udpLen),
		asm.JGT.Reg(asm.R4, asm.R3, "pass"),
		asm.LoadMem(asm.R5, asm.R2, offV6Next, asm.Byte),
		asm.JNE.Imm(asm.R5, protoUDP, "pass"),
		asm.LoadMem(asm.R5, asm.R2, offV6Dst, asm.Word),
		asm.StoreMem(asm.RFP, stack, asm.R5, asm.Word),
		asm.LoadMem(asm.R5, asm.R2, offV6Dst+4, asm.Word),
		asm.StoreMem(asm.RFP, stack+4, asm.R5, asm.Word),
		asm.LoadMem(asm.R5, asm.R2, offV6Dst+8, asm.Word),
		asm.StoreMem(asm.RFP, stack+8, asm.R5, asm.Word),
		asm.LoadMem(asm.R5, asm.R2, offV6Dst+12, asm.Word),
		asm.StoreMem(asm.RFP, stack+12, asm.R5, asm.Word),
		asm.LoadMem(asm.R5, asm.R2, offV6+v6Len+offPort, asm.Half),
		asm.StoreMem(asm.RFP, stack+16, asm.R5, asm.Half),
		asm.LoadMem(asm.R5, asm.R2, offV6+v6Len+offLength, asm.Half),
		asm.HostTo(asm.BE, asm.R5, asm.Half),
		asm.JGT.Imm(asm.R5, int32(mtu-v6Len), "pass"),

		asm.LoadMapPtr(asm.R1, m.steer.FD()).WithSymbol("lookup"),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, stack),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "pass"),
		asm.LoadMem(asm.R2, asm.R0, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, m.seats.FD()),
		asm.Mov.Imm(asm.R3, xdpPass), // if the seat is empty
		asm.FnRedirectMap.Call(),
		asm.Return(),

		asm.Mov.Imm(asm.R0, xdpPass).WithSymbol("pass"),
		asm.Return(),
	}
}

// load loads the program. With frags it accepts packets that are longer than a page and not
// linear.
func load(m maps, queue, mtu int, frags bool) (*ebpf.Program, error) {
	spec := &ebpf.ProgramSpec{Name: "sluice_roce", Type: ebpf.XDP, Instructions: program(m, queue, mtu), License: "Apache-2.0"}
	if frags {
		spec.Flags = unix.BPF_F_XDP_HAS_FRAGS
	}
	p, err := ebpf.NewProgram(spec)
	if err != nil {
		return nil, fmt.Errorf("load XDP program: %w", err)
	}
	return p, nil
}
