package startup

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// Label identifies the data of a COLL command (IMPI 0.0, the COLL command). All labels are alike to
// a server, negative ones included; only 0 is reserved.
type Label int32

// The labels of IMPI 0.0; every client submits each of them. The first letter of the protocol's
// name says what the data has one value for: C the client, H each host, P each process, by host.
// Integers are big-endian and have 4 bytes unless stated otherwise.
const (
	LabelVersion   Label = 0x1000 // C_VERSION: pairs of major and minor, ascending
	LabelNHosts    Label = 0x1100 // C_NHOSTS: hosts of the client
	LabelNProcs    Label = 0x1200 // C_NPROCS: processes of the client
	LabelPktLen    Label = 0x1300 // C_PKTLEN: most bytes of user data in a packet, at least 1
	LabelTagUB     Label = 0x1400 // C_TAGUB: largest tag, at least 32767
	LabelXSize     Label = 0x1500 // C_COLL_XSIZE: bytes from which messages are long; -1: 1024
	LabelMaxLinear Label = 0x1600 // C_COLL_MAXLINEAR: most hosts of linear collectives; -1: 4

	LabelHostIPv6    Label = 0x2000 // H_IPV6: 16 bytes, the address that the host listens on
	LabelHostPort    Label = 0x2100 // H_PORT: its port
	LabelHostNProcs  Label = 0x2200 // H_NPROCS: its processes
	LabelHostAckMark Label = 0x2300 // H_ACKMARK: packets for which one acknowledgement is sent
	LabelHostHiWater Label = 0x2400 // H_HIWATER: packets in flight at most

	LabelProcIPv6 Label = 0x3000 // P_IPV6: 16 bytes, the host of the process
	LabelProcPID  Label = 0x3100 // P_PID: 8 bytes, unique among the processes of that host

	// LabelSluice is the first label outside the protocol. Clients of this package submit "SLUC"
	// and a version under it, by which they recognize each other.
	LabelSluice Label = 0x8000
)

// labelNames are the protocol's own.
var labelNames = map[Label]string{
	LabelVersion: "C_VERSION", LabelNHosts: "C_NHOSTS", LabelNProcs: "C_NPROCS",
	LabelPktLen: "C_PKTLEN", LabelTagUB: "C_TAGUB", LabelXSize: "C_COLL_XSIZE",
	LabelMaxLinear: "C_COLL_MAXLINEAR",
	LabelHostIPv6:  "H_IPV6", LabelHostPort: "H_PORT", LabelHostNProcs: "H_NPROCS",
	LabelHostAckMark: "H_ACKMARK", LabelHostHiWater: "H_HIWATER",
	LabelProcIPv6: "P_IPV6", LabelProcPID: "P_PID",
	LabelSluice: "SLUICE",
}

// String returns the protocol's name of the label, or its number if it has none.
func (l Label) String() string {
	if name, ok := labelNames[l]; ok {
		return name
	}
	return fmt.Sprintf("%#x", int32(l))
}

// HostID identifies a host in startup and in every packet: an IPv6 address, or twelve zero bytes
// and an IPv4 address. Ids are compared as bytes.
type HostID [16]byte

// HostIDOf returns the id of the host with that address, without its zone.
func HostIDOf(a netip.Addr) HostID {
	var id HostID
	if a = a.Unmap(); a.Is4() {
		b := a.As4()
		copy(id[12:], b[:])
		return id
	}
	if a.IsValid() {
		id = a.As16()
	}
	return id
}

// Addr returns the address at which to reach the host. An id that begins with twelve zero bytes, or
// that is an IPv4-mapped IPv6 address, yields an IPv4 address, except for :: and ::1.
func (id HostID) Addr() netip.Addr {
	a := netip.AddrFrom16(id).Unmap()
	if a.Is4() || [12]byte(id[:12]) != [12]byte{} || a.IsUnspecified() || a.IsLoopback() {
		return a
	}
	return netip.AddrFrom4([4]byte(id[12:]))
}

// String returns the address as text.
func (id HostID) String() string { return id.Addr().String() }

// Version is a version of the protocol.
type Version struct{ Major, Minor uint32 }

// String returns the version in the form "0.0".
func (v Version) String() string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }

func (v Version) less(w Version) bool {
	return v.Major < w.Major || v.Major == w.Major && v.Minor < w.Minor
}

// What clients of this package submit under LabelSluice.
const (
	sluiceMagic   = 0x534C5543 // SLUC
	sluiceVersion = 1          // of the labels above LabelSluice: each has its length before it
)

// appendSluice appends the data for LabelSluice.
func appendSluice(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, sluiceMagic)
	return binary.BigEndian.AppendUint32(b, sluiceVersion)
}

// parseSluice reads the answer for LabelSluice, in which n clients take part.
func parseSluice(b []byte, n int) error {
	if len(b) != 8*n {
		return lengthError("labels", len(b), 8*n)
	}
	for ; len(b) > 0; b = b[8:] {
		magic, version := binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])
		if magic != sluiceMagic || version != sluiceVersion {
			return fmt.Errorf("%w: a client submitted something other than Sluice's mark: %#08x, version %d", ErrDisagree, magic, version)
		}
	}
	return nil
}

// appendFramed appends data for a label of the caller: clients may submit different
// lengths, so each goes before its data.
func appendFramed(b, data []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(data)))
	return append(b, data...)
}

// parseFramed splits an answer that was made with appendFramed into n parts.
func parseFramed(b []byte, n int) ([][]byte, error) {
	parts := make([][]byte, 0, n)
	for range n {
		if len(b) < 4 {
			return nil, fmt.Errorf("%w: the answer holds the data of %d of %d clients", ErrProtocol, len(parts), n)
		}
		size := binary.BigEndian.Uint32(b)
		b = b[4:]
		if uint64(size) > uint64(len(b)) {
			return nil, fmt.Errorf("%w: a client announced %d bytes of data, the answer holds %d", ErrProtocol, size, len(b))
		}
		parts = append(parts, b[:size:size])
		b = b[size:]
	}
	if len(b) > 0 {
		return nil, fmt.Errorf("%w: %d bytes after the last client's data", ErrProtocol, len(b))
	}
	return parts, nil
}
