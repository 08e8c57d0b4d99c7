package verbs

import (
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var golden = Endpoint{
	Provider:    "tcp",
	LinkLayer:   LinkLayerEthernet,
	ActiveMTU:   MTU4096,
	MaxRdAtomic: 16,
	LID:         0xc0de,
	QPNum:       0x123456,
	PSN:         0xabcdef,
	GID:         GIDFromAddr(netip.MustParseAddr("10.1.2.3")),
}

// goldenHex is the encoding of golden. To change it is to change the wire format, which
// needs a new version number.
var goldenHex = strings.Join([]string{
	"534c4550",                         // magic "SLEP"
	"01",                               // major version
	"00",                               // minor version
	"02",                               // link layer
	"05",                               // active MTU
	"74637000000000000000000000000000", // provider, padded with zeros
	"10",                               // max rd atomic
	"00",                               // reserved
	"c0de",                             // LID
	"00123456",                         // QP number
	"00abcdef",                         // PSN
	"00000000000000000000ffff0a010203", // GID
	"94efa880",                         // CRC-32 (IEEE) of all before it
}, "")

func TestEndpointGolden(t *testing.T) {
	want, err := hex.DecodeString(goldenHex)
	require.NoError(t, err)
	require.Len(t, want, EndpointLen)
	prefix := []byte("before")
	got, err := golden.AppendBinary(prefix)
	require.NoError(t, err)
	require.Equal(t, want, got[len(prefix):])
	require.Equal(t, prefix, got[:len(prefix)])

	e, err := ParseEndpoint(want)
	require.NoError(t, err)
	require.Equal(t, golden, e)
}

func TestEndpointBinaryInterfaces(t *testing.T) {
	b, err := golden.MarshalBinary()
	require.NoError(t, err)
	require.Equal(t, goldenHex, hex.EncodeToString(b))
	var e Endpoint
	require.NoError(t, e.UnmarshalBinary(b))
	require.Equal(t, golden, e)
	require.ErrorIs(t, e.UnmarshalBinary(b[1:]), ErrEndpoint)
}

func TestEndpointAppendRefuses(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Endpoint)
	}{
		{"no provider", func(e *Endpoint) { e.Provider = "" }},
		{"provider too long", func(e *Endpoint) { e.Provider = "seventeen-letters" }},
		{"provider in capitals", func(e *Endpoint) { e.Provider = "TCP" }},
		{"QP number of 25 bits", func(e *Endpoint) { e.QPNum = 1 << 24 }},
		{"PSN of 25 bits", func(e *Endpoint) { e.PSN = 1 << 24 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := golden
			c.change(&e)
			b, err := e.AppendBinary([]byte("kept"))
			require.ErrorIs(t, err, ErrInvalid)
			require.Equal(t, "kept", string(b))
		})
	}
}

// sealed makes the checksum right again after a change.
func sealed(b []byte) []byte {
	binary.BigEndian.PutUint32(b[EndpointLen-4:], crc32.ChecksumIEEE(b[:EndpointLen-4]))
	return b
}

func TestParseEndpointRefuses(t *testing.T) {
	good, err := golden.MarshalBinary()
	require.NoError(t, err)
	set := func(at int, v ...byte) []byte {
		b := append([]byte(nil), good...)
		copy(b[at:], v)
		return sealed(b)
	}
	for _, c := range []struct {
		name string
		in   []byte
		says string
	}{
		{"nothing", nil, "0 bytes"},
		{"short by one", good[:EndpointLen-1], "55 bytes"},
		{"long by one", append(append([]byte(nil), good...), 0), "57 bytes"},
		{"magic", set(0, 'X'), "magic"},
		{"major version", set(4, 2), "version 2.0"},
		{"checksum", append(append([]byte(nil), good[:EndpointLen-1]...), good[EndpointLen-1]^1), "checksum"},
		{"link layer", set(6, 3), "link layer 3"},
		{"MTU 0", set(7, 0), "MTU code 0"},
		{"MTU 6", set(7, 6), "MTU code 6"},
		{"provider empty", set(8, make([]byte, 16)...), "provider name"},
		{"provider with a zero inside", set(8, 't', 0, 'p'), "provider name"},
		{"provider with a slash", set(8, 't', '/', 'p'), "provider name"},
		{"reserved byte", set(25, 1), "reserved"},
		{"QP number of 25 bits", set(28, 1), "24 bits"},
		{"PSN of 25 bits", set(32, 1), "24 bits"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, err := ParseEndpoint(c.in)
			require.ErrorIs(t, err, ErrEndpoint)
			require.ErrorContains(t, err, c.says)
			require.Zero(t, e)
		})
	}
}

// A later minor version of the same format is understood.
func TestParseEndpointMinorVersion(t *testing.T) {
	b, err := golden.MarshalBinary()
	require.NoError(t, err)
	b[5] = 7
	e, err := ParseEndpoint(sealed(b))
	require.NoError(t, err)
	require.Equal(t, golden, e)
}

// No single flipped bit goes unnoticed.
func TestParseEndpointBitFlips(t *testing.T) {
	good, err := golden.MarshalBinary()
	require.NoError(t, err)
	for bit := range 8 * EndpointLen {
		b := append([]byte(nil), good...)
		b[bit/8] ^= 1 << (bit % 8)
		_, err := ParseEndpoint(b)
		require.ErrorIs(t, err, ErrEndpoint, "bit %d", bit)
	}
}

// Whatever is accepted encodes to the same endpoint again, and to the same
// bytes where the minor version is ours.
func FuzzParseEndpoint(f *testing.F) {
	good, err := golden.MarshalBinary()
	require.NoError(f, err)
	f.Add(good)
	f.Add(good[:20])
	f.Fuzz(func(t *testing.T, b []byte) {
		// The checksum would hide the fields behind it from the fuzzer.
		if len(b) == EndpointLen {
			sealed(b)
		}
		e, err := ParseEndpoint(b)
		if err != nil {
			require.ErrorIs(t, err, ErrEndpoint)
			require.Zero(t, e)
			return
		}
		again, err := e.MarshalBinary()
		require.NoError(t, err)
		if b[5] == endpointMinor {
			require.Equal(t, b, again)
		}
		e2, err := ParseEndpoint(again)
		require.NoError(t, err)
		require.Equal(t, e, e2)
		require.NotEmpty(t, e.String())
	})
}

func TestGID(t *testing.T) {
	for _, c := range []struct{ addr, gid string }{
		{"10.1.2.3", "00000000000000000000ffff0a010203"},
		{"fe80::1", "fe800000000000000000000000000001"},
		{"::", "00000000000000000000000000000000"},
	} {
		a := netip.MustParseAddr(c.addr)
		g := GIDFromAddr(a)
		require.Equal(t, c.gid, hex.EncodeToString(g[:]))
		require.Equal(t, a, g.Addr())
	}
	require.Equal(t, "::ffff:10.1.2.3", golden.GID.String())
	require.Equal(t, "tcp:10.1.2.3/49374#123456", golden.String())
}
