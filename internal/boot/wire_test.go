package boot

import (
	"bytes"
	"encoding/hex"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// golden has every message with its wire form, field by field.
var golden = []struct {
	m    message
	wire string
}{
	{
		join{rank: 3, size: 16, name: "node7:4711"},
		`kind: 01000000
		round:  00000000
		rank:   00000003
		length: 0000000e
		size:   00000010
		name:   6e6f6465373a34373131`,
	},
	{
		join{rank: 3, size: 16, name: "node7:4711", program: program{name: "solve", build: "0123456789abcdef", same: true}},
		`kind: 01000000
		round:  00000000
		rank:   00000003
		length: 00000027
		size:   00000010
		name:   6e6f6465373a34373131 00
		name:   736f6c7665 00
		build:  30313233343536373839616263646566 00
		same:   31`,
	},
	{
		welcome{rank: 3},
		`kind: 02000000
		round:  00000000
		rank:   00000003
		length: 00000000`,
	},
	{
		refuse{rank: 3, text: "rank 3 is here"},
		`kind: 03000000
		round:  00000000
		rank:   00000003
		length: 0000000e
		text:   72616e6b2033206973 2068657265`,
	},
	{
		part{round: 258, rank: 3, data: []byte{0xde, 0xad, 0xbe}},
		`kind: 04000000
		round:  00000102
		rank:   00000003
		length: 00000003
		data:   deadbe`,
	},
	{
		part{round: 0, rank: 0, data: []byte{}},
		`kind: 04000000
		round:  00000000
		rank:   00000000
		length: 00000000`,
	},
	{
		fail{round: 7, rank: 5, reason: reasonDied, text: "EOF"},
		`kind: 05000000
		round:  00000007
		rank:   00000005
		length: 00000004
		reason: 01
		text:   454f46`,
	},
	{
		leave{rank: 5, reason: reasonLeft},
		`kind: 06000000
		round:  00000000
		rank:   00000005
		length: 00000001
		reason: 02`,
	},
	{
		leave{rank: 5, reason: reasonGaveUp, text: "late"},
		`kind: 06000000
		round:  00000000
		rank:   00000005
		length: 00000005
		reason: 03
		text:   6c617465`,
	},
	{
		fail{rank: noRank, reason: reasonRefused, text: "no"},
		`kind: 05000000
		round:  00000000
		rank:   ffffffff
		length: 00000003
		reason: 04
		text:   6e6f`,
	},
	{
		leave{rank: noRank, reason: reasonGaveUp},
		`kind: 06000000
		round:  00000000
		rank:   ffffffff
		length: 00000001
		reason: 03`,
	},
	{
		report{rank: 5, text: "waiting"},
		`kind: 09000000
		round:  00000000
		rank:   00000005
		length: 00000007
		text:   77616974696e67`,
	},
	{
		abort{rank: 1, code: -2, text: "no"},
		`kind: 07000000
		round:  00000000
		rank:   00000001
		length: 00000006
		code:   fffffffe
		text:   6e6f`,
	},
	{
		where{rank: 5},
		`kind: 08000000
		round:  00000000
		rank:   00000005
		length: 00000000`,
	},
	{
		where{rank: 5, reason: reasonDied, text: "x"},
		`kind: 08000000
		round:  00000000
		rank:   00000005
		length: 00000002
		reason: 01
		text:   78`,
	},
}

func unhex(t testing.TB, fields string) []byte {
	t.Helper()
	var b []byte
	for line := range strings.Lines(fields) {
		_, digits, _ := strings.Cut(line, ":")
		p, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(digits), " ", ""))
		require.NoError(t, err, line)
		b = append(b, p...)
	}
	return b
}

func TestGolden(t *testing.T) {
	for _, c := range golden {
		wire := unhex(t, c.wire)
		require.Equal(t, hex.EncodeToString(wire), hex.EncodeToString(c.m.Append(nil)), "%#v", c.m)
		m, n, err := parseMessage(append(bytes.Clone(wire), "more"...))
		require.NoError(t, err)
		require.Equal(t, len(wire), n)
		require.Equal(t, c.m, m)
		m, err = readMessage(bytes.NewReader(wire), ^kinds(0))
		require.NoError(t, err)
		require.Equal(t, c.m, m)
	}
}

