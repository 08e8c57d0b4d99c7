package verbs

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net/netip"
)

// GID is a port's global identifier, 16 bytes in network order (union ibv_gid).
// RoCE and tcp ports carry their IP address in it, IPv4 as ::ffff:a.b.c.d.
type GID [16]byte

// Addr returns the GID as an IP address; an IPv4-mapped GID gives an IPv4 address.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

// subnet is the upper half, the subnet prefix of InfiniBand.
func (g GID) subnet() [8]byte { return [8]byte(g[:8]) }

// GIDFromAddr returns the GID of an IP address.
func GIDFromAddr(a netip.Addr) GID { return GID(a.As16()) }

// String returns the GID in IPv6 notation.
func (g GID) String() string { return netip.AddrFrom16(g).String() }

// Endpoint is what a peer must know to connect to a QP: the addressing part of
// the attributes of INIT→RTR. Peers exchange it out of band, encoded as
// [EndpointLen] bytes ([Endpoint.AppendBinary], [ParseEndpoint]).
type Endpoint struct {
	Provider    string    // the provider whose wire protocol it speaks, 1 to 16 bytes of [a-z0-9_-]
	LinkLayer   LinkLayer // of the port
	ActiveMTU   MTU       // of the port; a connection uses the smaller of both ends'
	MaxRdAtomic uint8     // RDMA_READs and atomics that this end handles at once as responder
	LID         uint16    // InfiniBand: the port's LID; tcp: the listening TCP port
	QPNum       uint32    // 24 bits
	PSN         uint32    // 24 bits: first packet sequence number that this end sends
	GID         GID
}

// EndpointLen is the length in bytes of an encoded [Endpoint].
const EndpointLen = 56

const (
	endpointMagic = "SLEP"
	endpointMajor = 1
	endpointMinor = 0
)

// AppendBinary appends the encoding to b: EndpointLen bytes, big-endian, with a
// trailing CRC-32 against accidental corruption. It fails with [ErrInvalid] if a
// field does not fit its width.
func (e Endpoint) AppendBinary(b []byte) ([]byte, error) {
	if !validProviderName(e.Provider) {
		return b, Errorf("", "encode endpoint", ErrInvalid, "provider name %q, want 1 to 16 of [a-z0-9_-]", e.Provider)
	}
	if e.QPNum >= 1<<24 || e.PSN >= 1<<24 {
		return b, Errorf("", "encode endpoint", ErrInvalid, "QP number %#x or PSN %#x exceeds 24 bits", e.QPNum, e.PSN)
	}
	start := len(b)
	b = append(b, endpointMagic...)
	b = append(b, endpointMajor, endpointMinor, byte(e.LinkLayer), byte(e.ActiveMTU))
	var name [16]byte
	copy(name[:], e.Provider)
	b = append(b, name[:]...)
	b = append(b, e.MaxRdAtomic, 0)
	b = binary.BigEndian.AppendUint16(b, e.LID)
	b = binary.BigEndian.AppendUint32(b, e.QPNum)
	b = binary.BigEndian.AppendUint32(b, e.PSN)
	b = append(b, e.GID[:]...)
	return binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b[start:])), nil
}

// MarshalBinary implements [encoding.BinaryMarshaler].
func (e Endpoint) MarshalBinary() ([]byte, error) { return e.AppendBinary(nil) }

// UnmarshalBinary implements [encoding.BinaryUnmarshaler]; see [ParseEndpoint].
func (e *Endpoint) UnmarshalBinary(b []byte) (err error) {
	*e, err = ParseEndpoint(b)
	return err
}

// ParseEndpoint decodes what [Endpoint.AppendBinary] wrote. For any other bytes, of
// any length, it returns an error that wraps [ErrEndpoint].
func ParseEndpoint(b []byte) (Endpoint, error) {
	bad := func(format string, args ...any) (Endpoint, error) {
		return Endpoint{}, Errorf("", "parse endpoint", ErrEndpoint, format, args...)
	}
	if len(b) != EndpointLen {
		return bad("%d bytes, want %d", len(b), EndpointLen)
	}
	if string(b[:4]) != endpointMagic {
		return bad("magic %q, want %q", b[:4], endpointMagic)
	}
	if b[4] != endpointMajor {
		return bad("version %d.%d, this process speaks %d.%d", b[4], b[5], endpointMajor, endpointMinor)
	}
	if got, want := binary.BigEndian.Uint32(b[52:]), crc32.ChecksumIEEE(b[:52]); got != want {
		return bad("checksum %#08x, want %#08x", got, want)
	}
	n := 16
	for n > 0 && b[8+n-1] == 0 {
		n--
	}
	e := Endpoint{
		LinkLayer:   LinkLayer(b[6]),
		ActiveMTU:   MTU(b[7]),
		Provider:    string(b[8 : 8+n]),
		MaxRdAtomic: b[24],
		LID:         binary.BigEndian.Uint16(b[26:]),
		QPNum:       binary.BigEndian.Uint32(b[28:]),
		PSN:         binary.BigEndian.Uint32(b[32:]),
		GID:         GID(b[36:52]),
	}
	switch {
	case !validProviderName(e.Provider):
		return bad("provider name %q", e.Provider)
	case e.LinkLayer > LinkLayerEthernet:
		return bad("link layer %d", b[6])
	case e.ActiveMTU < MTU256 || e.ActiveMTU > MTU4096:
		return bad("MTU code %d", b[7])
	case b[25] != 0:
		return bad("reserved byte is %#x", b[25])
	case e.QPNum >= 1<<24 || e.PSN >= 1<<24:
		return bad("QP number %#x or PSN %#x exceeds 24 bits", e.QPNum, e.PSN)
	}
	return e, nil
}

// String returns provider, address, LID and QP number, for error and log messages.
func (e Endpoint) String() string {
	return fmt.Sprintf("%s:%v/%d#%06x", e.Provider, e.GID.Addr(), e.LID, e.QPNum)
}

func validProviderName(s string) bool {
	if len(s) == 0 || len(s) > 16 {
		return false
	}
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' && c != '-' {
			return false
		}
	}
	return true
}
