package channel

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/machine"
	"github.com/sluice-hpc/sluice/internal/wait"
	"github.com/sluice-hpc/sluice/verbs"
)

// messages are control messages of each kind, as they were first sent: the wire
// format does not change by accident.
var messages = []struct {
	kind kind
	body func(t testing.TB) []byte
	wire string
}{
	{kindPropose, func(t testing.TB) []byte { return offerBody(t, offer{attempt: 1, endpoint: sampleEndpoint}) },
		"010000000000003b" + "01" + "00" + "01" + sampleEndpointHex},
	{kindPropose, func(t testing.TB) []byte {
		return offerBody(t, offer{attempt: 2, port: 7, far: true, endpoint: sampleEndpoint})
	}, "010000000000003b" + "02" + "07" + "03" + sampleEndpointHex},
	{kindAnswer, func(t testing.TB) []byte { return offerBody(t, offer{attempt: 2, port: 7, refusal: "no"}) },
		"0200000000000005" + "02" + "07" + "00" + "6e6f"},
	{kindAnswer, func(t testing.TB) []byte { return offerBody(t, offer{attempt: 2, refusal: "no", final: true}) },
		"0200000000000005" + "02" + "00" + "02" + "6e6f"},
	{kindProbed, func(testing.TB) []byte { return verdictBody(3, true) }, "0300000000000002" + "0301"},
	{kindUse, func(testing.TB) []byte { return verdictBody(0, false) }, "0400000000000002" + "0000"},
	{kindNode, func(testing.TB) []byte {
		n := nodeInfo{fenced: true, bell: region{0x01020304, 0x1000, 128}}
		return n.append(nil)
	}, "0500000000000015" + "01" + "01020304" + "0000000000001000" + "0000000000000080"},
	{kindStream, func(testing.TB) []byte {
		s := streamInfo{7, region{1, 2, 3}}
		return s.append(nil)
	}, "0600000000000018" + "00000007" + "00000001" + "0000000000000002" + "0000000000000003"},
	{kindLayout, func(testing.TB) []byte { return sampleLayout.append(nil) },
		"0700000000000048" + "0000000900000002" + "00000001" + "00000001" + "0000000500000000000010000000000000000100" +
			"00000000" + "00000000000000f0" + "0000000000000008" + "0000000000000004" + "ffffffffffffffc0"},
	{kindDrop, func(testing.TB) []byte { return []byte{0, 0, 0, 9} }, "0800000000000004" + "00000009"},
	{kindBye, func(testing.TB) []byte { return nil }, "0900000000000000"},
	{kindPipe, func(testing.TB) []byte {
		s := streamInfo{8, region{1, 2, 3}}
		return s.append(nil)
	}, "0a00000000000018" + "00000008" + "00000001" + "0000000000000002" + "0000000000000003"},
	{kindConnected, func(testing.TB) []byte { return verdictBody(3, true) }, "0d00000000000002" + "0301"},
	{kindFault, func(testing.TB) []byte {
		f := faultInfo{group: 0x0102030405060708, rank: 3, reason: 2, text: "boom"}
		return f.append(nil)
	}, "0b00000000000011" + "0102030405060708" + "00000003" + "02" + "626f6f6d"},
	{kindCall, func(testing.TB) []byte {
		c := callInfo{group: 1, number: 5, signature: 0x3001_0203_0405_0607}
		return c.append(nil)
	}, "0c00000000000018" + "0000000000000001" + "0000000000000005" + "3001020304050607"},
	{kindPing, func(testing.TB) []byte { return []byte{0, 0, 0, 0, 0, 0, 0, 5} }, "0f00000000000008" + "0000000000000005"},
	{kindPong, func(testing.TB) []byte { return []byte{0, 0, 0, 0, 0, 0, 0, 5} }, "1000000000000008" + "0000000000000005"},
}

var (
	sampleEndpoint = verbs.Endpoint{Provider: "tcp", LinkLayer: verbs.LinkLayerEthernet, ActiveMTU: verbs.MTU4096, MaxRdAtomic: 16,
		LID: 4791, QPNum: 0xabcdef, PSN: 0x123456, GID: verbs.GID{10: 0xff, 11: 0xff, 12: 192, 13: 0, 14: 2, 15: 1}}
	sampleEndpointHex = func() string {
		b, err := sampleEndpoint.MarshalBinary()
		if err != nil {
			panic(err)
		}
		return hex.EncodeToString(b)
	}()
	sampleLayout = layoutInfo{handle: 9, version: 2, regions: []region{{5, 0x1000, 0x100}}, parts: []remotePart{{0, 0xf0, 8, 4, -64}}}
)

func offerBody(t testing.TB, o offer) []byte {
	b, err := o.append(nil)
	require.NoError(t, err)
	return b
}