func TestBadMessages(t *testing.T) {
	for name, wire := range map[string]string{
		"short header":       "kind: 02000000 00000000 00000003 000000",
		"kind 0":             "kind: 00000000 00000000 00000003 00000000",
		"kind 10":            "kind: 0a000000 00000000 00000003 00000000",
		"where, reason 5":    "kind: 08000000 00000000 00000003 00000001 05",
		"where, rank -1":     "kind: 08000000 00000000 ffffffff 00000000",
		"join, rank -1":      "kind: 01000000 00000000 ffffffff 00000004 00000004",
		"flags":              "kind: 02010000 00000000 00000003 00000000",
		"rank 2^20":          "kind: 02000000 00000000 00100000 00000000",
		"welcome in a round": "kind: 02000000 00000001 00000003 00000000",
		"welcome with body":  "kind: 02000000 00000000 00000003 00000001 00",
		"short join":         "kind: 01000000 00000000 00000003 00000003 000000",
		"long name":          "kind: 01000000 00000000 00000003 00000085 00000004" + strings.Repeat("61", 0x81),
		"longer names":       "kind: 01000000 00000000 00000003 0000011a" + strings.Repeat("00", 0x11a),
		"one more name":      "kind: 01000000 00000000 00000003 0000000b 00000004 61006100610000",
		"program, no name":   "kind: 01000000 00000000 00000003 00000008 00000004 61000000",
		"long build":         "kind: 01000000 00000000 00000003 00000019 00000004 61006100" + strings.Repeat("61", 17) + "00",
		"not the same":       "kind: 01000000 00000000 00000003 0000000a 00000004 610061000030",
		"job of 2^20+1":      "kind: 01000000 00000000 00000003 00000004 00100001",
		"part of 1 MiB + 1":  "kind: 04000000 00000000 00000003 00100001",
		"truncated part":     "kind: 04000000 00000000 00000003 00000002 00",
		"fail, reason 0":     "kind: 05000000 00000000 00000003 00000001 00",
		"fail, reason 5":     "kind: 05000000 00000000 00000003 00000001 05",
		"leave, refused":     "kind: 06000000 00000000 00000003 00000001 04",
		"leave, reason died": "kind: 06000000 00000000 00000003 00000001 01",
		"short abort":        "kind: 07000000 00000000 00000003 00000003 000000",
	} {
		_, n, err := parseMessage(unhex(t, wire))
		require.ErrorIs(t, err, errProtocol, name)
		require.Zero(t, n, name)
	}
}

func TestReadMessage(t *testing.T) {
	wire := part{round: 1, rank: 2, data: []byte("data")}.Append(nil)
	for n := range wire {
		_, err := readMessage(bytes.NewReader(wire[:n]), ^kinds(0))
		if n == 0 {
			require.Equal(t, io.EOF, err)
		} else {
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		}
	}
	r := bytes.NewReader(wire)
	_, err := readMessage(r, setOf(kindJoin))
	require.ErrorIs(t, err, errProtocol)
	require.Equal(t, len("data"), r.Len(), "the body of what was not expected is not read")
}

func TestShorten(t *testing.T) {
	require.Equal(t, "abc", shorten("abc", 3))
	require.Equal(t, "ab", shorten("abc", 2))
	require.Equal(t, "ü", shorten("üü", 3))
}

// What parses is what Append makes, byte for byte.
func FuzzParseMessage(f *testing.F) {
	for _, c := range golden {
		f.Add(c.m.Append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, n, err := parseMessage(b)
		if err != nil {
			require.ErrorIs(t, err, errProtocol)
			require.Zero(t, n)
			return
		}
		require.True(t, bytes.Equal(b[:n], m.Append(nil)))
	})
}

// A conversation of any bytes ends without a panic, and every message in it
// is one that was expected.
func FuzzReadMessage(f *testing.F) {
	var all []byte
	for _, c := range golden {
		all = c.m.Append(all)
	}
	f.Add(all, uint16(fromServer))
	f.Add(all, uint16(fromRank))
	f.Fuzz(func(t *testing.T, b []byte, want uint16) {
		r := bytes.NewReader(b)
		for {
			m, err := readMessage(r, kinds(want))
			if err != nil {
				return
			}
			require.True(t, kinds(want).has(kind(m.Append(nil)[0])))
		}
	})
}