func TestWireFormat(t *testing.T) {
	for _, m := range messages {
		t.Run(m.kind.String(), func(t *testing.T) {
			body := m.body(t)
			require.Equal(t, m.wire, hex.EncodeToString(frame(nil, m.kind, body)))
			b, err := hex.DecodeString(m.wire)
			require.NoError(t, err)
			k, got, err := readFrame(bytes.NewReader(b))
			require.NoError(t, err)
			require.Equal(t, m.kind, k)
			require.Equal(t, body, append([]byte(nil), got...))
			require.NoError(t, parseBody(k, got))
			for n := range b { // cut anywhere, it is an error
				_, _, err := readFrame(bytes.NewReader(b[:n]))
				require.Error(t, err)
			}
		})
	}
}

// parseBody takes a body apart as the reader of its kind does.
func parseBody(k kind, b []byte) (err error) {
	switch k {
	case kindPropose, kindAnswer:
		_, err = parseOffer(k, b)
	case kindProbed, kindUse:
		_, _, err = parseVerdict(k, b)
	case kindNode:
		_, err = parseNode(b)
	case kindStream, kindPipe:
		_, err = parseStream(k, b)
	case kindLayout:
		_, err = parseLayout(b)
	case kindFault:
		_, err = parseFault(b)
	case kindCall:
		_, err = parseCall(b)
	}
	return err
}

// FuzzControl: no bytes of a peer do more than make an error, and a layout that is
// accepted lies in its regions.
func FuzzControl(f *testing.F) {
	for _, m := range messages {
		f.Add(frame(nil, m.kind, m.body(f)))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		k, body, err := readFrame(bytes.NewReader(b))
		if err != nil {
			return
		}
		if err := parseBody(k, body); err != nil {
			require.ErrorIs(t, err, ErrProtocol)
			return
		}
		if k != kindLayout {
			return
		}
		l, err := parseLayout(body)
		require.NoError(t, err)
		require.Equal(t, body, l.append(nil))
		total := 0
		for _, p := range l.parts {
			for _, i := range []int{0, p.count - 1} {
				at := p.off + i*p.stride
				require.GreaterOrEqual(t, at, 0)
				require.LessOrEqual(t, uint64(at)+uint64(p.block), l.regions[p.region].length)
			}
			total += p.block * p.count
		}
		require.Equal(t, total, l.total)
	})
}

// FuzzHeader: the same of what comes through a queue pair.
func FuzzHeader(f *testing.F) {
	for k := queueEager; k < queueKinds; k++ {
		h := header{kind: k, credits: 3, stream: 5, k: 1 << 40, length: 8, where: where{handle: 9, version: 2}}
		b := make([]byte, headerSize+8)
		h.put(b)
		f.Add(b)
		f.Add(b[:headerSize])
		h.addr = 1 << 40
		h.put(b)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := parseHeader(b)
		if err != nil {
			require.ErrorIs(t, err, ErrProtocol)
			return
		}
		again := make([]byte, headerSize+h.more())
		h.put(again)
		require.Equal(t, b[:len(again)], again)
	})
}

// TestAddress: where a rank can be connected to, as ranks tell each other.
func TestAddress(t *testing.T) {
	a := address{host: 0x0102030405060708, kernel: 0x1112131415161718, port: 0x1234, process: machine.Self(),
		addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("127.0.0.1")}}
	b, err := parseAddress(a.append(nil))
	require.NoError(t, err)
	require.Equal(t, a.host, b.host)
	require.Equal(t, a.kernel, b.kernel)
	require.Equal(t, a.port, b.port)
	require.Equal(t, a.process, b.process)
	require.Equal(t, a.addrs, b.addrs)
	for _, n := range []int{0, 17, 19, 21, 20 + 16*(maxAddresses+1)} {
		_, err := parseAddress(make([]byte, n))
		require.ErrorIs(t, err, ErrProtocol)
	}
}

// TestKernelPopulation: ranks of one kernel share its CPUs, also if they have networks of their own.
func TestKernelPopulation(t *testing.T) {
	on := func(kernel, host uint64, cpus ...byte) address {
		return address{host: host, kernel: kernel, process: machine.Process{CPUs: cpus}}
	}
	all := []address{on(1, 1, 1), on(2, 2, 1), on(1, 3, 2), on(2, 2, 1), on(2, 4, 1)}
	p := population(all, 2)
	require.Equal(t, machine.Population{all[2].process, all[0].process}, p, "it comes first")
	require.NotEqual(t, wait.Crowded, p.Sharing())
	p = population(all, 1)
	require.Len(t, p, 3)
	require.Equal(t, wait.Crowded, p.Sharing())
}
